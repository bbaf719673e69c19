"""Hooks of the site: pages that are written from the code, pages of dev/, and links between them."""

import hashlib
import posixpath
import re
from pathlib import Path
from typing import Any

from commands import command_pages
from executed import executed
from home import REPORT, home_page, quickstart_report
from links import ROOT, moved
from machine import write_texts
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from notebook import notebook_page
from reference import python_pages
from social import social_card
from vendored import mathjax

_pages: dict[str, str] = {}
_texts: dict[str, str] = {}
_navigation: list[Navigation] = []
_BOOST = {"Start": 3, "How to": 3, "Concepts": 2, "Reference": 0.6, "Benchmarks": 0.4, "Design": 0.4}
"""How much higher a search ranks the pages of a section."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the places of the navigation that stand for many pages."""
    _pages.clear()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _pages["index.md"] = home_page(readme)
    _pages["overview.md"] = readme.replace("# antiphase\n", "# What antiphase does\n", 1)
    _pages["notebook.md"] = notebook_page(ROOT / "docs/notebooks/first.ipynb")
    _pages.update(
        {f"dev/{path.name}": path.read_text(encoding="utf-8") for path in sorted((ROOT / "dev").glob("*.md"))}
    )
    python, commands = list(python_pages()), list(command_pages())
    _pages.update({uri: text for _, uri, text in (*python, *commands)})
    listed = _listed(config.nav)
    others = [uri for uri in _pages if uri.startswith("dev/") and uri not in listed]
    others.sort(key=lambda uri: uri != "dev/README.md")
    reference = [
        {"Python": [{title: uri} for title, uri, _ in python]},
        {"Commands": [{title: uri} for title, uri, _ in commands]},
    ]
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    papers = re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", page.partition("## Studies")[2], re.MULTILINE | re.DOTALL)
    studies = [{paper: re.findall(r"\]\((findings/[^)#]+\.md)", text)} for paper, text in papers]
    config.nav = _filled(config.nav, {"dev/*": others, "reference/*": reference, "findings/*": studies})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, MathJax, a report and the card that other sites show."""
    for uri, text in _pages.items():
        files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, "assets/mathjax/tex-svg.js", abs_src_path=str(mathjax())))
    files.append(File.generated(config, REPORT, abs_src_path=str(quickstart_report())))
    files.append(File.generated(config, "assets/social.png", content=social_card(config.site_description or "")))
    return files


def on_nav(nav: Navigation, files: Files, **_: Any) -> Navigation:
    """Tell the theme which page the logo leads to: it looks only for one outside all sections."""
    _navigation[:] = [nav]
    home = files.get_file_from_path("index.md")
    nav.homepage = home.page if home else None
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the page's code if it says ``run: true``, and point its links to the site or to the repository."""
    text = _texts[page.file.src_uri] = _finished(markdown, page, config, files)
    section = page.ancestors[-1].title if page.ancestors else page.title
    page.meta.setdefault("search", {"boost": _BOOST.get(section, 1)})
    return text


def on_post_build(config: MkDocsConfig) -> None:
    """Write what programs read."""
    about = (config.site_name, config.site_description or "")
    write_texts(Path(config.site_dir), _navigation[0], _texts, about)


def _finished(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.meta.get("run"):
        stem = page.file.src_uri.removesuffix(".md")

        def keep(picture: bytes) -> str:
            uri = f"{stem}-{hashlib.sha256(picture).hexdigest()[:12]}.svg"
            files.append(File.generated(config, uri, content=picture))
            return posixpath.basename(uri)

        return executed(moved(markdown, page.file.src_uri), keep)
    return moved(markdown, page.file.src_uri)


def _listed(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return set().union(*map(_listed, nav.values() if isinstance(nav, dict) else nav))


def _filled(nav: Any, parts: dict[str, list[Any]]) -> Any:
    if isinstance(nav, dict):
        return {title: _filled(below, parts) for title, below in nav.items()}
    if isinstance(nav, str):
        return parts.get(nav, nav)
    expanded = (parts[item] if isinstance(item, str) and item in parts else [item] for item in nav)
    return [_filled(item, parts) for items in expanded for item in items]
