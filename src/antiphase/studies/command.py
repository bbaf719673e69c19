"""``antiphase study …``: what its commands do and print."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from antiphase.commands.command import Answer, Command
from antiphase.errors import UserError
from antiphase.studies.options import (
    ClaimsOptions,
    ListOptions,
    NewOptions,
    PackOptions,
    ReportOptions,
    RowsOptions,
    RunOptions,
    StatusOptions,
    StudyOptions,
)
from antiphase.terminal import console, say

if TYPE_CHECKING:
    from antiphase.studies.results import Result


def _list_(_: ListOptions, __: str) -> Answer:
    from antiphase.studies.plan import known_studies

    table = Table(box=None, header_style="bold")
    for column in ("name", "paper", "artefact", "what it shows"):
        table.add_column(column, no_wrap=column == "name")
    found = [(one.name, one.paper, one.label, one.title) for one in known_studies().values()]
    for row in found:
        table.add_row(*row)
    console().print(table)
    return [dict(zip(("study", "paper", "artefact", "title"), row, strict=True)) for row in found]


def _show(options: StudyOptions, _: str) -> Answer:
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


def _run(options: RunOptions, _: str) -> Answer:
    from antiphase.studies.run import run as run_studies

    return run_studies(options, say, lambda line: say(line, err=True))


def _status(options: StatusOptions, _: str) -> Answer:
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


def _rows(options: RowsOptions, _: str) -> Answer:
    from antiphase.studies.results import chosen_rows, plain_rows, shown_rows, write_rows

    found = chosen_rows(options)
    if options.out is not None:
        (frame,) = found.values()
        write_rows(frame, options.out)
        return {"out": str(options.out), "rows": len(frame)}
    for key, frame in found.items():
        say(f"{key}: {len(frame):,} rows\n{shown_rows(frame, console().width)}")
    return {key: plain_rows(frame) for key, frame in found.items()}


def _claims(options: ClaimsOptions, _: str) -> Answer:
    from antiphase.studies.plan import reading
    from antiphase.studies.report.findings import replace_claims
    from antiphase.studies.report.tables import console_claims, plain_claims
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


def _pack(options: PackOptions, _: str) -> Answer:
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


def _report(options: ReportOptions, _: str) -> Answer:
    from antiphase.studies.plan import reading
    from antiphase.studies.report.findings import replace_findings, write_findings
    from antiphase.studies.report.site import write_site
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


def _new(options: NewOptions, _: str) -> Answer:
    from antiphase.studies.plan import write_study

    path = str(write_study(options.name))
    say(path)
    return {"file": path}


COMMANDS = {
    "study list": Command("study list", ListOptions, "antiphase.studies.command:_list_"),
    "study show": Command("study show", StudyOptions, "antiphase.studies.command:_show"),
    "study run": Command(
        "study run",
        RunOptions,
        "antiphase.studies.command:_run",
        "antiphase.studies.result:StudyResult",
        in_folder=False,
    ),
    "study status": Command("study status", StatusOptions, "antiphase.studies.command:_status"),
    "study rows": Command("study rows", RowsOptions, "antiphase.studies.command:_rows"),
    "study claims": Command("study claims", ClaimsOptions, "antiphase.studies.command:_claims"),
    "study pack": Command("study pack", PackOptions, "antiphase.studies.command:_pack"),
    "study report": Command("study report", ReportOptions, "antiphase.studies.command:_report"),
    "study new": Command("study new", NewOptions, "antiphase.studies.command:_new"),
}
"""The commands of the group ``study``."""
