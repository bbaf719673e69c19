"""Tables of a study's page, and CSV files of its tables, figures and claims with all digits."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.table import Table as ConsoleTable
from rich.text import Text

from antiphase.report.table import Field, markdown_table, ruled_table
from antiphase.report.table import Table as Sheet
from antiphase.studies.claims import Claim, Verdict
from antiphase.studies.figures import BY_SEED, INTERVALS, Panel, Plot, Table
from antiphase.studies.numbers import bracketed, written
from antiphase.studies.report.figures import numbers, positions, x_label, y_label
from antiphase.studies.report.words import (
    VERDICTS,
    basis,
    by_source,
    estimate_parts,
    estimates_line,
    in_percent,
    missing_cells,
    paper_title,
    price,
    published_digits,
    tally,
    verdict_note,
    with_interval,
)
from antiphase.studies.results import Result

_CHECK_SCHEMA: dict[str, Any] = {
    "paper": pl.String,
    "study": pl.String,
    "profile": pl.String,
    "claim": pl.String,
    "source": pl.String,
    "statement": pl.String,
    "claim_verdict": pl.String,
    "check": pl.String,
    "verdict": pl.String,
    "unit": pl.String,
    "margin": pl.Float64,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
    "seeds": pl.Int64,
}
_CONSOLE = {
    "holds": "bold green",
    "contradicted": "bold magenta",
    "absent": "bold blue",
    "undecided": "",
    "not judged (smoke)": "dim",
    "not run": "dim",
}


@dataclass(frozen=True)
class StudyField(Field):
    """A field with a sort key and an optional link.

    Attributes:
        value: the sort key; None sorts by the text.
        href: relative link, or empty.
    """

    value: float | None = None
    href: str = ""

    @property
    def key(self) -> str:
        """The sort key for JavaScript."""
        if self.value is None or math.isnan(self.value):
            return ""
        return (
            repr(self.value) if math.isfinite(self.value) else ("Infinity" if self.value > 0 else "-Infinity")
        )


def table_sheet(table: Table, file: str = "") -> Sheet:
    """Lay out a table of estimates: each value with its interval and the paper's number below.

    Args:
        table: the table of the study.
        file: name of its CSV; by default that of the table.
    """
    cells = {(cell["row"], cell["column"]): cell for cell in table.cells.iter_rows(named=True)}
    columns = list(dict.fromkeys(table.cells["column"].to_list()))
    digits = published_digits(table.cells["paper"].to_list(), table.percent, table.digits)
    rows = [
        (
            StudyField(row, kind="name"),
            *(_estimate(cells.get((row, column)), table, digits) for column in columns),
        )
        for row in dict.fromkeys(table.cells["row"].to_list())
    ]
    csv = table.cells.drop(BY_SEED, strict=False).write_csv()
    return Sheet(file or table.name, table.title, (table.index, *columns), tuple(rows), csv)


def table_note(table: Table) -> str:
    """Describe the numbers of a table: unit, intervals, number of samples and seeds."""
    words = ["in percent"] if table.percent else []
    if table.cells["low"].is_not_null().any():
        words.append(f"{table.brackets} in brackets")
    return "; ".join(filter(None, [*words, basis(table.cells)]))


def plot_csv(plot: Plot) -> str:
    """Return the points of all panels as CSV, with the paper's numbers next to ours."""
    frames = []
    for panel in plot.panels:
        joined = panel.points.with_columns(pl.col("x").cast(pl.Float64))
        empty = pl.DataFrame(schema={"series": pl.String, "x": pl.Float64, "value": pl.Float64})
        paper = (empty if panel.paper is None else panel.paper).select(
            "series", pl.col("x").cast(pl.Float64), paper=pl.col("value").cast(pl.Float64)
        )
        both = joined.join(paper, ["series", "x"], "full", coalesce=True, maintain_order="left_right")
        names = dict(enumerate(panel.ticks))
        tick = pl.col("x").replace_strict(names, default=None, return_dtype=pl.String)
        frames.append(both.with_columns(tick=tick, panel=pl.lit(panel.title)))
    if not frames:
        return ""
    keys = ("panel", "series", "x", "tick", "value", "low", "high", "n", "seeds", "paper")
    return pl.concat([frame.select(keys) for frame in frames], how="vertical_relaxed").write_csv()


