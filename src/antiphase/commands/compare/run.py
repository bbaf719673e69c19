"""Two results compared: their paired differences, and in what their settings differ."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import torch
from matplotlib.figure import Figure

from antiphase.commands import lineup, run_folder
from antiphase.commands.compare import CompareOptions
from antiphase.commands.result import Result, along, compared_together, in_files, open_result
from antiphase.errors import UserError
from antiphase.files import write_bytes, write_text
from antiphase.report.figure import UNDECIDED, Forest, ForestLine, forest_figure, shortened
from antiphase.report.page import Headline, Plot, Section, in_one_line, quoted_place
from antiphase.report.table import Field, Table, difference_field, estimate_field, tabulate
from antiphase.report.words import attack_name, estimate_of, number, p_text, with_interval
from antiphase.terminal import eps_label

_NO_SETTING = {"out", "quiet", "device", "batch_size", "cache", "track"}  # options that affect no result
_RECORDED = {"model", "models", "against", "eps", "seed", "nested", "settings"}  # that settings have by another name


def run(options: CompareOptions, command: str) -> None:
    """Compare the runs and write everything but the page into ``options.out``."""
    result = compare(options.first, options.second)
    record = result.record | {"command": command, "options": options.record()}
    for name, content in {**result.files, **in_files({"run": record})}.items():
        write_bytes(options.out / name, content)


def compare(first: Result | str | Path, second: Result | str | Path) -> "CompareResult":
    """Compare two results of one command, or their directories, first minus second; ``save`` writes the page.

    A UserError refuses a directory without a finished run, and two runs that share nothing that can be paired.
    """
    began = time.monotonic()
    runs = [one if isinstance(one, Result) else open_result(one) for one in (first, second)]
    if any(isinstance(one, CompareResult) for one in runs):
        raise UserError("compare: got a comparison; expected two runs that were measured")
    frame = runs[0].compare(runs[1])
    places = [one.directory or Path(which) for one, which in zip(runs, ("first", "second"), strict=True)]
    names = list(map(str, places)) if places[0].name == places[1].name else [place.name for place in places]
    records = [one.record for one in runs]
    one, two = map(_settings, records)
    rows = [{"setting": key, "first": one.get(key), "second": two.get(key)} for key in one | two]
    pairs = frame.select("model", "against").unique(maintain_order=True).rows()
    summary = {"kind": runs[0].kind, "runs": names, "pairs": pairs, "images": [entry.get("n") for entry in records]}
    summary |= {"differing_settings": [row for row in rows if row["first"] != row["second"]]}
    summary |= {"differences": frame.to_dicts()}
    settings = {"first": names[0], "second": names[1], "command": runs[0].kind}
    record = {"command": f"antiphase.compare({names[0]!r}, {names[1]!r})", "options": {}, "settings": settings}
    record |= {"data": records[0].get("data", "images"), "data_fingerprint": records[0].get("data_fingerprint", "")}
    record["n"] = records[0]["n"] if isinstance(records[0].get("n"), list) else frame.select(pl.max("n")).item()
    record |= run_folder.finished(Path(), began) | lineup.environment_record(torch.device("cpu"))
    warnings = (f"{name}: {line}" for name, one in zip(names, runs, strict=True) for line in one.warnings)
    record["warnings"] = [*_left_out(runs, records, frame), *warnings]
    return CompareResult("compare", in_files({"summary": summary, "run": record}, differences=frame))


def _left_out(runs: Sequence[Result], records: Sequence[Mapping[str, Any]], frame: pl.DataFrame) -> list[str]:
    """Return a line on what no difference is of, since one run lacks it or measured it on other units."""
    tables, lost = [run.frame() for run in runs], list[str]()

    def told(row: tuple[Any, ...]) -> str:
        words = (f"ε = {eps_label(value)}" if isinstance(value, float) else str(value) for value in row if value)
        return ", ".join(words)

    for keys in (["task", "data", "setting"], ["attack"], ["norm"], ["eps"]):
        if all({*keys} <= {*rows.columns} for rows in (*tables, frame)):
            measured, compared = (
                {told(row) for rows in side for row in rows.select(keys).unique().rows()} for side in (tables, [frame])
            )
            lost += sorted(measured - compared.union(*(told.split(" − ") for told in compared)))
    models = {name for record in records for name in record.get("models", ())}
    lost += sorted(models - {name.removesuffix(" (other)") for name in (*frame["model"], *frame["against"])})
    if "part" in frame.columns:
        lost += sorted({name for run in runs for name in run.tables} - {*frame["part"]})
    why = "not compared, since one run lacks it or measured it on other units"
    return [f"{why}: {', '.join(lost)}"] if lost else []


def _settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run was measured with, as text by name."""
    settings = record.get("settings", {})
    flat = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    parts = {name: value for name, value in settings.items() if name not in flat}
    known = _NO_SETTING.union(flat, *parts.values(), _RECORDED if settings else ())
    flat |= {f"{name}: {key}": value for name, part in parts.items() for key, value in part.items()}
    flat |= {name: value for name, value in record.get("options", {}).items() if name not in known}
    flat |= {"images": record.get("n"), "data": record.get("data"), "hardware": record.get("hardware")}
    flat |= {"SHA-256 of the images": "".join(record.get("data_fingerprint") or "")[:12] or None}
    flat |= {f"weights of {name}": str(value)[:12] for name, value in record.get("fingerprints", {}).items()}
    flat |= {f"version of {name}": value for name, value in record.get("versions", {}).items()}
    return {name: str(in_one_line(value)) for name, value in flat.items() if value not in (None, [], {})}


