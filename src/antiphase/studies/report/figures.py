"""Figures of studies: panels of lines, bars or spokes, and galleries of images with maps over them."""

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from jaxtyping import UInt8
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from PIL import Image

from antiphase.commands.look.run import paint
from antiphase.report.figure import STYLE, dress, eps_ticks, lay_out, new_figure, saved
from antiphase.report.page import environment
from antiphase.studies.figures import BY_SEED, SIZE, Gallery, Panel, Picture, Plot

_PLAIN_STYLE: Any = STYLE | {"text.parse_math": False, "axes.titlesize": 9.5, "axes.titlelocation": "left"}
_MODELS = {
    "ViT": "#0072B2",
    "DiffViT": "#D55E00",
    "CLIP": "#0072B2",
    "DiffCLIP": "#D55E00",
    "DiffCLIP*": "#CC79A7",
    "DiffCLIP†": "#B07900",
}
_FURTHER = ("#009E73", "#3A8EBA", "#7B4FA3", "#A0522D", "#000000", "#CC79A7", "#B07900")
_MARKERS = "osD^vPX<>"
_DASHES = ((), (5.0, 1.6), (6.0, 1.4, 1.4, 1.4), (9.0, 2.5), (4.0, 1.2, 1.2, 1.2, 1.2, 1.2))
_HATCHES = ("", "///", "xx", "---", "\\\\\\", "||")
_WIDTHS = {1: 5.0, 2: 4.6}  # width of a panel in inches, by panels in a row
_LETTER = 0.075  # width of a letter in inches
_PAPER: dict[str, Any] = {"ls": "--", "lw": 1.0, "mfc": "white", "ms": 4.8}  # the paper's numbers


@dataclass(frozen=True)
class Style:
    """How one series is drawn."""

    color: str
    marker: str
    dashes: Any
    hatch: str

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.color, "lw": 1.9, "ls": self.dashes, "marker": self.marker, "ms": 4.8}


def series_styles(names: Sequence[str]) -> dict[str, Style]:
    """Assign styles to the series of a figure; ``"DiffViT, 4/255"`` has the colour of ``"DiffViT"`` in every figure."""
    stems = {name: re.match(r"(?:Diff)?(?:ViT|CLIP)[*†]?(?![\w*†-])", name) for name in names}
    fixed = {name: _MODELS[stem[0]] for name, stem in stems.items() if stem and stem[0] in _MODELS}
    further = itertools.cycle([color for color in _FURTHER if color not in fixed.values()])
    used: Counter[str] = Counter()
    styles = {}
    for place, name in enumerate(names):
        color = fixed.get(name) or next(further)
        dashes = _DASHES[used[color] % len(_DASHES)]
        used[color] += 1
        line, hatch = (0, dashes) if dashes else "-", _HATCHES[place % len(_HATCHES)]
        styles[name] = Style(color, _MARKERS[place % len(_MARKERS)], line, hatch)
    return styles


