"""Figures of a study: panels arranged as in the paper, with the paper's numbers as hollow markers and dashed lines."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.patheffects as effects
import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from antiphase.report.figure import STYLE, dress
from antiphase.report.studies.axes import (
    LETTER,
    ends,
    floats,
    limits,
    named_ticks,
    number_axis,
    numbers,
    positions,
    seeds_of,
    shortened,
    x_label,
    y_label,
)
from antiphase.report.style.radar import draw_radar
from antiphase.report.style.series_styles import Style, series_styles
from antiphase.studies.figures import Panel, Plot

PAPER = "the paper"
_PAPER_DASHES = (2.2, 1.6)
_LONGEST = 40  # letters of a legend label
_FAINT, _ALONE = 0.4, "."  # lines of single training seeds, and markers where there is no line
_HALO = "#55575c"
_WIDTHS = {1: 5.0, 2: 4.6, 3: 3.55}  # width of a panel in inches, by panels per row
_LONG = 9.2  # width of a panel of many bars
_MANY = 14  # number of bars that need a wide panel
_RADAR = 5.4  # largest height of a radar chart
_NARROW = 3.7  # stacked panels, for a phone


def plot_figure(plot: Plot, *, narrow: bool = False) -> Figure:
    """Draw a plot of lines with interval bands or bars with whiskers.

    The means of single training seeds are thin lines, or dots next to the whiskers of bars.
    Missing and infinite intervals are not drawn; intervals much wider than the spread of the values are cut at the
    frame. Panels with the same series share one legend.

    Args:
        plot: the plot of the study.
        narrow: whether to stack the panels, for a narrow screen.
    """
    columns = 1 if narrow else min(plot.columns, len(plot.panels))
    rows = -(-len(plot.panels) // columns)
    width = _NARROW if narrow else _LONG if columns == 1 and _crowded(plot) else _WIDTHS.get(columns, 2.8)
    radar = any(panel.kind == "radar" for panel in plot.panels)
    height = 0.95 * min(width, _RADAR) if radar else 0.3 + min(0.62 * width, 3.3)
    series = [_series(panel) for panel in plot.panels]
    shared = _shared(plot.panels)
    above = 0.19 * -(-len(_labels(plot.panels)) // _columns(plot.panels, width * columns)) if shared else 0.0
    styles = series_styles([[name for names in series for name in names]] if shared else series)
    layout = ConstrainedLayoutEngine(h_pad=0.07, w_pad=0.06)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, above + rows * height), layout=layout)
        FigureCanvasAgg(figure)
        for place, panel in enumerate(plot.panels, start=1):
            if panel.kind == "radar":
                _radar(figure.add_subplot(rows, columns, place, projection="polar"), panel, styles)
                continue
            axes = figure.add_subplot(rows, columns, place)
            _draw(axes, panel, styles, width)
            if not shared:
                _legend(axes, [panel], styles, width)
        if shared:
            _legend(figure, plot.panels, styles, width * columns)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # compute the layout once for all formats
    return figure


def _crowded(plot: Plot) -> bool:
    """Return whether the bars need the full width of the page."""
    counts = [
        len(panel.points) + (0 if panel.paper is None else len(panel.paper))
        for panel in plot.panels
        if panel.kind == "bar"
    ]
    return max(counts, default=0) > _MANY


def _series(panel: Panel) -> list[str]:
    paper = [] if panel.paper is None else panel.paper["series"].to_list()
    return list(dict.fromkeys([*panel.points["series"].to_list(), *paper]))


def _shared(panels: Sequence[Panel]) -> bool:
    """Return whether all panels share one legend: one has all series, or there is no room for separate legends."""
    own = [set(_series(panel)) for panel in panels]
    return any(panel.kind in ("bar", "radar") for panel in panels) or (
        len(own) > 1 and set().union(*own) in own
    )


def _draw(axes: Axes, panel: Panel, styles: Mapping[str, Style], width: float) -> None:
    scale = 100.0 if panel.percent else 1.0
    points = panel.points.with_columns(pl.col("value", "low", "high") * scale)
    paper = None if panel.paper is None else panel.paper.with_columns(pl.col("value") * scale)
    (_bars if panel.kind == "bar" else _lines)(axes, panel, points, paper, styles, width)
    if panel.level is not None:
        axes.axhline(scale * panel.level, color="#77797e", lw=0.9, zorder=1.5)
    axes.set_ylim(*limits(panel, points, paper))
    letters = int(width / LETTER) - 4
    axes.set_title(
        textwrap.fill(panel.title, int((width - 0.6) / (1.15 * LETTER))),
        loc="left",
        fontsize=9.5,
        parse_math=False,
    )
    axes.set_xlabel(textwrap.fill(x_label(panel), letters), parse_math=False)
    axes.set_ylabel(textwrap.fill(y_label(panel), int(0.55 * width / LETTER)), parse_math=False)
    dress(axes)


def _radar(axes: Any, panel: Panel, styles: Mapping[str, Style]) -> None:
    scale, lines = 100.0 if panel.percent else 1.0, []
    for name in _series(panel):
        own = dict(
            panel.points.filter(pl.col("series") == name).select("x", pl.col("value") * scale).iter_rows()
        )
        lines.append(([own.get(float(at), math.nan) for at in range(len(panel.ticks))], _line(styles[name])))
    draw_radar(axes, panel.ticks, lines)
    axes.set_title(panel.title, loc="left", fontsize=9.5, pad=14, parse_math=False)


def _lines(
    axes: Axes,
    panel: Panel,
    points: pl.DataFrame,
    paper: pl.DataFrame | None,
    styles: Mapping[str, Style],
    width: float,
) -> None:
    for name, style in styles.items():
        own = points.filter(pl.col("series") == name).sort("x")
        x, value = own["x"].to_numpy(), floats(own["value"])
        low, high = ends(own)
        known = np.isfinite(low)
        beside = known & np.r_[False, known[:-1]] | known & np.r_[known[1:], False]
        for each in seeds_of(own).T * (100.0 if panel.percent else 1.0):
            axes.plot(
                x,
                each,
                color=style.edge,
                lw=0.6,
                alpha=_FAINT,
                zorder=1.6,
                marker=_ALONE if len(x) == 1 else "",
            )
        axes.fill_between(x, low, high, where=beside.tolist(), color=style.color, alpha=0.15, lw=0)
        alone = known & ~beside  # a band over a single point has no width
        axes.vlines(x[alone], low[alone], high[alone], color=style.edge, lw=1.4)
        if len(own):
            axes.plot(x, value, **_line(style))
        if paper is not None:
            theirs = paper.filter(pl.col("series") == name).sort("x")
            if len(theirs):
                axes.plot(
                    theirs["x"].to_numpy(), floats(theirs["value"]), **_paper_line(style.edge, style.marker)
                )
    number_axis(axes, panel, positions(panel), width)


def _bars(
    axes: Axes,
    panel: Panel,
    points: pl.DataFrame,
    paper: pl.DataFrame | None,
    styles: Mapping[str, Style],
    width: float,
) -> None:
    places = [float(at) for at in range(len(panel.ticks))] or positions(panel)
    here = [name for name in styles if name in set(_series(panel))]
    slots = [(name, False) for name in here]
    if paper is not None:
        published = set(paper["series"].to_list())
        slots = [
            (name, theirs) for name in here for theirs in (False, True) if name in published or not theirs
        ]
    bar = 0.8 / max(len(slots), 1)
    for at, (name, theirs) in enumerate(slots):
        style = styles[name]
        own = (points if paper is None or not theirs else paper).filter(pl.col("series") == name).sort("x")
        x = np.array([places.index(place) for place in own["x"].to_list()], float) - 0.4 + bar * (at + 0.5)
        value = floats(own["value"])
        if theirs:
            axes.bar(x, value, 0.8 * bar, fc="none", ec=style.edge, lw=1.0, ls=(0, _PAPER_DASHES))
            continue
        axes.bar(x, value, 0.94 * bar, **_fill(style))
        low, high = ends(own)
        axes.vlines(x, low, high, color="#33353a", lw=1.1)
        for each in seeds_of(own).T * (100.0 if panel.percent else 1.0):
            axes.plot(x - 0.22 * bar, each, _ALONE, color="#33353a", ms=1.8, mew=0, alpha=0.55)
    named_ticks(axes, range(len(places)), panel.ticks or numbers(panel, places), width)
    axes.set_xlim(-0.55, len(places) - 0.45)


def _labels(panels: Sequence[Panel]) -> list[str]:
    """Return the names of all series; the paper's come last."""
    names = list(dict.fromkeys(name for panel in panels for name in _series(panel)))
    return [*names, PAPER] if any(panel.paper is not None and len(panel.paper) for panel in panels) else names


