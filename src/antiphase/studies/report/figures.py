"""Axes of the panels of a study: ticks, labels and limits."""

import base64
import colorsys
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import matplotlib
import matplotlib.patheffects as effects
import numpy as np
import polars as pl
from jaxtyping import UInt8
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from PIL import Image

from antiphase.budgets import eps_label
from antiphase.commands.look.figure import paint
from antiphase.report.figure import STYLE, draw_radar, dress
from antiphase.studies.figures import BY_SEED, Gallery, Panel, Picture, Plot

LETTER = 0.075
"""Width of a letter in inches, at the size of ticks and legends."""


def number_axis(axes: Axes, panel: Panel, places: Sequence[float], width: float) -> None:
    """Set the horizontal axis of a panel of lines, with a tick at every point if there is room.

    Args:
        axes: axes of the panel.
        panel: the panel.
        places: positions of its points.
        width: width of the panel in inches.
    """
    if panel.ticks:
        named_ticks(axes, range(len(panel.ticks)), panel.ticks, width)
        axes.set_xlim(-0.3, len(panel.ticks) - 0.7)
        return
    logarithmic = panel.scale != "linear" and bool(places) and places[0] > 0
    if logarithmic:
        axes.set_xscale("log", base=2)
        if len(places) == 1:
            axes.set_xlim(places[0] / 2, places[0] * 2)
    measured = np.log2(places) if logarithmic else np.array(places)
    gaps = np.diff(measured) / (measured[-1] - measured[0]) if len(places) > 1 else np.ones(1)
    labels = numbers(panel, places)
    room = LETTER * (1 + max(map(len, labels), default=0)) / (width - 0.8)
    if gaps.min(initial=1.0) > room:  # there is room for every label
        axes.set_xticks(places, labels)
        axes.minorticks_off()
    elif panel.scale == "linear":
        whole = all(place == round(place) for place in places)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))


def named_ticks(axes: Axes, places: Sequence[float], names: Sequence[str], width: float) -> None:
    """Write names below positions, broken between words if they fit, otherwise slanted and shortened."""
    letters = max(4, int((width - 0.8) / max(len(places), 1) / LETTER))
    broken = [textwrap.wrap(name, letters, break_long_words=False) for name in names]
    if all(len(lines) <= 3 and max(map(len, lines), default=0) <= letters for lines in broken):
        axes.set_xticks(places, ["\n".join(lines) for lines in broken], parse_math=False)
    else:
        slanted: dict[str, Any] = {
            "rotation": 32,
            "ha": "right",
            "rotation_mode": "anchor",
            "parse_math": False,
        }
        axes.set_xticks(places, [shortened(name, 24) for name in names], **slanted)
    axes.tick_params(axis="x", labelsize=8, length=0)


def limits(panel: Panel, points: pl.DataFrame, paper: pl.DataFrame | None) -> tuple[float, float]:
    """Return the limits of the vertical axis: all values, and their intervals unless these are much wider."""
    seeds = seeds_of(points).ravel() * (100.0 if panel.percent else 1.0)
    values = np.r_[floats(points["value"]), seeds]
    if paper is not None:
        values = np.r_[values, floats(paper["value"])]
    values = values[np.isfinite(values)]
    if not len(values):
        return (0.0, 100.0 if panel.percent else 1.0)
    level = [] if panel.level is None else [(100 if panel.percent else 1) * panel.level]
    least, most = min(values.min(), *level, np.inf), max(values.max(), *level, -np.inf)
    spread = max(most - least, 0.2 * abs(most), 30.0 if panel.percent else 0.0) or 1.0
    far = np.concatenate([[least, most], *(end[np.isfinite(end)] for end in ends(points))])
    bottom, top = max(far.min(), least - spread), min(far.max(), most + spread)
    pad = 0.06 * (top - bottom or spread)  # a single value without an interval still needs an axis
    bottom, top = bottom - pad, top + pad
    if (
        panel.percent and panel.level != 0 and values.min() >= 0 and values.max() <= 100
    ):  # rates, not differences
        bottom, top = max(bottom, 0.0), min(top, 100.0 if panel.kind == "bar" else 100.0 + pad / 3)
        if top - bottom > 45:
            bottom, top = 0.0, 102.0 if top > 99 else top
    if panel.kind == "bar" and values.min() >= 0:
        bottom = min(0.0, bottom) if panel.level is not None else 0.0
    return bottom, top


def positions(panel: Panel) -> list[float]:
    """Return the positions of all points, ours and the paper's."""
    paper = [] if panel.paper is None else panel.paper["x"].to_list()
    return sorted({*panel.points["x"].to_list(), *paper})


def numbers(panel: Panel, places: Sequence[float]) -> list[str]:
    """Format the positions of a panel, ε in 255ths if all are multiples of 1/255."""
    if panel.scale != "eps":
        return [f"{place:g}".replace("-", "−") for place in places]
    fractions = [eps_label(place) for place in places]
    return [name.removesuffix("/255") for name in fractions] if _of_255(places) else fractions


