"""The command line: the module of a command is imported when the command is asked for."""

import contextlib
import signal
import sys
from typing import Any

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an interrupt is one line, even while modules are imported."""
    interrupts: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    try:
        with contextlib.suppress(ValueError):  # not the main thread
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as behind nohup
                signal.signal(signal.SIGINT, interrupt)
        from antiphase.cli.app import app, mistakes_in_one_line

        with mistakes_in_one_line():
            code = app(prog_name="antiphase", standalone_mode=False)
            if code == _INTERRUPTED:  # typer's answer to an interrupt
                raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except (Exception, KeyboardInterrupt) as error:
        # libraries turn interrupts into their errors
        if not interrupts and not isinstance(error, KeyboardInterrupt):
            raise
        print("antiphase: interrupted; resume with the same command", file=sys.stderr)
        sys.exit(_INTERRUPTED)
