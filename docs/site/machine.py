"""What programs read: llms.txt, and every page as Markdown next to its HTML."""

import re
from collections.abc import Mapping
from pathlib import Path

from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page


def write_texts(site: Path, nav: Navigation, texts: Mapping[str, str], about: tuple[str, str]) -> None:
    """Write the pages' Markdown, and llms.txt, which lists them by section (https://llmstxt.org)."""
    for uri, text in texts.items():
        (site / uri).parent.mkdir(parents=True, exist_ok=True)
        (site / uri).write_text(text, encoding="utf-8")
    lines = [f"# {about[0]}", "", f"> {about[1]}", ""]
    for item in nav.items:
        lines += [f"## {item.title}", "", *_listed(item, texts), ""]
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _listed(item: object, texts: Mapping[str, str]) -> list[str]:
    if isinstance(item, Section):
        return [line for child in item.children for line in _listed(child, texts)]
    if isinstance(item, Page) and item.file.src_uri in texts:
        return [f"- [{item.title}]({item.file.src_uri}){_about(texts[item.file.src_uri])}"]
    return []


def _about(text: str) -> str:
    """Return the first sentence of a page."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", body))
    first = next((part for part in paragraphs if re.match(r"[A-Z`*]", part)), "")
    sentence = re.split(r"(?<=[.:])\s", " ".join(first.split()))[0]
    return f": {sentence}" if sentence else ""
