"""The site, pages, tables and figures of studies."""
