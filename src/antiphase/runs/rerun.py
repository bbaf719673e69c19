"""A run read back: the command and the options that it was made with, and whether another one has its numbers."""

import hashlib
from pathlib import Path
from typing import Any

import polars as pl

from antiphase.commands.run_folder import held_by
from antiphase.errors import UserError, shown
from antiphase.reading import read_json, read_json_lines, read_rows

RECORD = "run.json"
_ROWS = "*.parquet"
_METRICS = "metrics.jsonl"
_WEIGHTS = "model.safetensors"
_SPEED = "images_per_second"  # differs from run to run
_FINISHED = "expected the directory of a finished run"


def recorded(run: Path) -> tuple[str, dict[str, Any]]:
    """Return the command that made a run and its options.

    Raises:
        UserError: the directory holds no finished run that says with which options it was made.
    """
    try:
        options, command = read_json(run / RECORD).get("options"), held_by(run)
    except UserError:
        options = command = None
    if not isinstance(options, dict) or command is None:
        raise UserError(f"run {shown(str(run))}: no {RECORD} with options in it; {_FINISHED}")
    if options.pop("independent", False):  # the name of nested="off" in runs stored before November 2026
        options["nested"] = "off"
    return command, options


def compared(run: Path, again: Path) -> list[dict[str, Any]]:
    """Compare the numbers of two runs, file by file.

    Rows and weights have to be the same to the last bit; of training's metrics only the speed is left out.

    Returns:
        for each file ``file`` and ``equal``; where rows differ, ``columns`` with the number of rows that differ and
        the largest difference of each.
    """
    found = [
        _frames(one.name, read_rows(one, _FINISHED), read_rows(again / one.name, _FINISHED))
        if (again / one.name).is_file()
        else {"file": one.name, "equal": False, "columns": {}}
        for one in sorted(run.glob(_ROWS))
    ]
    if (run / _METRICS).is_file():
        found.append(_frames(_METRICS, *(pl.DataFrame(_metrics(each / _METRICS)) for each in (run, again))))
    if (run / _WEIGHTS).is_file():
        one, other = (hashlib.sha256((each / _WEIGHTS).read_bytes()).digest() for each in (run, again))
        found.append({"file": _WEIGHTS, "equal": one == other, "columns": {}})
    return found


def _metrics(path: Path) -> list[dict[str, Any]]:
    lines = read_json_lines(path, _FINISHED)
    return [{key: value for key, value in line.items() if key != _SPEED} for line in lines]


def _frames(name: str, one: pl.DataFrame, other: pl.DataFrame) -> dict[str, Any]:
    if one.schema != other.schema or len(one) != len(other):
        return {"file": name, "equal": False, "columns": {}, "rows": [len(one), len(other)]}
    columns = {}
    for column in one.columns:
        unequal = one[column].ne_missing(other[column])
        if count := int(unequal.sum()):
            numeric = one.schema[column].is_numeric()
            largest = (
                (one[column].cast(pl.Float64) - other[column].cast(pl.Float64)).abs().max()
                if numeric
                else None
            )
            columns[column] = {"rows": count, "largest_difference": largest}
    return {"file": name, "equal": not columns, "columns": columns, "rows": [len(one), len(other)]}
