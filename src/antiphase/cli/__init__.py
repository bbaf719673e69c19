"""The command line: the module of a command is imported when the command is asked for."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; an interrupt is one line, even while modules are imported."""
    try:
        from antiphase.cli.app import run

        run()
    except KeyboardInterrupt:
        print("antiphase: interrupted; resume with the same command", file=sys.stderr)
        sys.exit(130)
