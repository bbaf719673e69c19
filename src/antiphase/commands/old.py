"""Commands that have no folder of their own yet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from antiphase.commands.result import Result
from antiphase.errors import UserError
from antiphase.registry import Table, find

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

KINDS: Table = {"look": "antiphase.api.looked:KIND"}


@dataclass(frozen=True)
class Kind:
    """How the results of one command are read, shown and compared."""

    frame: str
    needs: tuple[str, ...]
    line: Callable[["Result"], str]
    sheets: Callable[[Path], list[Any]]
    figure: "Callable[[Path], Figure]"
    differences: "Callable[[Result, Result], pl.DataFrame]"
    report: Callable[[Path], object]
    of: str = ""
    instead: "Callable[[Mapping[str, Any]], Kind | None]" = lambda summary: None


class KindResult(Result):
    """A result that a ``Kind`` describes."""

    spec: ClassVar[Kind]
    keys = ()

    def line(self) -> str:
        return self.spec.line(self)

    def all_tables(self) -> list[Any]:
        with self.unpacked() as folder:
            return self.spec.sheets(folder)

    def figure(self) -> "Figure":
        with self.unpacked() as folder:
            return self.spec.figure(folder)

    def differences(self, other: Any) -> "pl.DataFrame":
        return self.spec.differences(self, other)

    def write_report(self, folder: Path) -> Path:
        self.spec.report(folder)
        return folder / "report.html"

    @property
    def record(self) -> dict[str, Any]:
        return self.read_json("run.json")

    @classmethod
    def of_files(cls, files: Mapping[str, bytes]) -> type[Result]:
        from antiphase.reading import as_json

        other = cls.spec.instead(as_json(files.get("summary.json", b"{}"), "summary.json"))
        return result_type(other) if other else cls


_TYPES: dict[int, type[Result]] = {}


def result_type(kind: Kind) -> type[Result]:
    """Return the class of a kind's results."""
    names = {"spec": kind, "main_table": kind.frame, "needs": kind.needs, "measures": kind.of}
    return _TYPES.setdefault(id(kind), type("KindResult", (KindResult,), names))


class OldCommand:
    """What ``Command`` offers of a command without a folder."""

    def __init__(self, name: str) -> None:
        self.name, self.result = name, name in KINDS

    def result_type(self) -> type[Result]:
        return result_type(find(KINDS, self.name, "kind of result"))


@cache
def old_command(name: str) -> Any:
    """Return a command without a folder of its own."""
    return OldCommand(name)


def nothing_paired(what: str) -> Any:
    """Return the ``differences`` of a kind that has none."""

    def refuse(one: Result, two: Result) -> "pl.DataFrame":
        raise UserError(f"compare: {what}")

    return refuse


def read_json(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Read a file of a run directory."""
    from antiphase import reading

    content = reading.read_json(path, fix="expected the folder of a finished run")
    if missing := [key for key in keys if key not in content]:
        raise UserError(f"{path} has no {missing[0]!r}: expected the file of a finished run; run it again")
    return content
