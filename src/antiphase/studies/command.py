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


def _list(_: ListOptions, __: str) -> Answer:
    from antiphase.studies.plan import known_studies

    rows = [(one.name, one.paper, one.label, one.title) for one in known_studies().values()]
    _print_table(("name", "paper", "artefact", "what it shows"), rows)
    return [dict(zip(("study", "paper", "artefact", "title"), row, strict=True)) for row in rows]


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(box=None, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=not place)
    for row in rows:
        table.add_row(*map(str, row))
    console().print(table)


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
    from antiphase.studies.plan import select
    from antiphase.terminal import duration

    chosen, answer, rows = select(options), [], []
    for study in chosen.studies:
        plan = chosen.plan(study)
        running = [cell for cell in plan.missing if chosen.store.busy(cell)]
        counts = {
            "done": sum(chosen.store.done(cell) for cell in plan.cells),
            "running": len(running),
            "to_do": len(plan.missing) - len(running),
        }
        time = duration(plan.seconds) if plan.missing else "–"
        rows.append((study.name, *counts.values(), len(plan.damaged), time))
        damaged, seconds = list(plan.damaged.values()), plan.seconds if plan.missing else 0
        answer.append({"study": study.name, **counts, "damaged": damaged, "seconds": seconds})
        for why in damaged:
            say(f"damaged: {why}", err=True)
        for cell in running:
            say(f"running: {cell.label}", err=True)
    _print_table(("study", "done", "running", "to do", "damaged", "time left"), rows)
    return answer


def _rows(options: RowsOptions, _: str) -> Answer:
    from antiphase.studies.results import chosen_rows, plain_rows, write_rows

    tables = chosen_rows(options)
    if options.out is not None:
        (frame,) = tables.values()
        write_rows(frame, options.out)
        return {"out": str(options.out), "rows": len(frame)}
    for key, frame in tables.items():
        say(f"{key}: {len(frame):,} rows")
        for column in frame:  # the first values of each
            say(f"  {column.name}: {', '.join(map(str, column.head(5)))}, …")
    return {key: plain_rows(frame) for key, frame in tables.items()}


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


_OPTIONS = {
    "list": ListOptions,
    "show": StudyOptions,
    "status": StatusOptions,
    "rows": RowsOptions,
    "claims": ClaimsOptions,
    "pack": PackOptions,
    "report": ReportOptions,
    "new": NewOptions,
}
COMMANDS = {
    f"study {name}": Command(f"study {name}", options, f"antiphase.studies.command:_{name}")
    for name, options in _OPTIONS.items()
}
COMMANDS["study run"] = Command(
    "study run",
    RunOptions,
    "antiphase.studies.command:_run",
    "antiphase.studies.run_result:StudyResult",
    in_folder=False,
)
"""The commands of the group ``study``."""
