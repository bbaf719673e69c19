"""``antiphase study …``: what its commands do and print."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from polars import selectors
from rich.table import Table

from antiphase.commands.command import Answer, Tabled
from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.report.table import OnConsole
from antiphase.studies import options as kinds
from antiphase.studies.paper_settings import shown_settings, text_of
from antiphase.studies.plan import describe, known_studies, make_plan, select
from antiphase.studies.report.findings import read_marked, replace_findings, write_findings
from antiphase.studies.report.site import write_site
from antiphase.studies.report.tables import all_sheets, claims_sheets, plain_claims
from antiphase.studies.results import Result, chosen_rows, costs, pack_studies, reading, results_of, write_rows
from antiphase.studies.run import run as run_studies
from antiphase.studies.store import folder_name
from antiphase.terminal import console, duration, say


def _list(_: kinds.ListOptions, __: str) -> Answer:
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


def _show(options: kinds.StudyOptions, _: str) -> Answer:
    chosen, answer = select(options), []
    for one in chosen.studies:
        plan = make_plan(one.cells(chosen.profile), chosen.store)
        about = {"study": one.name, "paper": one.paper, "artefact": one.label}
        about |= {"title": one.title, "text": text_of(one), "profile": chosen.profile.name}
        say(f"{one.label}: {one.title} ({one.paper})\n\n{about['text'].strip()}\n")
        settings = shown_settings(one, chosen.profile) | costs(one.cells(chosen.profile), chosen.store)
        for name, value in settings.items():
            say(f"{name}: {value}")
        say()
        cells, missing = [], set(map(folder_name, plan.missing))
        for cell in plan.cells:
            name = folder_name(cell)
            mark = "·" if name in missing else "✓" if chosen.store.done(cell) else " "
            say(f"{mark} {name}  {cell.label}")
            cells.append({"cell": name, "label": cell.label, "done": mark == "✓"})
        say(f"\n{describe(plan)}")
        answer.append(about | {"settings": settings, "cells": cells, "seconds": plan.seconds})
    return answer


def _run(options: kinds.RunOptions, _: str) -> Answer:
    return run_studies(options, say, lambda line: say(line, err=True))


def _status(options: kinds.StatusOptions, _: str) -> Answer:
    chosen, answer, rows = select(options), [], []
    for study in chosen.studies:
        plan = make_plan(study.cells(chosen.profile), chosen.store)
        running = [cell for cell in plan.missing if chosen.store.busy(cell)]
        done, damaged = sum(chosen.store.done(cell) for cell in plan.cells), list(plan.damaged.values())
        counts = {"done": done, "running": len(running), "to_do": len(plan.missing) - len(running)}
        rows.append((study.name, *counts.values(), len(damaged), duration(plan.seconds) if plan.missing else "–"))
        seconds = plan.seconds if plan.missing else 0
        answer.append({"study": study.name, **counts, "damaged": damaged, "seconds": seconds})
        for line in (*(f"damaged: {why}" for why in damaged), *(f"running: {cell.label}" for cell in running)):
            say(line, err=True)
    _print_table(("study", "done", "running", "to do", "damaged", "time left"), rows)
    return answer


def _say_damage(options: Any) -> None:
    """Say which cells of a store are left out, since a file is damaged."""
    chosen = select(options)
    for cell in chosen.cells if options.rows is None else ():  # rows that ship are refused when they are read
        if why := chosen.store.damage(cell):
            say(f"left out: {why}", err=True)


def _rows(options: kinds.RowsOptions, _: str) -> Answer:
    _say_damage(options := reading(options))
    tables = chosen_rows(options)
    if options.out is not None:
        (frame,) = tables.values()
        write_rows(frame, options.out)
        return {"out": str(options.out), "rows": len(frame)}
    for key, frame in tables.items():
        say(f"{key}: {len(frame):,} rows")
        for column in frame:  # the first values of each
            say(f"  {column.name}: {', '.join(map(str, column.head(5)))}, …")
    # what is not a finite number is null
    return {key: json.loads(frame.drop(selectors.binary()).write_json()) for key, frame in tables.items()}


def _results(options: Any) -> list[Result]:
    """Return what is known of some studies, of which at least one cell is finished."""
    _say_damage(options := reading(options))
    results = results_of(options)
    if not any(result.done for result in results):
        why = f"holds no cell of these studies under profile {options.profile}"
        raise UserError(f"{options.place}: {why}; {options.next_command('run')} makes them")
    return results


def _claims(options: kinds.ClaimsOptions, _: str) -> Answer:
    results = _results(options)
    console().print(*map(OnConsole, claims_sheets(results)))
    return [plain_claims(result) for result in results]


def _pack(options: kinds.PackOptions, _: str) -> Answer:
    _say_damage(options)
    counts = {}
    for name, count in pack_studies(options):
        say(f"{name}: {count} cells added to {options.to}")
        counts[name] = count
    return {"to": str(options.to), "cells_added": counts}


def _report(options: kinds.ReportOptions, _: str) -> Answer:
    if options.readme is not None:
        read_marked(options.readme, "findings")  # refuse it before anything is written
    results = _results(options)
    written = {"site": str(write_site(results, options.out))}
    if options.markdown is not None:
        write_findings(results, options.markdown)
        written["markdown"] = str(options.markdown)
    if options.readme is not None and options.markdown is not None:
        replace_findings(results, options.readme, options.markdown.parent)
        written["readme"] = str(options.readme)
    say(*written.values(), sep="\n")
    return Tabled(written, all_sheets(results))


def _new(options: kinds.NewOptions, _: str) -> Answer:
    if (path := Path(f"{options.name}.py")).exists():
        raise UserError(f"{path}: exists; give another name")
    text = files("antiphase.studies").joinpath("example.py.txt").read_text(encoding="utf-8")
    text = text.replace("NAME.py", path.name).replace('Study("example"', f'Study("{options.name}"')
    write_text(path, text)
    say(path)
    return {"file": str(path)}
