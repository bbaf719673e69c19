"""Results of ``antiphase certify``."""

from dataclasses import asdict
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.certify.result import curve_figure
from antiphase.commands.old import Kind, read_json
from antiphase.commands.result import Result, combined_rows, listed
from antiphase.errors import UserError
from antiphase.reading import read_rows
from antiphase.report.runs.certified_page import certified_sheets, write_certified_report
from antiphase.report.words import percent
from antiphase.statistics.intervals import paired_difference


def _line(result: Result) -> str:
    summary = result.summary
    first, sigma = summary["models"][0], summary["smoothing"]["sigma"]
    smoothed = first["smoothed_accuracy"]
    return (
        f"{listed(summary['models'])} smoothed with σ = {sigma:g}: {first['name']} is right and certified on "
        f"{percent(smoothed['value'])} % of {smoothed['n']:,} images, mean L2 radius {first['mean_radius']:.3f}"
    )


def _figure(folder: Path) -> Figure:
    summary = read_json(folder / "summary.json", ("models", "smoothing"))
    return curve_figure(read_rows(folder / "rows.parquet"), summary)


def _differences(one: Result, two: Result) -> pl.DataFrame:
    """Return the differences of certified accuracy at each radius, with Newcombe's interval."""
    if one.summary["smoothing"] != two.summary["smoothing"]:
        raise UserError(
            "compare: smoothed differently; expected the same sigma, samples, alpha and seed in both"
        )
    rows, pairs = combined_rows(one, two)
    found = []
    for model, against in pairs:
        mine, theirs = (rows.filter(model=name).sort("sample") for name in (model, against))
        for radius in (at["radius"] for at in one.summary["models"][0]["certified_accuracy"]):
            held = [
                ((own["prediction"] == own["label"]) & (own["radius"] >= radius)).to_numpy()
                for own in (mine, theirs)
            ]
            found.append(
                {"model": model, "against": against, "radius": radius, **asdict(paired_difference(*held))}
            )
    return pl.DataFrame(found).rename({"value": "difference"})


KIND = Kind(
    "rows",
    ("rows.parquet", "summary.json", "run.json"),
    _line,
    certified_sheets,
    _figure,
    _differences,
    write_certified_report,
)
