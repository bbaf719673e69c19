"""Convert the docstring of a study to HTML: paragraphs, lists, indented commands and pipe tables."""

import base64
import hashlib
import html
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup, escape

from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.progress import duration
from antiphase.report.figure import as_pdf, as_png, as_svg, inline_svg
from antiphase.report.page import embedded, environment
from antiphase.report.table import Table
from antiphase.studies.claims import RULE, Claim
from antiphase.studies.figures import Artefact, Gallery, Panel, Plot
from antiphase.studies.report import forest
from antiphase.studies.report.figures import (
    PIXELS,
    few_colors,
    gallery_figure,
    lighter,
    plot_figure,
    seeds_of,
)
from antiphase.studies.report.forest import forest_lines, forest_svg
from antiphase.studies.report.tables import (
    StudyField,
    check_sheet,
    claims_sheets,
    escaped,
    markdown_claims,
    markdown_summary,
    plot_csv,
    table_note,
    table_sheet,
)
from antiphase.studies.report.words import (
    PAPERS,
    VERBS,
    VERDICTS,
    by_paper,
    by_source,
    headlines,
    missing_cells,
    paper_title,
    summary,
    tally,
)
from antiphase.studies.results import Result

_BULLET = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
_RULED = re.compile(r"[\s|:-]*-[\s|:-]*")  # the line below the header of a table
_NUMBER = re.compile(r"[-−+±]?[\d.,]+( ?%)?|[-–—]?")


def paragraphs(text: str) -> list[str]:
    """Split a docstring into blocks at empty lines; tables, lists and commands are separate blocks."""
    found: list[list[str]] = []
    last = ""
    for line in inspect.cleandoc(text).splitlines():
        kind = _kind(line, last)
        if line.strip():
            if kind == last and found:
                found[-1].append(line)
            else:
                found.append([line])
        last = kind
    return ["\n".join(block) for block in found]


def prose(blocks: Sequence[str]) -> Markup:
    """Return blocks of :func:`paragraphs` as escaped HTML."""
    return Markup("\n").join(_WRITERS[_kind(block.splitlines()[0], "")](block) for block in blocks)


def _kind(line: str, last: str) -> str:
    if not line.strip():
        return "code" if last == "code" else ""
    if line.lstrip().startswith("|"):
        return "table"
    if line.startswith("    "):
        return "list" if last == "list" else "code"
    if line.startswith("antiphase study "):
        return "code"
    if _BULLET.match(line):
        return "list"
    if line.startswith("#"):
        return "heading"
    return "list" if last == "list" and line.startswith(" ") else "text"


def _inline(text: str) -> Markup:
    """Escape, then mark `code` and **bold**."""
    marked = re.sub(r"``([^`]+)``|`([^`]+)`", lambda m: f"<code>{m[1] or m[2]}</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(\S(?:[^*]*\S)?)\*\*", r"<b>\1</b>", marked))


def _text(block: str) -> Markup:
    return Markup("<p>{}</p>").format(_inline(" ".join(block.split())))


def _heading(block: str) -> Markup:
    return Markup("<h3>{}</h3>").format(_inline(block.lstrip("# ")))


def _code(block: str) -> Markup:
    return Markup('<pre class="scroll" tabindex="0">{}</pre>').format(inspect.cleandoc(block))


def _list(block: str) -> Markup:
    points: list[str] = []
    for line in block.splitlines():
        if _BULLET.match(line) or not points:
            points.append(_BULLET.sub("", line, count=1))
        else:
            points[-1] += f" {line.strip()}"
    return Markup("<ul>{}</ul>").format(
        Markup("").join(Markup("<li>{}</li>").format(_inline(p)) for p in points)
    )


