"""Results of audits and attacks of vision-language models' answers to POPE's questions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.old import Kind
from antiphase.commands.result import Result, combined_rows
from antiphase.errors import UserError
from antiphase.report.figure import families
from antiphase.report.runs.pope_page import pope_figure, pope_headline, pope_sheets, write_pope_page
from antiphase.report.runs.stored import read_json
from antiphase.report.table import Table
from antiphase.vlm.attack import summarise_answers


def _line(result: Result) -> str:
    title, lead = pope_headline(result.summary["pope"])
    return f"{title}. {lead}".rstrip(".")


def _summary(folder: Path) -> Mapping[str, Any]:
    return read_json(folder / "summary.json", ("models", "pope"))


def _sheets(folder: Path) -> list[Table]:
    summary = _summary(folder)
    return pope_sheets(summary["pope"], families(summary["models"]))


def _figure(folder: Path) -> Figure:
    summary = _summary(folder)
    return pope_figure(summary["pope"]["results"], families(summary["models"]))


def _differences(one: Result, two: Result) -> pl.DataFrame:
    rows, pairs = combined_rows(one, two)
    for pair in pairs:
        mine, theirs = (
            set(rows.filter(model=name).select("attack", "eps", "sample").rows()) for name in pair
        )
        if mine != theirs:
            raise UserError(
                f"compare: {pair[0]!r} and {pair[1]!r} were attacked differently; expected the same attacks, ε and "
                "questions"
            )
    names = {name: [name] for pair in pairs for name in pair}
    return pl.DataFrame(summarise_answers(rows, names, pairs)["differences"], infer_schema_length=None)


KIND = Kind(
    "rows",
    ("rows.parquet", "summary.json", "run.json"),
    _line,
    _sheets,
    _figure,
    _differences,
    write_pope_page,
    of="POPE's answers",
)
