"""Results of audits and attacks."""

from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from antiphase.api import answered
from antiphase.budgets import eps_label
from antiphase.commands.old import Kind
from antiphase.commands.result import Result, combined_rows
from antiphase.evaluation.rates import compare
from antiphase.report.card.writer import write_card
from antiphase.report.figure import rate_figure
from antiphase.report.runs.page import write_report
from antiphase.report.runs.stored import read_run
from antiphase.report.runs.tables import difference_sheets, rate_sheets
from antiphase.report.table import Table
from antiphase.report.words import attack_label, percent


def _line(result: Result) -> str:
    """Name the attack and the ASR of the first models at the largest ε.

    The first result of a summary is of its first model under its first attack.
    """
    found = [row for row in result.summary["results"] if row["metric"] == "asr"]
    attack, norm = found[0]["attack"], found[0]["norm"]
    eps = max(row["eps"] for row in found)
    at = [row for row in found if (row["attack"], row["norm"], row["eps"]) == (attack, norm, eps)]
    rates = ", ".join(f"{percent(row['value'])} % ({row['model']})" for row in at[:2])
    more = f" and {len(at) - 2} more models" if len(at) > 2 else ""
    where = f"{attack_label(attack, norm)}, {at[0]['n']:,} images"
    return f"ASR {rates}{more} at ε = {eps_label(eps)}, {where}"


def _sheets(folder: Path) -> list[Table]:
    run = read_run(folder)
    return [*rate_sheets(run, "asr"), *difference_sheets(run)]


def _figure(folder: Path) -> Figure:
    run = read_run(folder)
    return rate_figure(run.results, run.mean_results, run.families, "asr")


def _differences(one: Result, two: Result) -> pl.DataFrame:
    rows, pairs = combined_rows(one, two)
    return pl.concat([compare(rows, *pair) for pair in pairs])


def _report(folder: Path) -> None:
    write_report(folder)
    write_card(folder)


KIND = Kind(
    "rows",
    ("rows.parquet", "summary.json", "run.json"),
    _line,
    _sheets,
    _figure,
    _differences,
    _report,
    instead=lambda summary: answered.KIND if "pope" in summary else None,
)
