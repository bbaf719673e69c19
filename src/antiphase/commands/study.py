"""What ``antiphase study …`` does once its options are read. Imports are local, so that --help is quick."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from antiphase.errors import UserError
from antiphase.runs.folders import check_holder

if TYPE_CHECKING:
    from antiphase.studies.plan import Plan
    from antiphase.studies.results import Result
    from antiphase.studies.spec import Cell, Profile, Study
    from antiphase.studies.store import Store


def list_studies() -> None:
    """Print every study of the package."""
    from antiphase.studies.registry import known_studies

    table = Table(box=None, header_style="bold")
    for column in ("name", "paper", "artefact", "what it shows"):
        table.add_column(column, no_wrap=column == "name")
    for study in known_studies().values():
        table.add_row(study.name, study.paper, study.label, study.title)
    Console().print(table)


def show_study(names: Sequence[str], profile_name: str, seeds: int | None, root: Path) -> None:
    """Print a study's text, its cells under a profile, and the plan."""
    from antiphase.studies.identity import identity

    for study, profile, store, plan in _planned(names, profile_name, seeds, root):
        print(f"{study.label}: {study.title} ({study.paper})\n\n{(study.text or '').strip()}\n")
        for name, value in study.settings(profile).items():
            print(f"{name}: {value}")
        print()
        missing = {identity(cell) for cell in plan.missing}
        for cell in plan.cells:
            mark = "·" if identity(cell) in missing else "✓" if store.done(cell) else " "
            print(f"{mark} {cell.table}-{identity(cell)}  {cell.label}")
        print(f"\n{describe(plan)}")


def run_studies(
    names: Sequence[str], profile_name: str, seeds: int | None, root: Path, quiet: bool, device: str,
    batch_size: int | None, workers: int, executor: str, slurm: Sequence[str], dry_run: bool,
) -> None:  # fmt: skip
    """Run every missing cell of some studies."""
    from antiphase.runs.loading import find_device
    from antiphase.runs.processes import this_process
    from antiphase.studies.executors import Local, Slurm, parse_settings
    from antiphase.studies.lab import Lab
    from antiphase.studies.plan import make_plan
    from antiphase.studies.run import run_cells

    if executor not in ("local", "slurm"):
        raise UserError(f"executor {executor!r}: expected local or slurm (torchrun is found by itself)")
    if slurm and executor != "slurm":
        raise UserError(f"--slurm {slurm[0]}: is of --executor slurm; give it too or leave --slurm out")
    if workers < 1:
        raise UserError(f"jobs {workers}: expected 1 or more")
    profile, studies, cells, store = _gather(names, profile_name, seeds, root)
    process = this_process()
    if process.count > 1 and (workers > 1 or executor == "slurm"):
        raise UserError(
            "--jobs and --executor are for one process; under torchrun the processes share every cell"
        )
    if dry_run:
        from antiphase.studies.dry_run import dry_run as check

        for study in studies:
            for line in check(study, profile):
                print(line)
    check_holder(root, "study run")
    plan = make_plan(cells, store)
    if process.first:
        for why in plan.damaged.values():
            print(f"damaged: {why}", file=sys.stderr)
        print(describe(plan), file=sys.stderr)
    if dry_run or not plan.missing:
        return

    def say(line: str) -> None:
        if process.first and not quiet:
            Console(stderr=True).print(line, highlight=False, markup=False)

    def here() -> None:
        bars = not quiet and workers == 1 and sys.stderr.isatty()  # elsewhere they leave empty lines
        lab = Lab(store, find_device(device), batch_size, progress=bars, process=process)
        run_cells(cells, lab, say)

    store.root.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "antiphase",
        "study",
        "run",
        *names,
        "--profile",
        profile_name,
        "--store",
        str(root),
    ]
    command += ["--device", device] + (["--seeds", str(seeds)] if seeds else [])
    command += ["--batch-size", str(batch_size)] if batch_size else []
    if executor == "slurm":
        Slurm(root / "slurm", parse_settings(slurm))(command, workers)
        return
    Local(here)([*command, "--quiet"], workers)
    if process.first:
        again = make_plan(cells, store)
        print(f"{len(again.cells)} cells are there; antiphase study report draws them", file=sys.stderr)


