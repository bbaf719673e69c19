"""The result of ``antiphase compare``: headline, figure and tables of the differences between two runs."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.result import Result, along, compared_together
from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.report.figure import UNDECIDED, Forest, ForestLine, forest_figure, shortened
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table, difference_field, estimate_field, tabulate
from antiphase.report.words import NO_INTERVAL, attack_name, estimate_of, number, p_text, with_interval
from antiphase.terminal import eps_label

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
    keys = ("kind", "runs", "differing_settings", "differences")
    settings_title = "Comparison"

    @cached_property
    def rows(self) -> pl.DataFrame:
        """The differences, with what is compared in words (``what``), the two models (``pair``) and ``place``."""
        frame, axis = self.frame(), along(self.frame())
        together = [name for name in compared_together(frame) if name not in ("model", "against")]
        keys = (
            together
            if axis
            else [name for name in ("task", "data", "setting", "metric") if name in frame.columns]
        )
        rows, shares = frame.rows(named=True), self._of_images and self.summary["kind"] != "sense"
        return frame.with_row_index().with_columns(
            what=pl.Series([self._what(row, keys) for row in rows]),
            pair=pl.Series([_pair(row["model"], row["against"]) for row in rows]),
            place=pl.Series([row[axis] if axis else 0 for row in rows]),
            points=pl.Series([shares or row.get("metric") in _SHARES for row in rows]),
        )

    @property
    def _of_images(self) -> bool:
        """Whether the differences have intervals over images, unlike those of trainings and studies."""
        return not self.summary["kind"].startswith(("train", "study"))

    def _what(self, row: Mapping[str, Any], keys: list[str]) -> str:
        """Name a quantity, its metric first."""
        metric = str(row.get("metric", "certified accuracy"))
        parts = [_METRICS.get(metric, metric)]
        if "attack" in row and row["eps"]:
            parts += [" − ".join(map(attack_name, row["attack"].split(" − ")))]
        parts += [str(row[name]) for name in keys if name not in ("metric", "attack", "norm")]
        return ", ".join(parts)

    @cached_property
    def _quoted(self) -> dict[str, Any]:
        """The difference in the title: of the first quantity and models, the decided one nearest to the middle."""
        rows = self.rows.filter(what=self.rows["what"][0], pair=self.rows["pair"][0]).rows(named=True)
        middle = (len(rows) - 1) // 2
        decided = [place for place, row in enumerate(rows) if row["decided"]]
        return rows[min(decided, key=lambda place: abs(place - middle), default=middle)]

    def headlines(self) -> list[Headline]:
        row, axis = self._quoted, along(self.rows)
        one, two = (shortened(name, 16) for name in self.summary["runs"])
        where = f" at {_AXES[axis]} = {self._head(row['place'])}" if axis in _AXES else ""
        interval = _field(row).notes[0]
        number_ = f"{_field(row).text}{' points' * row['points']}"
        several = self.rows.filter(what=row["what"])["pair"].n_unique() > 1
        what = row["what"] + f" of {shortened(row['pair'], 24)}" * several
        side = "higher" if row["decided"] > 0 else "lower"
        answer = f"No difference shown in {what}"
        if interval == NO_INTERVAL:
            answer = f"{what[0].upper() + what[1:]}, {one} minus {two}"
        elif row["decided"]:
            answer = f"{what[0].upper() + what[1:]} {side} in {one} than in {two}"
        title = f"{answer}: {with_interval(number_, interval)}{where}"
        above, below = (int((self.rows["decided"] == sign).sum()) for sign in (1, -1))
        told = (
            f"paired, on images that both runs have. Of {len(self.rows)} differences {above} are decided to be "
            f"above 0 and {below} below, corrected by Holm for those that are read together."
        )
        if not self._of_images:
            told = "one number for each run, so that no difference has an interval, and none is decided."
        lead = f"{' minus '.join(self.summary['runs'])}, {row['pair']}: {told}"
        plot = Plot("differences", self.figure(), "Differences with their 95 % intervals.", beside=True)
        return [Headline(title, lead, f"n = {row['n']:,}", lambda: plot)]

    def figure(self) -> Figure:
        """Draw the differences, quantity by quantity."""
        axis, several = along(self.rows), self.rows["pair"].n_unique() > 1
        blocks = self.rows.partition_by("what", maintain_order=True)[:_MOST_PANELS] if axis else [self.rows]
        forests = []
        for block in blocks:
            lines = []
            for row in block.iter_rows(named=True):
                head = f"{_AXES.get(axis, '')} {self._head(row['place'])}".strip() if axis else row["what"]
                label = f"{row['pair']}, {head}" if several else head
                color = _DECIDED if row["decided"] else UNDECIDED
                lines.append(
                    ForestLine(
                        label,
                        estimate_of(row, "difference"),
                        color,
                        (),
                        row["index"] == self._quoted["index"],
                    )
                )
            shares = bool(block["points"].all())
            title = f"{block['what'][0] if axis else 'Differences'}{', points' * shares}"
            forests.append(
                Forest(title, lines, 0.0, "", None, shares, 100.0 if shares else 1.0, 1 if shares else 3)
            )
        return forest_figure(forests)

    def _head(self, place: Any) -> str:
        return _HEADS.get(along(self.rows) or "", str)(place)

    def sections(self) -> list[Section]:
        sections = [Section("differences", "Differences", tables=self._tables())]
        settings = self.summary["differing_settings"]
        names = ("first", "second")
        lines = [
            (Field(row["setting"]), *(Field(row[name] or "–", kind="word") for name in names))
            for row in settings
        ]
        if lines:
            columns, csv = ("setting", *self.summary["runs"]), pl.DataFrame(settings).write_csv()
            table = Table("settings", "What differs between the runs", columns, tuple(lines), csv)
            words = ""
        else:
            table, words = None, "Nothing that was recorded differs between the two runs."
        sections.append(Section("what-differs", "What differs", words, tables=[table] if table else []))
        return sections

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
            self._table(re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-"), what, block, ["pair"], "place")
            for (what,), block in self.rows.group_by("what", maintain_order=True)
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

    def differences(self, other: Any) -> pl.DataFrame:
        raise UserError("compare: got a comparison; expected a run that was measured")


def _pair(model: str, against: str) -> str:
    return model if against == f"{model} (other)" else f"{model} − {against}"


def _field(row: Mapping[str, Any]) -> Field:
    """Return a difference with its interval and p, pale if it is not decided."""
    if row["points"]:
        field = difference_field(row)
    else:
        field = estimate_field(row["difference"], row["low"], row["high"], lambda end: number(end, 3))
        field = replace(field, kind="" if row["decided"] else "undecided")
    p_value = row.get("p_value")
    return field if p_value is None else replace(field, notes=(*field.notes, p_text(p_value)))
