"""Accuracy over the certified radius: the curve, and the table for the console."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from antiphase.files import replacing, write_text
from antiphase.report.figure import STYLE, as_pdf, as_png, as_svg, dress, families
from antiphase.report.table import ruled_table
from antiphase.report.words import console_interval, number, percent, points
from antiphase.runs.certify import curve

_CURVE_POINTS = 257
_TABLE_COLUMNS = 6  # radii that fit next to a name in 80 characters


def curve_figure(rows: pl.DataFrame, summary: dict[str, Any]) -> Figure:
    """Draw certified accuracy over the radius, one line with its 95 % Wilson band for each model.

    The axis ends at the largest radius that the number of noise samples can certify.

    Args:
        rows: rows of :func:`antiphase.runs.certify.certify`.
        summary: its summary.
    """
    smoothing = summary["smoothing"]
    colors = {name: family.color for family in families(summary["models"]) for name in family.models}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for model, dashes in zip(summary["models"], ("-", (0, (5, 1.5))), strict=False):
            own = rows.filter(model=model["name"])
            correct = (own["prediction"] == own["label"]).to_numpy()
            held = curve(own["radius"].to_numpy(), correct, np.linspace(0, smoothing["reach"], _CURVE_POINTS))
            color = colors[model["name"]]
            name = (
                model["name"] if len(model["name"]) <= 36 else f"{model['name'][:10]}…{model['name'][-25:]}"
            )
            label = f"{name} (unsmoothed: {100 * model['clean_accuracy']['value']:.1f} %)"
            axes.plot(held["radius"], 100 * held["value"], color=color, lw=1.9, ls=dashes, label=label)
            band = (100 * held["low"], 100 * held["high"])
            axes.fill_between(held["radius"], *band, color=color, alpha=0.16, lw=0)
        axes.set_title(
            f"Smoothed with σ = {smoothing['sigma']:g}, n = {smoothing['samples']:,}, α = {smoothing['alpha']:g}",
            loc="left",
            fontsize=9.5,
        )
        axes.set_xlabel("certified L2 radius, in units of the pixel range")
        axes.set_ylabel("certified accuracy (%)")
        axes.set_xlim(0, smoothing["reach"])
        axes.set_ylim(0, 100)
        dress(axes)
        for text in axes.legend(frameon=False, loc="best", fontsize=8.5).get_texts():
            text.set_parse_math(False)
    return figure


def write_figure(figure: Figure, out: Path) -> None:
    """Write ``curve.svg``, ``curve.png`` and ``curve.pdf``."""
    write_text(out / "curve.svg", as_svg(figure))
    for name, content in (("curve.png", as_png(figure)), ("curve.pdf", as_pdf(figure))):
        with replacing(out / name) as temporary:
            temporary.write_bytes(content)


def certificate_table(summary: dict[str, Any]) -> Table:
    """Tabulate certified accuracies, intervals and differences for a console of 80 columns."""
    smoothing, models = summary["smoothing"], summary["models"]
    radii = [at["radius"] for at in models[0]["certified_accuracy"]]
    shown = radii[:: -(-len(radii) // _TABLE_COLUMNS)]
    n = models[0]["clean_accuracy"]["n"]
    table = ruled_table(
        f"σ = {smoothing['sigma']:g}: certified at L2 radius, % of {n:,} images [95 % interval]"
    )
    table.add_column("", overflow="fold")
    for r in shown:
        table.add_column(f"{r:g}", justify="right", no_wrap=True)

    def cell(at: dict[str, Any], value: str) -> Text:
        interval = console_interval(at["low"], at["high"], lambda end: number(100 * end, 1))
        return Text.assemble((value, "bold"), (f"\n{interval}", "dim"))

    for model in models:
        about = [
            f"\nunsmoothed {percent(model['clean_accuracy']['value'])}",
            f"\nabstains {percent(model['abstentions']['value'])}",
            f"\nmean R {model['mean_radius']:.3f}",
        ]
        held = {at["radius"]: at for at in model["certified_accuracy"]}
        name = Text.assemble((model["name"], "bold"), ("".join(about), "dim"))
        table.add_row(name, *(cell(held[r], percent(held[r]["value"])) for r in shown))
    for against in dict.fromkeys(at["against"] for at in summary["comparisons"]):
        table.add_section()
        held = {at["radius"]: at for at in summary["comparisons"] if at["against"] == against}
        name = Text.assemble((models[0]["name"], "bold"), f"\n− {against}")
        table.add_row(name, *(cell(held[r], points(held[r]["value"])) for r in shown))
    return table
