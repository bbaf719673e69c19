"""The result of ``antiphase certify``: accuracy over the certified radius, and radii that are only estimated."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from rich.text import Text

from antiphase.commands.certify.run import curve, paired_differences
from antiphase.commands.result import Result, combined_rows
from antiphase.report import figure as figures
from antiphase.report.figure import Family, colors_of, families
from antiphase.report.page import Headline, Plot, Section, answer, quoted_place, text
from antiphase.report.table import Field, Table, difference_field, estimate_field, rate_field, tabulate
from antiphase.report.words import estimate_of, number
from antiphase.statistics.decisions import decide

_ESTIMATED = {"margin": "margin m", "constant": "L of logits", "printed": "m / L", "radius": "m / (√2·L)"}
_RATIOS = {
    "margin": "Δm",
    "constant": "L",
    "measured": "R",
    "corrected": "(6) corrected",
    "printed": "(6) printed",
}
_words = partial(text, "certify.txt")


class CertifyResult(Result):
    """Certified radii of a smoothed model."""

    needs = ("rows.parquet", "summary.json", "run.json")
    keys = ("models", "smoothing")
    settings_title = "Smoothing"

    def headlines(self) -> list[Headline]:
        models, comparisons = self.summary["models"], self.summary["comparisons"]
        colors, named = colors_of(families(models)), [model["name"] for model in models]
        values = self.summary["smoothing"] | {"models": models, "n": models[0]["smoothed_accuracy"]["n"]}
        if comparisons:
            shown, signs = comparisons, decide(list(map(estimate_of, comparisons)))
            quoted = quoted_place(signs)
            names: dict[str, str] = dict(zip(("model", "against"), named, strict=True))
            title = answer("certify.txt", "title", names, **shown[quoted] | {"decided": signs[quoted]})
        else:
            shown, quoted = models[0]["certified_accuracy"], 0
            signs, names = [1] * len(shown), {"model": named[0]}
            title = answer("certify.txt", "title_alone", names, **models[0]["smoothed_accuracy"])

        def plot() -> Plot:
            rows = [
                (f"R ≥ {row['radius']:g}", [estimate_of(row)], sign, place == quoted)
                for place, (row, sign) in enumerate(zip(shown, signs, strict=True))
            ]
            sides = [
                (one["name"], colors[one["name"]], [estimate_of(one["clean_accuracy"])]) for one in models
            ]
            what, below = "Certified", "Accuracy without smoothing"
            figure = figures.answer_figure(what, rows, below, sides, figures.chance(models))
            return Plot("answer", figure, _words("answer", compared=bool(comparisons)))

        return [Headline(title, _words("lead", **values), _words("condition", **values), plot)]

    def sections(self) -> list[Section]:
        figure = curve_figure(self.frame("rows"), self.summary)
        plot = Plot("curve", figure, _words("caption"), beside=True)
        tables = [_certified(self.summary), *_differences(self.summary["comparisons"])]
        sections = [Section("certified", "Certified accuracy", plots=[plot], tables=tables)]
        if estimated := self.summary.get("estimated"):
            words = " ".join([_words("estimated"), *self._notes()])
            sections.append(Section("estimated", "Estimated radii", words, tables=_estimated(estimated)))
        return sections

    def console(self) -> list[Any]:
        return [*super().console(), *map(Text, self._notes())]

    def _notes(self) -> list[str]:
        estimated = self.summary.get("estimated", {})
        return [f"Note: {estimated['note']}."] if "note" in estimated else []

    def differences(self, other: Self) -> pl.DataFrame:
        mine, theirs = (
            [rate["radius"] for rate in result.summary["models"][0]["certified_accuracy"]]
            for result in (self, other)
        )
        radii = [radius for radius in sorted({*mine, *theirs}) if radius <= min(mine[-1], theirs[-1])]
        differences = paired_differences(*combined_rows(self, other), radii)
        return pl.DataFrame(differences).rename({"value": "difference"})


def curve_figure(rows: pl.DataFrame, summary: Mapping[str, Any]) -> Figure:
    """Draw certified accuracy up to the largest radius that the noise samples can certify, with 95 % Wilson bands."""
    smoothing, models = summary["smoothing"], [model["name"] for model in summary["models"]]
    colors = colors_of(families(summary["models"]))
    grid, curves = np.linspace(0, smoothing["reach"], 257), []
    for name in models:
        block = rows.filter(model=name)
        correct = (block["prediction"] == block["label"]).to_numpy()
        curves.append(curve(block["radius"].to_numpy(), correct, grid).with_columns(name=pl.lit(name)))
    lines = pl.concat(curves).with_columns(pl.col("value", "low", "high") * 100)
    with figures.new_figure(5.0, 3.6) as figure:
        axes = figure.add_subplot()
        groups = [Family(name, colors[name], (name,)) for name in models]
        drawn = figures.draw_families(axes, lines, "radius", groups, marks=False)
        figures.add_legend(axes, drawn, loc="best", fontsize=8.5)
        title = f"Smoothed with σ = {smoothing['sigma']:g}, n = {smoothing['samples']:,}, α = {smoothing['alpha']:g}"
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.set_xlabel("certified L2 radius, in units of the pixel range")
        axes.set_ylabel("certified accuracy (%)")
        axes.set_xlim(0, smoothing["reach"])
        axes.set_ylim(0, 100)
        figures.dress(axes)
    return figure


def _certified(summary: Mapping[str, Any]) -> Table:
    models = summary["models"]
    colors = colors_of(families(models))
    numbers = [{"model": model["name"], **rate} for model in models for rate in model["certified_accuracy"]]
    radii = dict.fromkeys(f"{row['radius']:g}" for row in numbers)
    rows = [
        {"model": model["name"], "color": colors[model["name"]], "head": head, **rate}
        for model in models
        for head, rate in (
            ("unsmoothed", model["clean_accuracy"]),
            ("abstains", model["abstentions"]),
            ("mean R", {"value": model["mean_radius"]}),
            *zip(radii, model["certified_accuracy"], strict=True),
        )
    ]
    title = f"Certified accuracy at L2 radius, % of {models[0]['clean_accuracy']['n']:,} images"
    heads = {head: head for head in ("unsmoothed", "abstains", "mean R", *radii)}
    frame, csv = _frame(rows), pl.DataFrame(numbers)
    return tabulate("certified", title, frame, ["model"], "head", _rate, heads, csv)


def _rate(row: Mapping[str, Any]) -> Field:
    return Field(number(row["value"], 3)) if row["head"] == "mean R" else rate_field(row)


def _differences(comparisons: Sequence[Mapping[str, Any]]) -> list[Table]:
    if not comparisons:
        return []
    frame = pl.DataFrame(comparisons)
    shown = frame.with_columns(
        pl.format("{} − {}", "model", "against").alias("same images"),
        decided=pl.Series(decide([estimate_of(row) for row in comparisons])),
    )
    title = "Difference from the twin, points, by L2 radius; pale: not decided"
    how = (["same images"], "radius", difference_field, "{:g}".format, frame)
    return [tabulate("difference", title, shown, *how)]


def _estimated(estimated: Mapping[str, Any]) -> list[Table]:
    models = estimated["models"]
    means = [
        {"model": model["name"], "quantity": name, **model[name]} for model in models for name in _ESTIMATED
    ]
    title = f"Estimated L2 radius, not certified, mean of {estimated['settings']['images']} images"
    tables = [tabulate("estimated", title, _frame(means), ["model"], "quantity", _estimate, _ESTIMATED)]
    if ratios := estimated.get("ratios"):
        frame = _frame(ratios).rename({"metric": "quantity"})
        frame = frame.select("layer", "quantity", "value", "low", "high")
        title, down = " / ".join(model["name"] for model in models) + ", geometric means", "ratio of"
        frame = frame.with_columns(pl.lit("whole models").alias(down))
        if "printed" in frame["quantity"]:  # every layer predicts the R of the whole model
            title, down = (
                f"{title}; equation (6) predicts R from the maps of one block",
                "(6) for the block at",
            )
            frame = frame.with_columns(pl.format("depth {}", pl.col("layer") + 1).alias(down))
        tables.append(tabulate("ratios", title, frame, [down], "quantity", _estimate, _RATIOS))
    return tables


def _frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None)


def _estimate(row: Mapping[str, Any]) -> Field:
    digits = 3 if row["value"] is None or abs(row["value"]) < 10 else 1
    return estimate_field(row["value"], row["low"], row["high"], lambda end: number(end, digits))
