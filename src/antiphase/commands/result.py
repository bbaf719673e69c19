"""The result of a command: the files of its run, held in memory, and what is drawn and compared from them."""

import base64
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from matplotlib.figure import Figure
from rich.text import Text

from antiphase import arguments, store, terminal
from antiphase.commands import COMMANDS, find_command
from antiphase.commands.run_folder import held_by, run_folder
from antiphase.errors import UserError, shown
from antiphase.files import as_json, as_json_lines, as_rows, read_json, replacing, write_bytes
from antiphase.report.figure import Family, colors_of, families, saved
from antiphase.report.page import Headline, Section, environment, write_page
from antiphase.report.table import OnConsole, Table, table_text
from antiphase.report.words import estimate_of
from antiphase.statistics.decisions import decide

WEIGHTS = "model.safetensors"
_HELD = ("*.json", "*.jsonl", "*.parquet", "*.npz", "*.safetensors")
_NOT_HELD = ("state.safetensors", "log.jsonl")  # only to resume
_MOST_ROWS = 24  # of a table in a notebook
_RECORDED = ["command", "settings", "data", "data_fingerprint", "n", "seconds", "hardware", "versions", "warnings"]
_KINDS: dict[str, Any] = {"options": dict, "fingerprints": dict, "settings": dict, "versions": dict, "warnings": list}


