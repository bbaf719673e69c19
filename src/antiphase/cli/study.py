"""``antiphase study``: what its commands print, and their examples."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from antiphase.cli.app import app
from antiphase.cli.command import Answer, command
from antiphase.cli.groups import HelpGroup
from antiphase.errors import UserError
from antiphase.studies.options import (
    AnyStudyOptions,
    ClaimsOptions,
    ListOptions,
    NewOptions,
    PackOptions,
    ReportOptions,
    RowsOptions,
    RunOptions,
    StudyOptions,
)
from antiphase.terminal import console, say

if TYPE_CHECKING:
    from antiphase.studies.results import Result

study = typer.Typer(
    cls=HelpGroup,
    help="The papers' tables and figures, and studies of your own. A cell is one training or one measurement.",
)
app.add_typer(study, name="study")


@command(study, ListOptions, "list")
def list_(_: ListOptions) -> Answer:
    """List the studies of both papers."""
    from antiphase.studies.plan import known_studies

    table = Table(box=None, header_style="bold")
    for column in ("name", "paper", "artefact", "what it shows"):
        table.add_column(column, no_wrap=column == "name")
    found = [(one.name, one.paper, one.label, one.title) for one in known_studies().values()]
    for row in found:
        table.add_row(*row)
    console().print(table)
    return [dict(zip(("study", "paper", "artefact", "title"), row, strict=True)) for row in found]


@command(study, StudyOptions)
def show(options: StudyOptions) -> Answer:
    """Show a study: the paper's numbers, the settings, every cell, and how long the missing ones take.

    **Examples**

    antiphase study show table-1

    antiphase study show figure-3a --profile paper
    """
    from antiphase.studies.paper_settings import shown_settings, text_of
    from antiphase.studies.plan import describe, select
    from antiphase.studies.results import costs
    from antiphase.studies.store import identity

    chosen = select(options)
    found = []
    for one in chosen.studies:
        plan, cells = chosen.plan(one), []
        say(f"{one.label}: {one.title} ({one.paper})\n\n{text_of(one).strip()}\n")
        settings = shown_settings(one, chosen.profile) | costs(one.cells(chosen.profile), chosen.store)
        for name, value in settings.items():
            say(f"{name}: {value}")
        say()
        missing = {identity(cell) for cell in plan.missing}
        for cell in plan.cells:
            mark = "·" if identity(cell) in missing else "✓" if chosen.store.done(cell) else " "
            say(f"{mark} {cell.table}-{identity(cell)}  {cell.label}")
            cells.append({"cell": f"{cell.table}-{identity(cell)}", "label": cell.label, "done": mark == "✓"})
        say(f"\n{describe(plan)}")
        found.append(
            {
                "study": one.name,
                "paper": one.paper,
                "artefact": one.label,
                "title": one.title,
                "text": text_of(one),
                "profile": chosen.profile.name,
                "settings": dict(settings),
                "cells": cells,
                "seconds": plan.seconds,
            }
        )
    return found


@command(study, RunOptions)
def run(options: RunOptions) -> Answer:
    """Run every cell of some studies that is not in the store yet.

    The same command resumes a killed run; finished cells are not run again. Several runs may share one store.

    **Examples**

    antiphase study run table-1 --profile smoke

    antiphase study run robustness --profile laptop --jobs 2

    antiphase study run table-3 --profile paper --dry-run

    antiphase study run my-study.py --seeds 5

    torchrun --nproc-per-node 4 -m antiphase study run figure-2a --profile paper

    antiphase study run robustness --profile paper --executor slurm --jobs 8 --slurm timeout_min=600
    """
    from antiphase.studies.run import run

    return run(options, say, lambda line: say(line, err=True))


@command(study, AnyStudyOptions)
def status(options: AnyStudyOptions) -> Answer:
    """Show for each study how many cells are done, running or damaged.

    **Examples**

    antiphase study status

    antiphase study status robustness --profile paper
    """
    from antiphase.progress import duration
    from antiphase.studies.plan import select

    table = Table(box=None, header_style="bold")
    for column in ("study", "done", "running", "to do", "damaged", "time left"):
        table.add_column(column, justify="left" if column == "study" else "right")
    chosen, found = select(options), []
    for one in chosen.studies:
        plan = chosen.plan(one)
        running = [cell for cell in plan.missing if chosen.store.busy(cell)]
        there = sum(chosen.store.done(cell) for cell in plan.cells)
        to_do = len(plan.missing) - len(running)
        time = duration(plan.seconds) if plan.missing else "–"
        table.add_row(one.name, str(there), str(len(running)), str(to_do), str(len(plan.damaged)), time)
        found.append(
            {
                "study": one.name,
                "done": there,
                "running": len(running),
                "to_do": to_do,
                "damaged": list(plan.damaged.values()),
                "seconds": plan.seconds if plan.missing else 0,
            }
        )
        for why in plan.damaged.values():
            say(f"damaged: {why}", err=True)
        for cell in running:
            say(f"running: {cell.label}", err=True)
    console().print(table)
    return found


@command(study, RowsOptions)
def rows(options: RowsOptions) -> Answer:
    """Print or export the rows that a study is drawn from: one for each image, layer, head or seed.

    **Examples**

    antiphase study rows table-1 --profile smoke

    antiphase study rows figure-2a --table attack --out asr.csv
    """
    from antiphase.studies.results import chosen_rows, plain_rows, shown_rows, write_rows

    found = chosen_rows(options)
    if options.out is not None:
        (frame,) = found.values()
        write_rows(frame, options.out)
        return {"out": str(options.out), "rows": len(frame)}
    for key, frame in found.items():
        say(f"{key}: {len(frame):,} rows\n{shown_rows(frame, console().width)}")
    return {key: plain_rows(frame) for key, frame in found.items()}


@command(study, ClaimsOptions)
def claims(options: ClaimsOptions) -> Answer:
    """Print every claim with its verdict: holds, contradicted, absent, undecided, or not run (yet).

    An undecided claim is listed with the training seeds and core-minutes that a verdict is expected to take.

    Under the profile smoke no claim is judged.

    **Examples**

    antiphase study claims

    antiphase study claims robustness --json

    antiphase study claims --into docs/findings.md
    """
    from antiphase.studies.plan import reading
    from antiphase.studies.report.site import plain_claims, replace_claims
    from antiphase.studies.report.tables import console_claims
    from antiphase.studies.results import results_of

    options = reading(options)
    results = results_of(options)
    _check_some(results, options)
    if options.into is not None:
        replace_claims(results, options.into)
        say(options.into)
    else:
        console().print(console_claims(results))
    return [plain_claims(result) for result in results]


@command(study, PackOptions)
def pack(options: PackOptions) -> Answer:
    """Add the rows of finished cells to a directory of small Parquet files, without checkpoints.

    Rows that are there already stay. Several machines may add to one directory; to merge two, pack one into the other.

    **Examples**

    antiphase study pack robustness

    antiphase study pack all --rows other/results --to results
    """
    from antiphase.studies.results import pack_studies

    found = {}
    for name, count in pack_studies(options):
        say(f"{name}: {count} cells added to {options.to}")
        found[name] = count
    return {"to": str(options.to), "cells_added": found}


def _check_some(results: "Sequence[Result]", options: StudyOptions) -> None:
    if not any(result.done for result in results):
        raise UserError(
            f"{options.place}: holds no cell of these studies under profile {options.profile}; "
            f"{options.next_command('run')} makes them"
        )


@command(study, ReportOptions)
def report(options: ReportOptions) -> Answer:
    """Draw a site from the stored rows: an overview with the claims, a page for each table and figure.

    **Examples**

    antiphase study report

    antiphase study report robustness --profile paper --out site --markdown findings.md

    antiphase study report --rows results --markdown docs/findings.md --readme README.md
    """
    from antiphase.studies.plan import reading
    from antiphase.studies.report.site import replace_findings, write_findings, write_site
    from antiphase.studies.results import results_of

    options = reading(options)
    results = results_of(options)
    _check_some(results, options)
    written = {"site": str(write_site(results, options.out))}
    if options.markdown is not None:
        write_findings(results, options.markdown)
        written["markdown"] = str(options.markdown)
    if options.readme is not None and options.markdown is not None:
        replace_findings(results, options.readme, options.markdown.parent)
        written["readme"] = str(options.readme)
    say(*written.values(), sep="\n")
    return written


@command(study, NewOptions)
def new(options: NewOptions) -> Answer:
    """Write the file of a study of your own, ready to run and to be edited: your model, data, attack.

    **Examples**

    antiphase study new my-study

    antiphase study run my-study.py --profile smoke
    """
    from antiphase.studies.plan import write_study

    path = str(write_study(options.name))
    say(path)
    return {"file": path}
