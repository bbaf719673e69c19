"""The page of a certification: accuracy against certified radius, as a curve and as tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from antiphase.commands.certify.result import curve_figure
from antiphase.commands.old import read_json
from antiphase.commands.result import RUN_KEYS
from antiphase.files import write_text
from antiphase.reading import read_rows
from antiphase.report.figure import families
from antiphase.report.page import embedded, environment
from antiphase.report.runs.certified import write_figure
from antiphase.report.table import Field, Table
from antiphase.report.words import ends, number, percent, percent_range, points, points_range
from antiphase.statistics.decisions import decide
from antiphase.statistics.intervals import Estimate

_ESTIMATED = {"margin": "margin m", "constant": "L of logits", "printed": "m / L", "radius": "m / (√2·L)"}


def write_certified_report(directory: Path) -> Path:
    """Write ``report.html`` and ``curve.svg``, ``.png`` and ``.pdf`` from the stored files of a certification.

    Returns:
        The path of the page.

    Raises:
        UserError: A file is missing or cannot be read.
    """
    summary = read_json(directory / "summary.json", ("models", "smoothing"))
    run = read_json(directory / "run.json", RUN_KEYS)
    figure = curve_figure(read_rows(directory / "rows.parquet"), summary)
    write_figure(figure, directory)
    first, sigma = summary["models"][0], summary["smoothing"]["sigma"]
    smoothed = first["smoothed_accuracy"]
    page = (
        environment()
        .get_template("certified.html")
        .render(
            run=run,
            name=first["name"],
            sigma=f"{sigma:g}",
            summary=summary,
            n=smoothed["n"],
            accuracy=percent(smoothed["value"]),
            interval=percent_range(smoothed["low"], smoothed["high"]),
            radius=number(first["mean_radius"], 3),
            figure_drawn=embedded(
                figure, "curve", "Certified accuracy over the L2 radius; numbers in the table below"
            ),
            sheets=certified_sheets(directory),
            estimated=_estimated(summary.get("estimated")),
        )
    )
    path = directory / "report.html"
    write_text(path, page)
    return path


def certified_sheets(folder: Path) -> list[Table]:
    """Return certified accuracy by radius, and the differences of twins, as tables.

    Raises:
        UserError: ``summary.json`` is missing or cannot be read.
    """
    summary = read_json(folder / "summary.json", ("models", "smoothing"))
    colors = {name: family.color for family in families(summary["models"]) for name in family.models}
    rows, numbers = [], []
    for model in summary["models"]:
        held = model["certified_accuracy"]
        cells = (Field(percent(at["value"]), (percent_range(at["low"], at["high"]),)) for at in held)
        rows.append((Field(model["name"], color=colors[model["name"]], kind="name"), *cells))
        numbers += [{"model": model["name"], **at} for at in held]
    columns = ("model", *(f"{at['radius']:g}" for at in summary["models"][0]["certified_accuracy"]))
    csv = pl.DataFrame(numbers).write_csv()
    sheets = [Table("certified", "Certified accuracy, %, by L2 radius", columns, tuple(rows), csv)]
    if compared := summary.get("comparisons"):
        title = f"{summary['models'][0]['name']} − {compared[0]['against']}"
        signs = decide([Estimate(at["value"], at["low"], at["high"], at["n"]) for at in compared])
        cells = (
            Field(
                points(at["value"]), (points_range(at["low"], at["high"]),), kind="" if sign else "undecided"
            )
            for at, sign in zip(compared, signs, strict=True)
        )
        row = (Field(title, kind="name"), *cells)
        columns = ("same images", *(f"{at['radius']:g}" for at in compared))
        csv = pl.DataFrame(compared).write_csv()
        sheets.append(
            Table(
                "difference",
                "Difference from the twin, points, by L2 radius; pale: not decided",
                columns,
                (row,),
                csv,
            )
        )
    return sheets


def _estimated(estimated: Mapping[str, Any] | None) -> Table | None:
    """Tabulate the radii estimated as margin over Lipschitz constant, which certify nothing."""
    if estimated is None:
        return None
    rows, numbers = [], []
    for model in estimated["models"]:
        cells = []
        for name in _ESTIMATED:
            at = model[name]
            shown = "–" if at["value"] is None else number(at["value"], 3)
            cells.append(Field(shown, (ends(at["low"], at["high"], lambda end: number(end, 3), " to "),)))
            numbers.append(
                {"model": model["name"], "quantity": name}
                | {key: at[key] for key in ("value", "low", "high")}
            )
        rows.append((Field(model["name"], kind="name"), *cells))
    title = f"Estimated L2 radius, not certified, mean of {estimated['settings']['images']} images"
    csv = pl.DataFrame(numbers, infer_schema_length=None).write_csv()
    return Table("estimated", title, ("model", *_ESTIMATED.values()), tuple(rows), csv)
