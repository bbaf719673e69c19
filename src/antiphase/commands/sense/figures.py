"""Figures of ``sense``: quantities by layer, and layers in the plane of Theorem 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from antiphase.evaluation.rates import over_seeds
from antiphase.report.figure import MARKERS, Family, add_legend, dress, legend_label, new_figure
from antiphase.report.words import number
from antiphase.sensitivity.theory import critical_cosine
from antiphase.statistics.intervals import Estimate, as_size

_LEVEL: Any = {"color": "#8a8a86", "lw": 0.9, "ls": (0, (4, 3)), "zorder": 0}


@dataclass(frozen=True)
class Axis:
    """One quantity by layer.

    Attributes:
        title: title of the panel.
        frame: columns ``model, layer, value, low, high``, the layer counted from 0.
        level: a level to mark, such as 0 for a cosine.
        log: whether the vertical axis is logarithmic.
        axis: label of the horizontal axis.
        within: restricts the interval over training seeds to the range of the quantity.
    """

    title: str
    frame: pl.DataFrame
    level: float | None = None
    log: bool = False
    axis: str = "layer"
    within: Callable[[Estimate], Estimate] = as_size


def layer_figure(rows: Sequence[Sequence[Axis]], groups: Sequence[Family]) -> Figure:
    """Draw rows of panels.

    A single model is a line with its interval over the samples. A family of several is a thin line for each seed and a
    thick one for their mean, with Student's t interval over the seeds.
    """
    columns = max(map(len, rows))
    with new_figure(max(5.0, 3.0 * columns), 0.5 + 2.2 * len(rows)) as figure:
        drawn: dict[str, Any] = {}
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                axes = figure.add_subplot(len(rows), columns, row * columns + column + 1)
                for place, family in enumerate(groups):
                    aside = 0.07 * (
                        place - (len(groups) - 1) / 2
                    )  # so that intervals do not cover each other
                    own = panel.frame.filter(pl.col("model").is_in(family.models)).sort("layer")
                    if not own.is_empty():
                        marker = MARKERS[place % len(MARKERS)]
                        drawn[legend_label(family)] = _draw(axes, panel, own, family, marker, aside)
                _dress(axes, panel)
        add_legend(figure, drawn, loc="outside upper left", fontsize=8.0, ncols=columns)
    return figure


def _draw(axes: Axes, panel: Axis, own: pl.DataFrame, family: Family, marker: str, aside: float) -> Any:
    shown, color = own, family.color
    if len(family.models) > 1:
        for (_,), line in own.group_by(["model"], maintain_order=True):
            axes.plot(
                line["layer"] + 1 + aside, line["value"], f"{marker}-", ms=2.0, color=color, lw=0.7, alpha=0.5
            )
        shown = over_seeds(own, ["layer"], "value", panel.within).sort("layer")
    low, high = shown["value"] - shown["low"], shown["high"] - shown["value"]
    return axes.errorbar(
        shown["layer"] + 1 + aside,
        shown["value"],
        yerr=[low.clip(0), high.clip(0)],
        fmt=f"{marker}-",
        ms=4.5,
        color=color,
        lw=1.9,
        elinewidth=1.1,
        capsize=2.5,
    )


def _dress(axes: Axes, panel: Axis) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9.5, parse_math=False)
    axes.set_xlabel(panel.axis)
    places = (panel.frame["layer"].unique().sort() + 1).to_list()
    axes.set_xticks(places)
    axes.set_xlim(places[0] - 0.5, places[-1] + 0.5)
    if panel.log:
        axes.set_yscale("log")
    if panel.level is not None:
        axes.axhline(panel.level, **_LEVEL)
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
    with new_figure(5.0, 0.6 + 2.2 * rows) as figure:
        for place, layer in enumerate(layers, start=1):
            axes = figure.add_subplot(rows, columns, place)
            _draw_plane(axes, own.filter(layer=layer), family, reach)
            axes.set_title(f"layer {layer + 1}", loc="left", fontsize=9.5)
        figure.supxlabel("λρ")
        figure.supylabel("cosθ")
    return figure


def _draw_plane(axes: Axes, own: pl.DataFrame, family: Family, reach: float) -> None:
    values = {metric: own.filter(metric=metric).sort("model") for metric in ("rho", "cosine", "gamma")}
    gamma = float(np.exp(np.mean(np.log(values["gamma"]["value"].to_numpy()))))
    rho, cosine = (float(np.mean(values[metric]["value"].to_numpy())) for metric in ("rho", "cosine"))
    color = family.color
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
            values["rho"]["value"], values["cosine"]["value"], "o", ms=3.0, mew=0, color=color, alpha=0.5
        )
        axes.plot([rho], [cosine], "D", ms=5.5, color=color)
    else:
        across, down = (
            [(frame["value"] - frame["low"]).clip(0), (frame["high"] - frame["value"]).clip(0)]
            for frame in (values["rho"], values["cosine"])
        )
        axes.errorbar(
            [rho], [cosine], down, across, fmt="D", ms=5.0, color=color, elinewidth=1.1, capsize=2.0
        )
    axes.axhline(0.0, **_LEVEL)
    axes.set_xlim(0.0, reach)
    axes.set_ylim(-1.0, 1.0)
    axes.spines[["top", "right"]].set_visible(False)
