"""Tables of studies: each is one object, shown on a page, in Markdown and on the console; and CSV with all digits."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from antiphase.report.table import Field
from antiphase.report.table import Table as Sheet
from antiphase.report.words import number
from antiphase.studies.claims import Claim
from antiphase.studies.estimation import over
from antiphase.studies.figures import BY_SEED, ESTIMATES, Panel, Plot, Table
from antiphase.studies.paper_settings import RIGHT, UNTESTED, WRONG, outcomes
from antiphase.studies.report import words
from antiphase.studies.report.figures import positions, tick_labels, x_label, y_label
from antiphase.studies.report.words import FEW, PAPERS, SHORT, TESTED, VERDICTS, price, signed
from antiphase.studies.results import Result

_ABOUT = ("paper", "study", "profile", "claim", "source", "statement", "claim_verdict")
_CHECK_SCHEMA: dict[str, Any] = dict.fromkeys((*_ABOUT, "check", "verdict", "unit"), pl.String)
_CHECK_SCHEMA |= {"margin": pl.Float64} | ESTIMATES


@dataclass(frozen=True)
class StudyField(Field):
    """A field with the number that it is sorted by, if it is not sorted by its text, and a relative link, or none."""

    value: float | None = None
    href: str = ""


def table_sheet(table: Table, file: str = "") -> Sheet:
    """Lay out a table of estimates: each value with its interval and the paper's number below."""
    scale = 100.0 if table.percent else 1.0
    fields = {}
    for cell in table.cells.iter_rows(named=True):
        value, low, high, paper = (cell[key] and scale * cell[key] for key in ("value", "low", "high", "paper"))
        digits = words.supported(value, low, high) if table.digits is None else table.digits
        printed = "" if paper is None else f"(paper {paper:.6g})".replace("-", "−")
        notes = tuple(filter(None, (words.bracketed(low, high, digits), printed)))
        key = None if value is None or math.isnan(value) else cell["value"]
        fields[cell["row"], cell["column"]] = StudyField(number(value, digits), notes, value=key)
    rows, columns = (table.cells[name].unique(maintain_order=True).to_list() for name in ("row", "column"))
    none, csv = StudyField("–"), table.cells.drop(BY_SEED, strict=False).write_csv()
    lines = tuple((StudyField(row, kind="name"), *(fields.get((row, name), none) for name in columns)) for row in rows)
    return Sheet(file or table.name, table.title, (table.index, *columns), lines, csv)


def table_note(table: Table) -> str:
    """Describe the numbers of a table: unit, intervals, number of samples and seeds."""
    unit = "percent; " if table.percent else ""
    intervals = f"{table.brackets} in brackets, over " if table.cells["low"].is_not_null().any() else ""
    return f"{unit}{intervals}{over(table.cells, samples='samples')}"


def panel_tables(plot: Plot) -> list[Table]:
    """Return the points of each panel as a table: a row for each series, a column for each position."""
    tables = []
    for panel in plot.panels:
        names = dict(enumerate(panel.ticks)) or dict(zip(positions(panel), tick_labels(panel), strict=True))
        column = pl.col("x").replace_strict(names, return_dtype=pl.String)
        points = _with_paper(panel).sort("x", maintain_order=True)
        cells = points.select(*ESTIMATES, "paper", row="series", column=column)
        title = ", ".join(filter(None, [panel.title, y_label(panel)]))
        tables.append(Table(plot.name, title, x_label(panel), cells, panel.percent, 1 if panel.percent else None))
    return tables


def _with_paper(panel: Panel) -> pl.DataFrame:
    paper = panel.points.clear() if panel.paper is None else panel.paper
    paper = paper.select("series", pl.col("x", "value").cast(pl.Float64)).rename({"value": "paper"})
    points = panel.points.with_columns(pl.col("x").cast(pl.Float64))
    return points.join(paper, ["series", "x"], "full", coalesce=True, maintain_order="left_right")


def plot_csv(plot: Plot) -> str:
    """Return the points of all panels as CSV, with the paper's numbers next to ours."""
    keys = ("panel", "series", "x", "tick", "value", "low", "high", "n", "seeds", "paper")
    frames = []
    for panel in plot.panels:
        ticks = pl.col("x").replace_strict(dict(enumerate(panel.ticks)), default=None, return_dtype=pl.String)
        frames.append(_with_paper(panel).with_columns(tick=ticks, panel=pl.lit(panel.title)).select(keys))
    return pl.concat(frames, how="vertical_relaxed").write_csv() if frames else ""


def counts_sheet(results: Sequence[Result]) -> Sheet:
    """Count what became of every claim of each paper, as its register lists them, and of our own questions."""
    claims, rows = words.by_key(results), []
    for paper, pairs in words.by_source(results).items():
        verdicts = words.counts([claim for _, claim in pairs])
        untested = sum(count for verdict, count in verdicts.items() if verdict not in TESTED)
        counted: Mapping[str, int] = outcomes(paper, claims) or {**verdicts, UNTESTED: untested}
        numbers = [counted.get(name, 0) for name in (*TESTED, RIGHT, WRONG, UNTESTED)]
        name = StudyField(SHORT.get(paper, paper), kind="name")
        rows.append((name, *(StudyField(str(one), value=one) for one in (sum(numbers), *numbers))))
    columns = ("claims of", "claims", *TESTED, RIGHT, WRONG, UNTESTED)
    return Sheet("verdicts", "Claims by verdict", columns, tuple(rows), "")


