"""``antiphase rerun``: a run repeated with the options that it stored, and compared with its repetition."""

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from antiphase import registry, terminal
from antiphase.commands import COMMANDS, find_command
from antiphase.commands.command import Answer, Command, Refusal
from antiphase.commands.options import Directory, Options, Quiet, Typed
from antiphase.commands.run_folder import held_by, refuse_finished
from antiphase.errors import UserError, shown
from antiphase.files import read_json, read_json_lines, read_rows

if TYPE_CHECKING:
    import polars as pl

_METRICS = "metrics.jsonl"
_WEIGHTS = "model.safetensors"
_FINISHED = "expected the directory of a finished run"


class RerunOptions(Options):
    """Repeat a run with the options that it stored, and say whether the numbers are equal.

    The repetition goes to a directory of its own. Rows and weights have to be the same to the last bit, which holds
    on one machine with the same versions; on another the last digits may differ.

    **Examples**

    antiphase rerun antiphase-audit
    antiphase rerun runs/diffvit --out runs/diffvit-again --json
    """

    run: Annotated[Directory, Typed(argument=True)]
    """Directory of a run: of audit, attack, quickstart, sense, transfer, certify, evaluate or a training."""
    out: Directory | None = None
    """Directory of the repetition. If not given: the name of the run with -again after it."""
    run_code: bool = False
    """Run the code of python: models that the run names. Read it first."""
    quiet: Quiet = False


def answer(options: RerunOptions, typed: str) -> Answer:
    """Repeat the run, say file by file whether its numbers are equal, and return that."""
    from antiphase.commands.loading import check_code

    run = f"run {shown(str(options.run))}"
    stored, name = None, held_by(options.run)
    with contextlib.suppress(UserError):
        stored = read_json(options.run / "run.json").get("options")
    if name is None or not isinstance(stored, dict):
        raise UserError(f"{run}: no run.json with options in it; {_FINISHED}")
    others = ("look", "compare", "study")
    repeatable = [candidate for candidate in COMMANDS if candidate not in others and find_command(candidate).result]
    if name not in repeatable:
        raise UserError(f"{run}: of antiphase {name}; expected a run of {', '.join(repeatable)}")
    whole = Path(os.path.abspath(options.run)) if options.run.name in ("", "..") else options.run
    out = options.out or whole.with_name(f"{whole.name}-again")
    refuse_finished(out)
    stored |= {"out": str(out), "quiet": options.quiet}
    if name == "evaluate":
        stored |= {"cache": str(out / "features")}  # the features are computed again, too
    command = find_command(name)
    repeated = command.options.from_file(stored)
    check_code(repeated, options.run_code, run)
    began = time.monotonic()
    with command.place(repeated):
        command.told(repeated, registry.imported(command.run)(repeated, typed), began)
    files = compared(options.run, out)
    for one in files:
        differing = (f"{column} in {difference['rows']} rows" for column, difference in one["columns"].items())
        aspect = "bytes" if one["file"] == _WEIGHTS else "length or schema"
        verdict = "equal" if one["equal"] else f"differs: {', '.join(differing) or aspect}"
        terminal.say(f"{one['file']}: {verdict}")
    equal = all(one["equal"] for one in files)
    terminal.say(f"the numbers of {options.run} and {out} are {'equal' if equal else 'not equal'}")
    told = {"command": name, "run": str(options.run), "out": str(out), "equal": equal, "files": files}
    return told if equal else Refusal(told)


def compared(run: Path, again: Path) -> list[dict[str, Any]]:
    """Compare the numbers of two runs to the last bit, file by file, with how many rows of which columns differ."""
    import polars as pl

    def rows(path: Path) -> pl.DataFrame:
        if path.name != _METRICS:
            return read_rows(path, _FINISHED)
        from antiphase.training.loop import TIMES

        return pl.DataFrame(read_json_lines(path, _FINISHED)).drop(TIMES, strict=False)

    files = []
    for path in filter(Path.is_file, (*sorted(run.glob("*.parquet")), run / _METRICS, run / _WEIGHTS)):
        pair = (path, again / path.name)
        about: dict[str, Any] = {"file": path.name, "equal": False, "columns": {}}
        if path.name == _WEIGHTS:
            about["equal"] = path.read_bytes() == pair[1].read_bytes()
        elif pair[1].is_file():
            about |= _difference(*map(rows, pair))
        files.append(about)
    return files


def _difference(one: "pl.DataFrame", other: "pl.DataFrame") -> dict[str, Any]:
    about: dict[str, Any] = {"equal": False, "columns": {}, "rows": [len(one), len(other)]}
    if one.schema != other.schema or len(one) != len(other):
        return about
    for column, kind in one.schema.items():
        if count := int(one[column].ne_missing(other[column]).sum()):
            apart = (one[column].cast(float) - other[column].cast(float)).abs().max() if kind.is_numeric() else None
            about["columns"][column] = {"rows": count, "largest_difference": apart}
    return about | {"equal": not about["columns"]}


COMMAND = Command("rerun", RerunOptions, answer)
