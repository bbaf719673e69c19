"""The tables and figures of both papers, one file each."""
