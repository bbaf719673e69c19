"""The command line: the module of a command is imported when the command is asked for."""

import contextlib
import signal
import sys
from typing import Any

__all__ = ["main"]


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
        from antiphase.cli.app import run

        run()
    except (Exception, KeyboardInterrupt) as error:
        if not interrupts and not isinstance(
            error, KeyboardInterrupt
        ):  # libraries turn interrupts into their errors
            raise
        print("antiphase: interrupted; resume with the same command", file=sys.stderr)
        sys.exit(130)
