"""The site of studies, an overview with the claims and a page for each study, and their result as a command's."""

import functools
import html
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure

from antiphase.commands.result import Result as RunResult
from antiphase.commands.result import read_result, without_intervals
from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.report.figure import inline_svg, saved
from antiphase.report.page import Headline, Section, embedded, environment
from antiphase.store import as_parquet
from antiphase.studies.claims import OWN
from antiphase.studies.figures import Artefact
from antiphase.studies.options import PackOptions, StudyOptions
from antiphase.studies.pack import CELLS_FILE, Pack
from antiphase.studies.plan import select
from antiphase.studies.report import tables
from antiphase.studies.report.figures import PIXELS, gallery_figure, plot_figure, text_svg
from antiphase.studies.report.forest import forest_figure, forest_lines
from antiphase.studies.report.words import PAPERS, RULE, page_name, part_name, tally
from antiphase.studies.results import Result, in_processes, pack_studies, processes, results_of
from antiphase.studies.spec import ProfileName

_CHOICE = "study.json"
_CHOSEN = {"names", "profile", "seeds", "models"}
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
    links = [None, *((page, result.label) for page, result in zip(pages, ordered, strict=True)), None]
    linked = list(zip(ordered, links, links[2:], strict=False))
    drawn = in_processes("pages", processes(len(ordered)), _study_page, linked)
    for page, text in zip(pages, drawn, strict=True):
        write_text(out / page, text)
    lines = forest_lines(ordered)
    described = "Each tested claim with the difference that decides it; the table below has the numbers"
    template = environment().get_template("site.html")
    shapes = {"wide": False, "narrow": True} if lines else {}
    drawn = ((text_svg(forest_figure(lines, narrow=narrow)), name) for name, narrow in shapes.items())
    forest = [Markup(inline_svg(svg, f"forest-{name}", described)) for svg, name in drawn]
    values = {"counts": tables.counts_sheet(ordered), "forest": forest, "rule": prose(RULE)}
    values |= {"claims": tables.claims_sheets(ordered, pages), "studies": tables.studies_sheet(ordered, pages)}
    overview = template.render(**values, stand_ins=any(result.profile == "laptop" for result in ordered))
    write_text(out / "index.html", overview)
    return out / "index.html"


