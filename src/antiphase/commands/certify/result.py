"""The result of ``antiphase certify``: accuracy over the certified radius, and radii that are only estimated."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.text import Text

from antiphase.commands.certify.run import curve
from antiphase.commands.result import Result, combined_rows, listed
from antiphase.errors import UserError
from antiphase.report.figure import STYLE, Family, dress, families, legend_label
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table
from antiphase.report.words import ends, number, percent, percent_range, points, points_range
from antiphase.statistics.decisions import decide
from antiphase.statistics.intervals import Estimate, paired_difference

_CURVE_POINTS = 257
_CONSOLE_RADII = 4  # that fit next to a name in 80 characters
_ESTIMATED = {"margin": "margin m", "constant": "L of logits", "printed": "m / L", "radius": "m / (√2·L)"}
_RATIOS = {
    "margin": "Δm",
    "constant": "L",
    "measured": "R",
    "corrected": "(6) corrected",
    "printed": "(6) printed",
}
_CAPTION = (
    "Share of images that are classified correctly with a certified radius of at least this size; bands are 95 % "
    "Wilson intervals over the images."
)
_ESTIMATES = (
    "Margin over Lipschitz constant of the models themselves (robustness paper, Appendix B). They certify nothing: the "
    "constant is a lower bound."
)


class CertifyResult(Result):
    """Certified radii of a smoothed model."""

    needs = ("rows.parquet", "summary.json", "run.json")
    keys = ("models", "smoothing")
    settings_title = "Smoothing"

    def headlines(self) -> list[Headline]:
        models, smoothing = self.summary["models"], self.summary["smoothing"]
        rate = models[0]["smoothed_accuracy"]
        return [
            Headline(
                f"{listed(models)} smoothed with σ = {smoothing['sigma']:g}: {models[0]['name']} is right and "
                f"certified on {percent(rate['value'])} % of {rate['n']:,} images",
                f"95 % interval {percent_range(rate['low'], rate['high'])} %. The mean certified L2 radius is "
                f"{number(models[0]['mean_radius'], 3)}, in units of the [0, 1] pixel range; it is 0 where the "
                "smoothed model abstains or is wrong. The certificate is one of the smoothed model (randomised "
                "smoothing, Cohen et al., 2019), and the radius of one image is too large with probability α = "
                f"{smoothing['alpha']:g} at most.",
            )
        ]

    def sections(self) -> list[Section]:
        figure = curve_figure(self.frame("rows"), self.summary)
        plot = Plot("curve", figure, _CAPTION, beside=True)
        tables = [_certified(self.summary)]
        if self.summary["comparisons"]:
            tables.append(_difference(self.summary["comparisons"]))
        sections = [Section("certified", "Certified accuracy", plots=[plot], tables=tables)]
        if estimated := self.summary.get("estimated"):
            note = f" Note: {estimated['note']}." if "note" in estimated else ""
            section = Section("estimated", "Estimated radii", _ESTIMATES + note, tables=_estimated(estimated))
            sections.append(section)
        return sections

    def console(self) -> list[Any]:
        first, *others = self.all_tables()
        radii = first.columns[4:]
        shown = radii[:: -(-len(radii) // _CONSOLE_RADII)]
        note = self.summary.get("estimated", {}).get("note")
        return [
            *super().console()[:1],
            first.console(("model", "mean R", *shown)),
            *(
                table.console((table.columns[0], *shown) if table.name == "difference" else None)
                for table in others
            ),
            *([Text(f"note: {note}")] if note else []),
        ]

    def differences(self, other: "CertifyResult") -> pl.DataFrame:
        """Return the differences of certified accuracy at each radius, with Newcombe's interval."""
        if self.summary["smoothing"] != other.summary["smoothing"]:
            raise UserError(
                "compare: smoothed differently; expected the same sigma, samples, alpha and seed in both"
            )
        rows, pairs = combined_rows(self, other)
        differences = []
        for model, against in pairs:
            blocks = [rows.filter(model=name).sort("sample") for name in (model, against)]
            for radius in (rate["radius"] for rate in self.summary["models"][0]["certified_accuracy"]):
                held = [
                    ((block["prediction"] == block["label"]) & (block["radius"] >= radius)).to_numpy()
                    for block in blocks
                ]
                numbers = asdict(paired_difference(*held))
                differences.append({"model": model, "against": against, "radius": radius, **numbers})
        return pl.DataFrame(differences).rename({"value": "difference"})


