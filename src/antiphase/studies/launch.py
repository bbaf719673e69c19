"""A run of studies by its options: in this process, in several, or under SLURM."""

import sys
from collections.abc import Callable
from typing import Any

from antiphase.errors import UserError
from antiphase.evaluation.decisions import LEAST_SEEDS
from antiphase.runs.folders import check_holder
from antiphase.runs.loading import find_device
from antiphase.runs.processes import this_process
from antiphase.studies.collect import training_seeds
from antiphase.studies.dry_run import dry_run
from antiphase.studies.executors import Local, Slurm, parse_settings
from antiphase.studies.lab import Lab
from antiphase.studies.options import RunOptions
from antiphase.studies.pack import Pack
from antiphase.studies.plan import make_plan
from antiphase.studies.run import run_cells
from antiphase.studies.selection import describe, select
from antiphase.studies.spec import Profile, Study
from antiphase.studies.store import Store


def run(options: RunOptions, told: Callable[[str], None], say: Callable[[str], None]) -> dict[str, Any]:
    """Run every missing cell of some studies; return how many there are, were missing and are missing now.

    Args:
        options: which studies, and where they run.
        told: told what a dry run finds.
        say: told what is to do, what goes on unless ``quiet``, and what is there in the end.

    Raises:
        UserError: an option does not suit the processes, or a cell fails.
    """
    if options.track:
        from antiphase.training.processes import check_trackers

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
