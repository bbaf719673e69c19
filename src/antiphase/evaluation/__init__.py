"""Rates and intervals from stored rows: nothing here runs a model."""
