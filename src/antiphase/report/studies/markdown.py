"""Studies as GitHub-flavoured Markdown, for docs/findings.md."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphase.report.studies.axes import numbers, positions, x_label, y_label
from antiphase.report.studies.wording import (
    basis,
    by_source,
    estimates_line,
    in_percent,
    missing_cells,
    paper_title,
    published_digits,
    tally,
    verdict_note,
    with_interval,
)
from antiphase.studies.claims import Claim
from antiphase.studies.figures import INTERVALS, Panel, Plot, Table
from antiphase.studies.numbers import bracketed, written
from antiphase.studies.results import Result


def markdown_claims(results: Sequence[Result]) -> str:
    """Return a table of claims for each paper and for our own questions: source, verdict and estimates."""
    parts = []
    for paper, its in by_source(results).items():
        lines = [
            (
                escaped(claim.statement),
                escaped(claim.source),
                _verdict(claim),
                escaped(estimates_line(claim)),
                escaped(result.label),
            )
            for result, claim in its
        ]
        table = _table(
            ("claim", "source", "verdict", "estimates [95 % interval]", "study"), lines, numeric=False
        )
        counts = tally([claim for _, claim in its])
        parts += [f"### {escaped(paper_title(paper))}", f"{counts}.", table]
    return _joined(parts)


def _verdict(claim: Claim) -> str:
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
    return [title, _table(heads, rows)]


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
        parts += [f"{title}{escaped(y_label(panel))}", _table(heads, rows)]
    return parts


def _point(panel: Panel, ours: Mapping[str, Any] | None, theirs: float | None, digits: int) -> str:
    text = with_interval(ours["value"], ours["low"], ours["high"], panel.percent) if ours else "–"
    return text if theirs is None else f"{text} (paper {written(in_percent(theirs, panel.percent), digits)})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: bool = True) -> str:
    rule = ["---", *["---:" if numeric else "---"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


def escaped(text: str) -> str:
    """Escape markup and characters that would break a table row."""
    marks = r"[\\`*|~$\[\]<]|(?<!\w)_|_(?!\w)"
    return re.sub(marks, r"\\\g<0>", " ".join(text.split())).replace("&", "&amp;")


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n" if parts else ""
