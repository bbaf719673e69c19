"""The site of studies: an overview with the claims, and a page for each study."""

import functools
import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markdown_it import MarkdownIt
from markupsafe import Markup

from antiphase.files import write_text
from antiphase.report.figure import as_svg, inline_svg
from antiphase.report.page import embedded, environment
from antiphase.studies.claims import OWN
from antiphase.studies.figures import Artefact
from antiphase.studies.report.figures import PIXELS, gallery_figure, plot_figure, text_svg
from antiphase.studies.report.forest import forest_figure, forest_lines
from antiphase.studies.report.tables import (
    check_sheet,
    claims_sheets,
    counts_sheet,
    plot_csv,
    studies_sheet,
    table_note,
    table_sheet,
)
from antiphase.studies.report.words import PAPERS, RULE, page_name, part_name
from antiphase.studies.results import Result
from antiphase.terminal import duration

_HALF = 6  # inches; wider figures get the full width of the page
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def prose(text: str) -> Markup:
    """Return Markdown, such as the docstring of a study, as HTML; markup in it is escaped."""
    return Markup(_MARKDOWN.render(text))


def write_site(results: Sequence[Result], out: Path) -> Path:
    """Write ``index.html`` and ``<paper>-<name>.html`` for each study into a folder; return the path of the overview.

    Pages are self-contained apart from links to each other; the same results give the same bytes.
    """
    papers = list(dict.fromkeys(result.paper for result in results))
    ordered = sorted(results, key=lambda result: papers.index(result.paper))
    pages = [f"{page_name(result)}.html" for result in ordered]
    templates = environment()
    templates.filters |= {"duration": duration, "prose": prose}
    links = [None, *((page, result.label) for page, result in zip(pages, ordered, strict=True)), None]
    for place, (page, result) in enumerate(zip(pages, ordered, strict=True)):
        write_text(out / page, _study_page(templates, result, links[place], links[place + 2]))
    lines = forest_lines(ordered)
    described = "Each tested claim with the difference that decides it; the table below has the numbers"
    overview = templates.get_template("site.html").render(
        counts=counts_sheet(ordered),
        forest=[
            Markup(inline_svg(text_svg(forest_figure(lines, narrow=narrow)), f"forest-{name}", described))
            for name, narrow in (("wide", False), ("narrow", True))
            if lines
        ],
        rule=RULE,
        claims=claims_sheets(ordered, pages),
        studies=studies_sheet(ordered, pages),
        stand_ins=any(result.profile == "laptop" for result in ordered),
    )
    write_text(out / "index.html", overview)
    return out / "index.html"


def _study_page(templates: Environment, result: Result, before: Any, after: Any) -> str:
    """Return the page of a study; the studies before and after it are pairs of page and label, or None."""
    artefact, name = result.artefact or Artefact(), functools.partial(part_name, result)
    lead, _, text = result.text.strip().partition("\n\n")
    plots = []
    for place, plot in enumerate(artefact.plots):
        if not plot.panels:
            continue
        figure, narrow = plot_figure(plot), None
        if min(plot.columns, len(plot.panels)) > 1:  # on a phone, panels stand below one another
            svg = as_svg(plot_figure(replace(plot, columns=1)))
            narrow = Markup(inline_svg(svg, f"n{place}", html.escape(plot.name)))
        drawn = embedded(figure, f"p{place}", html.escape(plot.name))
        drawn["downloads"]["csv"] = f"data:text/csv;charset=utf-8,{quote(plot_csv(plot))}"
        drawn |= {"about": plot, "name": name(plot.name), "narrow": narrow}
        plots.append(drawn | {"wide": figure.get_figwidth() > _HALF})
    galleries = []
    for place, gallery in enumerate(artefact.galleries):
        figure = gallery_figure(gallery, PIXELS // len(artefact.galleries))
        drawn = embedded(figure, f"g{place}", html.escape(gallery.name))
        galleries.append(drawn | {"about": gallery, "name": name(gallery.name)})
    return templates.get_template("study.html").render(
        result=result,
        paper=PAPERS.get(result.paper, result.paper),
        lead=lead,
        text=text,
        about="The paper" if result.paper in PAPERS and result.paper != OWN else "About this study",
        plots=plots,
        tables=[(table_sheet(table, name(table.name)), table_note(table)) for table in artefact.tables],
        galleries=galleries,
        notes=artefact.notes,
        rule=RULE,
        claims=[(claim, check_sheet(result, claim, name(claim.name))) for claim in result.claims],
        before=before,
        after=after,
    )