def claims_sheets(results: Sequence[Result], pages: Sequence[str]) -> list[Sheet]:
    """Tabulate all claims with their verdicts; return one sheet, or none if there are no claims.

    Args:
        results: results of the studies.
        pages: relative path of the page of each study.
    """
    rows = []
    for result, page in zip(results, pages, strict=True):
        for place, claim in enumerate(result.claims):
            rows.append(
                (
                    StudyField(claim.statement, (claim.source,), kind="name"),
                    _verdict(claim.verdict, verdict_note(claim)),
                    StudyField(estimates_line(claim), kind="estimates", value=_first(claim)),
                    StudyField(result.label, kind="link", href=f"{page}#claim-{place + 1}"),
                )
            )
    columns = ("claim", "verdict", "estimates", "study")
    return [Sheet("claims", "All claims", columns, tuple(rows), claims_csv(results))] if rows else []


def check_sheet(result: Result, claim: Claim, file: str) -> Sheet:
    """Tabulate the checks of one claim."""
    rows = tuple(
        (
            StudyField(check.what, kind="name"),
            StudyField(
                estimate_parts(check)[0],
                estimate_parts(check)[1:],
                kind="estimates",
                value=None if check.estimate is None else check.estimate.value,
            ),
            StudyField("–")
            if check.estimate is None
            else StudyField(f"{check.estimate.n:,}", value=check.estimate.n),
            _verdict(verdict),
        )
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
    )
    columns = ("difference, claimed to be above 0", "estimate [95 % interval]", "n", "verdict")
    frame = _check_frame([(result, claim)])
    return Sheet(file, claim.statement, columns, rows, frame.write_csv())


def console_claims(results: Sequence[Result]) -> ConsoleTable:
    """Tabulate all claims for a console of 80 columns."""
    table = ruled_table()
    table.add_column("verdict", no_wrap=True)
    table.add_column("claim", ratio=3, overflow="fold")
    table.add_column("estimates [95 % interval]", ratio=2, overflow="fold")
    table.add_column("study", overflow="fold")
    for paper, its in by_source(results).items():
        counts = tally([claim for _, claim in its])
        table.add_row("", Text(paper_title(paper), "bold"), Text(counts, "dim"), "")
        for result, claim in its:
            said = Text.assemble(claim.statement, (f"\n{claim.source}", "dim"))
            verdict = Text(claim.verdict, _CONSOLE[claim.verdict])
            if paid := price(claim):
                verdict.append(f"\n{paid.replace(', ', chr(10))}", "dim")
            table.add_row(verdict, said, Text(estimates_line(claim)), Text(result.label))
        table.add_section()
    return table


def claims_csv(results: Sequence[Result]) -> str:
    """Return every check of every claim as CSV with all digits; rates are fractions."""
    return _check_frame([(result, claim) for result in results for claim in result.claims]).write_csv()


def _check_frame(found: Sequence[tuple[Result, Claim]]) -> pl.DataFrame:
    rows = []
    for result, claim in found:
        about = (result.paper, result.name, result.profile, claim.name, claim.source, claim.statement)
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True):
            estimate = check.estimate
            numbers = (
                [None] * 4 if estimate is None else [estimate.value, estimate.low, estimate.high, estimate.n]
            )
            rows.append(
                (
                    *about,
                    claim.verdict,
                    check.what,
                    verdict,
                    check.unit,
                    claim.margin_of(check),
                    *numbers,
                    check.seeds,
                )
            )
    return pl.DataFrame(rows, schema=_CHECK_SCHEMA, orient="row")


def _estimate(cell: dict[str, Any] | None, table: Table, paper_digits: int) -> StudyField:
    if cell is None:
        return StudyField("–")
    value, low, high, paper = (
        in_percent(cell[key], table.percent) for key in ("value", "low", "high", "paper")
    )
    notes = [bracketed(low, high, table.digits)]
    if paper is not None:
        notes.append(f"paper {written(paper, paper_digits)}")
    return StudyField(written(value, table.digits), tuple(filter(None, notes)), value=cell["value"])


def _verdict(verdict: Verdict, note: str = "") -> StudyField:
    return StudyField(verdict, (note,) if note else (), kind="verdict", value=VERDICTS.index(verdict))


def _first(claim: Claim) -> float | None:
    return next((check.estimate.value for check in claim.checks if check.estimate is not None), None)


def markdown_claims(results: Sequence[Result]) -> str:
    """Return a table of claims for each paper and for our own questions: source, verdict and estimates."""
    parts = []
    for paper, its in by_source(results).items():
        lines = [
            (
                escaped(claim.statement),
                escaped(claim.source),
                _markdown_verdict(claim),
                escaped(estimates_line(claim)),
                escaped(result.label),
            )
            for result, claim in its
        ]
        table = markdown_table(("claim", "source", "verdict", "estimates [95 % interval]", "study"), lines)
        counts = tally([claim for _, claim in its])
        parts += [f"### {escaped(paper_title(paper))}", f"{counts}.", table]
    return _joined(parts)


def _markdown_verdict(claim: Claim) -> str:
    note = verdict_note(claim)
    return f"**{claim.verdict}**" + (f" ({note})" if note else "")


