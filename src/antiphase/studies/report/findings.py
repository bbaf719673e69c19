"""What the studies found, in Markdown: the page of findings, the block of a README, and the picture of all claims."""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.report.figure import as_svg
from antiphase.report.page import environment
from antiphase.report.table import escaped, markdown
from antiphase.studies.claims import RULE
from antiphase.studies.report import figures, forest
from antiphase.studies.report.tables import (
    claims_sheets,
    counts_sheet,
    models_tested,
    panel_tables,
    plot_csv,
    table_note,
    table_sheet,
)
from antiphase.studies.report.words import FEW, SHORT, by_source, estimates_line, is_tested, price
from antiphase.studies.results import Result
from antiphase.studies.scale import IN_SHORT

QUESTIONS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("findings.toml").read_text(encoding="utf-8")
)["questions"]
_BY_DEPTH = "asr-by-depth"
_PICTURES = {"claims.svg": False, "claims-narrow.svg": True}


def summary(results: Sequence[Result], template: str, **values: Any) -> str:
    """Fill in one of the templates in Markdown: the questions with their answers, counts, claims and tables."""
    templates = environment().overlay(autoescape=False)
    templates.filters |= {
        "escaped": escaped,
        "estimates": estimates_line,
        "markdown": markdown,
        "note": table_note,
        "panel_tables": panel_tables,
        "price": price,
        "sheet": table_sheet,
    }
    claims = {f"{result.name}/{claim.name}": claim for result in results for claim in result.claims}
    tested = {key: claim for key, claim in claims.items() if is_tested(claim)}
    begun = [result for result in results if result.done]
    judged = {key.partition("/")[0] for key in tested}
    text = templates.get_template(template).render(
        claims=tested,
        claims_sheets=claims_sheets(begun, [""] * len(begun)),
        counts=counts_sheet(begun) if claims else None,
        few=FEW,
        models=models_tested(begun, IN_SHORT),
        notes={
            result.name: result.artefact.notes
            for result in results
            if result.artefact and result.name in judged
        },
        questions=QUESTIONS,
        results=[result for result in begun if not unfinished(result)],
        rule=RULE,
        open=[result for result in results if not result.done or unfinished(result)],
        vits=next((one.settings for one in begun if one.name == "figure-2a"), {}),
        clips=next((one.settings for one in begun if one.name == "figure-2b"), {}),
        tested_by_paper={
            SHORT.get(paper, paper): count
            for paper, pairs in by_source(begun).items()
            if (count := sum(is_tested(claim) for _, claim in pairs))
        },
        unfinished=[result for result in begun if unfinished(result)],
        **values,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def unfinished(result: Result) -> bool:
    """Whether cells are missing and nothing can be said yet: its numbers, if any, are those of other studies."""
    unjudged = bool(result.claims) and all(claim.verdict == "not run" for claim in result.claims)
    return result.done < result.total and (result.artefact is None or unjudged)


def write_findings(results: Sequence[Result], path: Path) -> None:
    """Write what the studies found as one Markdown page: a few questions, a picture of all claims, then the tables.

    The picture is written next to the page, once for wide and once for narrow screens.
    """
    lines = forest.forest_lines(results)
    data = json.dumps([asdict(line) for line in lines], ensure_ascii=False)
    for name, narrow in _PICTURES.items() if lines else ():
        _draw(path.parent / name, data, forest, lambda narrow=narrow: forest.forest_svg(lines, narrow=narrow))
    plots = [plot for one in results if one.artefact for plot in one.artefact.plots if plot.name == _BY_DEPTH]
    for plot in plots:
        _draw(
            path.parent / f"{_BY_DEPTH}.svg",
            plot_csv(plot),
            figures,
            lambda plot=plot: as_svg(figures.plot_figure(plot)),
        )
    words = {"picture": bool(lines), "depths": plots[0].caption if plots else ""}
    write_text(path, summary(results, "findings.md", **words))


def _draw(path: Path, data: str, code: ModuleType, draw: Callable[[], str]) -> None:
    """Draw a picture, unless the one there shows the same data.

    It ends with a digest of what it shows and of the code that drew it. So its bytes, which may depend on the processor
    and on the version of matplotlib, change only with its content.
    """
    text = Path(str(code.__file__)).read_text(encoding="utf-8")
    mark = f"<!-- {hashlib.sha256((data + text).encode()).hexdigest()[:16]} -->"
    if not path.exists() or not path.read_text(encoding="utf-8").rstrip().endswith(mark):
        write_text(path, f"{draw()}{mark}\n")


def replace_claims(results: Sequence[Result], into: Path) -> None:
    """Put the claims into a Markdown file between two marks.

    Raises:
        UserError: the file lacks the marks.
    """
    replace_marked(into, "claims", summary(results, "claims.md"))


def replace_findings(results: Sequence[Result], into: Path, pictures: Path) -> None:
    """Put the picture of the claims and the answers into a Markdown file between two marks.

    Args:
        results: the results.
        into: the file.
        pictures: the folder of the pictures that ``write_findings`` wrote.

    Raises:
        UserError: the file lacks the marks.
    """
    folder = os.path.relpath(pictures, into.parent)
    prefix = "" if folder == "." else f"{folder}/"
    replace_marked(into, "findings", summary(results, "readme.md", prefix=prefix))


def replace_marked(into: Path, mark: str, text: str) -> None:
    """Replace what is between two marks of a file.

    Raises:
        UserError: the file lacks the marks.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    content = into.read_text(encoding="utf-8") if into.exists() else ""
    if begin not in content or end not in content:
        raise UserError(f"{into}: expected a line {begin} and a line {end}, between which the {mark} are put")
    write_text(into, f"{content.split(begin)[0]}{begin}\n{text}{end}{content.split(end)[1]}")
