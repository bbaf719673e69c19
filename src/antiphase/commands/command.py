"""A command: its options, what it does, and the result that is read back from its directory."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase import registry, terminal
from antiphase.commands.options import Options
from antiphase.commands.run_folder import run_folder
from antiphase.processes import this_process

if TYPE_CHECKING:
    from antiphase.commands.result import Result

Answer = dict[str, Any] | list[Any] | None
"""What ``--json`` prints; None in those processes of a run that print nothing."""


class Refusal(dict[str, Any]):
    """An answer after which the command ends with exit code 1: it did its work, and the answer is no."""


class Tabled(dict[str, Any]):
    """An answer of a command without a result, with the ``tables`` that ``--tables`` prints."""

    def __init__(self, answer: dict[str, Any], tables: list[Any]) -> None:
        super().__init__(answer)
        self.tables = tables


@dataclass(frozen=True)
class Command:
    """One command: command line, Python function, record, rerun and reference are made from it.

    ``run`` is ``"module:function"``, or the function itself, of (options, the command as typed): it does the work and
    writes ``options.out``. Without a ``result``, ``"module:class"``, it returns the ``Answer`` and prints as it likes.
    ``in_folder`` says whether ``options.out`` is the directory of a run, ``tabled`` whether the answer is ``Tabled``.
    """

    name: str
    options: type[Options]
    run: str | Callable[..., Any]
    result: str = ""
    in_folder: bool = True
    tabled: bool = False

    def result_type(self) -> "type[Result]":
        return registry.imported(self.result)

    @property
    def has_report(self) -> bool:
        return bool(self.result) and self.in_folder

    def place(self, options: Any) -> contextlib.AbstractContextManager[Any]:
        """Return the context of the work: that of a run's directory, if it has one."""
        return run_folder(Path(options.out), self.name, options) if self.has_report else contextlib.nullcontext()

    def measure(self, options: Any, typed: str, *, stored: bool = True) -> "Result":
        """Do the work in the directory of a run and return the result."""
        with self.place(options):
            registry.imported(self.run)(options, typed)
            return self._finished(options, stored)[0]

    def _finished(self, options: Any, stored: bool) -> "tuple[Result, Path]":
        """Return the result of a run, and its page, written if the directory stays."""
        from antiphase.commands.result import read_result

        process, out = this_process(), Path(options.out)
        process.wait()
        result = read_result(out, self.name, stored=stored)
        return result, result.write_report(out) if stored and process.first else out

    def told(self, options: Any, done: Any, began: float, tables: str | None = None) -> tuple[Answer, dict[str, str]]:
        """Print what the result of a run says, and return its summary, and its tables in a form.

        Of a command without a result ``done`` is the answer. ``began`` is when the work began.
        """
        from antiphase.report.table import table_text

        if not self.has_report:
            return done, {} if tables is None else {one.name: table_text(one, tables) for one in done.tables}
        result, report = self._finished(options, stored=True)
        if not this_process().first:
            return None, {}
        for part in result.console() if tables is None else ():
            terminal.console().print(part)
        for warning in result.warnings:
            terminal.say(f"warning: {warning}")
        terminal.say(f"{report.stem if report.suffix else 'run'}: {report}   ({time.monotonic() - began:.0f} s)")
        summary = result.summary | {"warnings": [*result.warnings], "out": str(options.out), "report": str(report)}
        texts = {} if tables is None else {name: result.table(name, tables) for name in result.table_names}
        if not (unmet := result.unmet()):
            return summary, texts
        terminal.say(f"antiphase: {'; '.join(unmet)}", err=True)
        return Refusal(summary | {"unmet": unmet}), texts