@dataclass(frozen=True, repr=False, eq=False)
class Result(ABC):
    """What a command measured: the ``files`` of its run by name, and where it is stored, if it is."""

    kind: str
    files: Mapping[str, bytes]
    directory: Path | None = None

    main_table: ClassVar[str] = "rows"
    needs: ClassVar[tuple[str, ...]] = ("rows.parquet", "summary.json", "run.json")  # a finished run has them
    keys: ClassVar[tuple[str, ...]] = ("models",)  # of summary.json

    def unmet(self) -> list[str]:
        """Return what the run was asked to reach and did not, such as ``fail_under`` of an audit."""
        return []

    @property
    def reading(self) -> str:
        """Markup on how to read the page."""
        return ""

    @abstractmethod
    def headlines(self) -> list[Headline]:
        """Return what the run shows; the first is the title of its page."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """Return the sections of the page: figures and tables."""

    def differences(self, other: Any) -> pl.DataFrame:
        """Return how the models differ from those of another result of the same class; see :meth:`compare`."""
        raise UserError(f"compare: got a run of antiphase {self.kind}; expected two runs that measured models")

    @cached_property
    def families(self) -> list[Family]:
        """The models by what they differ in besides their training seed, each family with its colour."""
        return families(self.summary["models"])

    @cached_property
    def colors(self) -> dict[str, str]:
        return colors_of(self.families)

    @cached_property
    def drawn(self) -> list[Section]:
        """The sections, drawn once for the page and the console."""
        return self.sections()

    def console(self) -> list[Any]:
        """Return what the command prints of its result."""
        titles = [Text(f"{headline.line}.\n", "bold") for headline in self.headlines()]
        return [*titles, *(OnConsole(table) for section in self.drawn for table in section.tables)]

    def write_report(self, folder: Path) -> Path:
        """Write the page into the directory of the run, and return its path."""
        path = folder / "report.html"
        write_page(path, self.record, self.headlines(), self.drawn, self.reading)
        return path

    @classmethod
    def open(cls, folder: Path, command: str) -> "Result":
        return read_result(folder, command)

    @classmethod
    def of_files(cls, files: Mapping[str, bytes]) -> "type[Result]":
        """Return the class for these files, where a command makes runs of several kinds."""
        return cls

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The numbers of the report, as in ``summary.json``."""
        return self.read_json("summary.json", self.keys)

    @property
    def record(self) -> dict[str, Any]:
        """Settings, versions, hardware and warnings, as in ``run.json``."""
        return self.read_json("run.json", _RECORDED if "summary.json" in self.needs else ())

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the numbers."""
        return list(self.record.get("warnings", [])) if "run.json" in self.files else []

    @property
    def tables(self) -> list[str]:
        """The names of the tables that :meth:`frame` returns."""
        return [Path(name).stem for name in self.files if Path(name).suffix in (".parquet", ".jsonl")]

    def frame(self, table: str | None = None) -> pl.DataFrame:
        """Return the stored rows, one per image, layer, epoch and so on, of one of ``tables``, or the main one."""
        names = self.tables
        stem = table or (self.main_table if self.main_table in names else names[0])
        if stem not in names:
            raise UserError(f"table {shown(stem)}: expected one of {', '.join(names)}")
        if (rows := self.files.get(file := f"{stem}.parquet")) is not None:
            known = self.read_json("run.json").get("sha256") if "run.json" in self.files else None
            digest = known.get(file) if isinstance(known, dict) else None
            return as_rows(rows, self.path_of(file), "repeat the run's command", str(digest or ""))
        return pl.DataFrame(as_json_lines(self.files[f"{stem}.jsonl"], self.path_of(f"{stem}.jsonl")))

    def plot(self) -> Figure:
        """Draw the first figure of the report."""
        figure = self.figure()
        # a notebook shows a figure by itself only if pyplot made it
        figure._repr_png_ = lambda: saved(figure, "png")  # pyright: ignore[reportAttributeAccessIssue]
        return figure

    def figure(self) -> Figure:
        """Return the first figure of the report."""
        return next(plot.figure for section in self.sections() for plot in section.plots)

    def compare(self, other: "Result") -> pl.DataFrame:
        """Return how the models of this result differ from those of another of the same kind: this minus the other.

        Models of the same name are paired, and the others in their order. Differences are on the images, attacks and ε
        that both have, with 95 % intervals. ``decided`` is 1 or −1 where the difference is above or below 0, corrected
        by Holm for those that are read together: of one quantity at all ε, radii or layers. A UserError refuses
        results that share nothing.
        """
        if type(self) is not type(other):
            kinds = f"{type(self).__name__} and {type(other).__name__}"
            raise UserError(f"compare: got {kinds}; expected two results of the same kind")
        names = {"twin": "against", "value": "difference", "p": "p_value"}
        frame = self.differences(other).rename(names, strict=False).with_row_index("place")
        blocks = []
        for _, block in frame.group_by(compared_together(frame), maintain_order=True):
            rows = block.rows(named=True)
            signs = decide([estimate_of(row, "difference") for row in rows], [row.get("p_value") for row in rows])
            blocks.append(block.with_columns(decided=pl.Series(signs, dtype=pl.Int64)))
        return pl.concat(blocks).sort("place").drop("place")

    def save(self, directory: str | Path) -> Path:
        """Write the run with its report into a directory, as the command does, and return its path."""
        out = Path(directory)
        with run_folder(out, self.kind):
            with suppress(UserError):  # there is no earlier run
                tables = read_json(out / "run.json").get("sha256", ())
                for name in {*tables, "gallery.safetensors", "questions.json"} - self.files.keys():
                    (out / Path(name).name).unlink(missing_ok=True)
            for name, content in self.files.items():
                write_bytes(out / name, content)
            weights = None if self.directory is None else self.directory / WEIGHTS
            if weights is not None and weights.exists() and weights != out.resolve() / WEIGHTS:
                with replacing(out / WEIGHTS) as temporary:
                    shutil.copyfile(weights, temporary)
            self.write_report(out)
        return out

    def __fspath__(self) -> str:
        if self.directory is None:
            raise UserError(f"a result of {self.kind} that is not on disk: give it out=, or save it")
        return str(self.directory)

    def line(self) -> str:
        return self.headlines()[0].line

    def __repr__(self) -> str:
        return f"<antiphase {self.kind}: {self.line()}>"

    def _repr_html_(self) -> str:
        picture = base64.b64encode(saved(self.figure(), "svg")).decode()
        values = {"warnings": self.warnings, "tables": self.all_tables(), "most": _MOST_ROWS}
        return environment().get_template("notebook.html").render(values, line=repr(self)[1:-1], picture=picture)

    def all_tables(self) -> list[Table]:
        """Return the tables of the page, or the main ones of them."""
        return list(self._on_page.values())

    @cached_property
    def _on_page(self) -> dict[str, Table]:
        parts = [part for section in self.drawn for part in (section, *section.panels)]
        return {table.name: table for part in parts for table in part.tables}

    @property
    def table_names(self) -> list[str]:
        """The names of the tables of the page, for :meth:`table`."""
        return list(self._on_page)

    def table(self, name: str | None = None, form: str = "markdown") -> str:
        """Return one of ``table_names``, or all, as ``"latex"`` (for booktabs), ``"markdown"`` or ``"csv"``."""
        if name is None:
            return "\n\n".join(self.table(table_name, form) for table_name in self.table_names)
        if name not in self._on_page:
            raise UserError(f"table {shown(name)}: expected one of {', '.join(self.table_names)}")
        return table_text(self._on_page[name], form)

    def read_json(self, name: str, keys: Sequence[str] = ()) -> dict[str, Any]:
        """Return the content of a JSON file of the run, which has to have some keys."""
        if name not in self.files:
            raise UserError(f"a result of antiphase {self.kind} has no {name}; it has {', '.join(self.files)}")
        content = as_json(self.files[name], self.path_of(name))
        if lacking := [key for key in keys if key not in content]:
            why = "expected the file of a finished run; run it again"
            raise UserError(f"{self.path_of(name)}: has no {lacking[0]!r}: {why}")
        models = content.get("models", []) if name == "summary.json" else []
        named = isinstance(models, list) and all(isinstance(one, dict) and "name" in one for one in models)
        wrong = [key for key, kind in _KINDS.items() if key in content and not isinstance(content[key], kind)]
        for key in [*wrong, *["models"] * (not named)]:
            raise UserError(f"{self.path_of(name)}: {key} {shown(content[key])}: expected what a run writes; repeat it")
        return content

    def path_of(self, name: str) -> Path:
        """Return where a file of the run lies, or its name if the run is not on disk."""
        return (self.directory or Path()) / name

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
            for file, content in self.files.items():
                if file != WEIGHTS:
                    (Path(name) / file).write_bytes(content)
            yield Path(name)


def read_result(directory: Path, command: str, *, stored: bool = True) -> Result:
    """Read the files of a run directory; weights are held in memory unless it stays (``stored``)."""
    paths = (path for pattern in _HELD for path in sorted(directory.glob(pattern)) if path.name not in _NOT_HELD)
    files = {path.name: path.read_bytes() for path in paths if not (stored and path.name == WEIGHTS)}
    kind = find_command(command).result_type().of_files(files)
    if absent := [name for name in kind.needs if name not in files]:
        raise UserError(f"{directory}: has no {absent[0]}; the run is not finished: repeat its command to resume")
    return kind(command, files, directory.resolve() if stored else None)


@arguments.validated
def open_result(directory: str | Path) -> Result:
    """Read the directory of a run: of any command, or of :meth:`Result.save`.

    A store of studies, or rows that ``antiphase study pack`` made, give the finished studies under the profile that has
    the most finished cells; where no study is finished, those that were begun.
    """
    if not (folder := Path(directory)).is_dir():
        raise UserError(f"{shown(str(directory))}: no such directory; expected one that a command wrote to")
    command = "study run" if (folder / "cells.parquet").exists() else held_by(folder)  # such rows have no marker
    known = [name for name in COMMANDS if name != "study" and find_command(name).result]
    if command not in (*known, "study run"):
        expected = f"expected a directory written by antiphase {', '.join(known)}"
        raise UserError(f"{folder}: holds no run that is known; {expected}")
    return find_command(command).result_type().open(folder, command)


def in_files(contents: Mapping[str, Any], **frames: pl.DataFrame) -> dict[str, bytes]:
    """Return JSON and tables as the files of a run, by their names without an ending."""
    texts = {name: json.dumps(value, indent=2, ensure_ascii=False) for name, value in contents.items()}
    files = {f"{name}.json": f"{text}\n".encode() for name, text in texts.items()}
    return files | {f"{name}.parquet": store.as_parquet(frame) for name, frame in frames.items()}


def listed(models: Sequence[Mapping[str, Any]]) -> str:
    """Name the models of a summary, such as ``a, b and 2 more``."""
    names = [model["name"] for model in models]
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return ", ".join(names[:2] if more else names) + more


_ALONG = ("eps", "radius", "layer")  # columns whose values are read together
_NUMBERS = ("difference", "low", "high", "p_value", "n", "seeds", "headline", "decided", "place")
_CELL = ("attack", "norm", "eps", "site", "layer", "sample")  # of rows, those that they have


def along(frame: pl.DataFrame) -> str | None:
    """Return the column of differences whose values are read together; None if all of two models are."""
    return next((name for name in _ALONG if name in frame.columns), None)


def compared_together(frame: pl.DataFrame) -> list[str]:
    """Return the columns of differences by which those that are read together are told from others."""
    if along(frame) is None:
        return ["model", "against"]
    return [name for name in frame.columns if name not in (*_NUMBERS, along(frame))]


def without_intervals(frame: pl.DataFrame, model: str, against: str) -> pl.DataFrame:
    """Return differences of single numbers, ``metric`` and ``difference``, as those of two models."""
    none = pl.lit(None, pl.Float64)
    return frame.with_columns(model=pl.lit(model), against=pl.lit(against), low=none, high=none, n=pl.lit(1))


def paired_models(one: Result, two: Result) -> list[tuple[str, str]]:
    """Return the models of both, paired by name, then in their order; without those that have no partner."""
    names, others = ([model["name"] for model in result.summary["models"]] for result in (one, two))
    left, right = [name for name in names if name not in others], [name for name in others if name not in names]
    partners = {name: name for name in names if name in others}
    if len(left) == len(right):
        partners |= dict(zip(left, right, strict=True))
    if not partners:
        counts = f"{len(names)} models and {len(others)}"
        raise UserError(f"compare: {counts}, none of the same name; expected as many in both results")
    return [(name, partners[name]) for name in names if name in partners]


def combined_rows(one: Result, two: Result, table: str | None = None) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """Return the rows that both have, under names that differ, and the pairs of these names.

    Their first attacks are paired, the worst case where there are several, and the attacks that both have.
    """
    pairs = paired_models(one, two)
    sides = [pl.col("model").is_in(names) for names in zip(*pairs, strict=True)]
    frames = [result.frame(table).filter(side) for result, side in zip((one, two), sides, strict=True)]
    frames = _of_same_images(one, two, frames)
    if all("attack" in rows.columns for rows in frames):
        attacks = [rows["attack"].unique(maintain_order=True).to_list() for rows in frames]
        if attacks[0][0] != attacks[1][0]:
            first = pl.col("attack") == pl.col("attack").first()
            label, shared = pl.lit(f"{attacks[0][0]} − {attacks[1][0]}"), [*{*attacks[0]} & {*attacks[1]}]
            firsts = [rows.filter(first).with_columns(attack=label) for rows in frames]
            others = [rows.filter(pl.col("attack").is_in(shared)) for rows in frames]
            frames = [pl.concat(pair) for pair in zip(firsts, others, strict=True)]
    cell = [name for name in _CELL if all(name in rows.columns for rows in frames)]
    kept = frames
    for rows in frames if cell else ():
        for part in rows.select("model", *cell).unique().partition_by("model", include_key=False):
            kept = [frame.join(part, on=cell, how="semi", nulls_equal=True) for frame in kept]
    if kept[0].is_empty():

        def told(column: pl.Series) -> str:
            values = column.unique(maintain_order=True).to_list()
            words = (terminal.eps_label(value) if isinstance(value, float) else str(value) for value in values)
            return f"{column.name} {', '.join(words)}"

        names = [name for name in ("norm", "eps") if name in cell]
        has = [", ".join(told(rows[name]) for name in names) or "other rows" for rows in frames]
        raise UserError(f"compare: nothing in common: {' and '.join(has)}; expected the same norm and an ε in both")
    taken = {name for name, _ in pairs}
    renamed = {other: f"{other} (other)" if other in taken else other for _, other in pairs}
    kept[1] = kept[1].with_columns(pl.col("model").replace(renamed))
    return pl.concat(kept, how="diagonal"), [(name, renamed[other]) for name, other in pairs]


def _of_same_images(one: Result, two: Result, frames: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Return the rows on the data that both have: of one fingerprint, or of one name with one label for each id."""
    names, prints = ([result.record[key] for result in (one, two)] for key in ("data", "data_fingerprint"))
    if isinstance(names[0], list):  # an evaluation
        digests, other_digests = (dict(zip(*pair, strict=True)) for pair in zip(names, prints, strict=True))
        same = [name for name in digests if digests[name] == other_digests.get(name)]
        frames, differ = [rows.filter(pl.col("data").is_in(same)) for rows in frames], not same
    else:
        differ = prints[0] != prints[1]
        if differ and names[0] == names[1] != "array" and all("label" in rows.columns for rows in frames):
            labels = pl.concat([rows.select("sample", "label").unique() for rows in frames]).unique()
            differ = labels["sample"].is_duplicated().any()
    if differ:
        both = " and ".join(", ".join([name] if isinstance(name, str) else name) for name in names)
        raise UserError(f"compare: different images, {both}; expected the same data and split")
    return frames
