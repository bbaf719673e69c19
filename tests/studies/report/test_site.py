"""The site of studies: what its pages hold, that they fetch nothing, and that the same results give the same bytes."""

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

import polars as pl
import pytest
from rich.console import Console

from antiphase.errors import UserError
from antiphase.report.table import OnConsole, markdown
from antiphase.studies.figures import Artefact, Gallery, Panel, Plot, Table
from antiphase.studies.plan import find_studies
from antiphase.studies.report.site import prose, write_site
from antiphase.studies.report.tables import check_frame, claims_sheets, panel_tables, plot_csv, table_sheet
from antiphase.studies.report.words import RULE
from antiphase.studies.results import in_processes
from tests.studies.report import made_up_studies as made_up

VOID = {"meta", "link", "img", "br", "wbr", "hr", "input"}
MAGIC = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "csv": b"", "tex": b"\\begin", "md": b"| "}
TYPES = {
    "svg": "image/svg+xml",
    "png": "image/png",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "tex": "text/latex",
    "md": "text/markdown",
}


class Page(HTMLParser):
    """Collects what a page is made of, and checks that every tag is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.downloads: dict[str, str] = {}
        self.keys: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        self.links += [attributes[name] for name in ("src", "href", "xlink:href") if name in attributes]
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.keys += [attributes["data-value"]] if "data-value" in attributes else []
        if "download" in attributes:
            self.downloads[attributes["download"]] = attributes["href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def csv(self, name: str) -> pl.DataFrame:
        return pl.read_csv(unquote_to_bytes(self.downloads[name].split(",", 1)[1]))


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Page]:
    out = made_up.written_site(tmp_path_factory.getbasetemp())
    assert all(path.stat().st_size < 1_500_000 for path in out.iterdir())
    return {path.stem: Page(path) for path in sorted(out.iterdir())}


def test_every_page_is_whole_and_links_only_to_its_neighbours(pages):
    assert set(pages) == {"index", "robustness-table-1", "robustness-figure-2", "diffclip-figure-3", "diffclip-table-2"}
    for page in pages.values():
        for link in page.links:
            if not link.startswith("data:"):
                file, _, anchor = link.partition("#")
                target = pages[file.removesuffix(".html")] if file else page
                assert not anchor or anchor in target.ids
    order = [name for name in pages["index"].links if name.endswith(".html")]
    assert order == [
        "robustness-table-1.html",
        "robustness-figure-2.html",
        "diffclip-figure-3.html",
        "diffclip-table-2.html",
    ]
    assert pages["robustness-figure-2"].links.count("robustness-table-1.html") == 2
    assert pages["robustness-figure-2"].links.count("diffclip-figure-3.html") == 2


def test_the_overview_has_every_claim_with_its_verdict_in_words(pages):
    text = pages["index"].text
    for words in (
        "holds 1, contradicted 1",
        "0.5/255: +3.04 points [0.04, 7.04]; 1/255: +8.9 [5.9, 12.9]; 2/255: +17.9 [14.9, 21.9]; ",
        "depth 4: −0.42 [−0.61, −0.23], contradicted; depth 2: +0.100 [−∞, ∞], undecided",
        "+2.4 points [−1.0, 5.9]",
        "12/46",
        "DiffCLIP: Differential Attention Meets CLIP",
    ):
        assert words in text
    for result in made_up.studies():
        for claim in result.claims:
            assert claim.statement in text
            assert claim.source in text
    claims = pages["index"].csv("claims-robustness.csv")
    assert set(claims["claim_verdict"]) == {"holds", "contradicted", "absent", "undecided", "not run"}
    assert claims.row(0, named=True)["low"] == 0.0304 - 0.03


def test_the_page_of_a_study_holds_what_was_measured_and_what_the_paper_says(pages):
    page = pages["robustness-table-1"]
    for words in (
        "Fragility over λ_init",
        "84.8[83.7, 85.9](paper 86.05)",
        "paper 84.98",
        "percent; 95 % intervals in brackets, over 3 training seeds and 1,000 samples",
        "Hollow markers and dashed lines are the paper’s numbers.",
        "The paper finds that ASR rises",
        ".8498",
        "2 h 13 min",
        "one NVIDIA H100 80GB HBM3",
        "antiphase study run table-1 --profile laptop --seeds 3",
        "ASR(DiffViT) − ASR(ViT) at 0.5/255",
    ):
        assert words in page.text
    points = page.csv("robustness-table-1-asr-points.csv")
    assert points["paper"].to_list() == pytest.approx([0.407, 0.677, 0.85, 0.753, 0.496, 0.416])
    table = page.csv("robustness-table-1-lambdas.csv")
    assert table["value"].to_list()[0] == 0.8605 - 0.013
    assert str(0.8605 - 0.013) in page.keys


def test_what_is_missing_is_said(pages):
    half, none = pages["robustness-figure-2"].text, pages["diffclip-table-2"]
    assert "Cells done: 12 of 46. The numbers on this page are of these." in half
    assert "[−∞, ∞]" in half
    assert "Cells done: 0 of 14." in none.text
    assert "antiphase study run table-2" in none.text
    assert none.text.count("not run") >= 4
    assert not {"Figures", "Tables", "Maps", "The paper"} & set(none.words)


def test_downloads_are_what_they_say(pages):
    kinds = set()
    for page in pages.values():
        for name, uri in page.downloads.items():
            head, _, content = uri.partition(",")
            ending = name.rpartition(".")[2]
            assert head.startswith(f"data:{TYPES[ending]};")
            raw = base64.b64decode(content, validate=True) if head.endswith("base64") else unquote_to_bytes(content)
            assert raw.startswith(MAGIC[ending])
            kinds.add(ending)
    assert kinds == set(TYPES)
    assert len(pages["diffclip-figure-3"].downloads) == 2 * 4 + 3 * 2 + 2 * 3 + 3


def test_everything_foreign_is_escaped(pages):
    page = pages["diffclip-figure-3"]
    assert page.tags.count("script") == 2
    assert page.tags.count("strong") == RULE.count("**") / 2
    assert "b" not in page.tags
    assert page.text.count(made_up.EVIL) > 9
    assert made_up.LONG in unquote(page.downloads["diffclip-figure-3-cost.csv"])


def test_the_same_results_give_the_same_bytes_and_stand_alone(pages, tmp_path, tmp_path_factory):
    first, second, *_ = made_up.studies()
    write_site([first, replace(second, artefact=None)], tmp_path)
    page = (tmp_path / "robustness-table-1.html").read_bytes()
    before = made_up.written_site(tmp_path_factory.getbasetemp()) / "robustness-table-1.html"
    assert page == before.read_bytes()
    assert b"rel=" not in page.replace(b'<link rel="icon"', b"").replace(b'rel="next"', b"")


def test_pages_from_several_processes_are_the_same(tmp_path, tmp_path_factory, monkeypatch):
    """Also results of studies come back from other processes as they are, and so does a mistake of the user."""
    monkeypatch.setattr("antiphase.studies.report.site.processes", lambda studies: min(studies, 2))
    before = made_up.written_site(tmp_path_factory.getbasetemp())
    write_site(made_up.studies(), tmp_path)
    for page in before.glob("*.html"):
        assert (tmp_path / page.name).read_bytes() == page.read_bytes()
    assert in_processes("numbers", 2, divmod, [(7, 2), (9, 4), (5, 5)]) == [(3, 1), (2, 1), (1, 0)]
    with pytest.raises(UserError, match="study 'figure-99': unknown"):
        in_processes("studies", 2, find_studies, [(["figure-99"],), (["all"],)])


def test_a_site_of_nothing_leaves_other_pages_alone(tmp_path):
    (tmp_path / "robustness-table-9.html").write_text("of a former run")
    assert write_site([], tmp_path) == tmp_path / "index.html"
    assert (tmp_path / "robustness-table-9.html").read_text() == "of a former run"


def test_what_is_empty_is_drawn_empty(tmp_path):
    points, cells = made_up.points({}, ()), made_up.cells([])
    panels = (Panel("", "ε", "y", points, scale="eps"), Panel("", "x", "y", points, kind="bar", percent=True))
    plots = (Plot("nothing", "", ()), Plot("empty", "", panels))
    artefact = Artefact(plots, (Table("empty", "Empty", "model", cells),), (Gallery("none", "", ()),))
    write_site([replace(made_up.empty(), artefact=artefact)], tmp_path)
    page = Page(tmp_path / "diffclip-table-2.html")
    assert {name.rpartition("-")[2] for name in page.downloads} >= {"empty.csv", "points.csv", "none.pdf"}
    assert "None" not in page.text.replace("None of", "")


def test_tables_say_dashes_for_what_is_not_there():
    table = made_up.figure_2().artefact.tables[0]
    sheet = table_sheet(table)
    assert sheet.columns == ("model", "PGD", "patch", "AutoAttack")
    assert [(cell.text, cell.notes) for cell in sheet.rows[0][1:]] == [("40.0", ())] * 3
    assert [(cell.text, cell.notes, cell.value) for cell in sheet.rows[1][1:]] == [("–", ("[−∞, ∞]",), None)] * 3
    partial = replace(table, cells=table.cells[:4])
    assert [cell.text for cell in table_sheet(partial).rows[1]] == ["DiffViT", "–", "–", "–"]


def test_csv_holds_all_digits_in_long_form():
    plot = made_up.ood().artefact.plots[1]
    frame = pl.read_csv(plot_csv(plot).encode())
    assert len(frame) == sum(len(panel.points) for panel in plot.panels)
    assert frame["value"].to_list() == [v for panel in plot.panels for v in panel.points["value"]]
    assert frame["tick"].to_list()[:2] == [made_up.EVIL, made_up.LONG]
    assert frame["paper"].null_count() == 4
    checks = check_frame((made_up.table_1(), claim) for claim in made_up.table_1().claims)
    assert checks["high"].to_list()[-1] == float("inf")


def test_markdown_tables_keep_their_columns():
    artefacts = [result.artefact for result in made_up.studies() if result.artefact]
    tables = [table for artefact in artefacts for table in artefact.tables]
    tables += [table for artefact in artefacts for plot in artefact.plots for table in panel_tables(plot)]
    sheets = [*map(table_sheet, tables), *claims_sheets(made_up.studies(), [""] * 4)]
    wild = made_up.figure_2().artefact.plots[1]
    sheets += [table_sheet(table) for table in panel_tables(wild)]
    blocks = [markdown(sheet) for sheet in sheets]
    assert len(blocks) == (1 + 1 + 2) + (1 + 2 + 2) + 2 + 2
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    text = "\n".join(blocks)
    for words in (
        "| holds | 0.5/255: +3.04 points [0.04, 7.04]; ",
        "84.8 [83.7, 85.9] (paper 86.05)",
        "2.90 [−∞, ∞]",
        r"DiffCLIP\*",
    ):
        assert words in text
    assert "<b" not in text
    assert claims_sheets([], []) == []


def test_the_console_fits_80_columns():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*map(OnConsole, claims_sheets(made_up.studies())))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    assert all(f" {verdict} " in words for verdict in ("holds", "contradicted", "absent", "undecided", "not run"))


def test_prose_knows_paragraphs_lists_commands_and_tables():
    html = str(prose(made_up.TEXT))
    assert html.count("<p>") == 3
    assert html.count("<li>") == 2
    assert html.count("<tr>") == 3
    assert "<code>λ_init</code>" in html
    assert "<strong>beyond</strong>" in html
    assert "&lt;not in the package&gt; &amp; have" in html
    assert "<td>accuracy</td>\n<td>.8605</td>" in html
    assert "<pre><code>antiphase study run table-1 --profile laptop --seeds 3" in html


def test_a_site_of_the_smoke_profile_gives_no_verdict(tmp_path):
    unjudged = [
        replace(claim, checks=[replace(check, judged=False) for check in claim.checks]) for claim in made_up.claims()
    ]
    assert [claim.verdict for claim in unjudged] == ["not judged (smoke)"] * 3 + ["not run", "not judged (smoke)"]
    page = write_site([replace(made_up.empty(), claims=unjudged)], tmp_path).read_text(encoding="utf-8")
    assert 'class="verdict not-judged"' in page
    assert 'class="verdict holds"' not in page