def _table(block: str) -> Markup:
    lines = block.splitlines()
    rows = [_fields(line) for line in lines if not _RULED.fullmatch(line)]
    head = rows[:1] if len(lines) > 1 and _RULED.fullmatch(lines[1]) else []
    body = rows[len(head) :]
    width = max(map(len, rows), default=0)
    words = {
        at for at in range(width) if any(at < len(row) and not _NUMBER.fullmatch(row[at]) for row in body)
    }

    def line(row: Sequence[str], tag: str) -> Markup:
        cells = [*row, *[""] * (width - len(row))]
        return Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<{0}{1}>{2}</{0}>").format(
                    Markup(tag), Markup(' class="word"') if at in words else Markup(""), _inline(cell)
                )
                for at, cell in enumerate(cells)
            )
        )

    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="The paper’s numbers">'
        '<table class="narrow plain"><thead>{}</thead><tbody>{}</tbody></table></div>'
    ).format(
        Markup("").join(line(row, "th") for row in head), Markup("").join(line(row, "td") for row in body)
    )


def _fields(line: str) -> list[str]:
    return [field.strip().replace(r"\|", "|") for field in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


_WRITERS: dict[str, Callable[[str], Markup]] = {
    "text": _text,
    "heading": _heading,
    "code": _code,
    "list": _list,
    "table": _table,
}


_HALF = 6  # inches; wider figures get the full width of the page
_HEAVY = 400_000  # bytes; larger images of a gallery are not embedded


@dataclass(frozen=True)
class Link:
    """Another page of the site."""

    href: str
    text: str


def study_page(
    templates: Environment, result: Result, file: str, before: Link | None = None, after: Link | None = None
) -> str:
    """Return the page of a study.

    Args:
        templates: the templates of the report.
        result: the result of the study.
        file: file name of the page without ``.html``, also used for its downloads.
        before: the previous study.
        after: the next study.
    """

    def name(part: str) -> str:
        return file if part == result.name else f"{file}-{_plain(part)}"

    blocks = paragraphs(result.text)
    artefact = result.artefact or Artefact()
    share = PIXELS // max(1, len(artefact.galleries))
    return templates.get_template("study.html").render(
        result=result,
        paper=paper_title(result.paper),
        lead=prose(blocks[:1]),
        text=prose(blocks[1:]),
        about="The paper" if result.paper in PAPERS and result.paper != "own" else "About this study",
        missing=missing_cells(result),
        plots=[
            _plot(plot, name(plot.name), place) for place, plot in enumerate(artefact.plots) if plot.panels
        ],
        tables=[(table_sheet(t, name(t.name)), table_note(t)) for t in artefact.tables],
        galleries=[
            _gallery(gallery, name(gallery.name), place, share)
            for place, gallery in enumerate(artefact.galleries)
        ],
        notes=artefact.notes,
        tally=tally(result.claims),
        rule=prose([RULE]),
        claims=[(claim, check_sheet(result, claim, name(claim.name))) for claim in result.claims],
        made=_made(result),
        before=before,
        after=after,
    )


def _plot(plot: Plot, file: str, place: int) -> dict[str, Any]:
    figure = plot_figure(plot)
    drawn = embedded(figure, f"p{place}", _described(f"{plot.name}; its points are in the CSV below"))
    narrow = as_svg(plot_figure(plot, narrow=True))
    csv = f"data:text/csv;charset=utf-8,{quote(plot_csv(plot))}"
    return drawn | {
        "name": file,
        "narrow": Markup(inline_svg(narrow, f"n{place}", _described(plot.name))),
        "downloads": drawn["downloads"]
        | {"png": _uri("image/png", few_colors(drawn["files"]["png"])), "csv": csv},
        "caption": _sentences(plot.caption, *_remarks(plot)),
        "wide": figure.get_figwidth() > _HALF,
    }


def _gallery(gallery: Gallery, file: str, place: int, pixels: int) -> dict[str, Any]:
    figure = gallery_figure(gallery, pixels)
    description = _described(f"{gallery.name}: images with maps over them")
    svg = lighter(as_svg(figure))
    downloads = {
        "svg": _uri("image/svg+xml", svg.encode()),
        "png": _uri("image/png", few_colors(as_png(figure))),
        "pdf": _uri("application/pdf", as_pdf(figure)),
    }
    return {
        "name": file,
        "svg": Markup(inline_svg(svg, f"g{place}", description)),
        "downloads": {
            ending: uri for ending, uri in downloads.items() if ending != "png" or len(uri) < _HEAVY
        },
        "caption": gallery.caption,
        "columns": max(map(len, gallery.rows), default=1),
    }


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _remarks(plot: Plot) -> list[str]:
    """Explain markers and missing intervals of a figure."""
    said = []
    drawn = any(panel.paper is not None and len(panel.paper) for panel in plot.panels)
    if drawn and "dashed" not in plot.caption:
        said.append("Hollow markers and dashed lines are the paper’s numbers.")
    if any(seeds_of(panel.points).size for panel in plot.panels):
        dots = all(panel.kind == "bar" for panel in plot.panels)
        said.append(f"{'Dots' if dots else 'Thin lines'} are single training seeds.")
    if any(_lacks_interval(panel) for panel in plot.panels):
        said.append("Points without a band or whisker have no finite interval.")
    return said


def _sentences(*texts: str) -> str:
    """Join sentences, adding missing full stops."""
    return " ".join(text if text[-1] in ".!?…" else f"{text}." for text in texts if text)


def _lacks_interval(panel: Panel) -> bool:
    ends = panel.points.filter(panel.points["value"].is_not_null()).select("low", "high")
    return any(end is None or abs(end) == float("inf") for row in ends.iter_rows() for end in row)


def _made(result: Result) -> list[tuple[str, Sequence[tuple[str, str]]]]:
    """Return the settings listed at the end of a page, in groups."""
    run = [
        ("profile", result.profile),
        ("training seeds", ", ".join(map(str, result.seeds)) or "–"),
        ("cells", f"{result.done:,} of {result.total:,}"),
        ("total time of all cells", duration(result.seconds) if result.done else "–"),
        *(("hardware", name) for name in result.hardware),
    ]
    groups = [
        ("Settings", list(result.settings.items())),
        ("Run", run),
        ("Versions", list(result.versions.items())),
    ]
    return [(title, facts) for title, facts in groups if facts]


def _described(text: str) -> str:
    return html.escape(text.replace("\n", " "))


def _plain(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name).strip("-")


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


_PREFACE = (
    f"{RULE} Under the profile `smoke` no claim is judged. Undecided claims also list the training seeds that a "
    "verdict would take, and their cost. The intervals are {over}. *Not run*: rows are missing.\n\n"
    "Written from stored rows by `antiphase study report --markdown FILE`; `antiphase study claims --into FILE` "
    "replaces the claims only."
)
_FILE, _NARROW = "claims.svg", "claims-narrow.svg"
_ALT = "Each tested claim with the difference that decides it and 95 % interval; colour and shape show the verdict"
_CAPTION = (
    "*Each tested claim with the difference that decides it, the 95 % interval (right of 0: as claimed) and the "
    "verdict by colour and shape. Shaded: differences too small to matter. Intervals are cut at the edge of the axis.*"
)


def replace_claims(results: Sequence[Result], into: Path) -> None:
    """Put the claims into a Markdown file between two marks.

    Raises:
        UserError: the file lacks the marks.
    """
    replace_marked(into, "claims", markdown_claims(results))


def replace_findings(results: Sequence[Result], into: Path, pictures: Path) -> None:
    """Put the picture of the claims and at most ten lines into a Markdown file between two marks.

    Args:
        results: the results.
        into: the file.
        pictures: the folder of the pictures that ``write_findings`` wrote.

    Raises:
        UserError: the file lacks the marks.
    """
    lines = "\n".join(map(_told, headlines(results)))
    folder = os.path.relpath(pictures, into.parent)
    picture = _picture("" if folder == "." else f"{folder}/")
    replace_marked(into, "findings", "\n\n".join(filter(None, [picture, lines])) + "\n")


def replace_marked(into: Path, mark: str, text: str) -> None:
    """Replace what is between two marks of a file.

    Raises:
        UserError: the file lacks the marks.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    found = into.read_text(encoding="utf-8") if into.exists() else ""
    if begin not in found or end not in found:
        raise UserError(f"{into}: expected a line {begin} and a line {end}, between which the {mark} are put")
    before, after = found.split(begin, 1)[0], found.split(end, 1)[1]
    write_text(into, f"{before}{begin}\n{text}{end}{after}")


def _told(text: str) -> str:
    """Escape a paragraph, heading, list or table of the summary."""
    lines = (re.fullmatch(r"(#+ | *- |)(.*)", line) for line in text.splitlines())
    return "\n".join(f"{line[1]}{'|'.join(map(_marked, line[2].split('|')))}" for line in lines if line)


def _marked(text: str) -> str:
    """Escape a sentence of the summary except for its bold words."""
    return "**".join(
        " " * part.startswith(" ") + escaped(part) + " " * part.endswith(" ") for part in text.split("**")
    )


def plain_claims(result: Result) -> dict[str, Any]:
    """Return a study's claims for JSON; an interval without end is null."""

    def finite(value: float) -> float | None:
        return value if abs(value) < float("inf") else None

    return {
        "study": result.name,
        "paper": result.paper,
        "profile": result.profile,
        "seeds": list(result.seeds),
        "done": result.done,
        "cells": result.total,
        "claims": [
            {
                "name": claim.name,
                "source": claim.source,
                "statement": claim.statement,
                "verdict": claim.verdict,
                "seeds_needed": claim.seeds_needed if claim.verdict == "undecided" else None,
                "checks": [
                    {
                        "what": check.what,
                        "verdict": verdict,
                        "unit": check.unit,
                        "margin": claim.margin_of(check),
                        "value": None if check.estimate is None else check.estimate.value,
                        "low": None if check.estimate is None else finite(check.estimate.low),
                        "high": None if check.estimate is None else finite(check.estimate.high),
                        "n": None if check.estimate is None else check.estimate.n,
                        "seeds": check.seeds,
                    }
                    for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
                ],
            }
            for claim in result.claims
        ],
    }


def write_findings(results: Sequence[Result], path: Path) -> None:
    """Write what the studies found as one Markdown page: a few questions, a picture of all claims, then the tables.

    The picture is written next to the page, once for wide and once for narrow screens.
    """
    shown = [result for result in results if result.done]
    several = any(len(result.seeds) > 1 for result in shown)
    preface = _PREFACE.format(
        over="over training seeds and images at once" if several else "over images, for one training seed"
    )
    drawn = _write_pictures(shown, path.parent)
    parts = [
        "# What the studies found",
        *map(_told, summary(shown)),
        *(["## All claims at a glance", _picture(""), _CAPTION] if drawn else []),
        "## Claims",
        preface,
        f"<!-- claims -->\n{markdown_claims(shown)}<!-- /claims -->",
        markdown_summary(shown),
    ]
    write_text(path, "\n\n".join(parts))


def _write_pictures(results: Sequence[Result], folder: Path) -> bool:
    """Draw all claims, unless the pictures there show the same data; return whether there is anything to draw.

    A picture ends with a digest of what it shows and of the code that drew it. So its bytes, which may depend on the
    processor and on the version of matplotlib, change only with its content.
    """
    lines = forest.forest_lines(results)
    if not lines:
        return False
    data = json.dumps([asdict(line) for line in lines], ensure_ascii=False)
    code = Path(forest.__file__).read_text(encoding="utf-8")
    mark = f"<!-- {hashlib.sha256((data + code).encode()).hexdigest()[:16]} -->"
    for name, narrow in ((_FILE, False), (_NARROW, True)):
        path = folder / name
        if not path.exists() or not path.read_text(encoding="utf-8").rstrip().endswith(mark):
            write_text(path, f"{forest.forest_svg(lines, narrow=narrow)}{mark}\n")
    return True


def _picture(folder: str) -> str:
    return (
        f'<picture><source media="(max-width: 640px)" srcset="{folder}{_NARROW}">'
        f'<img alt="{_ALT}" src="{folder}{_FILE}"></picture>'
    )
