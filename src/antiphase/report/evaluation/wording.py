"""The numbers of an evaluation as tables: for the console and for the page."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from antiphase.evaluation.tasks import find_task
from antiphase.registry import TASKS
from antiphase.report.figure import Family
from antiphase.report.table import Field, ruled_table
from antiphase.report.table import Table as Sheet
from antiphase.report.words import p_text, percent, percent_range, points, points_range

Result = Mapping[str, Any]

_CONSOLE_MODELS = 3  # as many as fit next to the numbers' names in 80 characters


def heading(result: Result) -> str:
    """Name a number by its setting and metric.

    >>> heading({"task": "zero-shot", "setting": "80", "metric": "top-1"})
    '80 prompts, top-1'
    >>> heading({"task": "retrieval", "setting": "image", "metric": "R@5"})
    'image R@5'
    """
    return find_task(result["task"]).heading(result["setting"], result["metric"])


def console_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Return tables for a console of 80 columns: data sets and numbers down, a few models across."""
    apart = {
        tuple(d[key] for key in ("model", "task", "data", "setting", "metric")): d
        for d in summary["differences"]
    }
    models = [model["name"] for model in summary["models"]]
    tables = []
    for at in range(0, len(models), _CONSOLE_MODELS):
        some = models[at : at + _CONSOLE_MODELS]
        table = ruled_table("% [95% interval]" + (", Δ to the twin" if apart else ""))
        table.add_column("", overflow="fold", min_width=14)
        for name in some:
            table.add_column(name, justify="right", overflow="fold")
        for (task, data), its in _by_data(summary["results"]).items():
            table.add_row(Text(f"{task}, {data}", "bold"))
            for name, found in its.items():
                table.add_row(f"  {name}", *(_console_cell(found.get(model), apart) for model in some))
        tables.append(table)
    return tables


def sheets(summary: Mapping[str, Any], groups: Sequence[Family]) -> dict[str, Sheet]:
    """Return a table for each task: models and data sets down, numbers across."""
    colors = {model: family.color for family in groups for model in family.models}
    found = {}
    for task, its in _by_task(summary["results"]).items():
        columns = list(dict.fromkeys(heading(result) for result in its))
        rows = [
            (
                Field(model, color=colors[model], kind="name"),
                Field(data, kind="word"),
                *(_cell(cells.get(column)) for column in columns),
            )
            for (model, data), cells in _by_model(its).items()
        ]
        csv = pl.DataFrame(its, infer_schema_length=None).write_csv()
        found[task] = Sheet(task, f"{task}, %", ("model", "data", *columns), tuple(rows), csv)
    return found


def difference_sheet(summary: Mapping[str, Any], groups: Sequence[Family]) -> Sheet | None:
    """Return how much higher each model is than its twin; None where there are no twins."""
    if not summary["differences"]:
        return None
    colors = {model: family.color for family in groups for model in family.models}
    rows = [
        (
            Field(d["model"], (), colors[d["model"]], "name"),
            Field(d["twin"], kind="word"),
            Field(f"{d['data']}: {heading(d)}", kind="word"),
            Field(points(d["difference"]), (points_range(d["low"], d["high"]),)),
            Field("–" if d["p"] is None else p_text(d["p"])),
        )
        for d in summary["differences"]
    ]
    csv = pl.DataFrame(summary["differences"], infer_schema_length=None).write_csv()
    columns = ("model", "twin", "number", "difference, points", "p (McNemar)")
    return Sheet("differences", "Differences to the twins, on the same images", columns, tuple(rows), csv)


def _by_task(results: Sequence[Result]) -> dict[str, list[Result]]:
    return {task: its for task in TASKS if (its := [r for r in results if r["task"] == task])}


def _by_data(results: Sequence[Result]) -> dict[tuple[str, str], dict[str, dict[str, Result]]]:
    """Return the results by task and data, by number, by model."""
    found: dict[tuple[str, str], dict[str, dict[str, Result]]] = {}
    for task, its in _by_task(results).items():
        for result in its:
            found.setdefault((task, result["data"]), {}).setdefault(heading(result), {})[result["model"]] = (
                result
            )
    return found


def _by_model(results: Sequence[Result]) -> dict[tuple[str, str], dict[str, Result]]:
    found: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        found.setdefault((result["model"], result["data"]), {})[heading(result)] = result
    return found


def _spread(result: Result) -> tuple[str, ...]:
    """Return what is said of the seeds and of the episodes."""
    said = []
    if result["seed_sd"] is not None:
        said.append(f"sd over {result['seeds']} seeds {percent(result['seed_sd'])}")
    if result["unit_sd"] is not None:
        said.append(f"over episodes {percent(result['unit_sd'])}")
    return tuple(said)


def _cell(result: Result | None) -> Field:
    if result is None:
        return Field("–")
    return Field(percent(result["value"]), (percent_range(result["low"], result["high"]), *_spread(result)))


def _console_cell(result: Result | None, apart: Mapping[tuple[str, ...], Result]) -> Text:
    if result is None:
        return Text("–")
    lines = [
        (percent(result["value"]), "bold"),
        (f" [{percent_range(result['low'], result['high'])}]", "dim"),
    ]
    found = apart.get(tuple(result[key] for key in ("model", "task", "data", "setting", "metric")))
    if found is not None:
        lines.append((f"\nΔ {points(found['difference'])} [{points_range(found['low'], found['high'])}]", ""))
    return Text.assemble(*lines, *((f"\n{line}", "dim") for line in _spread(result)))
