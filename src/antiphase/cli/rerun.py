"""``antiphase rerun``: what it prints, and its examples."""

import importlib
import inspect
from functools import partial
from typing import Any

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.commands import COMMANDS, find_command
from antiphase.commands.command import Command
from antiphase.errors import UserError, shown
from antiphase.runs.options.rerun import RerunOptions
from antiphase.terminal import say

_AS = {"quickstart": "audit"}  # a quickstart stores the options of its audit
_REPEATED = ("audit", "attack", "sense", "certify", "evaluate", "train", "train-clip", "train-vlm")


@command(app, RerunOptions)
def rerun(options: RerunOptions) -> Answer:
    """Repeat a run with the options that it stored, and say whether the numbers are equal.

    The repetition goes to a directory of its own. Rows and weights have to be the same to the last bit, which holds
    on one machine with the same versions; on another the last digits may differ.

    **Examples**

    antiphase rerun antiphase-audit

    antiphase rerun runs/diffvit --out runs/diffvit-again --json
    """
    from antiphase.commands.loading import check_code
    from antiphase.runs.rerun import RECORD, compared, recorded

    name, stored = recorded(options.run)
    name = _AS.get(name, name)
    if name not in _REPEATED:
        raise UserError(
            f"run {shown(str(options.run))}: of antiphase {name}; expected a run of {', '.join(_REPEATED)}"
        )
    out = options.out or options.run.with_name(f"{options.run.name}-again")
    if (out / RECORD).exists():
        raise UserError(f"out {shown(str(out))}: holds a finished run; give a new directory with --out")
    stored |= {"out": str(out), "quiet": options.quiet}
    if name == "evaluate":
        stored |= {"cache": str(out / "features")}  # the features are computed again, too
    stored.pop("write_adapter", None)  # it would write elsewhere
    found = find_command(name)
    if isinstance(found, Command):
        repeated = found.options.from_file(stored)
        body = partial(found.answer, typed=typed_command())
    else:
        body = getattr(importlib.import_module(COMMANDS[name][0]), name.replace("-", "_"))
        repeated = inspect.signature(body, eval_str=True).parameters["options"].annotation.from_file(stored)
    check_code(repeated, options.run_code, f"run {shown(str(options.run))}")
    body(repeated)
    found = compared(options.run, out)
    for one in found:
        say(f"{one['file']}: {'equal' if one['equal'] else _difference(one)}")
    equal = all(one["equal"] for one in found)
    say(f"the numbers of {options.run} and {out} are {'equal' if equal else 'not equal'}")
    return {"command": name, "run": str(options.run), "out": str(out), "equal": equal, "files": found}


def _difference(one: dict[str, Any]) -> str:
    parts = [
        f"{column} in {at['rows']} of {one['rows'][0]} rows"
        + ("" if at["largest_difference"] is None else f" (by at most {at['largest_difference']:.3g})")
        for column, at in one["columns"].items()
    ]
    return f"differs: {', '.join(parts)}" if parts else "differs"
