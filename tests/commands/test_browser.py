"""The page in a real browser: at a desk and on a phone, in light and dark, without a network."""

import base64
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs

pytestmark = needs.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = needs.CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(needs.CHROMEDRIVER))
    try:
        driver.get("about:blank")
        driver.get_log("performance")  # of the browser's own first page, which may still be loading
        yield driver
    finally:
        driver.quit()


def open_page(browser, page: Path, width: int, scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    for log in ("browser", "performance"):
        browser.get_log(log)  # reading empties it of what came before
    browser.get(page.as_uri())


def requested(browser) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def background(browser, selector: str) -> list[int]:
    color = browser.execute_script(
        "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor", selector
    )
    return [int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")]


@pytest.mark.parametrize("run", ["twins", "seeds", "alone"])
def test_page_opens_without_errors_overflow_or_network(browser, pages, run):
    page = pages[run]
    for width, scheme in itertools.product((1280, 390), ("light", "dark")):
        open_page(browser, page, width, scheme)
        assert browser.get_log("browser") == []
        assert browser.execute_script("return window.innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width

        urls = [url for url in requested(browser) if not url.startswith("data:")]
        assert urls == [page.as_uri()]
        links = browser.execute_script(
            "return [...document.querySelectorAll('[src],[href]')]"
            ".map(e => e.getAttribute('src') ?? e.getAttribute('href'))"
        )
        assert links
        assert all(link.startswith(("data:", "#")) for link in links)

        images = browser.execute_script("return [...document.images].map(i => i.complete ? i.naturalWidth : 0)")
        assert images == [28] * (30 if run == "twins" else 0)
        figures = browser.execute_script(
            "return [...document.querySelectorAll('.paper svg')].map(s => s.getBoundingClientRect().height)"
        )
        assert len(figures) == 3
        assert [figure for figure in figures if figure][1:] != []  # that of robust accuracy is behind a tab
        assert min(figures[:2]) > 100
        assert background(browser, ".paper") == ([28, 31, 35] if scheme == "dark" else [255, 255, 255])
        assert (sum(background(browser, "body")) < 3 * 128) == (scheme == "dark")


def test_wide_tables_scroll_inside_their_own_frame(browser, pages):
    open_page(browser, pages["seeds"], 390)
    overflowing, scrolling = browser.execute_script(
        "const t = [...document.querySelectorAll('.panel:not([hidden]) .scroll')];"
        "return [t.some(e => e.scrollWidth > e.clientWidth),"
        " t.every(e => getComputedStyle(e).overflowX === 'auto')]"
    )
    assert overflowing
    assert scrolling


def test_tabs_show_one_rate_at_a_time_by_mouse_and_keyboard(browser, pages):
    open_page(browser, pages["twins"], 1280)

    def shown() -> list[str]:
        return browser.execute_script(
            "return [...document.querySelectorAll('.panel')].filter(p => p.offsetParent).map(p => p.id)"
        )

    assert shown() == ["rate-asr"]
    tabs = browser.find_elements("css selector", "[role=tab]")
    tabs[2].click()
    assert shown() == ["rate-robust_accuracy"]
    tabs[2].send_keys("\ue014")  # the right arrow: round to the first
    assert shown() == ["rate-asr"]
    assert [tab.get_attribute("aria-selected") for tab in tabs] == ["true", "false", "false"]
    assert browser.get_log("browser") == []


def test_images_are_enlarged_with_hard_pixels_and_csv_downloads_decode(browser, pages):
    open_page(browser, pages["twins"], 1280)
    image = browser.find_element("css selector", ".tiles img")
    assert image.value_of_css_property("image-rendering") == "pixelated"
    text = browser.execute_script(
        "return decodeURIComponent(document.querySelector('a[download^=differences]').href.split(',')[1])"
    )
    assert text.splitlines()[0] == "model,against,attack,norm,eps,difference,low,high,p_value,n,decided"
    assert len(text.splitlines()) == 6


def test_an_a4_of_the_page_loses_no_column_and_keeps_colours(browser, pages):
    """The sheet is 186 mm wide between its margins, 703 CSS pixels."""
    for run in ("twins", "seeds"):
        open_page(browser, pages[run], 703)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        cut, shown, exact = browser.execute_script(
            "const right = document.querySelector('main').getBoundingClientRect().right + 1;"
            "return [[...document.querySelectorAll('td, th, img, svg, dd, pre')]"
            ".filter(e => e.getBoundingClientRect().right > right).map(e => e.textContent),"
            " [...document.querySelectorAll('.panel')].every(e => e.offsetParent),"
            " getComputedStyle(document.querySelector('.mark')).printColorAdjust]"
        )
        assert cut == []
        assert shown
        assert exact == "exact"
        printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
        sheets = re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed["data"]))
        assert 1 < len(sheets) <= 6
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
