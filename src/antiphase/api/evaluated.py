"""Results of ``antiphase evaluate``."""

from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.evaluate.result import headline
from antiphase.commands.old import Kind, read_json
from antiphase.commands.result import Result, combined_rows, listed
from antiphase.errors import UserError
from antiphase.evaluation.metrics import summarise_tasks
from antiphase.report.evaluation.figures import dot_figure
from antiphase.report.evaluation.page import write_evaluation_page
from antiphase.report.evaluation.wording import difference_sheet, heading, sheets
from antiphase.report.figure import families
from antiphase.report.table import Table
from antiphase.report.words import percent


def _line(result: Result) -> str:
    summary = result.summary
    if summary["differences"]:
        return headline(summary)[0]
    found = [row for row in summary["results"] if row["headline"]] or summary["results"]
    numbers = [f"{row['data']}: {row['task']}, {heading(row)} {percent(row['value'])} %" for row in found[:2]]
    more = f" and {len(found) - 2} more numbers" if len(found) > 2 else ""
    return f"{listed(summary['models'])}; {'; '.join(numbers)}{more}"


def _sheets(folder: Path) -> list[Table]:
    summary = read_json(folder / "summary.json", ("models", "results", "differences"))
    groups = families(summary["models"])
    apart = difference_sheet(summary, groups)
    return [*sheets(summary, groups).values(), *([apart] if apart else [])]


def _figure(folder: Path) -> Figure:
    summary = read_json(folder / "summary.json", ("models", "results"))
    return dot_figure(summary["results"], families(summary["models"]))


def _differences(one: Result, two: Result) -> pl.DataFrame:
    rows, pairs = combined_rows(one, two)
    try:
        found = summarise_tasks(rows, dict(pairs))["differences"]
    except ValueError as error:
        raise UserError(f"compare: {error}; measure both with the same settings") from None
    if not found:
        raise UserError("compare: no task was measured in both; measure both with the same tasks and data")
    return pl.DataFrame(found, infer_schema_length=None).rename({"twin": "against", "p": "p_value"})


KIND = Kind(
    "rows",
    ("rows.parquet", "summary.json", "run.json"),
    _line,
    _sheets,
    _figure,
    _differences,
    write_evaluation_page,
)
