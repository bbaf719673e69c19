"""Results of ``antiphase sense``."""

from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.result import Kind, Result, combined, paired_models
from antiphase.errors import UserError
from antiphase.report.runs.sense_page import headline, write_sense_report
from antiphase.report.runs.sense_tables import Chapter, chapters, read_rows
from antiphase.report.runs.stored import read_json
from antiphase.report.style.families import families
from antiphase.report.style.sheets import Sheet
from antiphase.sensitivity.layer_estimates import layer_differences


def _line(result: Result) -> str:
    return headline(result.summary)[0]


def _chapters(folder: Path) -> list[Chapter]:
    summary = read_json(folder / "summary.json", ("models", "pairs"))
    pairs = [(model, against) for model, against in summary["pairs"]]
    return chapters(read_rows(folder), pairs, families(summary["models"]))


def _sheets(folder: Path) -> list[Sheet]:
    return [sheet for chapter in _chapters(folder) for sheet in chapter.sheets]


def _figure(folder: Path) -> Figure:
    return next(figure for chapter in _chapters(folder) for _, figure, _ in chapter.figures)


def _differences(one: Result, two: Result) -> pl.DataFrame:
    for each in (one, two):
        if "alignment" not in each.tables:
            raise UserError("compare: the alignment was not measured; expected parts that include alignment")
    rows, pairs = combined(one, two, paired_models(one, two), "alignment")
    return layer_differences(rows, pairs)


KIND = Kind(
    "alignment", ("summary.json", "run.json"), _line, _sheets, _figure, _differences, write_sense_report
)