def curve_figure(rows: pl.DataFrame, summary: Mapping[str, Any]) -> Figure:
    """Draw certified accuracy over the radius, one line with its 95 % Wilson band for each model.

    The axis ends at the largest radius that the number of noise samples can certify.
    """
    smoothing = summary["smoothing"]
    colors = {name: family.color for family in families(summary["models"]) for name in family.models}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for model, dashes in zip(summary["models"], ("-", (0, (5, 1.5))), strict=False):
            name, color = model["name"], colors[model["name"]]
            block = rows.filter(model=name)
            correct = (block["prediction"] == block["label"]).to_numpy()
            radii = np.linspace(0, smoothing["reach"], _CURVE_POINTS)
            held = curve(block["radius"].to_numpy(), correct, radii)
            label = legend_label(Family(name, color, (name,)))
            label += f" (unsmoothed: {percent(model['clean_accuracy']['value'])} %)"
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


def _certified(summary: Mapping[str, Any]) -> Table:
    colors = {name: family.color for family in families(summary["models"]) for name in family.models}
    rows, numbers = [], []
    for model in summary["models"]:
        rates = model["certified_accuracy"]
        accuracy, abstentions = (model[name] for name in ("clean_accuracy", "abstentions"))
        fields = [_rate(accuracy), _rate(abstentions), Field(number(model["mean_radius"], 3))]
        name = Field(model["name"], color=colors[model["name"]], kind="name")
        rows.append((name, *fields, *map(_rate, rates)))
        numbers += [{"model": model["name"], **rate} for rate in rates]
    radii = (f"{rate['radius']:g}" for rate in summary["models"][0]["certified_accuracy"])
    columns = ("model", "unsmoothed", "abstains", "mean R", *radii)
    title = f"Certified accuracy at L2 radius, % of {summary['models'][0]['clean_accuracy']['n']:,} images"
    return Table("certified", title, columns, tuple(rows), pl.DataFrame(numbers).write_csv())


def _rate(rate: Mapping[str, Any]) -> Field:
    return Field(percent(rate["value"]), (percent_range(rate["low"], rate["high"]),))


def _difference(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    signs = decide([Estimate(row["value"], row["low"], row["high"], row["n"]) for row in comparisons])
    kinds = ["" if sign else "undecided" for sign in signs]
    fields = (
        Field(points(row["value"]), (points_range(row["low"], row["high"]),), kind=kind)
        for row, kind in zip(comparisons, kinds, strict=True)
    )
    pair = Field(f"{comparisons[0]['model']} − {comparisons[0]['against']}", kind="name")
    columns = ("same images", *(f"{row['radius']:g}" for row in comparisons))
    title = "Difference from the twin, points, by L2 radius; pale: not decided"
    return Table("difference", title, columns, ((pair, *fields),), pl.DataFrame(comparisons).write_csv())


def _estimated(estimated: Mapping[str, Any]) -> list[Table]:
    """Tabulate margin over Lipschitz constant, and the ratio that equation (6) predicts."""
    rows = {model["name"]: model for model in estimated["models"]}
    title = f"Estimated L2 radius, not certified, mean of {estimated['settings']['images']} images"
    tables = [_estimates("estimated", title, "model", rows, _ESTIMATED)]
    if ratios := estimated.get("ratios"):
        one, two = rows
        shown = {
            name: words for name, words in _RATIOS.items() if any(row["metric"] == name for row in ratios)
        }
        layers: dict[str, dict[str, Any]] = {}
        for row in ratios:
            layer = f"layer {row['layer'] + 1}" if "corrected" in shown else "measured"
            layers.setdefault(layer, {})[row["metric"]] = row
        title = f"{one} / {two}, geometric means; R is predicted by equation (6)"
        tables.append(_estimates("ratios", title, "", layers, shown))
    return tables


def _estimates(
    name: str,
    title: str,
    head: str,
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]],
    columns: Mapping[str, str],
) -> Table:
    fields = tuple(
        (Field(row, kind="name"), *(_estimate(estimates[column]) for column in columns))
        for row, estimates in rows.items()
    )
    numbers = [
        {head or "layer": row, "quantity": column}
        | {key: estimates[column][key] for key in ("value", "low", "high")}
        for row, estimates in rows.items()
        for column in columns
    ]
    csv = pl.DataFrame(numbers, infer_schema_length=None).write_csv()
    return Table(name, title, (head, *columns.values()), fields, csv)


def _estimate(estimate: Mapping[str, Any]) -> Field:
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if value is None:
        return Field("–")
    digits = 3 if abs(value) < 10 else 1
    return Field(number(value, digits), (ends(low, high, lambda end: number(end, digits), " to "),))
