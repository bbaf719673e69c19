"""The built documentation site: links lead somewhere; in a browser every page loads, fits and needs no other host.

ANTIPHASE_SITE names the directory of the site; `.ci/run` builds it.
"""

import functools
import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

from tests import needs

SITE = Path(os.environ.get("ANTIPHASE_SITE", "/nowhere"))
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
PARTS = 4  # of the pages, for several workers
built = pytest.mark.skipif(not PAGES, reason="no site: ANTIPHASE_SITE=DIR uv run --group docs mkdocs build")
pytestmark = [built, pytest.mark.thorough]


def test_every_link_leads_to_a_page_and_a_heading():
    texts = {page: (SITE / page).read_text(encoding="utf-8") for page in PAGES}
    named = {page: set(re.findall(r'\s(?:id|name)="?([^\s">]+)', text)) for page, text in texts.items()}
    dead = []
    for page, text in texts.items():
        if page == "404.html":  # it is shown at any address, so that its links are absolute
            continue
        for link in re.findall(r'\s(?:href|src)="([^"]*)"', text):
            target, heading = urldefrag(urljoin(page, unquote(link.replace("&amp;", "&"))))
            if re.match(r"[a-z]+:", target):
                continue
            if not (SITE / target).is_file() or (heading and heading not in named[target]):
                dead.append(f"{page}: {link}")
    assert dead == []


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


READY = """
const done = arguments[0];
(window.typeset ?? Promise.resolve()).then(() => requestAnimationFrame(() => done()));
"""
MISTAKES = """
const wide = [...document.querySelectorAll(".md-content img, .md-content p, .md-content dt, .md-content li")]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest("table, pre, .arithmatex"))
    .map(each => each.tagName + " " + each.textContent.slice(0, 60));
return {
    page: Math.max(0, document.documentElement.scrollWidth - innerWidth),
    wide,
    equations: document.querySelectorAll(".arithmatex").length
        - [...document.querySelectorAll(".arithmatex mjx-container svg")]
            .filter(each => each.getBoundingClientRect().width > 2).length,
    broken: document.querySelectorAll("mjx-merror, [data-mml-node=merror]").length,
    pictures: [...document.images].filter(each => !each.complete || !each.naturalWidth).map(each => each.src),
};
"""


CONTRAST = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const over = (front, back) => [0, 1, 2].map((at) => front[at] * (front[3] ?? 1) + back[at] * (1 - (front[3] ?? 1)));
const ground = (each) => {
    if (!each) return [255, 255, 255];
    const color = channels(getComputedStyle(each).backgroundColor);
    return (color[3] ?? 1) === 1 ? color.slice(0, 3) : over(color, ground(each.parentElement));
};
const light = (color) => color.slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
const weak = {};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const each = walker.currentNode.parentElement, style = getComputedStyle(each), box = each.getBoundingClientRect();
    const seen = each.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!seen || !walker.currentNode.data.trim() || box.width < 2 || box.height < 2) continue;
    if (each.closest("svg, script, style, .headerlink, .md-search__output")) continue;
    const back = ground(each), color = over(channels(style.color), back);
    const [most, least] = [light(color), light(back)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (most + 0.05) / (least + 0.05);
    if (ratio < (large ? 3 : 4.5)) weak[each.tagName + "." + each.className + " " + style.color] = ratio.toFixed(2);
}
return weak;
"""


@needs.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, address, scheme):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    metrics = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(f"{address}/install.html")
    browser.execute_script("localStorage.clear()")  # the theme keeps the scheme of the first page
    browser.get(f"{address}/install.html")
    browser.execute_script("localStorage.clear()")  # the theme keeps the scheme of the first page that it shows
    weak = {}
    for page in ("index", "first-audit", "commands", "findings", "concepts/success-rate", "reference/commands/audit"):
        browser.get(f"{address}/{page}.html")
        browser.execute_async_script(READY)
        weak |= browser.execute_script(CONTRAST)
    assert weak == {}


SEARCHED = """
const [query, done] = arguments;
document.querySelector("[data-md-toggle=search]").checked = true;
const field = document.querySelector(".md-search__input");
field.focus();
const list = document.querySelector(".md-search-result__list");
const before = list.textContent;
let asking;
const ask = () => {
    field.value = query;
    field.dispatchEvent(new Event("keyup"));
    asking = setTimeout(ask, 10000); // again: the index may not have been there
};
const look = () => {
    const links = [...list.querySelectorAll(".md-search-result__link")];
    if (!links.length || list.textContent === before) return setTimeout(look, 100);
    clearTimeout(asking);
    done(links.map((each) => new URL(each.href).pathname));
};
ask();
look();
"""


@needs.browser
def test_a_search_finds_greek_letters_and_how_tos_first(browser, address):
    browser.get(f"{address}/install.html")
    browser.set_script_timeout(240)  # the browser builds the index of all pages, once for these queries
    pages = {"train": "commands.html", "resume": "resume.html", "machines": "several-processes.html", "λ": None}
    for query, page in pages.items():
        hits = browser.execute_async_script(SEARCHED, query)
        assert hits, query
        assert page is None or hits[0].strip("/") == page


def test_programs_find_every_page_as_markdown():
    lines = (SITE / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert lines[2].startswith("> ")
    targets = [target for line in lines for target in re.findall(r"^- \[.*?\]\(([^)]+)\)", line)]
    assert len(targets) > 50
    assert [target for target in targets if not (SITE / target).is_file()] == []


def test_the_home_page_has_one_claim_one_picture_and_a_report():
    text = (SITE / "index.html").read_text(encoding="utf-8")
    assert "Is differential attention more fragile?" in text
    assert text.count("<picture>") == 1
    assert '<iframe class="report"' in text
    assert (SITE / "quickstart/report.html").is_file()
    assert 'property="og:image"' in text
    assert (SITE / "assets/social.png").read_bytes()[:4] == b"\x89PNG"
    assert "https://github.com/antiphase/antiphase" in text


@needs.browser
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_loads_fits_and_asks_no_other_host(browser, address, width, part):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    nothing = {"page": 0, "wide": [], "equations": 0, "broken": 0, "pictures": []}
    wrong = {}
    for page in PAGES[part::PARTS]:
        if page == "404.html":
            continue
        for log in ("browser", "performance"):
            browser.get_log(log)  # reading empties it
        browser.get(f"{address}/{page}")
        browser.execute_async_script(READY)
        mistakes = browser.execute_script(MISTAKES)
        events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        mistakes["elsewhere"] = [url for url in urls if not url.startswith((address, "data:", "blob:"))]
        mistakes["console"] = [entry["message"] for entry in browser.get_log("browser")]
        if mistakes != {**nothing, "elsewhere": [], "console": []}:
            wrong[page] = {key: value for key, value in mistakes.items() if value}
    assert wrong == {}