def x_label(panel: Panel) -> str:
    """Return the label of the horizontal axis, with the unit of ε."""
    if panel.scale != "eps" or "255" in panel.x:
        return panel.x
    return f"{panel.x}, in {'255ths' if _of_255(positions(panel)) else 'units'} of the pixel range"


def y_label(panel: Panel) -> str:
    """Return the label of the vertical axis, with its unit."""
    open_ = panel.percent and "%" not in panel.y and "point" not in panel.y
    return f"{panel.y} (%)".strip() if open_ else panel.y


def ends(points: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the intervals; both are NaN if one is missing or infinite."""
    low, high = floats(points["low"]), floats(points["high"])
    none = ~(np.isfinite(low) & np.isfinite(high))
    return np.where(none, math.nan, low), np.where(none, math.nan, high)


def seeds_of(points: pl.DataFrame) -> np.ndarray:
    """Return the means of single training seeds, (points, seeds); no seeds if they are unknown or there is one.

    >>> seeds_of(pl.DataFrame({"by_seed": [[0.1, 0.2, 0.4], [0.3, 0.5]]})).tolist()
    [[0.1, 0.2, 0.4], [0.3, 0.5, nan]]
    """
    lists = points[BY_SEED].to_list() if BY_SEED in points.columns else []
    most = max((len(each) for each in lists if each), default=0)
    if most < 2:
        return np.empty((len(points), 0))
    return np.array([[*(each or []), *[math.nan] * (most - len(each or []))] for each in lists], float)


def floats(column: pl.Series) -> np.ndarray:
    """Return a column as floats, with NaN for missing values."""
    return column.cast(pl.Float64).fill_null(math.nan).to_numpy()


def shortened(text: str, letters: int) -> str:
    """Omit the middle of a long name.

    >>> shortened("a" * 20 + "b" * 40, 12)
    'aaaa…bbbbbbb'
    """
    return text if len(text) <= letters else f"{text[: letters // 3]}…{text[-(letters - letters // 3 - 1) :]}"


def _of_255(places: Sequence[float]) -> bool:
    return all(eps_label(place).endswith("/255") or place == 0 for place in places)


_FIXED = {
    "ViT": "#0072B2",
    "DiffViT": "#D55E00",
    "CLIP": "#0072B2",
    "DiffCLIP": "#D55E00",
    "DiffCLIP*": "#CC79A7",
    "DiffCLIP†": "#E69F00",
}
# Okabe and Ito's palette
_FURTHER = ("#009E73", "#56B4E9", "#CC79A7", "#E69F00", "#000000", "#0072B2", "#D55E00")
_MARKERS = "osD^vPX<>"
_DASHES = ((), (5.0, 1.6), (6.0, 1.4, 1.4, 1.4), (9.0, 2.5), (4.0, 1.2, 1.2, 1.2, 1.2, 1.2))
_HATCHES = ("", "///", "xx", "---", "\\\\\\", "||")
_LIGHT = 0.3  # relative luminance above which lines on white are too pale


@dataclass(frozen=True)
class Style:
    """Colour, marker, dashes and hatch of one series.

    Attributes:
        color: colour of lines and fills.
        edge: colour of whiskers and outlines: the same hue, dark enough on white.
        marker: matplotlib marker.
        dashes: lengths of dashes and gaps in points; empty for a solid line.
        hatch: matplotlib hatch of bars.
    """

    color: str
    edge: str
    marker: str
    dashes: tuple[float, ...]
    hatch: str

    @property
    def pale(self) -> bool:
        """Whether a line of this colour needs a darker rim."""
        return self.edge != self.color


def series_styles(panels: Sequence[Sequence[str]]) -> dict[str, Style]:
    """Assign styles to the series of a figure; the models of the two papers have the same colour in every figure.

    ``"DiffViT, 4/255"`` has the hue of ``"DiffViT"``. Series in the same panel differ in markers and hatches, those of
    the same hue also in dashes.

    Args:
        panels: names of the series in each panel; a single group if panels share a legend.

    >>> [style.color for style in series_styles([["ViT", "DiffViT", "other"]]).values()]
    ['#0072B2', '#D55E00', '#009E73']
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel))
    known = {name: color for name in names if (color := _known(name))}
    free = [color for color in _FURTHER if color not in known.values()] or list(_FURTHER)
    others = [name for name in names if name not in known]
    colors = known | {name: free[place % len(free)] for place, name in enumerate(others)}
    met = {name: {other for panel in panels if name in panel for other in panel} - {name} for name in names}
    marks: dict[str, int] = {}
    dashes: dict[str, int] = {}
    for name in names:
        marks[name] = _least({marks[other] for other in met[name] if other in marks})
        rivals = {other for other in met[name] if colors[other] == colors[name]}
        dashes[name] = _least({dashes[other] for other in rivals if other in dashes})
    return {
        name: Style(
            colors[name],
            _darkened(colors[name]),
            _MARKERS[marks[name] % len(_MARKERS)],
            _DASHES[dashes[name] % len(_DASHES)],
            _HATCHES[marks[name] % len(_HATCHES)],
        )
        for name in names
    }


