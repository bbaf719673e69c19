"""Figures of quantities by layer: one line for each family, and thin lines for its seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.evaluation.rates import over_seeds
from antiphase.report.style.families import Family
from antiphase.report.style.figures import MARKERS, STYLE, dress, legend_label
from antiphase.statistics.intervals import Estimate, as_size


@dataclass(frozen=True)
class Panel:
    """One quantity: columns ``model, layer, value, low, high``, the layer counted from 0.

    Attributes:
        title: title of the panel.
        label: label of the vertical axis.
        frame: the values to draw.
        zero: a level to mark, such as 0 for a cosine.
        log: whether the vertical axis is logarithmic.
        axis: label of the horizontal axis.
        share: whether the vertical axis spans 0 to 1.
        within: restricts the interval over training seeds to the range of the quantity.
    """

    title: str
    label: str
    frame: pl.DataFrame
    zero: float | None = None
    log: bool = False
    axis: str = "layer"
    share: bool = False
    within: Callable[[Estimate], Estimate] = as_size


def layer_figure(panels: Sequence[Panel], groups: Sequence[Family]) -> Figure:
    """Draw panels one below the other.

    A single model is a line with its interval over the samples. A family of several is a thin line for each seed and a
    thick one for their mean, with Student's t interval over the seeds. With a single layer, the quantities are
    rows of one picture, see :func:`strip_figure`.
    """
    if single_layer(panels):
        return strip_figure(panels, groups)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.0 * len(panels)), layout="constrained")
        FigureCanvasAgg(figure)
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(len(panels), 1, place)
            drawn = [family for family in groups if not _of(panel.frame, family).is_empty()]
            for at, family in enumerate(drawn):
                aside = 0.07 * (at - (len(drawn) - 1) / 2)  # so that intervals do not cover each other
                marker = MARKERS[groups.index(family) % len(MARKERS)]
                _draw(axes, panel, family, marker, aside)
            _dress(axes, panel)
            if place == 1:
                legend = axes.legend(frameon=False, loc="best", fontsize=8.0, ncols=1 + (len(drawn) > 3))
                for text, family in zip(legend.get_texts(), drawn, strict=True):
                    text.set(text=legend_label(family), parse_math=False)
    return figure


def single_layer(panels: Sequence[Panel]) -> bool:
    """Return whether all panels have the same single position on the horizontal axis."""
    return len({layer for panel in panels for layer in panel.frame["layer"].unique().to_list()}) == 1


def strip_figure(panels: Sequence[Panel], groups: Sequence[Family]) -> Figure:
    """Draw quantities of a single layer as rows of one picture, each with a scale of its own, a point for each family.

    Points and intervals are those of :func:`layer_figure`; small points are the seeds.
    """
    with matplotlib.rc_context(STYLE):
        height = 0.45 + (0.3 + 0.16 * len(groups)) * len(panels) + 0.25 * len(panels)
        figure = Figure(figsize=(5.0, height), layout="constrained")
        FigureCanvasAgg(figure)
        drawn: dict[str, Any] = {}
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(len(panels), 1, place)
            for at, family in enumerate(groups):
                own = _of(panel.frame, family)
                if own.is_empty():
                    continue
                shown = own
                if len(family.models) > 1:
                    axes.plot(own["value"], len(own) * [-at], "|", ms=6.0, color=family.color, alpha=0.6)
                    named = own.with_columns(family=pl.lit(family.name))
                    shown = over_seeds(named, ["family", "layer"], "value", panel.within)
                low, high = shown["value"] - shown["low"], shown["high"] - shown["value"]
                drawn[legend_label(family)] = axes.errorbar(
                    shown["value"],
                    [-at],
                    xerr=[low.clip(0), high.clip(0)],
                    ms=4.5,
                    color=family.color,
                    fmt=MARKERS[groups.index(family) % len(MARKERS)],
                    elinewidth=1.1,
                    capsize=2.5,
                )
            axes.set_title(panel.title, loc="left", fontsize=8.5, pad=3, parse_math=False)
            axes.set_yticks([])
            axes.set_ylim(0.6 - len(groups), 0.6)
            if panel.share:
                axes.set_xlim(-0.03, 1.03)
            if panel.log:
                axes.set_xscale("log")
            if panel.zero is not None:
                axes.axvline(panel.zero, color="#8a8a86", lw=0.9, ls=(0, (4, 3)), zorder=0)
            dress(axes, "x")
            axes.spines["left"].set_visible(False)
            axes.tick_params(labelsize=7.5)
        legend = figure.legend(
            list(drawn.values()),
            ["family"] * len(drawn),
            frameon=False,
            loc="outside lower left",
            fontsize=8.0,
            ncols=2,
        )
        for text, label in zip(legend.get_texts(), drawn, strict=True):
            text.set(text=label, parse_math=False)
    return figure


def _of(frame: pl.DataFrame, family: Family) -> pl.DataFrame:
    return frame.filter(pl.col("model").is_in(family.models))


def _draw(axes: Axes, panel: Panel, family: Family, marker: str, aside: float) -> None:
    shown = own = _of(panel.frame, family)
    if len(family.models) > 1:
        for model in family.models:
            line = own.filter(model=model).sort("layer")
            axes.plot(
                line["layer"] + 1 + aside,
                line["value"],
                marker,
                ls="-",
                ms=2.0,
                color=family.color,
                lw=0.7,
                alpha=0.5,
            )
        named = own.with_columns(family=pl.lit(family.name))
        shown = over_seeds(named, ["family", "layer"], "value", panel.within)
    shown = shown.sort("layer")
    low, high = shown["value"] - shown["low"], shown["high"] - shown["value"]
    axes.errorbar(
        shown["layer"] + 1 + aside,
        shown["value"],
        yerr=[low.clip(0), high.clip(0)],
        fmt=marker,
        ls="-",
        ms=4.5,
        color=family.color,
        lw=1.9,
        elinewidth=1.1,
        capsize=2.5,
        label="family",
    )


def _dress(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9.5, parse_math=False)
    axes.set_ylabel(panel.label)
    axes.set_xlabel(panel.axis)
    places = [layer + 1 for layer in panel.frame["layer"].unique().sort().to_list()]
    axes.set_xticks(places)
    axes.set_xlim(places[0] - 0.5, places[-1] + 0.5)
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    if panel.log:
        axes.set_yscale("log")
    if panel.zero is not None:
        axes.axhline(panel.zero, color="#8a8a86", lw=0.9, ls=(0, (4, 3)), zorder=0)
    dress(axes)