def _columns(panels: Sequence[Panel], width: float) -> int:
    letters = max((min(len(label), _LONGEST) for label in _labels(panels)), default=0) + 7
    return max(1, min(len(_labels(panels)), int(width / (LETTER * letters))))


def _legend(on: Any, panels: Sequence[Panel], styles: Mapping[str, Style], width: float) -> None:
    names = _labels(panels)
    bars = panels[0].kind == "bar"
    handles: list[Artist] = []
    for name in names:
        style = styles.get(name)
        if style is None:  # the paper's
            dashed: Any = {"fc": "none", "ec": _HALO, "ls": (0, _PAPER_DASHES)}
            handles.append(Patch(**dashed) if bars else Line2D([], [], **_paper_line(_HALO, "o")))
        else:
            handles.append(Patch(**_fill(style)) if bars else Line2D([], [], **_line(style)))
    place: dict[str, Any] = {"loc": "best"}
    if isinstance(on, Figure):
        place = {"loc": "outside upper left", "ncols": _columns(panels, width)}
    labels = [shortened(name, _LONGEST) for name in names]
    legend = on.legend(handles, labels, frameon=False, fontsize=8.5, handlelength=2.6, **place)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set(text=label, parse_math=False)


def _line(style: Style) -> dict[str, Any]:
    look: dict[str, Any] = {
        "color": style.color,
        "lw": 1.9,
        "ls": (0, style.dashes) if style.dashes else "-",
        "marker": style.marker,
        "ms": 4.8,
        "mec": style.edge,
    }
    if style.pale:
        look |= {
            "lw": 1.6,
            "ms": 4.4,
            "path_effects": [effects.withStroke(linewidth=2.4, foreground=style.edge)],
        }
    return look


def _paper_line(color: str, marker: str) -> dict[str, Any]:
    return {"color": color, "lw": 1.0, "ls": (0, _PAPER_DASHES), "marker": marker, "ms": 4.8, "mfc": "white"}


def _fill(style: Style) -> dict[str, Any]:
    return {"fc": style.color, "ec": "white", "hatch": style.hatch, "lw": 0.0}
