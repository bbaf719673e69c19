"""What all pages share: words, colours, figures, templates, tables."""