def _least(taken: Set[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _known(name: str) -> str | None:
    """Return the fixed colour of a series whose name starts with a known model."""
    stem = re.match(r"(?:Diff)?(?:ViT|CLIP)[*†]?(?![\w*†-])", name)
    return _FIXED.get(stem[0]) if stem else None


def _darkened(color: str) -> str:
    red, green, blue = to_rgb(color)
    if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < _LIGHT:
        return color
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    return to_hex(colorsys.hls_to_rgb(hue, 0.62 * light, saturation))


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


PIXELS = 500_000
"""Largest number of pixels of all images of a page."""
_SIDE, _GAP, _EDGE = 1.45, 0.1, 0.06  # inches
_LINE, _BAR = 0.16, 0.42
_LETTERS = 20  # letters per line of a title
_COLORS = 128  # colours of one image: enough for heat over grey, a third of the file size
_QUALITY = 82
_LOSSLESS = 1.4  # keep images losslessly up to this multiple of their JPEG size


def gallery_figure(gallery: Gallery, pixels: int = PIXELS) -> Figure:
    """Draw a grid of images with maps, each enlarged bilinearly and divided by its largest absolute value.

    Positive values are red, negative values blue; where a map is 0 the image shows in light grey. Images without a map
    keep their colours.

    Args:
        gallery: the gallery of the study; rows may differ in length.
        pixels: number of pixels of all images together.
    """
    columns = max((len(row) for row in gallery.rows), default=1)
    count = sum(map(len, gallery.rows))
    side = int(min(256, math.sqrt(pixels / max(count, 1))))
    lines = [max((len(_title(picture).splitlines()) for picture in row), default=1) for row in gallery.rows]
    maps = any(picture.over is not None for row in gallery.rows for picture in row)
    bar = _BAR if maps else 0.0
    width = _EDGE + max(columns, 2) * (_SIDE + _GAP)
    height = _EDGE + sum(_SIDE + _GAP + _LINE * line for line in lines) + bar
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        top = height
        for row, line in zip(gallery.rows, lines, strict=True):
            top -= _SIDE + _LINE * line + _GAP
            for place, picture in enumerate(row):
                left = _EDGE + place * (_SIDE + _GAP)
                axes = figure.add_axes((left / width, top / height, _SIDE / width, _SIDE / height))
                tall, wide = picture.image.shape[:2]
                # no resampling: the file holds the pixels once, whatever its resolution
                axes.imshow(_pixels(picture, side), extent=(0, wide, 0, tall), interpolation="none")
                axes.set_anchor("N")
                axes.set_axis_off()
                axes.set_title(_title(picture), fontsize=8.5, pad=3, linespacing=1.1, parse_math=False)
        if maps:
            _scale(figure, width, height)
    return figure


def lighter(svg: str) -> str:
    """Shrink the images of an SVG document: those with few colours to a palette, others to JPEG."""

    def again(found: re.Match[str]) -> str:
        picture = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB")
        jpeg = io.BytesIO()
        picture.save(jpeg, "JPEG", quality=_QUALITY, optimize=True)
        png = _with_palette(picture)
        lossless = len(png) <= _LOSSLESS * len(jpeg.getvalue())
        kind, content = ("png", png) if lossless else ("jpeg", jpeg.getvalue())
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

    return re.sub(r"data:image/png;base64,\s*([A-Za-z0-9+/=\s]+)", again, svg)


def _with_palette(picture: Image.Image) -> bytes:
    """Return a picture of at most 256 colours as PNG."""
    pixels = np.asarray(picture)
    colors, which = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    indexed = Image.fromarray(which.reshape(pixels.shape[:2]).astype(np.uint8))
    indexed.putpalette(colors.tobytes())
    buffer = io.BytesIO()
    indexed.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def few_colors(png: bytes) -> bytes:
    """Return a PNG reduced to 256 colours, a third of its size."""
    picture = Image.open(io.BytesIO(png))
    buffer = io.BytesIO()
    picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        buffer, "PNG", optimize=True, dpi=picture.info["dpi"]
    )
    return buffer.getvalue()


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
    few = small.quantize(_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    return np.asarray(few.convert("RGB"))


def _scale(figure: Figure, width: float, height: float) -> None:
    axes = figure.add_axes((_EDGE / width, 0.27 / height, 1.5 / width, 0.08 / height))
    bar = figure.colorbar(ScalarMappable(cmap="RdBu_r"), cax=axes, orientation="horizontal")
    bar.set_ticks([0, 0.5, 1], labels=["−", "0", "+"], fontsize=8)
    bar.ax.tick_params(length=0, pad=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    left = (_EDGE + 1.65) / width
    words = "each map scaled to its largest absolute value"
    figure.text(left, 0.31 / height, words, va="center", fontsize=7.5, color="#77797e")


def _title(picture: Picture) -> str:
    lines = textwrap.wrap(picture.title, _LETTERS)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2][: _LETTERS - 1]}…"])
