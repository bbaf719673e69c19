"""The result of a command: the files of its run, held in memory."""

import base64
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from matplotlib.figure import Figure

from antiphase.arguments import validated
from antiphase.commands.run_folder import held_by, run_folder
from antiphase.errors import UserError, shown
from antiphase.files import replacing
from antiphase.reading import as_json, as_json_lines, as_rows
from antiphase.registry import Table, find
from antiphase.report.style.figures import as_svg
from antiphase.report.style.sheets import Field, Sheet

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from antiphase.report.style.sheets import Sheet


WEIGHTS = "model.safetensors"


def _as_lines(content: bytes, name: str) -> "pl.DataFrame":
    import polars as pl  # takes time to import

    return pl.DataFrame(as_json_lines(content, name))


_READERS = {".parquet": as_rows, ".jsonl": _as_lines}
_HELD = ("*.json", "*.jsonl", "*.parquet", "*.npz", "*.safetensors")
_NOT_HELD = ("state.safetensors", "log.jsonl")  # only to resume


@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """What a command found.

    Attributes:
        kind: name of the command.
        files: content of each file of the run: rows, summary, record. What only serves to resume is not among them.
        directory: where the run is stored; None if it is held in memory only.
    """

    kind: str
    files: Mapping[str, bytes]
    directory: Path | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of the report, as in ``summary.json``."""
        return self._json("summary.json")

    @property
    def record(self) -> dict[str, Any]:
        """Settings, versions, hardware and warnings, as in ``run.json``."""
        return self._json("run.json")

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the numbers."""
        return list(self.record.get("warnings", [])) if "run.json" in self.files else []

    @property
    def tables(self) -> list[str]:
        """The names of the tables that :meth:`frame` returns."""
        return [Path(name).stem for name in self.files if Path(name).suffix in _READERS]

    def frame(self, table: str | None = None) -> "pl.DataFrame":
        """Return the stored rows, one per image, layer, epoch and so on; ``.to_pandas()`` needs pandas and pyarrow.

        Args:
            table: one of ``tables``; the main one if not given.

        Raises:
            UserError: there is no such table.
        """
        names = self.tables
        name = table or (self._kind.frame if self._kind.frame in names else names[0])
        if name not in names:
            raise UserError(f"table {shown(name)}: expected one of {', '.join(names)}")
        for suffix, reader in _READERS.items():
            if name + suffix in self.files:
                return reader(self.files[name + suffix], name + suffix)
        raise AssertionError(name)

    def plot(self) -> "Figure":
        """Draw the figure of the report."""
        with self.unpacked() as folder:
            return _showable(self._kind.figure(folder))

    def compare(self, other: "Result") -> "pl.DataFrame":
        """Return how the models of this result differ from those of another, paired in their order.

        The differences are paired: this result minus the other on the same images, with 95 % intervals.

        Args:
            other: of the same kind, on the same images, with as many models.

        Raises:
            UserError: the two do not fit each other, or hold nothing that can be paired.
        """
        if not isinstance(other, Result):
            raise UserError(
                f"compare: got a {type(other).__name__}; expected a result of antiphase.{self.kind}"
            )
        if self._kind is not other._kind:
            mine, theirs = (" of ".join(filter(None, (each.kind, each._kind.of))) for each in (self, other))
            raise UserError(f"compare: a result of {mine} and one of {theirs}; expected the same kind")
        return self._kind.differences(self, other)

    def save(self, directory: str | Path) -> Path:
        """Write the run with its report into a directory, as the command does, and return its path.

        Raises:
            UserError: the directory cannot be written or holds the run of another command.
        """
        out = Path(directory)
        with run_folder(out, self.kind):
            self._write(out)
            weights = None if self.directory is None else self.directory / WEIGHTS
            if weights is not None and weights.exists() and weights != out.resolve() / WEIGHTS:
                with replacing(out / WEIGHTS) as temporary:
                    shutil.copyfile(weights, temporary)
            self._kind.report(out)
        return out

    def __repr__(self) -> str:
        return f"<antiphase {self.kind}: {self._kind.line(self)}>"

    def _repr_html_(self) -> str:
        from antiphase.commands.result import page_part

        with self.unpacked() as folder:
            return page_part(
                repr(self)[1:-1], self.warnings, self._kind.figure(folder), self._kind.sheets(folder)
            )

    @property
    def _kind(self) -> "Kind":
        return _kind_of(self.kind, self.files)

    def _json(self, name: str) -> dict[str, Any]:
        if name not in self.files:
            raise UserError(
                f"a result of antiphase {self.kind} has no {name}; it has {', '.join(self.files)}"
            )
        return as_json(self.files[name], name)

    def _write(self, folder: Path) -> None:
        for name, content in self.files.items():
            with replacing(folder / name) as temporary:
                temporary.write_bytes(content)

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield a temporary directory with the files, for what reads directories."""
        with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
            for file, content in self.files.items():
                if file != WEIGHTS:
                    (Path(name) / file).write_bytes(content)
            yield Path(name)


def read_result(directory: Path, kind: str, *, stored: bool = True) -> Result:
    """Read the files of a run directory.

    Args:
        directory: of the run.
        kind: name of the command.
        stored: whether the directory stays, so that a model's weights need not be held in memory.

    Raises:
        UserError: a file is missing: the run is not finished.
    """
    files = {
        path.name: path.read_bytes()
        for pattern in _HELD
        for path in sorted(directory.glob(pattern))
        if path.name not in _NOT_HELD and not (stored and path.name == WEIGHTS)
    }
    if missing := [name for name in _kind_of(kind, files).needs if name not in files]:
        raise UserError(
            f"{directory}: has no {missing[0]}; the run is not finished: repeat its command to resume"
        )
    return Result(kind, files, directory.resolve() if stored else None)


def _kind_of(command: str, files: Mapping[str, bytes]) -> "Kind":
    kind: Kind = find(KINDS, command, "kind of result")
    return kind.instead(as_json(files.get("summary.json", b"{}"), "summary.json")) or kind


@validated
def open_result(directory: str | Path) -> Result:
    """Read the directory of a run: of any command, or of :meth:`Result.save`.

    A store of studies, or rows that ``antiphase study pack`` made, give the finished studies under the profile that has
    the most finished cells; where no study is finished, those that were begun.

    Raises:
        UserError: the directory is missing, holds no run, or the run is not finished.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise UserError(f"{shown(str(directory))}: no such directory; expected one that a command wrote to")
    kind = held_by(folder)
    if kind == "study run" or (folder / "cells.parquet").exists():
        from antiphase.api.studied import open_studies

        return open_studies(folder)
    if kind not in KINDS:
        raise UserError(
            f"{folder}: holds no run that is known; expected a directory written by antiphase {', '.join(KINDS)}"
        )
    return read_result(folder, kind)


