"""The site of studies in a real browser: at a desk and on a phone, sorted by mouse and keyboard, without a network."""

import itertools
import re
from pathlib import Path

import pytest

from antiphase.report.page import environment
from antiphase.studies.report.tables import Sheet, StudyField
from tests import needs
from tests.commands import test_browser as other
from tests.studies.report.made_up_studies import written_site

pytestmark = needs.browser
browser = other.browser  # its fixture


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return written_site(tmp_path_factory.getbasetemp())


FIRST = "[aria-label^=Understanding] .claims"  # the claims of the first paper


def texts(browser, selector: str) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())", selector
    )


def test_pages_open_without_errors_overflow_or_network(browser, site):
    for page, (width, scheme) in itertools.product(
        sorted(site.glob("*.html")), ((1280, "light"), (390, "light"), (390, "dark"))
    ):
        other.open_page(browser, page, width, scheme)
        assert browser.get_log("browser") == []
        assert browser.execute_script("return window.innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert [url for url in other.requested(browser) if not url.startswith("data:")] == [page.as_uri()]

        links = browser.execute_script("return [...document.querySelectorAll('a[href]')].map(a => a.href)")
        for link in links:
            if not link.startswith("data:"):
                assert Path(link.removeprefix("file://").partition("#")[0]).is_file()
        sizes = browser.execute_script(
            "return [...document.querySelectorAll('.paper svg')].filter(s => s.getClientRects().length)"
            ".map(s => [s.getBoundingClientRect().width, s.getBoundingClientRect().height])"
        )
        expected = {"index": 1, "robustness-table-1": 1, "robustness-figure-2": 1, "diffclip-figure-3": 4}
        assert len(sizes) == expected.get(page.stem, 0)
        assert all(w > 200 and h > 100 for w, h in sizes)
        if sizes and page.stem != "diffclip-figure-3":  # pictures with photographs keep their white
            dark = scheme == "dark"
            assert other.background(browser, ".paper") == ([28, 31, 35] if dark else [255, 255, 255])
        pictures = browser.execute_script(
            "return [...document.querySelectorAll('.maps svg image')].map(i => i.getBoundingClientRect().width)"
        )
        assert len(pictures) == (7 + 1 if page.stem == "diffclip-figure-3" else 0)
        assert all(wide > 60 for wide in pictures)  # the last one is the scale


def test_an_a4_of_a_study_loses_no_column(browser, tmp_path):
    field = StudyField("81.8", ("[81.1, 82.4]", "(paper 86.05)"), value=0.818)
    sheet = Sheet("wide", "Wide", ("λ_init", *"1234567"), ((StudyField("accuracy", kind="name"), *[field] * 7),), "")
    templates = environment()
    macros = templates.get_template("study_macros.html").module
    styles = "".join(templates.get_template(f"{name}.css").render() for name in ("report", "study"))
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{styles}</style><main>{macros.sortable(sheet)}</main>")
    other.open_page(browser, page, 703)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    right = browser.execute_script(
        "return Math.max(...[...document.querySelectorAll('td')].map(e => e.getBoundingClientRect().right))"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert right <= 704


def test_claims_are_sorted_by_verdict_with_the_mouse(browser, site):
    other.open_page(browser, site / "index.html", 1280)
    verdicts = f"{FIRST} td.verdict .verdict"
    first = texts(browser, verdicts)
    head = browser.find_elements("css selector", ".claims th[aria-sort]")[1]
    head.find_element("css selector", "button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert texts(browser, verdicts) == ["holds", "contradicted", "absent", "undecided", "not run"]
    head.find_element("css selector", "button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert texts(browser, verdicts)[:3] == ["not run", "undecided", "absent"]
    head.find_element("css selector", "button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert texts(browser, verdicts) == first
    assert browser.get_log("browser") == []


def test_numbers_are_sorted_in_full_with_the_keyboard_and_dashes_last(browser, site):
    other.open_page(browser, site / "index.html", 1280)
    button = browser.find_elements("css selector", ".claims thead button")[2]
    shown = []
    for _ in range(2):  # up, then down
        button.send_keys("\ue007")  # Enter
        shown = texts(browser, f"{FIRST} td.estimates")
        assert shown[-1] == "–"
    assert shown[0].startswith("0.5/255: +3.04 ")
    assert [re.search(r"[+−][\d.]+(?= points)", text).group() for text in shown[1:3]] == ["+2.4", "+0.2"]
    other.open_page(browser, site / "diffclip-figure-3.html", 1280)
    browser.find_elements("css selector", "#tables thead button")[1].send_keys("\ue007")
    values = browser.execute_script(
        "return [...document.querySelector('#tables table').tBodies[0].rows].map(r => +r.cells[1].dataset.value)"
    )
    assert len(values) == 8
    assert values == sorted(values)
    assert browser.get_log("browser") == []


def test_pages_lead_to_one_another(browser, site):
    other.open_page(browser, site / "index.html", 1280)
    browser.find_element("css selector", ".studies tbody a").click()
    visited = [browser.title]
    while following := browser.find_elements("css selector", "header a[rel=next]"):
        following[0].click()
        visited.append(browser.title)
    assert [title.partition(":")[0] for title in visited] == ["Table 1", "Figure 2", "Figure 3", "Table 2"]


def test_tables_stand_without_scripts_and_downloads_decode(browser, site):
    other.open_page(browser, site / "robustness-table-1.html", 390)
    for name, kind in (("svg", "image/svg+xml"), ("png", "image/png"), ("pdf", "application/pdf"), ("csv", "text/csv")):
        uri = browser.find_element("css selector", f".plot a[download$='.{name}']").get_attribute("href")
        assert uri.startswith(f"data:{kind}")
    size = browser.execute_async_script(
        "const done = arguments[1]; const image = new Image();"
        "image.onload = () => done(image.naturalWidth); image.onerror = () => done(0); image.src = arguments[0]",
        browser.find_element("css selector", "a[download$='.png']").get_attribute("href"),
    )
    assert size == 1000
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        other.open_page(browser, site / "robustness-table-1.html", 1280)
        assert len(browser.find_elements("css selector", "table.sortable thead th")) == 7 + 4 + 4
        assert not browser.find_elements("css selector", "thead button")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
