"""Each layer of a differential model in the (ρ, θ) plane of Theorem 3, and where it is the more sensitive one."""

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.report.style.families import Family
from antiphase.report.style.figures import STYLE
from antiphase.report.style.wording import number
from antiphase.sensitivity.theory import critical_cosine


def plane_figure(places: pl.DataFrame, family: Family) -> Figure:
    """Draw a panel for each layer: cosθ over λρ, the region below the critical cosine shaded.

    The region is that of the layer's γ, the geometric mean over the models of a family. A single model has its interval
    over the samples; of several, each is a small marker next to their mean.

    Args:
        places: columns ``model, layer, metric, value, low, high`` of
            :func:`antiphase.sensitivity.theorem_ratios.places`.
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
            _draw(axes, own.filter(layer=layer), family, reach)
            axes.set_title(f"layer {layer + 1}", loc="left", fontsize=9.5)
            if at % columns == 0:
                axes.set_ylabel("cosθ")
            if at >= len(layers) - columns:
                axes.set_xlabel("λρ")
    return figure


def _draw(axes: Axes, own: pl.DataFrame, family: Family, reach: float) -> None:
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
