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
from antiphase.report.figure import (
    LEVEL,
    MARKERS,
    Family,
    add_legend,
    dress,
    families,
    legend_label,
    new_figure,
)
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table, difference_field, estimate_field, tabulate
from antiphase.report.words import attack_name, number, p_text, points_interval, with_interval
from antiphase.terminal import eps_label

_METRICS = {"asr": "ASR", "robust_accuracy": "robust accuracy", "clean_accuracy": "clean accuracy"}
_HEADS: dict[str, Any] = {
    "eps": eps_label,
    "radius": "{:g}".format,
    "layer": lambda layer: f"layer {layer + 1}",
}
_AXES = {"eps": "ε", "radius": "L2 radius"}
_SHARES = ("below", "negative", "positive", "undecided")  # of the metrics of sense; the others are no shares
_MOST_PANELS = 6


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
        rows = frame.rows(named=True)
        return frame.with_columns(
            what=pl.Series([self._what(row, keys) for row in rows]),
            pair=pl.Series([_pair(row["model"], row["against"]) for row in rows]),
            place=pl.Series([row[axis] if axis else 0 for row in rows]),
            points=pl.Series([self.summary["kind"] != "sense" or row["metric"] in _SHARES for row in rows]),
        )

    def _what(self, row: Mapping[str, Any], keys: list[str]) -> str:
        """Name a quantity, its metric first."""
        metric = str(row.get("metric", "certified accuracy"))
        parts = [_METRICS.get(metric, metric)]
        if "attack" in row and row["eps"]:
            parts += [" − ".join(map(attack_name, row["attack"].split(" − ")))]
        parts += [str(row[name]) for name in keys if name not in ("metric", "attack", "norm")]
        return ", ".join(parts)

    def headlines(self) -> list[Headline]:
        first = self.rows.filter(what=self.rows["what"][0], pair=self.rows["pair"][0]).rows(named=True)
        middle = (len(first) - 1) // 2
        places = [place for place, row in enumerate(first) if row["decided"]]
        quoted = first[min(places, key=lambda place: abs(place - middle), default=middle)]
        one, two = self.summary["runs"]
        verdict = {1: f"higher in {one} than in {two}", -1: f"lower in {one} than in {two}"}
        axis = along(self.rows)
        where = f" at {_AXES.get(axis, axis)} = {self._head(quoted['place'])}" if axis in _AXES else ""
        number_ = self._number(quoted)
        title = (
            f"{quoted['what']} of {quoted['model']} is {verdict[quoted['decided']]}: {number_}{where}"
            if quoted["decided"]
            else f"No difference shown between {one} and {two}: {quoted['what']} {number_}{where}"
        )
        above, below = (int((self.rows["decided"] == sign).sum()) for sign in (1, -1))
        lead = (
            f"{one} minus {two}. Of {len(self.rows)} differences {above} are decided to be above 0 and {below} below, "
            "corrected by Holm for those that are read together. Each is paired: on images that both runs have, "
            f"{int(quoted['n']):,} of them for the one in the title."
        )
        return [Headline(title[0].upper() + title[1:], lead)]

    def _number(self, row: Mapping[str, Any]) -> str:
        if row["points"]:
            return points_interval(row["difference"], row["low"], row["high"])
        field = _field(row)
        return with_interval(field.text, field.notes[0])

    def _head(self, place: Any) -> str:
        return _HEADS.get(along(self.rows) or "", str)(place)

    def sections(self) -> list[Section]:
        plot = Plot(
            "differences", self.figure(), "Differences with their 95 % intervals. " + self._left_out()
        )
        sections = [
            Section("differences", "Differences", plots=[replace(plot, beside=True)], tables=self._tables())
        ]
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
        numbers = rows.drop("what", "pair", "place", "points")
        metrics = rows["metric"].unique(maintain_order=True) if across == "metric" else ()
        labels = {metric: f"{metric}, points" if metric in _SHARES else metric for metric in metrics}
        heads: Any = {"place": self._head, "metric": labels}.get(across, str)
        title = ", ".join(filter(None, [title, " − ".join(self.summary["runs"]), unit]))
        return tabulate(name, title, rows, down, across, _field, heads, numbers)

    def _left_out(self) -> str:
        count = self.rows["what"].n_unique() - _MOST_PANELS
        return f"{count} more quantities are in the tables." if along(self.rows) and count > 0 else ""

    def figure(self) -> Figure:
        """Draw the differences, a panel for each quantity."""
        axis = along(self.rows)
        blocks = self.rows.partition_by("what", maintain_order=True)[:_MOST_PANELS] if axis else [self.rows]
        pairs = self.rows["pair"].unique(maintain_order=True).to_list()
        groups = families([{"name": pair, "attention": "", "seed": None} for pair in pairs])
        labels = [
            block["place" if axis else "what"].unique(maintain_order=True).to_list() for block in blocks
        ]
        heights = [0.5 + 0.2 * len(lines) * (len(pairs) + 0.6) for lines in labels]
        same = bool(self.rows["points"].all())
        drawn: dict[str, Any] = {}
        with new_figure(6.4, sum(heights) + 0.5 * len(blocks) + 0.25 * len(pairs)) as figure:
            grid = figure.subplots(len(blocks), 1, squeeze=False, sharex=same, height_ratios=heights)
            for axes, block, lines in zip(grid[:, 0], blocks, labels, strict=True):
                for index, group in enumerate(groups):
                    rows = block.filter(pair=group.name)
                    if len(rows):
                        drawn[legend_label(group)] = _draw(axes, rows, lines, (index, len(groups)), group)
                axes.set_yticks(
                    [-place for place in range(len(lines))], [self._label(line) for line in lines]
                )
                axes.set_ylim(0.6 - len(lines), 0.6)
                axes.axvline(0, **LEVEL)
                if axis:
                    axes.set_title(block["what"][0], loc="left", fontsize=9.5, parse_math=False)
                dress(axes, "x")
            grid[-1, 0].set_xlabel("points" if same else "")
            add_legend(figure, drawn, loc="outside upper left", fontsize=8.0)
        return figure

    def _label(self, line: Any) -> str:
        axis = along(self.rows)
        return f"{_AXES.get(axis or '', '')} {self._head(line)}".strip() if axis else str(line)

    def write_report(self, folder: Path) -> Path:
        """Write ``report.html``, the figure, and ``differences.csv`` with all digits."""
        write_text(folder / "differences.csv", self.frame().write_csv())
        return super().write_report(folder)

    def differences(self, other: Any) -> pl.DataFrame:
        raise UserError("compare: got a comparison; expected a run that was measured")