def _study_page(result: Result, before: Any, after: Any) -> str:
    """Return the page of a study; the studies before and after it are pairs of page and label, or None."""
    artefact, name = result.artefact or Artefact(), functools.partial(part_name, result)
    lead, _, text = result.text.strip().partition("\n\n")
    plots = []
    for place, plot in enumerate(artefact.plots):
        if not plot.panels:
            continue
        figure, narrow = plot_figure(plot), None
        if min(plot.columns, len(plot.panels)) > 1:  # on a phone, panels stand below one another
            svg = saved(plot_figure(replace(plot, columns=1)), "svg").decode()
            narrow = Markup(inline_svg(svg, f"n{place}", html.escape(plot.name)))
        drawn = embedded(figure, f"p{place}", html.escape(plot.name))
        drawn["downloads"]["csv"] = f"data:text/csv;charset=utf-8,{quote(tables.plot_csv(plot))}"
        drawn |= {"about": plot, "name": name(plot.name), "narrow": narrow}
        plots.append(drawn | {"wide": figure.get_figwidth() > _HALF})
    galleries = []
    for place, gallery in enumerate(artefact.galleries):
        figure = gallery_figure(gallery, PIXELS // len(artefact.galleries))
        drawn = embedded(figure, f"g{place}", html.escape(gallery.name))
        galleries.append(drawn | {"about": gallery, "name": name(gallery.name)})
    values: dict[str, Any] = {"result": result, "paper": PAPERS.get(result.paper, result.paper), "rule": prose(RULE)}
    values |= {"lead": prose(lead), "text": prose(text), "plots": plots, "galleries": galleries}
    values["about"] = "The paper" if result.paper in PAPERS and result.paper != OWN else "About this study"
    values["tables"] = [(tables.table_sheet(one, name(one.name)), tables.table_note(one)) for one in artefact.tables]
    values["claims"] = [(claim, tables.check_sheet(result, claim, name(claim.name))) for claim in result.claims]
    return environment().get_template("study.html").render(**values, notes=artefact.notes, before=before, after=after)


def studied(options: StudyOptions) -> RunResult:
    """Return the finished cells of studies as a result: their rows, ``claims.parquet``, and which studies they are."""
    chosen, selected = options.model_dump(include=_CHOSEN), select(options)
    with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
        pack, cells = selected.store, selected.cells
        if not isinstance(pack, Pack) or not any(map(pack.done, cells)):
            pack = Pack(Path(name))
            list(pack_studies(PackOptions(**chosen, store=options.store, rows=options.rows, to=pack.root), small=False))
        files, studies = pack.files_of(cells), results_of(StudyOptions(**chosen, rows=pack.root))
    checks = tables.check_frame((study, claim) for study in studies for claim in study.claims)
    if len(checks):
        files["claims.parquet"] = as_parquet(checks)
    files[_CHOICE] = options.model_dump_json(include=_CHOSEN).encode()
    result = StudyResult("study run", files, options.place.resolve())
    vars(result).update(studies=studies)  # so that they are not read again
    return result


class StudyResult(RunResult):
    """The finished rows of studies, and what the report makes of them."""

    main_table = "claims"
    needs = (CELLS_FILE, _CHOICE)

    @classmethod
    def open(cls, folder: Path, command: str) -> RunResult:
        """Return the studies in a store, in packed rows or in a saved result: the finished ones, if any is."""
        if (folder / _CHOICE).exists():
            return read_result(folder, command)
        place: dict[str, Any] = {"rows": folder} if (folder / CELLS_FILE).exists() else {"store": folder}
        states: dict[ProfileName, dict[str, list[bool]]] = {}
        sizes: tuple[ProfileName, ...] = ("paper", "laptop", "smoke")
        for name in sizes:
            chosen = select(StudyOptions(names=("all",), profile=name, **place))
            store, size = chosen.store, chosen.profile
            states[name] = {one.name: [store.done(cell) for cell in one.cells(size)] for one in chosen.studies}
        profile, done = max(states.items(), key=lambda pair: sum(map(sum, pair[1].values())))
        # studies share cells: one that was run may have made some of another's
        names = tuple(study for study, cells in done.items() if all(cells))
        names = names or tuple(study for study, cells in done.items() if any(cells))
        if not any(map(any, done.values())):
            fix = "for one of your own, call antiphase.study with its file and this store"
            raise UserError(f"{folder}: holds no finished cell of a study that comes with antiphase; {fix}")
        return studied(StudyOptions(names=names, profile=profile, **place))

    @cached_property
    def studies(self) -> list[Result]:
        choice = self.read_json(_CHOICE)
        with self.unpacked() as folder:
            return results_of(StudyOptions(**choice, rows=folder))

    def headlines(self) -> list[Headline]:
        names = ", ".join(study.name for study in self.studies[:3]) + " …" * (len(self.studies) > 3)
        done, total = (sum(getattr(study, name) for study in self.studies) for name in ("done", "total"))
        claims = tally([claim for study in self.studies for claim in study.claims])
        line = f"{names} under profile {self.studies[0].profile}: {done} of {total} cells; claims: {claims or '–'}"
        return [Headline(line)]

    def sections(self) -> list[Section]:
        return [Section("studies", "Studies", tables=tables.all_sheets(self.studies))]

    def figure(self) -> Figure:
        """Draw the first plot of a single study, else all claims."""
        plots = [plot for study in self.studies if study.artefact for plot in study.artefact.plots]
        return plot_figure(plots[0]) if plots and len(self.studies) == 1 else forest_figure(forest_lines(self.studies))

    @property
    def record(self) -> dict[str, Any]:
        """The record of a saved result, or the studies that were chosen as its settings."""
        return super().record if "run.json" in self.files else {"settings": self.read_json(_CHOICE)}

    def differences(self, other: Any) -> pl.DataFrame:
        """Return the differences of what the claims of both rest on; without intervals, as they may share rows."""
        keys = ["study", "claim", "check"]
        if any("claims" not in result.tables for result in (self, other)):
            raise UserError("compare: expected studies with claims, of which some are judged in both")
        first, second = (result.frame("claims").drop_nulls("value") for result in (self, other))
        if (joined := first.join(second, on=keys, suffix="_other", maintain_order="left")).is_empty():
            raise UserError("compare: no claim has a number in both; expected runs of one study")
        same = pl.when(pl.col("verdict") == pl.col("verdict_other")).then("verdict")
        verdicts = same.otherwise(pl.format("{} and {}", "verdict", "verdict_other"))
        values = {"metric": pl.format("{}: {}, {} ({})", *keys, verdicts)}
        values["difference"] = pl.col("value") - pl.col("value_other")
        return without_intervals(joined.select(**values), "first", "second")

    def write_report(self, folder: Path) -> Path:
        return write_site(results_of(StudyOptions(**self.read_json(_CHOICE), rows=folder)), folder)
