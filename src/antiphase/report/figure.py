"""Families of models that differ only in their training seed: each has one colour and one mean."""

import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.evaluation.rates import by_seed, over_seeds
from antiphase.report.words import number, points_interval
from antiphase.statistics.intervals import Estimate, Within, as_difference, as_share, is_interval, mean_over_seeds
from antiphase.terminal import eps_label

# Okabe and Ito's colour-blind-safe palette; the first family of a kind of attention has one colour in all reports
_FIRST = {"softmax": "#0072B2", "differential": "#D55E00"}
_FURTHER = ("#009E73", "#CC79A7", "#56B4E9", "#E69F00")


@dataclass(frozen=True)
class Family:
    """The models of one architecture and recipe, trained with different seeds."""

    name: str
    color: str
    models: tuple[str, ...]


def families(models: Sequence[Mapping[str, Any]]) -> list[Family]:
    """Give each family of ``antiphase.evaluation.rates.by_seed`` a colour."""
    attention = {model["name"]: model["attention"] for model in models}
    first, further, groups = dict(_FIRST), itertools.cycle(_FURTHER), []
    for name, members in by_seed(models).items():
        groups.append(Family(name, first.pop(attention[members[0]], None) or next(further), tuple(members)))
    return groups


def seed_counts(groups: Sequence[Family]) -> str:
    """Return the number of training seeds per family, such as ``2 to 3``; empty if all have one."""
    if not (counts := [len(family.models) for family in groups if len(family.models) > 1]):
        return ""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def with_means(frame: pl.DataFrame, groups: Sequence[Family], keys: Sequence[str], within: Within) -> pl.DataFrame:
    """Return estimates, and below them the means over the seeds of each family that has several.

    The frame has ``model, value, low, high`` and the keys; ``name``, of a model or family, then stands for ``model``.
    """
    owner = {model: group.name for group in groups for model in group.models}
    means = over_seeds(frame.with_columns(name=pl.col("model").replace(owner)), ["name", *keys], "value", within)
    return pl.concat([frame.rename({"model": "name"}), means.drop("n")], how="diagonal_relaxed")


_FILE = Path(__file__).with_name("style.mplstyle")
STYLE: Any = dict(matplotlib.rc_params_from_file(_FILE, use_default_template=False))
MARKERS = "osD^vP"


