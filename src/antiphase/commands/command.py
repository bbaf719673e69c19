"""A command: its options, what it does, and the result that is read back from its directory."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.commands.options import Options
from antiphase.commands.run_folder import run_folder
from antiphase.processes import this_process
from antiphase.registry import imported
from antiphase.terminal import console, say

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
        return imported(self.result)

    @property
    def has_report(self) -> bool:
        return bool(self.result) and self.in_folder

    @contextlib.contextmanager
    def work(self, options: Any) -> Iterator[Callable[..., Any]]:
        """Yield the function that does the work, in the directory of a run, if there is one."""
        with run_folder(options.out, self.name, options) if self.has_report else contextlib.nullcontext():
            yield imported(self.run)

    def told(
        self, answer: Answer, options: Any, began: float, form: str | None = None
    ) -> tuple[Answer, dict[str, str]]:
        """Print what the result says and return its summary, and its tables in a form."""
        from antiphase.report.table import table_text

        if not self.has_report:
            tables = getattr(answer, "tables", ())
            return answer, {} if form is None else {each.name: table_text(each, form) for each in tables}
        if not this_process().first:
            return None, {}
        from antiphase.commands.result import read_result

        result = read_result(options.out, self.name)
        report = result.write_report(options.out)
        for part in result.console() if form is None else ():
            console().print(part)
        for warning in result.warnings:
            say(f"warning: {warning}")
        say(f"{report.stem if report.suffix else 'run'}: {report}   ({time.monotonic() - began:.0f} s)")
        content = result.summary | {"out": str(options.out), "report": str(report)}
        tables = {} if form is None else {name: result.table(name, form) for name in result.table_names}
        if not (unmet := result.unmet()):
            return content, tables
        say(f"antiphase: {'; '.join(unmet)}", err=True)
        return Refusal(content | {"unmet": unmet}), tables

    def measure(self, options: Any, typed: str, *, stored: bool) -> "Result":
        """Do the work in the directory of a run and return the result; its page is written if the directory stays."""
        from antiphase.commands.result import read_result

        with run_folder(Path(options.out), self.name, options):
            imported(self.run)(options, typed)
            process = this_process()
            process.wait()
            result = read_result(Path(options.out), self.name, stored=stored)
            if stored and process.first:
                result.write_report(Path(options.out))
            return result
