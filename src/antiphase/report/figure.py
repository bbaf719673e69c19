"""Families of models that differ only in their training seed: each has one colour and one mean."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.evaluation.rates import by_seed
from antiphase.terminal import eps_label

# Okabe and Ito's colour-blind-safe palette; the first family of each kind of attention has the same colour in every
# report.
_FIRST = {"softmax": "#0072B2", "differential": "#D55E00"}
_FURTHER = ("#009E73", "#CC79A7", "#56B4E9", "#E69F00")


@dataclass(frozen=True)
class Family:
    """The models of one architecture and recipe, trained with different seeds."""

    name: str
    color: str
    models: tuple[str, ...]


def families(models: Sequence[Mapping[str, Any]]) -> list[Family]:
    """Give each family of ``antiphase.evaluation.rates.by_seed`` a colour.

    >>> models = [{"name": f"vit-{seed}", "attention": "softmax", "seed": seed} for seed in (0, 1)]
    >>> families(models)
    [Family(name='vit', color='#0072B2', models=('vit-0', 'vit-1'))]
    """
    attention = {model["name"]: model["attention"] for model in models}
    first, further = dict(_FIRST), list(_FURTHER)
    found = []
    for name, members in by_seed(models).items():
        color = first.pop(attention[members[0]], None) or further[0]
        if color == further[0]:
            further.append(further.pop(0))  # reuse colours if there are more families
        found.append(Family(name, color, tuple(members)))
    return found


def seed_counts(groups: Sequence[Family]) -> str:
    """Return the number of training seeds per family, as a number or range; empty if all have one.

    >>> seed_counts([Family("a", "", ("a-0", "a-1")), Family("b", "", ("b-0", "b-1", "b-2")), Family("c", "", ("c",))])
    '2 to 3'
    """
    counts = [len(family.models) for family in groups if len(family.models) > 1]
    if not counts:
        return ""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


STYLE: Any = {
    "font.family": "DejaVu Sans",  # ships with matplotlib
    "font.size": 9.0,
    "axes.edgecolor": "#8a8a86",
    "axes.labelcolor": "#33353a",
    "axes.linewidth": 0.8,
    "text.color": "#33353a",
    "xtick.color": "#55575c",
    "ytick.color": "#55575c",
    "svg.hashsalt": "antiphase",  # makes the ids in a file reproducible
}
MARKERS = "osD^vP"


def dress(axes: Axes, along: Literal["x", "y"] = "y") -> None:
    """Draw grid lines for the values on one axis, below the data, and no frame at the top and the right."""
    axes.grid(axis=along, color="#e4e3de", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def rate_figure(panels: Sequence[tuple[str, str, pl.DataFrame]], groups: Sequence[Family]) -> Figure:
    """Draw rates over ε with their 95 % intervals.

    A single model is a line with its band. A family of several is a thin line for each seed and a thick one for their
    mean, with the band of the mean.

    Args:
        panels: of each panel the title, the name of the rate, and a frame with ``name`` (of a model, or of a family
            for its mean), ``eps``, ``value``, ``low`` and ``high``.
        groups: The families, in drawing order.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.6 * len(panels)), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (title, rate, frame) in zip(
            figure.subplots(len(panels), squeeze=False).flat, panels, strict=True
        ):
            lines = frame.sort("eps").with_columns(pl.col("value", "low", "high") * 100)
            for family, marker in zip(groups, MARKERS * len(groups), strict=False):
                _draw_family(axes, family, marker, lines)
            _dress(axes, lines["eps"].unique().sort().to_list())
            axes.set_title(title, loc="left", fontsize=9.5, parse_math=False)
            axes.set_ylabel(f"{rate} (%)")
            legend = axes.legend(frameon=False, loc="best", fontsize=8.5)
            for text, family in zip(legend.get_texts(), groups, strict=True):
                text.set(text=legend_label(family), parse_math=False)
    return figure


def as_svg(figure: Figure) -> str:
    """Return the figure as an SVG document, the same bytes for the same figure."""
    with matplotlib.rc_context(STYLE):
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        return _saved(figure, format="svg", metadata=no_metadata).decode()