def dress(axes: Axes, along: Literal["x", "y"] = "y") -> None:
    """Draw grid lines for the values on one axis, below the data, and no frame at the top and the right."""
    axes.grid(axis=along, color="#e4e3de", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def rate_figure(panels: Sequence[tuple[str, str, pl.DataFrame]], groups: Sequence[Family]) -> Figure:
    """Draw rates over ε with their 95 % intervals: of each panel its title, the rate's name and a frame by ``eps``."""
    with new_figure(5.0, 3.6 * len(panels)) as figure:
        for place, (title, rate, frame) in enumerate(panels, start=1):
            axes = figure.add_subplot(len(panels), 1, place)
            lines = frame.with_columns(pl.col("value", "low", "high") * 100)
            ends = pl.col("low", "high").fill_null(pl.col("value")).clip(0, 100)
            add_legend(axes, draw_families(axes, lines.with_columns(ends), "eps", groups), fontsize=8.5)
            axes.set_title(title, loc="left", fontsize=9.5, parse_math=False)
            axes.set_ylabel(f"{rate} (%)")
            axes.set_ylim(0, 100)
            eps = lines["eps"].unique().sort().to_list()
            if eps[0] > 0:
                axes.set_xscale("log", base=2)
            if len(eps) == 1 and eps[0] > 0:
                axes.set_xlim(eps[0] / 2, eps[0] * 2)
            labels, of_255 = eps_ticks(eps)
            axes.set_xticks(eps, labels)
            axes.minorticks_off()
            axes.set_xlabel("ε, in 255ths of the pixel range" if of_255 else "ε, in units of the pixel range")
            dress(axes)
    return figure


@dataclass(frozen=True)
class Axis:
    """A quantity by layer: title, a frame as :func:`draw_families` takes it, by ``layer``, a level to mark."""

    title: str
    frame: pl.DataFrame
    level: float | None = None
    log: bool = False
    axis: str = "layer"


LEVEL: Any = {"color": "#8a8a86", "lw": 0.9, "ls": (0, (4, 3)), "zorder": 0}  # how a level is drawn
UNDECIDED = "#77797e"  # the colour of a difference that is not decided


@dataclass(frozen=True)
class ForestLine:
    """An estimate with its interval, and the values of single seeds; ``marked`` if the title quotes it."""

    label: str
    estimate: Estimate
    color: str = UNDECIDED
    seeds: Sequence[float] = ()
    marked: bool = False


@dataclass(frozen=True)
class Forest:
    """Estimates below one another, times ``scale`` with ``digits`` decimals; ``signed`` of differences of shares."""

    title: str
    lines: Sequence[ForestLine]
    level: float | None = None
    level_name: str = ""
    limits: tuple[float, float] | None = None
    signed: bool = False
    scale: float = 100.0
    digits: int = 1

    def number(self, estimate: Estimate) -> str:
        value, low, high = estimate.value, estimate.low, estimate.high
        if self.signed:
            return points_interval(value, low, high).replace(" points", "")
        written = [number(self.scale * end, self.digits) for end in (value, low, high)]
        return f"{written[0]} [{written[1]}, {written[2]}]" if is_interval(low, high) else written[0]


def eps_ticks(values: Sequence[float]) -> tuple[list[str], bool]:
    """Return the labels of ε on an axis, and whether they are 255ths: where all are multiples of 1/255."""
    labels = list(map(eps_label, values))
    of_255 = all(label == "0" or label.endswith("/255") for label in labels)
    return [label.removesuffix("/255" * of_255) for label in labels], of_255


def mean_line(
    label: str, estimates: Sequence[Estimate], within: Within, color: str = UNDECIDED, marked: bool = False
) -> ForestLine:
    """Return a line for one estimate, or for the mean of those of several seeds, see :func:`with_means`."""
    seeds = [estimate.value for estimate in estimates] if len(estimates) > 1 else []
    estimate = within(mean_over_seeds(seeds)) if seeds else estimates[0]
    return ForestLine(label, estimate, color, seeds, marked)


def chance(models: Sequence[Mapping[str, Any]]) -> float | None:
    """Return 1 / number of classes, if ``summary.json`` has it for all models."""
    classes = [model["num_classes"] for model in models if model.get("num_classes")]
    return 1 / min(classes) if len(classes) == len(models) else None


def answer_figure(
    quantity: str,
    rows: Sequence[tuple[str, Sequence[Estimate], int, bool]],
    accuracy: str,
    sides: Sequence[tuple[str, str, Sequence[Estimate]]],
    level: float | None,
) -> Figure:
    """Draw what a title quotes above accuracies and their chance level.

    ``rows`` have label, estimates (of one model or pair, or of each seed), 1 or −1 if decided and 0 if not, and whether
    the title quotes it; they are differences if there are two ``sides`` (name, colour, accuracies), else rates.
    """
    signed = len(sides) > 1
    colors = (UNDECIDED, sides[0][1], sides[-1][1])
    within = as_difference if signed else as_share
    lines = [mean_line(label, estimates, within, colors[sign], marked) for label, estimates, sign, marked in rows]
    names = " minus ".join(shortened(name, 18) for name, *_ in sides)
    forest = Forest(f"{quantity}, %", lines, limits=(0, 1))
    if signed:
        forest = Forest(f"{quantity}, {names}, points", lines, 0.0, signed=True)
    forests = [forest] if lines else []
    below = [mean_line(name, estimates, as_share, color) for name, color, estimates in sides if estimates]
    return forest_figure([*forests, Forest(f"{accuracy}, %", below, level, "chance", limits=(0, 1))])


def forest_figure(forests: Sequence[Forest]) -> Figure:
    """Draw forests below one another: dots are single seeds, diamonds the estimates, in the order of the lines."""
    sizes = [max(len(forest.lines), 1) + 1.6 for forest in forests]
    with new_figure(5.0, 0.26 * sum(sizes) + 0.2) as figure:
        panels = figure.subplots(len(forests), 1, squeeze=False, height_ratios=sizes)[:, 0]
        for axes, forest in zip(panels, forests, strict=True):
            for place, line in enumerate(forest.lines):
                estimate, color = line.estimate, line.color
                ends = [forest.scale * end for end in (estimate.low, estimate.high)]
                if is_interval(*ends):
                    axes.plot(ends, [place, place], "-", color=color, lw=1.8, solid_capstyle="butt")
                dots = [forest.scale * value for value in line.seeds]
                axes.plot(dots, [place] * len(dots), "o", ms=3.4, mew=0, color=color, alpha=0.5)
                axes.plot([forest.scale * estimate.value], [place], "D", ms=6.5 if line.marked else 5.0, color=color)
                weight = "bold" if line.marked else "normal"
                right: Any = {"transform": axes.get_yaxis_transform(), "va": "center", "parse_math": False}
                axes.text(1.02, place, forest.number(estimate), fontsize=8.5, weight=weight, **right)
            axes.set_yticks(range(len(forest.lines)), [shortened(line.label, 30) for line in forest.lines])
            for label, line in zip(axes.get_yticklabels(), forest.lines, strict=True):
                label.set(weight="bold" if line.marked else "normal", parse_math=False)
            axes.set_ylim(len(forest.lines) - 0.4, -0.6)
            if forest.limits:
                axes.set_xlim(*(forest.scale * end for end in forest.limits))
            axes.set_title(forest.title, loc="left", fontsize=9.5, parse_math=False)
            if forest.level is not None:
                level = forest.scale * forest.level
                axes.axvline(level, **LEVEL | {"color": STYLE["text.color"]})
                foot: Any = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": 8.0}
                axes.text(level, 0.99, f" {forest.level_name}", **foot)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            dress(axes, "x")
    return figure


def layer_figure(rows: Sequence[Sequence[Axis]], groups: Sequence[Family]) -> Figure:
    """Draw rows of panels over the layers, with intervals as bars."""
    columns = max(map(len, rows))
    with new_figure(max(5.0, 3.0 * columns), 0.5 + 2.2 * len(rows)) as figure:
        drawn: dict[str, Any] = {}
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                axes = figure.add_subplot(len(rows), columns, row * columns + column + 1)
                drawn |= draw_families(axes, panel.frame, "layer", groups, bars=True)
                axes.set_title(panel.title, loc="left", fontsize=9.5, parse_math=False)
                axes.set_xlabel(panel.axis)
                places = panel.frame["layer"].unique().sort().to_list()
                axes.set_xticks(places)
                axes.set_xlim(places[0] - 0.5, places[-1] + 0.5)
                axes.set_yscale("log" if panel.log else "linear")
                if panel.level is not None:
                    axes.axhline(panel.level, **LEVEL)
                dress(axes)
        add_legend(figure, drawn, loc="outside upper left", fontsize=8.0, ncols=columns)
    return figure


def draw_families(
    axes: Axes, frame: pl.DataFrame, along: str, groups: Sequence[Family], *, bars: bool = False, marks: bool = True
) -> dict[str, Any]:
    """Draw values by ``name`` over a column, with intervals as bars or a band; return the artists of a legend."""
    frame, drawn = frame.sort(along), {}
    for place, family in enumerate(groups):
        style: Any = {"color": family.color, "lw": 1.9}
        marker = f"{MARKERS[place % len(MARKERS)]}-" if marks else ("-", "--")[place % 2]
        # so that bars do not cover each other
        aside = 0.07 * (place - (len(groups) - 1) / 2) if bars else 0.0
        for model in family.models if len(family.models) > 1 else ():
            thin = frame.filter(name=model)
            look: Any = {"ms": 2.0, "color": family.color, "lw": 0.8, "alpha": 0.55}
            # one layer has no line
            axes.plot(thin[along] + aside, thin["value"], marker if bars else "-", **look)
        if (thick := frame.filter(name=family.name)).is_empty():
            continue
        across, ends, label = thick[along] + aside, (thick["low"], thick["high"]), legend_label(family)
        if bars:
            sizes = [(thick["value"] - ends[0]).clip(0), (ends[1] - thick["value"]).clip(0)]
            more: Any = {"elinewidth": 1.1, "capsize": 2.5}
            drawn[label] = axes.errorbar(across, thick["value"], sizes, fmt=marker, ms=4.5, **style, **more)
            continue
        (drawn[label],) = axes.plot(across, thick["value"], marker, ms=4.5, **style)
        if len(thick) > 1:
            axes.fill_between(across, *ends, color=family.color, alpha=0.16, lw=0)
        else:
            axes.vlines(across, *ends, **style)
    return drawn


_SAVED: Any = {
    "svg": {"metadata": dict.fromkeys(("Creator", "Date", "Format", "Type"))},
    "png": {"dpi": 200},
    "pdf": {"metadata": {"CreationDate": None}},
}


def lay_out(figure: Figure) -> None:
    """Lay a figure out once and drop its engine, so that each format is drawn once."""
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)  # "none" would leave a placeholder, for which savefig draws twice