def markdown_summary(results: Sequence[Result]) -> str:
    """Return the tables of each study under a heading, with the paper's numbers next to ours.

    A study without tables shows the points of its plots instead. Unfinished studies are a list at the end.
    """
    parts = []
    unfinished = [
        f"- {escaped(f'{each.label}: {each.title}')} ({each.done:,} of {each.total:,} cells)"
        for each in results
        if _begun(each)
    ]
    for result in results:
        if _begun(result):
            continue
        parts.append(f"## {escaped(result.label)}: {escaped(result.title)}")
        seeds = f"{len(result.seeds)} seed{'s' if len(result.seeds) != 1 else ''}"
        parts.append(f"Profile {escaped(result.profile)}, {seeds}. `{result.command}`")
        shown = result.artefact and (result.artefact.tables or result.artefact.plots)
        if shown and (missing := missing_cells(result)):
            parts.append(f"*{missing}*")
        if result.artefact:
            for table in result.artefact.tables:
                parts += _of_table(table)
            for plot in result.artefact.plots if not result.artefact.tables else ():
                parts += _of_plot(plot)
            parts += [escaped(note) for note in result.artefact.notes]
    if unfinished:
        parts += ["## Not finished", "\n".join(unfinished)]
    return _joined(parts)


def _begun(result: Result) -> bool:
    """Whether cells are missing and nothing can be said yet: its numbers, if any, are those of other studies."""
    unjudged = bool(result.claims) and all(claim.verdict == "not run" for claim in result.claims)
    return bool(missing_cells(result)) and (result.artefact is None or unjudged)


def _of_table(table: Table) -> list[str]:
    cells = {(cell["row"], cell["column"]): cell for cell in table.cells.iter_rows(named=True)}
    columns = list(dict.fromkeys(table.cells["column"].to_list()))
    paper_digits = published_digits(table.cells["paper"].to_list(), table.percent, table.digits)
    rows = []
    for row in dict.fromkeys(table.cells["row"].to_list()):
        fields = [escaped(row)]
        for column in columns:
            cell = cells.get((row, column))
            if cell is None:
                fields.append("–")
                continue
            value, low, high, paper = (
                in_percent(cell[key], table.percent) for key in ("value", "low", "high", "paper")
            )
            parts = (
                written(value, table.digits),
                bracketed(low, high, table.digits),
                "" if paper is None else f"(paper {written(paper, paper_digits)})",
            )
            fields.append(" ".join(filter(None, parts)))
        rows.append(fields)
    heads = [escaped(name) for name in (table.index, *columns)]
    usual = table.brackets == INTERVALS
    words = [
        "%" if table.percent else "",
        "" if usual else f"{table.brackets} in brackets",
        basis(table.cells),
    ]
    about = "; ".join(filter(None, words))
    title = f"**{escaped(table.title)}**" + (f" ({about})" if about else "")
    return [title, markdown_table(heads, rows, numeric=True)]


def _of_plot(plot: Plot) -> list[str]:
    parts = [escaped(plot.caption)]
    for panel in plot.panels:
        places = positions(panel)
        ours = {(point["series"], point["x"]): point for point in panel.points.iter_rows(named=True)}
        paper = () if panel.paper is None else panel.paper.iter_rows(named=True)
        theirs = {(point["series"], point["x"]): point["value"] for point in paper}
        digits = published_digits(theirs.values(), panel.percent, 1 if panel.percent else 0)
        rows = [
            (
                escaped(name),
                *(_point(panel, ours.get((name, x)), theirs.get((name, x)), digits) for x in places),
            )
            for name in dict.fromkeys(series for series, _ in (*ours, *theirs))
        ]
        names = [panel.ticks[int(place)] for place in places] if panel.ticks else numbers(panel, places)
        heads = [escaped(name) for name in (x_label(panel), *names)]
        title = f"**{escaped(panel.title)}**, " if panel.title else ""
        parts += [f"{title}{escaped(y_label(panel))}", markdown_table(heads, rows, numeric=True)]
    return parts


def _point(panel: Panel, ours: Mapping[str, Any] | None, theirs: float | None, digits: int) -> str:
    text = with_interval(ours["value"], ours["low"], ours["high"], panel.percent) if ours else "–"
    return text if theirs is None else f"{text} (paper {written(in_percent(theirs, panel.percent), digits)})"


def escaped(text: str) -> str:
    """Escape markup and characters that would break a table row."""
    marks = r"[\\`*|~$\[\]<]|(?<!\w)_|_(?!\w)"
    return re.sub(marks, r"\\\g<0>", " ".join(text.split())).replace("&", "&amp;")


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n" if parts else ""