_METRICS = {"asr": "ASR", "robust_accuracy": "robust accuracy", "clean_accuracy": "clean accuracy"}
_HEADS: dict[str, Any] = {
    "eps": eps_label,
    "radius": "{:g}".format,
    "layer": lambda layer: "whole model" if layer < 0 else f"layer {layer + 1}",
}
_AXES = {"eps": "ε", "radius": "L2 radius"}
_SHARES = ("below", "negative", "positive", "undecided")  # of the metrics of sense; the others are no shares
_MOST_PANELS = 6
_DECIDED = "#0072B2"


class CompareResult(Result):
    """Paired differences between two runs of one command."""

    main_table = "differences"
    needs = ("summary.json", "run.json")
    keys = ("kind", "runs", "differing_settings", "differences")

    @cached_property
    def rows(self) -> pl.DataFrame:
        """The differences, with what is compared in words (``what``), the two models (``pair``) and ``place``."""
        frame, axis = self.frame(), along(self.frame())
        together = [name for name in compared_together(frame) if name not in ("model", "against")]
        keys = together if axis else [name for name in ("task", "data", "setting") if name in frame.columns]
        single = bool(frame["low"].is_null().all())  # one number for each run: metrics of trainings, claims of studies
        rows, shares = frame.rows(named=True), self.summary["kind"] != "sense" and not single

        def quantity(row: Mapping[str, Any]) -> str:
            metric = str(row.get("metric", "certified accuracy"))
            parts = [_METRICS.get(metric, metric)]
            if "attack" in row and row["eps"]:
                parts += [" − ".join(map(attack_name, row["attack"].split(" − ")))]
            parts += [str(row[name]) for name in keys if name not in ("metric", "attack", "norm")]
            return ", ".join(parts)

        same = pl.col("against") == pl.format("{} (other)", "model")
        return frame.with_row_index().with_columns(
            what=pl.Series(map(quantity, rows)),
            pair=pl.when(same).then("model").otherwise(pl.format("{} − {}", "model", "against")),
            place=pl.Series([row[axis] if axis else 0 for row in rows]),
            points=pl.Series([shares or row.get("metric") in _SHARES for row in rows]),
        )

    @cached_property
    def _quoted(self) -> dict[str, Any]:
        """The difference in the title: of the first quantity and models, the decided one nearest to the middle."""
        rows = self.rows.filter(what=self.rows["what"][0], pair=self.rows["pair"][0]).rows(named=True)
        return rows[quoted_place([row["decided"] for row in rows])]

    def headlines(self) -> list[Headline]:
        row, axis = self._quoted, along(self.rows)
        one, two = (shortened(name, 16) for name in self.summary["runs"])
        where = f" at {_AXES[axis]} = {self._head(row['place'])}" if axis in _AXES else ""
        number_ = with_interval(f"{_field(row).text}{' points' * row['points']}", _field(row).notes[0])
        several = self.rows.filter(what=row["what"])["pair"].n_unique() > 1
        quantity = row["what"] + f" of {shortened(row['pair'], 24)}" * several
        side = "higher" if row["decided"] > 0 else "lower"
        answer = f"No difference shown in {quantity}"
        if row["decided"]:
            answer = f"{quantity[0].upper() + quantity[1:]} {side} in {one} than in {two}"
        title = f"{answer}: {number_}{where}"
        if row["low"] is None:
            title = f"{quantity[0].upper() + quantity[1:]}, {one} minus {two}: {number_}"
        above, below = (int((self.rows["decided"] == sign).sum()) for sign in (1, -1))
        told = (
            f"paired, on images that both runs have. Of {len(self.rows)} differences {above} are decided to be "
            f"above 0 and {below} below, corrected by Holm for those that are read together."
        )
        if self.rows["low"].is_null().all():
            told = "one number for each run, so that no difference has an interval, and none is decided."
        lead = f"{' minus '.join(self.summary['runs'])}, {row['pair']}: {told}"
        plot = Plot("differences", self.figure(), "Differences with their 95 % intervals.", beside=True)
        return [Headline(title, lead, f"n = {row['n']:,}", lambda: plot)]

    def figure(self) -> Figure:
        axis, several = along(self.rows), self.rows["pair"].n_unique() > 1
        blocks = self.rows.partition_by("what", maintain_order=True)[:_MOST_PANELS] if axis else [self.rows]
        forests = []
        for block in blocks:
            lines = []
            for row in block.iter_rows(named=True):
                head = f"{_AXES.get(axis, '')} {self._head(row['place'])}".strip() if axis else row["what"]
                label = f"{row['pair']}, {head}" if several else head
                color = _DECIDED if row["decided"] else UNDECIDED
                marked = row["index"] == self._quoted["index"]
                lines.append(ForestLine(label, estimate_of(row, "difference"), color, marked=marked))
            shares = bool(block["points"].all())
            title = f"{block['what'][0] if axis else 'Differences'}{', points' * shares}"
            scale = {"scale": 100.0, "digits": 1} if shares else {"scale": 1.0, "digits": 3}
            forests.append(Forest(title, lines, 0.0, signed=shares, **scale))
        return forest_figure(forests)

    def _head(self, place: Any) -> str:
        return _HEADS.get(along(self.rows) or "", str)(place)

    def sections(self) -> list[Section]:
        settings, tables = self.summary["differing_settings"], []
        words = "" if settings else "Nothing that was recorded differs between the two runs."
        if settings:
            columns, csv = ("setting", *self.summary["runs"]), pl.DataFrame(settings).write_csv()
            names = ("first", "second")
            lines = ((Field(one["setting"]), *(Field(one[n] or "–", kind="word") for n in names)) for one in settings)
            tables = [Table("settings", "What differs between the runs", columns, tuple(lines), csv)]
        return [
            Section("differences", "Differences", tables=self._tables()),
            Section("what-differs", "What differs", words, tables=tables),
        ]

    def _tables(self) -> list[Table]:
        """Tabulate each quantity: pairs of models down, ε or radii across; or all quantities down and pairs across."""
        if along(self.rows) is None:
            return [self._table("differences", "Differences", self.rows, ["what"], "pair")]
        if along(self.rows) == "layer":
            rows = self.rows.with_columns(layer=pl.col("place").map_elements(self._head, pl.String))
            return [
                self._table(f"differences-{site}", f"Differences, {site}", block, ["pair", "layer"], "metric")
                for (site,), block in rows.group_by("site", maintain_order=True)
            ]
        return [
            self._table(re.sub(r"[^a-z0-9]+", "-", quantity.lower()).strip("-"), quantity, block, ["pair"], "place")
            for (quantity,), block in self.rows.group_by("what", maintain_order=True)
        ]

    def _table(self, name: str, title: str, rows: pl.DataFrame, down: list[str], across: str) -> Table:
        unit = "points" if rows["points"].all() else ""
        numbers = rows.drop("index", "what", "pair", "place", "points")
        metrics = rows["metric"].unique(maintain_order=True) if across == "metric" else ()
        labels = {metric: f"{metric}, points" if metric in _SHARES else metric for metric in metrics}
        heads: Any = {"place": self._head, "metric": labels}.get(across, str)
        title = ", ".join(filter(None, [title, " − ".join(self.summary["runs"]), unit]))
        return tabulate(name, title, rows, down, across, _field, heads, numbers)

    def write_report(self, folder: Path) -> Path:
        """Write ``report.html``, the figure, and ``differences.csv`` with all digits."""
        write_text(folder / "differences.csv", self.frame().write_csv())
        return super().write_report(folder)


def _field(row: Mapping[str, Any]) -> Field:
    """Return a difference with its interval and p, pale if it is not decided."""
    if row["points"]:
        field = difference_field(row)
    else:
        field = estimate_field(row["difference"], row["low"], row["high"], lambda end: number(end, 3))
        field = replace(field, kind="" if row["decided"] else "undecided")
    p_value = row.get("p_value")
    return field if p_value is None else replace(field, notes=(*field.notes, p_text(p_value)))
