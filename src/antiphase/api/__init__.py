"""The commands as Python functions, and their results as objects."""
