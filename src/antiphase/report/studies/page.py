"""The page of one study: figures, tables, maps, claims with their checks, and how to reproduce them."""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from antiphase.progress import duration
from antiphase.report.figure import as_pdf, as_png, as_svg, inline_svg
from antiphase.report.page import embedded
from antiphase.report.studies.axes import seeds_of
from antiphase.report.studies.figures import plot_figure
from antiphase.report.studies.gallery import PIXELS, few_colors, gallery_figure, lighter
from antiphase.report.studies.tables import check_sheet, plot_csv, table_note, table_sheet
from antiphase.report.studies.wording import PAPERS, missing_cells, paper_title, tally
from antiphase.report.style.prose import paragraphs, prose
from antiphase.studies.claims import RULE
from antiphase.studies.figures import Artefact, Gallery, Panel, Plot
from antiphase.studies.results import Result

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
