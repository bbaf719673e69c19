"""Run cells: each once, by the first process that takes it, with each result on disk before the next cell starts."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from antiphase import files, terminal
from antiphase.commands import lineup, loading, run_folder
from antiphase.errors import Failures, UserError
from antiphase.processes import this_process
from antiphase.statistics.decisions import LEAST_SEEDS
from antiphase.studies import pack, paper_settings, results
from antiphase.studies.options import RunOptions
from antiphase.studies.plan import Plan, describe, expected, make_plan, select
from antiphase.studies.spec import Cell, Lab
from antiphase.studies.store import Store, identity, source_commit

_POLL_SECONDS = 1.0  # interval in seconds for checking on other processes
_WAITED = "needs a cell that failed"

Step = Literal["run", "busy", "wait", "done", "lost"]
Say = Callable[[str], None]


def run_cells(cells: Sequence[Cell], lab: Lab, say: Say = lambda line: None) -> Plan:
    """Run all missing cells and return the plan afterwards.

    Several processes may share one store: each cell is run by one of them while the others take the next, and wait at
    the end. Under torchrun the processes share every cell. A cell that fails does not stop those that do not need it.
    """
    with files.room(lab.store.root):
        plan = make_plan(cells, lab.store)
        lab.process.wait()  # until all have checked the store
        run = _Run(lab, plan, say, [])
        # use the first process's plan: another run may have finished a cell in the meantime
        left = run.together(lambda: [identity(cell) for cell in plan.missing])
        run.left = [cell for cell in plan.cells if identity(cell) in left]
        while run.left:
            if not run.round():
                time.sleep(_POLL_SECONDS)
    if run.failed:
        by_reason: dict[str, list[str]] = {}
        for label, why in sorted(run.failed.values(), key=lambda failure: failure[1] == _WAITED):
            by_reason.setdefault(why, []).append(label)
        lines = [f"{len(run.failed)} cells failed"]
        known = by_reason.items()
        lines += [f"{label}{f' and {len(others)} more' if others else ''}: {why}" for why, (label, *others) in known]
        raise Failures("\n".join(lines))
    return make_plan(cells, lab.store)


@dataclass
class _Run:
    """What is left to do, and what failed: label and reason, by identity."""

    lab: Lab
    plan: Plan
    say: Say
    left: list[Cell]
    failed: dict[str, tuple[str, str]] = field(default_factory=dict)

    def together(self, judge: Callable[[], Any]) -> Any:
        """Return the value of the first process in every process."""
        if self.lab.process.count == 1:
            return judge()
        from accelerate.utils import broadcast_object_list

        values = [judge() if self.lab.process.first else None]
        broadcast_object_list(values)
        return values[0]

    def round(self) -> bool:
        """Go through the remaining cells once; return whether there was progress."""
        before = len(self.left)
        for cell in list(self.left):
            if (step := self.together(partial(self.judge, cell))) == "run":
                step = self.attempt(cell)
            if step not in ("busy", "wait"):
                self.left.remove(cell)
        return len(self.left) < before

    def judge(self, cell: Cell) -> Step:
        store = self.lab.store
        if store.done(cell):
            return "done"
        for need in cell.needs():
            if store.done(need):
                continue
            if need in self.left:
                return "wait"
            # failed here, or taken away since the plan
            gone = f"needs {need.label}, which is gone: run again"
            self.failed[identity(cell)] = (cell.label, _WAITED if identity(need) in self.failed else gone)
            return "lost"
        return "run"

    def attempt(self, cell: Cell) -> Step:
        """Run a cell unless another process does; the first process holds the lock for all."""
        store = self.lab.store
        with store.claim(cell) if self.lab.process.first else nullcontext(enter_result=False) as mine:
            if mine and (why := store.damage(cell)):
                self.say(f"{why}: repeating {cell.label}")
                store.log("damaged", cell, why=why)
                store.discard(cell)
            step = self.together(lambda: "done" if mine and store.done(cell) else "run" if mine else "busy")
            return self.work(cell) if step == "run" else step

    def work(self, cell: Cell) -> Step:
        lab, store, process = self.lab, self.lab.store, self.lab.process
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
            known = any(why == other for _, other in self.failed.values())
            self.failed[identity(cell)] = (cell.label, why)
            store.log("failed", cell, why=why)
            self.say(f"failed: {cell.label}: {'for the same reason' if known else why}")
            return "lost"
        seconds = round(time.monotonic() - began, 3)
        if process.first:
            about = {"seconds": seconds, "whole": whole, "warnings": sorted(set(lab.warnings))}
            about |= {"finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "commit": source_commit()}
            store.finish(cell, rows, about | lineup.environment_record(lab.device))
            store.log("done", cell, seconds=seconds)
        process.wait()
        rest, missing = [other for other in self.left if other is not cell], len(self.plan.missing)
        left = f" · about {terminal.duration(expected(rest, self.plan.cells, store))} left" if rest else ""
        self.say(f"[{missing - len(rest)}/{missing}] {cell.label}: {seconds:.1f} s{left}")
        return "run"


def run(options: RunOptions, told: Callable[[str], None], say: Callable[[str], None]) -> dict[str, Any]:
    """Run every missing cell of some studies; return how many there are, were missing and are missing now."""
    if options.track:
        from antiphase.training.loop import check_trackers

        check_trackers(options.track)
    chosen, device, process = select(options), loading.find_device(options.device), this_process()
    cells = chosen.cells
    store = Store(options.store, None if options.rows is None else pack.Pack(options.rows))
    for study in chosen.studies if options.dry_run else ():
        for line in paper_settings.dry_run(study, chosen.profile):
            told(line)
    run_folder.check_holder(options.store, "study run")
    plan = make_plan(cells, store)
    if process.first:
        say("\n".join([*(f"damaged: {why}" for why in plan.damaged.values()), describe(plan)]))
        for study in chosen.studies:
            measured = study.cells(chosen.profile)
            seeds = len(results.training_seeds(measured))  # released models have none
            if chosen.profile.name != "smoke" and seeds < LEAST_SEEDS and any(cell.needs() for cell in measured):
                say(f"{study.name}: {seeds} training seeds; a verdict takes {LEAST_SEEDS} (--seeds {LEAST_SEEDS})")
    counts = {"cells": len(plan.cells), "missing_before": len(plan.missing), "missing": len(plan.missing)}
    if options.dry_run or not plan.missing:
        return counts
    bars = not options.quiet and sys.stderr.isatty()  # elsewhere they leave empty lines
    lab = Lab(store, device, options.batch_size, progress=bars, process=process, track=options.track)
    store.root.mkdir(parents=True, exist_ok=True)
    after = run_cells(cells, lab, say if process.first and not options.quiet else lambda line: None)
    if process.first:
        say(f"{len(after.cells)} cells are there; {options.next_command('report')} draws them")
    return counts | {"missing": len(after.missing)}