def claims_sheets(results: Sequence[Result], pages: Sequence[str] = ()) -> list[Sheet]:
    """Tabulate the claims of each paper and of our own questions with their verdicts, and links to pages."""
    page_of = dict(zip(map(id, results), pages or [""] * len(results), strict=True))
    return [
        Sheet(
            f"claims-{paper}",
            PAPERS.get(paper, paper),
            ("claim", "verdict", "estimates [95 % interval]", "study"),
            tuple(_claim_row(result, claim, page_of[id(result)]) for result, claim in pairs),
            check_frame(pairs).write_csv(),
        )
        for paper, pairs in words.by_source(results).items()
    ]


def all_sheets(results: Sequence[Result]) -> list[Sheet]:
    """Tabulate the claims, and what the tables of the studies show."""
    drawn = [table for result in results if result.artefact for table in result.artefact.tables]
    return [*claims_sheets(results), *map(table_sheet, drawn)]


def _claim_row(result: Result, claim: Claim, page: str) -> tuple[StudyField, ...]:
    notes = "; ".join(filter(None, [FEW if claim.lacks_seeds else "", price(claim)]))
    values = [check.estimate.value for check in claim.checks if check.estimate]
    link = f"{page}#claim-{result.claims.index(claim) + 1}" if page else ""
    return (
        StudyField(claim.statement, (f"({claim.source})",), kind="name"),
        _verdict(claim.verdict, *([f"({notes})"] if notes else [])),
        StudyField(words.estimates_line(claim), kind="estimates", value=values[0] if values else None),
        StudyField(result.label, kind="link", href=link),
    )


def check_sheet(result: Result, claim: Claim, file: str) -> Sheet:
    """Tabulate the checks of one claim."""
    rows = []
    for check, verdict in zip(claim.checks, claim.verdicts, strict=True):
        estimate, n = StudyField("–", kind="estimates"), StudyField("–")
        if check.estimate:
            value, interval = signed(check.estimate, check.unit)
            estimate = StudyField(value, (interval,), kind="estimates", value=check.estimate.value)
            n = StudyField(f"{check.estimate.n:,}", value=check.estimate.n)
        reason = words.caveat(check, verdict)
        told = _verdict(verdict, *([reason] if reason else [])) if check.decides else StudyField("–")
        rows.append((StudyField(check.what, kind="name"), estimate, n, told))
    columns = ("difference, claimed to be above 0", "estimate [95 % interval]", "n", "verdict")
    return Sheet(file, claim.statement, columns, tuple(rows), check_frame([(result, claim)]).write_csv())


def _verdict(verdict: str, *notes: str) -> StudyField:
    return StudyField(verdict, notes, kind="verdict", value=VERDICTS.index(verdict))


def studies_sheet(results: Sequence[Result], pages: Sequence[str]) -> Sheet:
    """Tabulate the studies with the verdicts on their claims."""
    rows = [
        (
            StudyField(result.label, (result.title,), kind="name", href=page),
            StudyField(SHORT.get(result.paper, result.paper), kind="word"),
            StudyField(words.tally(result.claims) or "–", kind="word"),
            StudyField(f"{result.done:,}/{result.total:,}", value=result.done / max(result.total, 1)),
            StudyField(result.profile, kind="word"),
            StudyField(str(len(result.seeds)), value=len(result.seeds)),
        )
        for result, page in zip(results, pages, strict=True)
    ]
    return Sheet("studies", "Studies", ("study", "paper", "claims", "cells", "profile", "seeds"), tuple(rows), "")


def plain_claims(result: Result) -> dict[str, Any]:
    """Return a study's claims for JSON; an interval without end is null."""
    plain = []
    for claim in result.claims:
        entry = {name: getattr(claim, name) for name in ("name", "source", "statement", "verdict")}
        entry["seeds_needed"] = claim.seeds_needed if claim.verdict == "undecided" else None
        checks = check_frame([(result, claim)]).drop(_ABOUT).rename({"check": "what"})
        plain.append(entry | {"checks": json.loads(checks.write_json())})
    about = {"study": result.name, "paper": result.paper, "profile": result.profile}
    return about | {"seeds": list(result.seeds), "done": result.done, "cells": result.total} | {"claims": plain}


def check_frame(claims: Iterable[tuple[Result, Claim]]) -> pl.DataFrame:
    """Return every check of some claims with all digits; rates are fractions."""
    rows = []
    for result, claim in claims:
        about = (result.paper, result.name, result.profile, claim.name, claim.source, claim.statement)
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True):
            one = check.estimate
            numbers = (one.value, one.low, one.high, one.n) if one else (None,) * 4
            told = (claim.verdict, check.what, verdict, check.unit, claim.margin_of(check))
            rows.append((*about, *told, *numbers, check.seeds))
    return pl.DataFrame(rows, schema=_CHECK_SCHEMA, orient="row")


def models_tested(results: Sequence[Result], name: str) -> dict[str, str]:
    """Return the seeds and samples that claims were tested on, by the models in words, a setting of the studies."""
    groups: dict[str, list[pl.DataFrame]] = {}
    for result in results:
        checks = check_frame([(result, claim) for claim in result.claims if words.is_tested(claim)])
        if len(checks):
            groups.setdefault(result.settings.get(name, result.label), []).append(checks)
    return {models: over(*frames, samples="samples") for models, frames in groups.items()}
