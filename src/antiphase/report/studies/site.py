"""A site from the results of studies: an overview of claims and studies, and a page for each study."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from antiphase.files import write_text
from antiphase.report.figure import inline_svg
from antiphase.report.page import environment
from antiphase.report.studies.counts import VERBS
from antiphase.report.studies.forest import forest_lines, forest_svg
from antiphase.report.studies.page import Link, study_page
from antiphase.report.studies.tables import StudyField, claims_sheets
from antiphase.report.studies.wording import VERDICTS, by_paper, by_source, paper_title, tally
from antiphase.report.style.prose import prose
from antiphase.report.table import Table
from antiphase.studies.claims import RULE, Claim
from antiphase.studies.figures import Artefact
from antiphase.studies.results import Result


def write_site(results: Sequence[Result], out: Path) -> Path:
    """Write ``index.html`` and ``<paper>-<name>.html`` for each study into a folder.

    Pages are self-contained apart from links to each other; the same results give the same bytes. If a study has
    results under several profiles, the names of its pages end with the profile. Pages of other studies are kept.

    Args:
        results: results of the studies.
        out: the folder; created if missing.

    Returns:
        The path of the overview.

    Raises:
        ValueError: Two results have the same study and profile.
    """
    grouped = by_paper(results)
    ordered = [result for its in grouped.values() for result in its]
    files = _files(ordered)
    templates = environment()
    links = [Link(f"{file}.html", result.label) for file, result in zip(files, ordered, strict=True)]
    for place, (result, file) in enumerate(zip(ordered, files, strict=True)):
        before = links[place - 1] if place else None
        after = links[place + 1] if place + 1 < len(links) else None
        write_text(out / f"{file}.html", study_page(templates, result, file, before, after))

    pages = [link.href for link in links]
    page_of = dict(zip(map(id, ordered), pages, strict=True))
    claimed = by_source(ordered)
    overview = templates.get_template("site.html").render(
        title=_headline(ordered),
        papers=[
            _paper(paper, grouped.get(paper, []), [claim for _, claim in claimed.get(paper, [])], page_of)
            for paper in dict.fromkeys([*grouped, *claimed])
        ],
        forest=_forest(ordered),
        rule=prose([RULE]),
        claims=claims_sheets(ordered, pages),
        stand_ins=[name for name in dict.fromkeys(result.profile for result in ordered) if name == "laptop"],
    )
    path = out / "index.html"
    write_text(path, overview)
    return path


def _forest(results: Sequence[Result]) -> dict[str, Markup]:
    """Return the picture of all claims for wide and narrow screens; empty without verdicts."""
    lines = forest_lines(results)
    described = "Each tested claim with the difference that decides it; the table below has the numbers"
    return {
        name: Markup(inline_svg(forest_svg(lines, narrow=name == "narrow"), f"forest-{name}", described))
        for name in ("wide", "narrow")
        if lines
    }


def _files(results: Sequence[Result]) -> list[str]:
    stems = [_plain(f"{result.paper}-{result.name.removeprefix(f'{result.paper}-')}") for result in results]
    files = [
        stem if stems.count(stem) == 1 else f"{stem}-{_plain(result.profile)}"
        for stem, result in zip(stems, results, strict=True)
    ]
    if twice := [file for file in dict.fromkeys(files) if files.count(file) > 1]:
        raise ValueError(f"more than one result for the page {twice[0]}.html")
    return files


def _plain(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name).strip("-")


def _headline(results: Sequence[Result]) -> str:
    """Summarise the verdicts in one sentence."""
    claims = [claim for result in results for claim in result.claims]
    if not claims:
        return f"{len(results)} {'study' if len(results) == 1 else 'studies'} of differential attention"
    found = Counter("not run" if claim.lacks_seeds else claim.verdict for claim in claims)
    if len(claims) == found["not run"]:
        return f"{len(claims)} claims, none tested yet"
    tried = len(claims) - found["not run"]
    if tried == found["not judged (smoke)"]:
        return f"{tried} claim{'' if tried == 1 else 's'}, none judged: smoke only shows that the studies run"
    tried -= found["not judged (smoke)"]
    parts = [
        f"{found[verdict] or 'none'} {many if found[verdict] > 1 else one}"
        for verdict, (one, many) in VERBS.items()
        if found[verdict] or verdict in ("holds", "contradicted")
    ]
    return f"Of {tried} claim{'' if tried == 1 else 's'} tested, {', '.join(parts[:-1])} and {parts[-1]}"


def _paper(
    paper: str, results: Sequence[Result], claims: Sequence[Claim], pages: Mapping[int, str]
) -> dict[str, Any]:
    """Return the claims of a paper counted, and its studies; a claim of it may be tested in a study of ours."""
    found = Counter(claim.verdict for claim in claims if not claim.lacks_seeds)
    rows = [_study_row(result, pages[id(result)]) for result in results]
    columns = ("study", "claims", "cells", "profile", "seeds", "on its page")
    return {
        "title": paper_title(paper),
        "tally": tally(claims),
        "counts": [(verdict, found[verdict]) for verdict in VERDICTS if found[verdict]],
        "done": sum(result.done for result in results),
        "total": sum(result.total for result in results),
        "sheet": Table(f"{_plain(paper)}-studies", paper_title(paper), columns, tuple(rows), ""),
    }


def _study_row(result: Result, page: str) -> tuple[StudyField, ...]:
    artefact = result.artefact or Artefact()
    kinds = (
        ("figure", "figures", artefact.plots),
        ("table", "tables", artefact.tables),
        ("sheet of maps", "sheets of maps", artefact.galleries),
    )
    shown = [f"{len(its)} {one if len(its) == 1 else many}" for one, many, its in kinds if its]
    return (
        StudyField(result.label, (result.title,), kind="name", href=page),
        StudyField(tally(result.claims).partition(": ")[2] or "–", kind="word", value=len(result.claims)),
        StudyField(
            f"{result.done:,}/{result.total:,}", kind="cells", value=result.done / max(result.total, 1)
        ),
        StudyField(result.profile, kind="word"),
        StudyField(str(len(result.seeds)), value=len(result.seeds)),
        StudyField(", ".join(shown) or "nothing yet", kind="word"),
    )