def _showable(figure: "Figure") -> "Figure":
    """Let a notebook show a figure, which it does by itself only for those of pyplot."""
    from antiphase.report.style.figures import as_png

    figure._repr_png_ = lambda: as_png(figure)  # pyright: ignore[reportAttributeAccessIssue]
    return figure


KINDS: Table = {
    "audit": "antiphase.api.attacked:KIND",
    "attack": "antiphase.api.attacked:KIND",
    "quickstart": "antiphase.api.attacked:KIND",
    "sense": "antiphase.api.sensed:KIND",
    "certify": "antiphase.api.certified:KIND",
    "evaluate": "antiphase.api.evaluated:KIND",
    "look": "antiphase.api.looked:KIND",
    "train": "antiphase.api.trained:KIND",
    "train-clip": "antiphase.api.trained:KIND",
    "train-vlm": "antiphase.api.trained:KIND",
    "study run": "antiphase.api.studied:KIND",
}
"""The ``Kind`` of each command's results, by the name in the marker of its directory."""


@dataclass(frozen=True)
class Kind:
    """How the results of one command are read, shown and compared.

    Attributes:
        frame: name of the main table, a file of the run without its suffix.
        needs: files without which a directory holds no finished run.
        line: the result in a few words.
        sheets: tables of a directory with the files of the run.
        figure: the picture, from the same.
        differences: how a result differs from another of the same kind, with intervals.
        report: writes what the command draws into the directory.
        of: what is measured, where the command's name does not say it.
        instead: the kind of a run with this ``summary.json``, where a command makes runs of two kinds; None: this one.
    """

    frame: str
    needs: tuple[str, ...]
    line: Callable[["Result"], str]
    sheets: Callable[[Path], "list[Sheet]"]
    figure: Callable[[Path], "Figure"]
    differences: Callable[["Result", "Result"], "pl.DataFrame"]
    report: Callable[[Path], object]
    of: str = ""
    instead: "Callable[[Mapping[str, Any]], Kind | None]" = lambda summary: None


