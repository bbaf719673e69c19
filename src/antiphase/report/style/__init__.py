"""Shared by all pages: wording, colours, figures, templates and tables."""
