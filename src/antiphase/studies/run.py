"""Run cells: each once, by the first process that takes it, with each result on disk before the next cell starts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, Literal

from antiphase.commands.record import environment_record
from antiphase.errors import Failures, UserError
from antiphase.files import room
from antiphase.progress import duration
from antiphase.studies.identity import identity
from antiphase.studies.lab import Lab
from antiphase.studies.plan import Plan, expected, make_plan
from antiphase.studies.provenance import source_commit
from antiphase.studies.spec import Cell

_POLL_SECONDS = 1.0  # interval in seconds for checking on other processes
_LONGEST = 200  # letters of a reason while the run goes on; the whole one is told at its end
_WAITED = "needs a cell that failed"

Step = Literal["run", "busy", "wait", "done", "lost"]
Say = Callable[[str], None]


@dataclass
class _Standing:
    """What is left to do."""

    left: list[Cell]
    failed: dict[str, tuple[str, str]] = field(default_factory=dict)  # label and reason, by identity


def run_cells(cells: Sequence[Cell], lab: Lab, say: Say = lambda line: None) -> Plan:
    """Run all missing cells and return the plan afterwards.

    Several processes may share one store: each cell is run by one of them while the others take the next, and wait at
    the end. Under torchrun the processes share every cell. A cell that fails (missing data, a loss that is not finite)
    does not stop cells that do not depend on it.

    Args:
        cells: the requested cells; their dependencies are added.
        lab: the environment to run in.
        say: callback for progress messages.

    Raises:
        Failures: Some cells failed, with one line for each distinct reason.
        UserError: The disk is full.
    """
    with room(lab.store.root):
        plan = make_plan(cells, lab.store)
        lab.process.wait()  # until all have checked the store
        for cell in plan.missing:
            if (why := plan.damaged.get(identity(cell))) is not None and lab.process.first:
                with lab.store.claim(cell) as mine:
                    if mine and lab.store.damage(cell):
                        say(f"{why}: repeating {cell.label}")
                        lab.store.log("damaged", cell, why=why)
                        lab.store.discard(cell)
        lab.process.wait()
        # use the first process's plan: another run may have finished a cell in the meantime
        left = _together(lab, lambda: [identity(cell) for cell in plan.missing])
        standing = _Standing([cell for cell in plan.cells if identity(cell) in left])
        while standing.left:
            if not _one_round(standing, lab, plan, say):
                time.sleep(_POLL_SECONDS)
    if standing.failed:
        raise Failures(_failure(list(standing.failed.values())))
    return make_plan(cells, lab.store)


def _failure(failed: Sequence[tuple[str, str]]) -> str:
    """Return a head line and, for each distinct reason, a line with the number of cells and the first of them."""
    by_reason: dict[str, list[str]] = {}
    for label, why in failed:
        by_reason.setdefault(why, []).append(label)
    waited = by_reason.pop(_WAITED, [])
    lines = [
        f"{labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}: {why}"
        for why, labels in by_reason.items()
    ]
    return "\n".join(
        [f"{len(failed)} cells failed", *lines, *([f"{len(waited)} cells: {_WAITED}"] if waited else [])]
    )


def _one_round(standing: _Standing, lab: Lab, plan: Plan, say: Say) -> bool:
    """Go through the remaining cells once; return whether there was progress."""
    moved = False
    for cell in list(standing.left):
        step = _together(lab, lambda cell=cell: _judge(cell, standing, lab))
        if step in ("busy", "wait"):
            continue
        if step == "run":
            step = _attempt(cell, standing, lab, plan, say)
            if step == "busy":
                continue
        moved = True
        standing.left.remove(cell)
    return moved


def _judge(cell: Cell, standing: _Standing, lab: Lab) -> Step:
    """Return what to do with a cell now."""
    if lab.store.done(cell):
        return "done"
    for need in cell.needs():
        if not lab.store.done(need):
            if all(need != other for other in standing.left):  # failed here, or taken away since the plan
                gone = f"needs {need.label}, which is gone: run again"
                why = _WAITED if identity(need) in standing.failed else gone
                standing.failed[identity(cell)] = (cell.label, why)
                return "lost"
            return "wait"
    return "run"


def _attempt(cell: Cell, standing: _Standing, lab: Lab, plan: Plan, say: Say) -> Step:
    """Run a cell unless another process does."""
    if not lab.process.first:  # the first process holds the lock for all
        step = _together(lab, lambda: "run")
        return _work(cell, standing, lab, plan, say) if step == "run" else step
    with lab.store.claim(cell) as mine:
        if mine and lab.store.damage(cell):
            lab.store.discard(cell)
        step: Step = "done" if mine and lab.store.done(cell) else "run" if mine else "busy"
        step = _together(lab, lambda: step)
        return _work(cell, standing, lab, plan, say) if step == "run" else step


def _work(cell: Cell, standing: _Standing, lab: Lab, plan: Plan, say: Say) -> Step:
    store, process = lab.store, lab.process
    if process.first:
        store.log("begin", cell)
    lab.warnings.clear()
    whole = not store.folder(cell).exists()  # otherwise a killed run has done a part
    began = time.monotonic()
    try:
        rows = cell.run(lab, store.folder(cell))
    except UserError as error:
        if process.count > 1:
            raise  # only this process may have failed: torchrun then ends the others, which would wait for it
        why = str(error)
        known = any(why == other for _, other in standing.failed.values())
        standing.failed[identity(cell)] = (cell.label, why)
        store.log("failed", cell, why=why)
        say(
            f"failed: {cell.label}: {'for the same reason' if known else shorten(why, _LONGEST, placeholder=' …')}"
        )
        return "lost"
    seconds = time.monotonic() - began
    if process.first:
        about = {
            "seconds": round(seconds, 3),
            "whole": whole,
            "work": cell.work(),
            "warnings": sorted(set(lab.warnings)),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "commit": source_commit(),
            **environment_record(lab.device),
        }
        store.finish(cell, rows, about)
        store.log("done", cell, seconds=round(seconds, 3))
    process.wait()
    rest = [other for other in standing.left if other is not cell]
    left = f" · about {duration(expected(rest, plan.cells, store))} left" if rest else ""
    say(f"[{len(plan.missing) - len(rest)}/{len(plan.missing)}] {cell.label}: {seconds:.1f} s{left}")
    return "run"


def _together(lab: Lab, judge: Callable[[], Any]) -> Any:
    """Return the value of the first process in every process."""
    if lab.process.count == 1:
        return judge()
    from accelerate.utils import broadcast_object_list

    found = [judge() if lab.process.first else None]
    broadcast_object_list(found)
    return found[0]
