"""A run read back: the command and the options that it was made with, and whether another one has its numbers."""

from pathlib import Path
from typing import Any

import polars as pl

from antiphase.commands import COMMANDS, find_command
from antiphase.commands.command import Answer
from antiphase.commands.loading import check_code
from antiphase.commands.rerun import RerunOptions
from antiphase.commands.run_folder import held_by
from antiphase.errors import UserError, shown
from antiphase.reading import read_json, read_json_lines, read_rows
from antiphase.terminal import say

RECORD = "run.json"
_METRICS = "metrics.jsonl"
_WEIGHTS = "model.safetensors"
_SPEED = "images_per_second"  # differs from run to run
_FINISHED = "expected the directory of a finished run"


_AS = {"quickstart": "audit"}  # a quickstart stores the options of its audit
_GONE = ("write_adapter",)  # options of before


def answer(options: RerunOptions, typed: str) -> Answer:
    """Repeat the run, say file by file whether its numbers are equal, and return that."""
    name, stored = recorded(options.run)
    name = _AS.get(name, name)
    repeatable = [
        each for each in COMMANDS if each not in ("quickstart", "look", "study") and find_command(each).result
    ]
    if name not in repeatable:
        raise UserError(
            f"run {shown(str(options.run))}: of antiphase {name}; expected a run of {', '.join(repeatable)}"
        )
    out = options.out or options.run.with_name(f"{options.run.name}-again")
    if (out / RECORD).exists():
        raise UserError(f"out {shown(str(out))}: holds a finished run; give a new directory with --out")
    stored |= {"out": str(out), "quiet": options.quiet}
    if name == "evaluate":
        stored |= {"cache": str(out / "features")}  # the features are computed again, too
    command = find_command(name)
    repeated = command.options.from_file({key: stored[key] for key in stored if key not in _GONE})
    check_code(repeated, options.run_code, f"run {shown(str(options.run))}")
    with command.reporting(repeated) as report:
        report(command.function()(repeated, typed))
    files = compared(options.run, out)
    for one in files:
        differing = (f"{column} in {at['rows']} rows" for column, at in one["columns"].items())
        verdict = "equal" if one["equal"] else f"differs: {', '.join(differing) or 'length or schema'}"
        say(f"{one['file']}: {verdict}")
    equal = all(one["equal"] for one in files)
    say(f"the numbers of {options.run} and {out} are {'equal' if equal else 'not equal'}")
    return {"command": name, "run": str(options.run), "out": str(out), "equal": equal, "files": files}


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
    files = []
    for one in sorted(run.glob("*.parquet")):
        again_too = (again / one.name).is_file()
        rows = [read_rows(folder / one.name, _FINISHED) for folder in (run, again)] if again_too else []
        files.append({"file": one.name} | (_difference(*rows) if rows else {"equal": False, "columns": {}}))
    if (run / _METRICS).is_file():
        metrics = (pl.DataFrame(read_json_lines(folder / _METRICS, _FINISHED)) for folder in (run, again))
        files.append(
            {"file": _METRICS} | _difference(*(frame.drop(_SPEED, strict=False) for frame in metrics))
        )
    if (run / _WEIGHTS).is_file():
        one, other = ((folder / _WEIGHTS).read_bytes() for folder in (run, again))
        files.append({"file": _WEIGHTS, "equal": one == other, "columns": {}})
    return files


def _difference(one: pl.DataFrame, other: pl.DataFrame) -> dict[str, Any]:
    about: dict[str, Any] = {"equal": False, "columns": {}, "rows": [len(one), len(other)]}
    if one.schema != other.schema or len(one) != len(other):
        return about
    for column, kind in one.schema.items():
        count = int(one[column].ne_missing(other[column]).sum())
        if count:
            apart = None
            if kind.is_numeric():
                apart = (one[column].cast(pl.Float64) - other[column].cast(pl.Float64)).abs().max()
            about["columns"][column] = {"rows": count, "largest_difference": apart}
    return about | {"equal": not about["columns"]}
