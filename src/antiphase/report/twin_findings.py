"""What an evaluation of a model against its twin says, for the page of findings: every number, side by side."""

from pathlib import Path
from typing import Any

from antiphase.errors import UserError
from antiphase.evaluation.statistics import Estimate
from antiphase.report.evaluation import heading
from antiphase.report.sections import estimate_text, table
from antiphase.report.stored import RUN_KEYS, read_json


def twin_section(evaluated: Path, title: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the section and the record of the run.

    Args:
        evaluated: directory of ``antiphase evaluate MODEL --against TWIN``.
        title: of the section.

    Raises:
        UserError: a file is missing, or there is no twin.
    """
    summary = read_json(evaluated / "summary.json", ("models", "results", "differences"))
    if not summary["differences"]:
        raise UserError(f"{evaluated}: expected a run of antiphase evaluate with --against")
    keys = ("task", "data", "setting", "metric")
    found = {(r["model"], *(r[key] for key in keys)): r for r in summary["results"]}
    lines = []
    for apart in summary["differences"]:
        place = tuple(apart[key] for key in keys)
        both = [_text(found[name, *place], "value") for name in (apart["model"], apart["twin"])]
        lines.append(
            (
                apart["model"],
                apart["data"],
                f"{apart['task']}, {heading(apart)}",
                *both,
                _text(apart, "difference"),
            )
        )
    head = ("model", "set", "number", "its", "its twin's", "difference, points")
    words = "Per cent, with 95 % intervals over the images, captions, episodes or pairs, for these weights."
    return f"## {title}\n\n{words}\n\n{table(head, lines)}\n", [read_json(evaluated / "run.json", RUN_KEYS)]


def _text(row: dict[str, Any], key: str) -> str:
    low, high = (
        row[end] if row[end] is not None else float(sign + "inf")
        for end, sign in (("low", "-"), ("high", ""))
    )
    return estimate_text(Estimate(row[key], low, high, row["n"]), 1, 100)