def show_status(names: Sequence[str], profile_name: str, seeds: int | None, root: Path) -> None:
    """Print how far each study has come."""
    from antiphase.progress import duration

    table = Table(box=None, header_style="bold")
    for column in ("study", "done", "running", "to do", "damaged", "about"):
        table.add_column(column, justify="left" if column == "study" else "right")
    for study, _, store, plan in _planned(names, profile_name, seeds, root):
        running = [cell for cell in plan.missing if store.busy(cell)]
        there = sum(store.done(cell) for cell in plan.cells)
        to_do = len(plan.missing) - len(running)
        time = duration(plan.seconds) if plan.missing else "–"
        table.add_row(study.name, str(there), str(len(running)), str(to_do), str(len(plan.damaged)), time)
        for why in plan.damaged.values():
            print(f"damaged: {why}", file=sys.stderr)
        for cell in running:
            print(f"running: {cell.label}", file=sys.stderr)
    Console().print(table)


def export_rows(
    name: str, profile_name: str, seeds: int | None, root: Path, table: str | None, out: Path | None
) -> None:
    """Print or write the rows of a study."""
    import polars as pl

    from antiphase.files import replacing
    from antiphase.studies.collect import study_rows

    _, studies, cells, store = _gather([name], profile_name, seeds, root)
    if len(studies) > 1:
        raise UserError(f"{name!r} is several studies: name one; antiphase study list shows them")
    rows = study_rows(cells, store)
    if not rows:
        raise UserError(
            f"{name}: no rows in {root} under profile {profile_name}; antiphase study run makes them"
        )
    if table is not None and table not in rows:
        raise UserError(f"table {table!r}: expected one of {', '.join(rows)}")
    if table is None and len(rows) > 1 and out is not None:
        raise UserError(f"{name} has several tables: name one with --table: {', '.join(rows)}")
    for key, frame in rows.items():
        if table in (None, key):
            if out is None:
                print(f"{key}: {len(frame):,} rows")
                print(frame)
                continue
            if out.suffix not in (".csv", ".parquet"):
                raise UserError(f"{out}: expected a name that ends in .csv or .parquet")
            nested = [
                column for column, kind in frame.schema.items() if kind.is_nested() or kind == pl.Binary
            ]
            if out.suffix == ".csv" and nested:
                raise UserError(
                    f"{out}: column {nested[0]} does not fit a CSV; expected a name that ends in .parquet"
                )
            with replacing(out) as temporary:
                (frame.write_csv if out.suffix == ".csv" else frame.write_parquet)(temporary)


def results_of(names: Sequence[str], profile_name: str, seeds: int | None, root: Path) -> "list[Result]":
    """Return what the store knows of some studies."""
    from antiphase.studies.collect import result

    found = []
    profile, studies, _, store = _gather(names, profile_name, seeds, root)
    for study in studies:
        file = next(
            (name for name in names if name.endswith(".py") and Path(name).stem == study.name), study.name
        )
        command = ["antiphase", "study", "run", file, "--profile", profile_name]
        command += ["--seeds", str(seeds)] if seeds else []
        found.append(result(study, profile, store, shlex.join(command)))
    return found


def describe(plan: "Plan") -> str:
    """Say what a run would do and how long it takes."""
    from antiphase.progress import duration

    if not plan.missing:
        return f"{len(plan.cells)} cells, all there"
    kinds: dict[str, int] = {}
    for cell in plan.missing:
        kinds[cell.table] = kinds.get(cell.table, 0) + 1
    parts = ", ".join(f"{count} {table}" for table, count in kinds.items())
    basis = f"judged by {plan.known} finished cells" if plan.known else "a rough guess before the first cells"
    time = f"about {duration(plan.seconds)} in one worker, {basis}"
    return f"{len(plan.cells)} cells, {len(plan.missing)} to make ({parts}): {time}"


def _gather(
    names: Sequence[str], profile_name: str, seeds: int | None, root: Path
) -> "tuple[Profile, list[Study], list[Cell], Store]":
    from antiphase.studies.registry import find_studies
    from antiphase.studies.spec import profile
    from antiphase.studies.store import Store

    chosen = profile(profile_name, seeds)
    studies = find_studies(names)
    return chosen, studies, [cell for study in studies for cell in study.cells(chosen)], Store(root)


def _planned(names: Sequence[str], profile_name: str, seeds: int | None, root: Path) -> Any:
    from antiphase.studies.plan import make_plan

    profile, studies, _, store = _gather(names, profile_name, seeds, root)
    return [(study, profile, store, make_plan(study.cells(profile), store)) for study in studies]
