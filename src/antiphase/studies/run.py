"""Run cells: each once, by the first process that takes it, with each result on disk before the next cell starts."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, final

from antiphase.commands.loading import find_device
from antiphase.commands.record import environment_record
from antiphase.commands.run_folder import check_holder
from antiphase.errors import Failures, UserError, first_line
from antiphase.files import room
from antiphase.processes import this_process
from antiphase.progress import duration
from antiphase.statistics.decisions import LEAST_SEEDS
from antiphase.studies.context import Lab
from antiphase.studies.options import RunOptions
from antiphase.studies.pack import Pack
from antiphase.studies.paper_settings import dry_run
from antiphase.studies.plan import Plan, describe, expected, make_plan, select
from antiphase.studies.results import training_seeds
from antiphase.studies.spec import Cell, Profile, Study
from antiphase.studies.store import Store, identity, source_commit
from antiphase.terminal import say

_POLL_SECONDS = 1.0  # interval in seconds for checking on other processes
_LONGEST = 200  # letters of a reason while the run goes on; the whole one is told at its end
_WAITED = "needs a cell that failed"

Step = Literal["run", "busy", "wait", "done", "lost"]
Say = Callable[[str], None]


def run_cells(cells: Sequence[Cell], lab: Lab, say: Say = lambda line: None) -> Plan:
    """Run all missing cells and return the plan afterwards.

    Several processes may share one store: each cell is run by one of them while the others take the next, and wait at
    the end. Under torchrun the processes share every cell. A cell that fails (missing data, a loss that is not finite)
    does not stop cells that do not depend on it.

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
        run = _Run(lab, plan, say, [])
        # use the first process's plan: another run may have finished a cell in the meantime
        left = run.together(lambda: [identity(cell) for cell in plan.missing])
        run.left = [cell for cell in plan.cells if identity(cell) in left]
        while run.left:
            if not run.round():
                time.sleep(_POLL_SECONDS)
    if run.failed:
        raise Failures(_failure(list(run.failed.values())))
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
        moved = False
        for cell in list(self.left):
            step = self.together(lambda cell=cell: self.judge(cell))
            if step == "run":
                step = self.attempt(cell)
            if step not in ("busy", "wait"):
                moved = True
                self.left.remove(cell)
        return moved

    def judge(self, cell: Cell) -> Step:
        """Return what to do with a cell now."""
        store = self.lab.store
        if store.done(cell):
            return "done"
        for need in cell.needs():
            if store.done(need):
                continue
            if any(need == other for other in self.left):
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
            if mine and store.damage(cell):
                store.discard(cell)
            step = self.together(lambda: "done" if mine and store.done(cell) else "run" if mine else "busy")
            return self.work(cell) if step == "run" else step

    def work(self, cell: Cell) -> Step:
        """Run a cell and record it."""
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
            short = "for the same reason" if known else shorten(why, _LONGEST, placeholder=" …")
            self.say(f"failed: {cell.label}: {short}")
            return "lost"
        seconds = time.monotonic() - began
        if process.first:
            about = {"seconds": round(seconds, 3), "whole": whole, "warnings": sorted(set(lab.warnings))}
            about |= {"finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "commit": source_commit()}
            store.finish(cell, rows, about | environment_record(lab.device))
            store.log("done", cell, seconds=round(seconds, 3))
        process.wait()
        rest, missing = [other for other in self.left if other is not cell], len(self.plan.missing)
        left = f" · about {duration(expected(rest, self.plan.cells, store))} left" if rest else ""
        self.say(f"[{missing - len(rest)}/{missing}] {cell.label}: {seconds:.1f} s{left}")
        return "run"


_GRACE_SECONDS = 20.0


@final
@dataclass(frozen=True)
class Local:
    """Local processes, each with a share of the cores and, if there are several GPUs, its own GPU."""

    here: Callable[[], Any]

    def __call__(self, command: Sequence[str], workers: int) -> None:
        """Start all other workers, run as the last one, and wait for the others."""
        import torch

        cores = max(1, len(os.sched_getaffinity(0)) // workers)
        gpus = torch.cuda.device_count()
        seen = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
        others = []
        for number in range(1, workers):
            threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(cores)}
            device = {"CUDA_VISIBLE_DEVICES": seen[number % gpus]} if gpus > 1 else {}
            others.append(subprocess.Popen(list(command), env={**os.environ, **threads, **device}))
        try:
            if workers > 1:
                torch.set_num_threads(min(torch.get_num_threads(), cores))
            self.here()
            codes = [other.wait() for other in others]
        except BaseException:
            _stop(others)
            raise
        if any(codes):
            raise UserError(f"a worker ended with code {max(codes)}; resume with the same command")


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


@final
@dataclass(frozen=True)
class Slurm:
    """Cluster jobs, submitted with submitit.

    Attributes:
        settings: arguments of ``AutoExecutor.update_parameters``: ``timeout_min``, ``slurm_partition``, ….
    """

    folder: Path
    settings: dict[str, Any]
    cluster: str = "slurm"
    wait: bool = False

    def __call__(self, command: Sequence[str], workers: int) -> None:
        """Submit one job per worker."""
        try:
            import submitit
        except ImportError:
            raise UserError("--executor slurm needs submitit: pip install 'antiphase[slurm]'") from None
        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
            executor.update_parameters(name="antiphase", **self.settings)
            run = submitit.helpers.CommandFunction(list(command), verbose=False)
            with executor.batch():
                jobs = [executor.submit(run) for _ in range(workers)]
        except (RuntimeError, NameError, ValueError, OSError) as error:
            raise UserError(f"--executor slurm: {first_line(error)}") from None
        say(
            f"jobs {', '.join(job.job_id for job in jobs)}; follow them with antiphase study status", err=True
        )
        if self.wait:
            for job in jobs:
                job.result()


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` settings; integers become numbers.

    >>> parse_settings(["timeout_min=240", "slurm_partition=gpu"])
    {'timeout_min': 240, 'slurm_partition': 'gpu'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UserError(f"--slurm {text!r}: expected name=value, such as timeout_min=240")
        found[name] = int(value) if value.lstrip("-").isdigit() else value
    return found


def run(options: RunOptions, told: Callable[[str], None], say: Callable[[str], None]) -> dict[str, Any]:
    """Run every missing cell of some studies; return how many there are, were missing and are missing now.

    Raises:
        UserError: an option does not suit the processes, or a cell fails.
    """
    if options.track:
        from antiphase.training.loop import check_trackers

        check_trackers(options.track)
    chosen, device, process = select(options), find_device(options.device), this_process()
    cells = chosen.cells
    store = Store(options.store, None if options.rows is None else Pack(options.rows))
    if process.count > 1 and (options.jobs > 1 or options.executor == "slurm"):
        raise UserError(
            "--jobs and --executor are for one process; under torchrun the processes share every cell"
        )
    for study in chosen.studies if options.dry_run else ():
        for line in dry_run(study, chosen.profile):
            told(line)
    check_holder(options.store, "study run")
    plan = make_plan(cells, store)
    if process.first:
        for why in plan.damaged.values():
            say(f"damaged: {why}")
        say(describe(plan))
        for study in chosen.studies:
            if few := _too_few(study, chosen.profile):
                say(few)
    found = {"cells": len(plan.cells), "missing_before": len(plan.missing), "missing": len(plan.missing)}
    if options.dry_run or not plan.missing:
        return found

    def cell_said(line: str) -> None:
        if process.first and not options.quiet:
            say(line)

    def here() -> None:
        # elsewhere bars leave empty lines
        bars = not options.quiet and options.jobs == 1 and sys.stderr.isatty()
        lab = Lab(store, device, options.batch_size, progress=bars, process=process, track=options.track)
        run_cells(cells, lab, cell_said)

    store.root.mkdir(parents=True, exist_ok=True)
    command = _command(options)
    if options.executor == "slurm":
        Slurm(options.store / "slurm", parse_settings(options.slurm))(command, options.jobs)
        return found
    Local(here)([*command, "--quiet"], options.jobs)
    after = make_plan(cells, store)
    if process.first:
        say(f"{len(after.cells)} cells are there; {options.next_command('report')} draws them")
    return found | {"missing": len(after.missing)}


def _too_few(study: Study, profile: Profile) -> str:
    """Say how many training seeds a verdict takes if a study has fewer; released models have none."""
    cells = study.cells(profile)
    seeds = len(training_seeds(cells))
    if profile.name == "smoke" or seeds >= LEAST_SEEDS or not any(cell.needs() for cell in cells):
        return ""
    has = f"{study.name} has {seeds} training seed{'s' * (seeds != 1)}"
    return f"{has}; a verdict takes {LEAST_SEEDS} (--seeds {LEAST_SEEDS})"


def _command(options: RunOptions) -> list[str]:
    """Return the command of one worker."""
    command = [sys.executable, "-m", "antiphase", "study", "run", *options.names]
    command += [*options.words, "--store", str(options.store), "--device", options.device]
    command += ["--track", ",".join(options.track)] if options.track else []
    command += ["--rows", str(options.rows)] if options.rows else []
    return command + (["--batch-size", str(options.batch_size)] if options.batch_size else [])
