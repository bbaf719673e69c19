"""The command line: the module of a command is imported when the command is asked for."""

from antiphase.cli.app import app, main

__all__ = ["app", "main"]