def saved(figure: Figure, form: str) -> bytes:
    """Return a figure as ``svg``, ``png`` or ``pdf``: the same bytes for the same figure."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        lay_out(figure)
        figure.savefig(buffer, format=form, **_SAVED[form])
    return buffer.getvalue()


def inline_svg(svg: str, name: str, description: str) -> str:
    """Prepare an SVG document for a page: without prologue, on no ground, with unique ids, scalable and labelled."""
    body = re.sub(r'\bid="', f'id="{name}-', svg[svg.index("<svg") :])
    body = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", body)
    for size in ("width", "height"):
        body = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", body, count=1)
    body = body.replace("fill: #ffffff", "fill: none")
    return body.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)


def legend_label(family: Family) -> str:
    """Return the legend label of a family, shortened if it is long."""
    name = shortened(family.name)
    return name if len(family.models) == 1 else f"{name}, mean of {len(family.models)} seeds"


def shortened(text: str, length: int = 36) -> str:
    """Leave the middle of a long name out, such as a path's: its end tells more than its beginning."""
    head = (length - 1) * 3 // 10
    return text if len(text) <= length else f"{text[:head]}…{text[head + 1 - length :]}"


def add_legend(place: Axes | Figure, entries: Mapping[str, Any], loc: Any = "best", **how: Any) -> None:
    """Draw a legend of artists by label; labels are not read as formulas."""
    legend = place.legend(list(entries.values()), ["label"] * len(entries), frameon=False, loc=loc, **how)
    for text, label in zip(legend.get_texts(), entries, strict=True):
        text.set(text=label, parse_math=False)


@contextmanager
def new_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained", style: Any = STYLE
) -> Iterator[Figure]:
    """Yield an empty figure, in inches, whose artists get the style within the block."""
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout=layout)
        FigureCanvasAgg(figure)
        yield figure


def colors_of(groups: Sequence[Family]) -> dict[str, str]:
    """Return the colour of each model and of each family."""
    return {name: family.color for family in groups for name in (family.name, *family.models)}
