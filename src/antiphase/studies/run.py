"""Running cells: each once, by whichever process gets to it first, each result on disk before the next begins."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from antiphase.errors import UserError
from antiphase.files import room
from antiphase.progress import duration
from antiphase.runs.record import environment_record
from antiphase.studies.identity import identity
from antiphase.studies.lab import Lab
from antiphase.studies.plan import Plan, expected, make_plan
from antiphase.studies.spec import Cell

_POLL_SECONDS = 1.0  # how often to look whether another process has finished what is waited for

Step = Literal["run", "busy", "wait", "done", "lost"]
Say = Callable[[str], None]


@dataclass
class _Standing:
    """What is left to do."""

    left: list[Cell]
    failed: dict[str, tuple[str, str]] = field(default_factory=dict)  # label and reason, by identity


def run_cells(cells: Sequence[Cell], lab: Lab, say: Say = lambda line: None) -> Plan:
    """Make every cell that is not there, and return the plan as it stands afterwards.

    Several processes may do this on one store at once: a cell is worked on by one of them, the others go on with the
    next and wait where nothing else is left. Under torchrun the processes share every cell. A cell that cannot be made
    (a data set that is not there, a loss that is not finite) stops neither the others nor what does not need it.

    Args:
        cells: what is asked for; what they need comes by itself.
        lab: where they run.
        say: takes lines for a watcher.

    Raises:
        UserError: cells could not be made, each with its reason; or no room is left on the disk.
    """
    with room(lab.store.root):
        plan = make_plan(cells, lab.store)
        lab.process.wait()  # until all have looked
        for cell in plan.missing:
            if (why := plan.damaged.get(identity(cell))) is not None and lab.process.first:
                with lab.store.claim(cell) as mine:
                    if mine and lab.store.damage(cell):
                        say(f"{why}: {cell.label} is made again")
                        lab.store.log("damaged", cell, why=why)
                        lab.store.discard(cell)
        lab.process.wait()
        # what the first process found missing: while the others looked, another run may have finished a cell
        left = _together(lab, lambda: [identity(cell) for cell in plan.missing])
        standing = _Standing([cell for cell in plan.cells if identity(cell) in left])
        while standing.left:
            if not _one_round(standing, lab, plan, say):
                time.sleep(_POLL_SECONDS)
    if standing.failed:
        reasons = "; ".join(f"{label}: {why}" for label, why in standing.failed.values())
        raise UserError(f"{len(standing.failed)} cells were not made: {reasons}")
    return make_plan(cells, lab.store)


def _one_round(standing: _Standing, lab: Lab, plan: Plan, say: Say) -> bool:
    """Go through what is left once; return whether anything came of it."""
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
    """Say what is to be done about a cell now."""
    if lab.store.done(cell):
        return "done"
    for need in cell.needs():
        if not lab.store.done(need):
            if all(need != other for other in standing.left):  # failed here, or taken away since the plan
                gone = "" if identity(need) in standing.failed else ", which is gone: run again"
                standing.failed[identity(cell)] = (cell.label, f"needs {need.label}{gone}")
                return "lost"
            return "wait"
    return "run"


def _attempt(cell: Cell, standing: _Standing, lab: Lab, plan: Plan, say: Say) -> Step:
    """Work on a cell, unless another process does."""
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
    whole = not store.folder(cell).exists()  # else a killed run has done a part of it
    began = time.monotonic()
    try:
        rows = cell.run(lab, store.folder(cell))
    except UserError as error:
        if process.count > 1:
            raise  # it may be this process's alone: torchrun ends the others, which would wait for it
        standing.failed[identity(cell)] = (cell.label, str(error))
        store.log("failed", cell, why=str(error))
        say(f"failed: {cell.label}: {error}")
        return "lost"
    seconds = time.monotonic() - began
    if process.first:
        about = {
            "seconds": round(seconds, 3), "whole": whole, "work": cell.work(), "warnings": sorted(set(lab.warnings)),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **environment_record(lab.device),
        }  # fmt: skip
        store.finish(cell, rows, about)
        store.log("done", cell, seconds=round(seconds, 3))
    process.wait()
    rest = [other for other in standing.left if other is not cell]
    left = f" · about {duration(expected(rest, plan.cells, store))} left" if rest else ""
    say(f"[{len(plan.missing) - len(rest)}/{len(plan.missing)}] {cell.label}: {seconds:.1f} s{left}")
    return "run"


def _together(lab: Lab, judge: Callable[[], Any]) -> Any:
    """Return what the first process finds, in every process."""
    if lab.process.count == 1:
        return judge()
    from accelerate.utils import broadcast_object_list

    found = [judge() if lab.process.first else None]
    broadcast_object_list(found)
    return found[0]
