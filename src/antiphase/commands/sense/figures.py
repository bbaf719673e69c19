"""Figures of ``sense``: quantities by layer, and layers in the plane of Theorem 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.evaluation.rates import over_seeds
from antiphase.report.figure import MARKERS, STYLE, Family, dress, legend_label
from antiphase.report.words import number
from antiphase.sensitivity.theory import critical_cosine
from antiphase.statistics.intervals import Estimate, as_size


@dataclass(frozen=True)
class Axis:
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


def layer_figure(panels: Sequence[Axis], groups: Sequence[Family]) -> Figure:
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


def single_layer(panels: Sequence[Axis]) -> bool:
    """Return whether all panels have the same single position on the horizontal axis."""
    return len({layer for panel in panels for layer in panel.frame["layer"].unique().to_list()}) == 1


def strip_figure(panels: Sequence[Axis], groups: Sequence[Family]) -> Figure:
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


def _draw(axes: Axes, panel: Axis, family: Family, marker: str, aside: float) -> None:
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


def _dress(axes: Axes, panel: Axis) -> None:
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


def plane_figure(places: pl.DataFrame, family: Family) -> Figure:
    """Draw a panel for each layer: cosθ over λρ, the region below the critical cosine shaded.

    The region is that of the layer's γ, the geometric mean over the models of a family. A single model has its interval
    over the samples; of several, each is a small marker next to their mean.

    Args:
        places: of :func:`antiphase.sensitivity.layer_estimates.places`.
        family: the models to draw.
    """
    own = places.filter(pl.col("model").is_in(family.models))
    layers = own["layer"].unique().sort().to_list()
    reach = 1.25 * max(1.0, *own.filter(metric="rho")["value"].fill_nan(0.0).to_list())
    columns = min(2, len(layers))
    rows = -(-len(layers) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 0.6 + 2.2 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        for at, layer in enumerate(layers):
            axes = figure.add_subplot(rows, columns, at + 1)
            _draw_plane(axes, own.filter(layer=layer), family, reach)
            axes.set_title(f"layer {layer + 1}", loc="left", fontsize=9.5)
            if at % columns == 0:
                axes.set_ylabel("cosθ")
            if at >= len(layers) - columns:
                axes.set_xlabel("λρ")
    return figure


def _draw_plane(axes: Axes, own: pl.DataFrame, family: Family, reach: float) -> None:
    values = {metric: own.filter(metric=metric).sort("model") for metric in ("rho", "cosine", "gamma")}
    gamma = float(np.exp(np.mean(np.log(values["gamma"]["value"].to_numpy()))))
    rho, cosine = (float(np.mean(values[metric]["value"].to_numpy())) for metric in ("rho", "cosine"))
    if np.isfinite(gamma):
        across = np.linspace(1e-3, reach, 201)
        edge = np.clip(critical_cosine(gamma, 1.0, across), -1.0, 1.0)
        axes.fill_between(across, -1.0, edge, color="#f1d9c9", lw=0, zorder=0)
        axes.plot(across, edge, color="#b08a70", lw=0.9, zorder=1)
        critical = critical_cosine(gamma, 1.0, rho)
        text = f"γ = {number(gamma, 2)}, cosθ* = {number(float(critical), 2)}"
        axes.text(0.97, 0.95, text, transform=axes.transAxes, ha="right", va="top", fontsize=7.5)
    if len(family.models) > 1:
        axes.plot(
            values["rho"]["value"],
            values["cosine"]["value"],
            "o",
            ms=3.0,
            mew=0,
            color=family.color,
            alpha=0.5,
        )
        axes.plot([rho], [cosine], "D", ms=5.5, color=family.color)
    else:
        one, two = (values[metric].row(0, named=True) for metric in ("rho", "cosine"))
        across, down = (
            [[max(0.0, row["value"] - row["low"])], [max(0.0, row["high"] - row["value"])]]
            for row in (one, two)
        )
        axes.errorbar(
            [rho], [cosine], down, across, fmt="D", ms=5.0, color=family.color, elinewidth=1.1, capsize=2.0
        )
    axes.axhline(0.0, color="#8a8a86", lw=0.9, ls=(0, (4, 3)), zorder=0)
    axes.set_xlim(0.0, reach)
    axes.set_ylim(-1.0, 1.0)
    axes.spines[["top", "right"]].set_visible(False)