def listed(models: "list[Mapping[str, Any]]") -> str:
    """Name the models of a summary.

    >>> listed([{"name": name} for name in "abcd"])
    'a, b and 2 more'
    """
    names = [model["name"] for model in models]
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return ", ".join(names[:2] if more else names) + more


def paired_models(one: Result, two: Result) -> list[tuple[str, str]]:
    """Return the models of two results as pairs, in their order.

    Raises:
        UserError: they differ in number, or were measured on different images.
    """
    mine, theirs = ([model["name"] for model in each.summary["models"]] for each in (one, two))
    if len(mine) != len(theirs):
        raise UserError(f"compare: {len(mine)} models and {len(theirs)}; expected as many in both results")
    data = [each.record["data_fingerprint"] for each in (one, two)]
    if data[0] != data[1]:
        names = [each.record["data"] for each in (one, two)]
        raise UserError(
            f"compare: different images, {names[0]} and {names[1]}; expected the same data, split and limit"
        )
    return list(zip(mine, theirs, strict=True))


def combined(
    one: Result, two: Result, pairs: Sequence[tuple[str, str]], table: str | None = None
) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """Return the rows of both under names that differ, and the pairs under these names."""
    taken = {name for name, _ in pairs}
    renamed = {name: f"{name} (other)" if name in taken else name for _, name in pairs}
    theirs = two.frame(table).with_columns(pl.col("model").replace(renamed))
    return pl.concat([one.frame(table), theirs]), [(name, renamed[other]) for name, other in pairs]


def nothing_paired(what: str) -> Any:
    """Return the ``differences`` of a kind that has none."""

    def refuse(one: Result, two: Result) -> pl.DataFrame:
        raise UserError(f"compare: {what}")

    return refuse


_MOST_ROWS = 24


def page_part(line: str, warnings: Sequence[str], figure: Figure, sheets: Sequence[Sheet]) -> str:
    """Return HTML that stands alone: no script, no style sheet, nothing from the network.

    Args:
        line: the result in a few words.
        warnings: reasons to doubt it.
        figure: its picture, included as SVG.
        sheets: its tables; of a long one the first 24 rows.
    """
    picture = base64.b64encode(as_svg(figure).encode()).decode()
    parts = [f"<p><b>{escape(line)}</b></p>"]
    parts += [f"<p>Warning: {escape(warning)}</p>" for warning in warnings]
    parts += [
        f'<img style="max-width:100%;background:white" alt="{escape(line)}" src="data:image/svg+xml;base64,{picture}">'
    ]
    return "\n".join([*parts, *map(_table, sheets)])


def _table(sheet: Sheet) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in sheet.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in sheet.rows[:_MOST_ROWS])
    left = len(sheet.rows) - _MOST_ROWS
    more = f"<p>{left} more rows: see frame()</p>" if left > 0 else ""
    return (
        f'<div style="overflow-x:auto"><table><caption style="text-align:left">{escape(sheet.title)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}</div>"
    )


def _cell(field: Field) -> str:
    notes = "".join(f"<br><small>{escape(note)}</small>" for note in field.notes)
    return f"<td>{escape(field.text)}{notes}</td>"
