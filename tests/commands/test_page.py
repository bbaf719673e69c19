import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import polars as pl
import pytest

from antiphase.errors import UserError
from tests.commands.audits import report

VOID = {"meta", "link", "img", "br", "wbr", "hr", "input"}


class Page(HTMLParser):
    """Collects text, links and tags, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.ids += [value for name, value in attrs if name == "id"]
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


def read(page):
    return Page(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", ["twins", "seeds", "alone"])
def test_the_page_is_whole_and_fetches_nothing(run, pages):
    page = read(pages[run])
    assert page.open == []
    assert page.links
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_the_page_of_a_pair_holds_all_that_was_measured(pages):
    page = read(pages["twins"])
    summary = json.loads(pages["twins"].with_name("summary.json").read_text())
    for result in summary["results"]:
        assert f"{100 * result['value']:.1f}" in page.text
        assert f"[{100 * result['low']:.1f}, {100 * result['high']:.1f}]" in page.text
    for comparison in summary["comparisons"]:
        assert f"{100 * comparison['difference']:+.1f}" in page.text
        assert f"[{100 * comparison['low']:.1f}, {100 * comparison['high']:.1f}]" in page.text
    for words in (
        "diffvit-0 is broken more often than vit-0",
        "0.5/255",
        "differential",
        "0.790",
        "×63",
        "Sneaker",
        "ε/4",
        "9f86d081884c7d659a2feaa0c55ad015",
        "2 CPU cores",
        "How to read this",
        "antiphase audit specimen:diffvit-0",
    ):
        assert words in page.text
    assert page.tags.count("img") == 5 * 2 * 3
    assert page.tags.count("svg") == 4  # the mark, the answer, two rates


def test_tables_can_be_downloaded_as_csv(pages):
    page = read(pages["twins"])
    files = [unquote(link.split(",", 1)[1]) for link in page.links if link.startswith("data:text/csv")]
    assert len(files) == 6  # models, three rates, differences, λ
    differences = next(pl.read_csv(file.encode()) for file in files if "p_value" in file)
    summary = json.loads(pages["twins"].with_name("summary.json").read_text())
    assert differences["difference"].to_list() == [c["difference"] for c in summary["comparisons"]]


def test_one_model_without_gallery_or_twin(pages):
    page = read(pages["alone"])
    assert "compares no two models" in page.text
    assert "img" not in page.tags
    assert "Gallery" not in page.text
    assert "Paired differences" not in page.text


def test_the_figure_stands_beside_the_page_and_bytes_repeat(twins, pages):
    first = pages["twins"].read_bytes()
    files = {ending: pages["twins"].with_name(f"asr.{ending}").read_bytes() for ending in ("svg", "png", "pdf")}
    assert files["png"].startswith(b"\x89PNG")
    assert files["pdf"].startswith(b"%PDF")
    assert b"<svg" in files["svg"]
    assert report(twins).read_bytes() == first
    assert {ending: (twins / f"asr.{ending}").read_bytes() for ending in files} == files


def test_everything_foreign_is_escaped(tmp_path, make_run, make_gallery):
    evil = '<script>alert("x")</script>&\'"'
    models = [(evil, "softmax", None, 1.0), ("b", "differential", None, 2.0)]
    gallery = make_gallery([evil, "b"])
    run = make_run(
        tmp_path,
        models,
        [("b", evil)],
        gallery=gallery,
        command=evil,
        settings={evil: evil, "attack": "pgd", "norm": "linf", "attack seed": 0},
        warnings=[evil],
        data=evil,
        hardware=evil,
    )
    page = read(report(run))
    assert page.tags.count("script") == 1
    assert page.text.count(evil) > 8


def test_warnings_are_shown(tmp_path, make_run):
    run = make_run(tmp_path, [("a", "softmax", None, 1.0)], [], warnings=["7 images were left out."])
    assert "7 images were left out." in read(report(run)).text


@pytest.mark.parametrize("name", ["summary.json", "run.json", "rows.parquet"])
def test_a_missing_or_broken_file_is_named_in_one_line(twins, name):
    for damage in (lambda path: path.write_bytes(b"\x00{"), lambda path: path.unlink()):
        damage(twins / name)
        with pytest.raises(UserError, match=rf"{name}: cannot be read|has no {name}") as caught:
            report(twins)
        assert "\n" not in str(caught.value)
    assert not (twins / "report.html").exists()


def test_missing_fields_are_named(twins):
    rows = pl.read_parquet(twins / "rows.parquet")
    rows.clear().write_parquet(twins / "rows.parquet")
    with pytest.raises(UserError, match="has no rows"):
        report(twins)
    rows.drop("success").write_parquet(twins / "rows.parquet")
    with pytest.raises(UserError, match="no column 'success'"):
        report(twins)
    rows.write_parquet(twins / "rows.parquet")
    (twins / "run.json").write_text("{}")
    with pytest.raises(UserError, match=r"run\.json: has no 'command'"):
        report(twins)


def test_summary_and_rows_must_be_of_one_run(twins):
    rows = pl.read_parquet(twins / "rows.parquet")
    rows.filter(pl.col("model") == "vit-0").write_parquet(twins / "rows.parquet")
    with pytest.raises(UserError, match="'diffvit-0' is not in both"):
        report(twins)