def _pair(model: str, against: str) -> str:
    return model if against == f"{model} (other)" else f"{model} − {against}"


def _draw(axes: Any, rows: pl.DataFrame, lines: list[Any], place: tuple[int, int], group: Family) -> Any:
    """Draw the differences of one pair of models, between those of the other pairs."""
    index, count = place
    scale = 100 if rows["points"].all() else 1
    value, low, high = (
        scale * rows[end].fill_null(rows["difference"]) for end in ("difference", "low", "high")
    )
    names = rows["what"] if rows["place"].n_unique() < len(rows) else rows["place"]
    across = [0.35 - 0.7 * (index + 0.5) / count - lines.index(line) for line in names]
    ends = [(value - low).clip(0), (high - value).clip(0)]
    style: Any = {"ms": 5, "color": group.color, "elinewidth": 1.3, "capsize": 2.5}
    return axes.errorbar(value, across, xerr=ends, fmt=MARKERS[index % len(MARKERS)], **style)


def _field(row: Mapping[str, Any]) -> Field:
    """Return a difference with its interval and p, pale if it is not decided."""
    if row["points"]:
        field = difference_field(row)
    else:
        field = estimate_field(row["difference"], row["low"], row["high"], lambda end: number(end, 3))
        field = replace(field, kind="" if row["decided"] else "undecided")
    p_value = row.get("p_value")
    return field if p_value is None else replace(field, notes=(*field.notes, p_text(p_value)))