def inline_svg(svg: str, name: str, description: str) -> str:
    """Prepare an SVG document for embedding in a page: without prologue, with unique ids, scalable and labelled.

    Args:
        svg: An SVG document of ``as_svg``.
        name: A name unique on the page; letters, digits, "-" and "_".
        description: Text for screen readers, without quotes or markup.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", body)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    return body.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)


def as_png(figure: Figure) -> bytes:
    """Return the figure as PNG at 200 dots per inch, on white."""
    return _saved(figure, format="png", dpi=200)


def as_pdf(figure: Figure) -> bytes:
    """Return the figure as PDF, without a date."""
    with matplotlib.rc_context(STYLE):
        return _saved(figure, format="pdf", metadata={"CreationDate": None})


def _saved(figure: Figure, **how: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **how)
    return buffer.getvalue()


def _draw_family(axes: Axes, family: Family, marker: str, lines: pl.DataFrame) -> None:
    for model in family.models if len(family.models) > 1 else ():
        thin = lines.filter(name=model)
        axes.plot(thin["eps"], thin["value"], color=family.color, lw=0.8, alpha=0.55)
    ends = pl.col("low", "high").fill_null(pl.col("value")).clip(0, 100)
    thick, line = lines.filter(name=family.name).with_columns(ends), {"color": family.color, "lw": 1.9}
    axes.plot(thick["eps"], thick["value"], marker, ls="-", ms=4.5, label="family", **line)
    if len(thick) > 1:
        axes.fill_between(thick["eps"], thick["low"], thick["high"], color=family.color, alpha=0.16, lw=0)
    else:  # a band needs at least two ε
        axes.vlines(thick["eps"], thick["low"], thick["high"], **line)


def legend_label(family: Family) -> str:
    """Return the legend label of a family, shortened if it is long."""
    name = family.name if len(family.name) <= 36 else f"{family.name[:10]}…{family.name[-25:]}"
    return name if len(family.models) == 1 else f"{name}, mean of {len(family.models)} seeds"


def _dress(axes: Axes, eps: Sequence[float]) -> None:
    if eps[0] > 0:
        axes.set_xscale("log", base=2)
        if len(eps) == 1:
            axes.set_xlim(eps[0] / 2, eps[0] * 2)
    fractions = [eps_label(e) for e in eps]
    of_255 = all(e == 0 or fraction.endswith("/255") for e, fraction in zip(eps, fractions, strict=True))
    labels = [fraction.removesuffix("/255") if of_255 else fraction for fraction in fractions]
    axes.set_xticks(eps, labels)
    axes.minorticks_off()
    axes.set_xlabel("ε, in 255ths of the pixel range" if of_255 else "ε, in units of the pixel range")
    axes.set_ylim(0, 100)
    dress(axes)


_GRID = "#d8d7d2"


def draw_radar(
    axes: Any, names: Sequence[str], lines: Sequence[tuple[Sequence[float], Mapping[str, Any]]]
) -> None:
    """Draw values on spokes, the first at the top, then clockwise.

    Args:
        axes: polar axes.
        names: names of the spokes.
        lines: the values of each line in percent, one for each spoke, NaN where there is none; and how matplotlib draws
            it, with its ``color``.
    """
    angles = [2 * math.pi * at / len(names) for at in range(len(names))]
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    for values, look in lines:
        closed = ([*angles, angles[0]], [*values, values[0]])
        axes.plot(*closed, **look)
        axes.fill(*closed, color=look["color"], alpha=0.08, lw=0)
    top = max((value for values, _ in lines for value in values if not math.isnan(value)), default=0.0)
    axes.set_xticks(angles, [_broken(name) for name in names], parse_math=False)
    limit = 10 * math.ceil((top + 1) / 10)
    step = next(step for step in (5, 10, 20, 25) if limit <= 4 * step)
    axes.set_ylim(0, limit)
    axes.set_yticks(range(step, limit + 1, step))
    axes.set_rlabel_position(math.degrees(angles[1] / 2) if len(angles) > 1 else 0)
    axes.grid(color=_GRID, lw=0.7)
    axes.spines["polar"].set_color(_GRID)
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):
        side = math.sin(angle)
        label.set_horizontalalignment("left" if side > 0.1 else "right" if side < -0.1 else "center")
    axes.tick_params(axis="x", pad=6)


def _broken(text: str) -> str:
    r"""Break a long name in two lines at the space nearest to its middle.

    >>> _broken("Presence of Specific Features")
    'Presence of\nSpecific Features'
    """
    spaces = [at for at, letter in enumerate(text) if letter == " "]
    if len(text) < 16 or not spaces:
        return text
    middle = min(spaces, key=lambda at: abs(at - len(text) / 2))
    return f"{text[:middle]}\n{text[middle + 1 :]}"


def add_legend(place: Axes | Figure, entries: Mapping[str, Any], **how: Any) -> None:
    """Draw a legend of artists by label; labels are not read as formulas."""
    legend = place.legend(list(entries.values()), ["label"] * len(entries), frameon=False, **how)
    for text, label in zip(legend.get_texts(), entries, strict=True):
        text.set(text=label, parse_math=False)


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure, in inches, whose artists get the style within the block."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def colors_of(groups: Sequence[Family]) -> dict[str, str]:
    """Return the colour of each model."""
    return {model: family.color for family in groups for model in family.models}