def plot_figure(plot: Plot) -> Figure:
    """Draw a plot of lines with interval bands or bars with whiskers; single training seeds are thin lines or dots.

    Infinite intervals are not drawn; those much wider than the spread of the values are cut at the frame.
    """
    columns = max(1, min(plot.columns, len(plot.panels)))
    rows = max(1, -(-len(plot.panels) // columns))
    bars = max((len(panel.points) for panel in plot.panels if panel.kind == "bar"), default=0)
    width = max(columns * _WIDTHS.get(columns, 3.55), min(9.2, 0.4 * bars))
    styles = series_styles(list(dict.fromkeys(name for panel in plot.panels for name in _series(panel))))
    with new_figure(width, 0.4 + 3.1 * rows, style=_PLAIN_STYLE) as figure:
        for place, panel in enumerate(plot.panels, start=1):
            axes = figure.add_subplot(rows, columns, place)
            (_bars if panel.kind == "bar" else _lines)(axes, _scaled(panel), styles)
            axes.set_title(textwrap.fill(panel.title, int(width / columns / _LETTER / 1.2)))
        _legend(figure)
        lay_out(figure)
    return figure


def text_svg(figure: Figure) -> str:
    """Return a figure as an SVG document whose text is text: small, and searchable in a page."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        svg = saved(figure, "svg").decode()
    return svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")


def for_both_schemes(svg: str) -> str:
    """Return an SVG document without a background, whose colours are lighter where the reader's page is dark."""
    style = environment().get_template("figures.css").render()
    return re.sub(r"<svg[^>]*>", rf"\g<0><style>{style}</style>", svg, count=1)


def _scaled(panel: Panel) -> Panel:
    """Return a panel in percent if it is a panel of fractions, without infinite intervals."""
    scale = 100.0 if panel.percent else 1.0
    finite = pl.col("low").is_finite() & pl.col("high").is_finite()
    points = panel.points.with_columns(
        pl.col("x").cast(pl.Float64),
        pl.col("value").cast(pl.Float64) * scale,
        pl.when(finite).then(pl.col("low", "high") * scale),
    )
    if BY_SEED in points.columns:
        points = points.with_columns(pl.col(BY_SEED).list.eval(pl.element() * scale))
    paper = None if panel.paper is None else panel.paper.with_columns(pl.col("value") * scale)
    level = None if panel.level is None else panel.level * scale
    return replace(panel, points=points, paper=paper, level=level)


def _series(panel: Panel) -> list[str]:
    paper = [] if panel.paper is None else panel.paper["series"].to_list()
    return list(dict.fromkeys([*panel.points["series"].to_list(), *paper]))


def _lines(axes: Any, panel: Panel, styles: dict[str, Style]) -> None:
    for name in _series(panel):
        points, style = panel.points.filter(series=name).sort("x"), styles[name]
        x, value, low, high = (_floats(points[column]) for column in ("x", "value", "low", "high"))
        if (seeds := seeds_of(points)).size:
            axes.plot(x, seeds, "." if len(x) == 1 else "-", color=style.color, lw=0.6, alpha=0.4, zorder=1.6)
        axes.fill_between(x, low, high, color=style.color, alpha=0.15, lw=0)
        # a band over a single point has no width
        axes.vlines(x, low, high, color=style.color, lw=1.0, alpha=0.6)
        if len(points):
            area = points[SIZE][0] if SIZE in points.columns else 1.0
            axes.plot(x, value, **style.line | {"ms": style.line["ms"] * area**0.5}, label=name)
        if panel.paper is not None and len(paper := panel.paper.filter(series=name).sort("x")):
            axes.plot(paper["x"], paper["value"], color=style.color, marker=style.marker, **_PAPER)
    places = positions(panel)
    if panel.ticks:
        _name_ticks(axes, panel)
    elif places:
        _number_ticks(axes, panel, places)
    _dress(axes, panel)


def _bars(axes: Any, panel: Panel, styles: dict[str, Style]) -> None:
    names, places = _series(panel), [*map(float, range(len(panel.ticks)))] or positions(panel)
    bar = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        points, style = panel.points.filter(series=name).sort("x"), styles[name]
        shift = bar * (place + 0.5) - 0.4
        x = np.array([places.index(one) for one in points["x"]], float) + shift
        fill: dict[str, Any] = {"fc": style.color, "ec": "white", "hatch": style.hatch, "lw": 0.0}
        axes.bar(x, _floats(points["value"]), 0.94 * bar, label=name, **fill)
        axes.vlines(x, _floats(points["low"]), _floats(points["high"]), color="#33353a", lw=1.1)
        if (seeds := seeds_of(points)).size:
            axes.plot(x - 0.22 * bar, seeds, ".", color="#33353a", ms=1.8, mew=0, alpha=0.55)
        if panel.paper is not None and len(paper := panel.paper.filter(series=name)):
            x = np.array([places.index(one) for one in paper["x"]], float) + shift
            axes.plot(x, paper["value"], color=style.color, marker="D", **_PAPER | {"ls": "none"})
    _name_ticks(axes, panel)
    _dress(axes, panel)


def _dress(axes: Any, panel: Panel) -> None:
    if panel.level is not None:
        axes.axhline(panel.level, color="#77797e", lw=0.9, zorder=1.5)
    if panel.paper is not None and len(panel.paper):
        marker = "D" if panel.kind == "bar" else "o"
        axes.plot([], [], color="#55575c", marker=marker, label="the paper", **_PAPER)
    axes.set_ylim(*limits(panel))
    axes.set_xlabel(textwrap.fill(x_label(panel), 45))
    axes.set_ylabel(textwrap.fill(y_label(panel), 36))
    dress(axes)


def _legend(figure: Figure) -> None:
    handles = {}
    for axes in figure.axes:
        handles |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = sorted(handles, key=lambda name: name == "the paper")
    labels = [textwrap.shorten(name, 40, placeholder="…") or f"{name[:39]}…" for name in names]
    columns = int(figure.get_figwidth() / _LETTER / (7 + max(map(len, labels), default=0)))
    style: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "handlelength": 2.6}
    style |= {"loc": "outside upper left", "ncols": max(1, min(columns, len(names)))}
    figure.legend([handles[name] for name in names], labels, **style)


def _name_ticks(axes: Any, panel: Panel) -> None:
    """Write the names of positions, broken between words if they fit, otherwise slanted."""
    names = tick_labels(panel)
    room = axes.get_position().width * axes.figure.get_figwidth() / max(len(names), 1) / _LETTER
    broken = [textwrap.fill(name, max(4, int(room)), break_long_words=False) for name in names]
    if max((len(line) for name in broken for line in name.splitlines()), default=0) <= room:
        axes.set_xticks(range(len(names)), broken)
    else:
        short = [textwrap.shorten(name, 24, placeholder="…") if " " in name else name[:24] for name in names]
        axes.set_xticks(range(len(names)), short, rotation=32, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", labelsize=8, length=0)
    axes.set_xlim(-0.55, len(names) - 0.45)


def _number_ticks(axes: Any, panel: Panel, places: Sequence[float]) -> None:
    """Put a tick at every position if there is room."""
    measured = np.array(places)
    if panel.scale != "linear" and places[0] > 0:
        axes.set_xscale("log", base=2)
        measured = np.log2(measured)
        if len(places) == 1:
            axes.set_xlim(places[0] / 2, places[0] * 2)
    elif all(place == round(place) for place in places):
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    labels = tick_labels(panel)
    room = _LETTER * (1 + max(map(len, labels))) / 3.5
    if (np.diff(measured) > room * np.ptp(measured)).all():
        axes.set_xticks(places, labels)
        axes.minorticks_off()


def limits(panel: Panel) -> tuple[float, float]:
    """Return the limits of the vertical axis: all values, and their intervals unless these are much wider."""
    points = panel.points
    level = [] if panel.level is None else [panel.level]
    paper = [] if panel.paper is None else panel.paper["value"].to_list()
    values = np.array([*points["value"].to_list(), *seeds_of(points).ravel(), *paper, *level], float)
    values = values[np.isfinite(values)]
    if not len(values):
        return (0.0, 100.0 if panel.percent else 1.0)
    least, most = values.min(), values.max()
    spread = max(most - least, 0.2 * abs(most), 30.0 if panel.percent else 0.0) or 1.0
    ends = np.r_[least, most, _floats(points["low"]), _floats(points["high"])]
    ends = ends[np.isfinite(ends)].clip(least - spread, most + spread)
    pad = 0.06 * (np.ptp(ends) or spread)  # a single value without an interval still needs an axis
    bottom, top = float(ends.min() - pad), float(ends.max() + pad)
    if panel.percent and panel.level != 0 and least >= 0 and most <= 100:  # rates, not differences
        bottom, top = max(bottom, 0.0), min(top, 102.0)
    return (min(bottom, 0.0) if panel.kind == "bar" or (top - bottom > 45 and least >= 0) else bottom), top


def positions(panel: Panel) -> list[float]:
    """Return the positions of all points, ours and the paper's."""
    paper = [] if panel.paper is None else panel.paper["x"].to_list()
    return sorted({*panel.points["x"].to_list(), *paper})


def tick_labels(panel: Panel) -> list[str]:
    """Return the names of the positions; ε in 255ths if all are multiples of 1/255."""
    places = positions(panel)
    if panel.ticks:
        return list(panel.ticks)
    if panel.scale != "eps":
        return [f"{place:g}".replace("-", "−") for place in places]
    return eps_ticks(places)[0]


def x_label(panel: Panel) -> str:
    """Return the label of the horizontal axis, with the unit of ε."""
    if panel.scale != "eps" or "255" in panel.x:
        return panel.x
    return f"{panel.x}, in {'255ths' if eps_ticks(positions(panel))[1] else 'units'} of the pixel range"


def y_label(panel: Panel) -> str:
    """Return the label of the vertical axis, with its unit."""
    return f"{panel.y} (%)".strip() if panel.percent and not re.search("%|point", panel.y) else panel.y


def seeds_of(points: pl.DataFrame) -> np.ndarray:
    """Return the means of single training seeds, (points, seeds); no seeds if they are unknown or there is one."""
    lists = points[BY_SEED].to_list() if BY_SEED in points.columns else []
    seeds = np.array(list(itertools.zip_longest(*(one or [] for one in lists), fillvalue=math.nan)), float).T
    return seeds if seeds.ndim == 2 and seeds.shape[1] > 1 else np.empty((len(points), 0))


def _floats(column: pl.Series) -> np.ndarray:
    return column.cast(pl.Float64).fill_null(math.nan).to_numpy()


PIXELS = 250_000  # of all images of a page, at most


def gallery_figure(gallery: Gallery, pixels: int = PIXELS) -> Figure:
    """Draw a grid of images with maps, each divided by its largest absolute value: red above 0, blue below."""
    columns, rows = max(map(len, gallery.rows), default=1), max(len(gallery.rows), 1)
    pictures = [picture for row in gallery.rows for picture in row]
    side = int(min(256, math.sqrt(pixels / max(len(pictures), 1))))
    style = _PLAIN_STYLE | {"axes.titlesize": 8.5, "axes.titlelocation": "center"}
    with new_figure(1.55 * max(columns, 2), 0.5 + 1.9 * rows, style=style) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for line, row in zip(grid, gallery.rows, strict=False):
            for axes, picture in zip(line, row, strict=False):
                axes.imshow(_pixels(picture, side), interpolation="none")  # the file holds the pixels once
                axes.set_title(textwrap.fill(picture.title, 20))
        if any(picture.over is not None for picture in pictures):
            place: dict[str, Any] = {"location": "bottom", "shrink": 0.5, "aspect": 30}
            bar = figure.colorbar(ScalarMappable(cmap="RdBu_r"), ax=grid, **place)
            bar.set_ticks([0, 0.5, 1], labels=["−", "0", "+"], fontsize=8)
            bar.set_label("each map scaled to its largest absolute value", fontsize=7.5)
        lay_out(figure)
    return figure


def _pixels(picture: Picture, side: int) -> UInt8[np.ndarray, "height width 3"]:
    """Return the picture with its map, at most ``side`` pixels a side and in few colours."""
    tall, wide = picture.image.shape[:2]
    if picture.over is None:
        shown = Image.fromarray(np.ascontiguousarray(picture.image))
        side = min(side, max(tall, wide))  # never more than the original
    else:
        values = np.nan_to_num(picture.over)
        heat = paint(picture.image / 255.0, values, signed=True, largest=float(np.abs(values).max()))
        shown = Image.fromarray((255 * heat).round().astype(np.uint8))
    scale = side / max(tall, wide)
    small = shown.resize((max(1, round(wide * scale)), max(1, round(tall * scale))), Image.Resampling.LANCZOS)
    few = small.quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # a third of the file size
    return np.asarray(few.convert("RGB"))
