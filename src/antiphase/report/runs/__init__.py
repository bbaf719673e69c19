"""The pages, tables and figures of one run directory."""
