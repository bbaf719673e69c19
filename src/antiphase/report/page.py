"""One page for every run: headlines, sections of figures and tables, settings; one file that needs no other."""

import base64
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from antiphase.files import write_bytes, write_text
from antiphase.report import words
from antiphase.report.figure import inline_svg, saved, shortened
from antiphase.report.table import Table, table_files
from antiphase.terminal import duration, eps_label

TITLE = 90
"""Most characters of the title of a page."""


@dataclass(frozen=True)
class Plot:
    """A figure with its caption; if ``beside``, its files are also written next to the page."""

    name: str
    figure: Figure
    caption: str
    beside: bool = False


@dataclass(frozen=True)
class Headline:
    """The answer in at most ``TITLE`` characters, what bears it out, and what it was measured with."""

    title: str
    lead: str = ""
    condition: str = ""
    plot: Callable[[], Plot] | None = None  # drawn for a page only

    @property
    def line(self) -> str:
        """The answer with its condition, for the console."""
        return f"{self.title} ({self.condition})" if self.condition else self.title


@dataclass(frozen=True)
class Panel:
    """Figures and tables behind one tab."""

    name: str
    tab: str
    tables: Sequence[Table]
    title: str = ""
    words: str = ""
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page: words, figures, tables, tabs, and markup of its own, each of which may be missing."""

    name: str
    title: str
    words: str = ""
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    panels: Sequence[Panel] = ()
    markup: str = ""
    in_navigation: str = ""  # the section's title where not given


def write_page(
    path: Path, run: Mapping[str, Any], headlines: Sequence[Headline], sections: Sequence[Section], reading: str = ""
) -> None:
    """Write the page of a run from the content of its ``run.json``; the same content gives the same bytes."""
    drawn = {}
    places = [panel for section in sections for panel in (section, *section.panels)]
    named = [(f"{place.title}: {plot.name}", plot) for place in places for plot in place.plots]
    answers = [headline.plot() if headline.plot else None for headline in headlines]
    named += [(headline.title, plot) for headline, plot in zip(headlines, answers, strict=True) if plot]
    for name, plot in named:
        drawn[plot.name] = embedded(plot.figure, plot.name, f"{escape(name)}; the numbers are in the tables")
        for ending, content in drawn[plot.name]["files"].items() if plot.beside else ():
            write_bytes(path.with_name(f"{plot.name}.{ending}"), content)
    run = dict(run)
    if isinstance(run["data"], list):
        prints = ", ".join(fingerprint[:12] for fingerprint in run["data_fingerprint"])
        run |= {"data": ", ".join(run["data"]), "n": sum(run["n"]), "data_fingerprint": prints}
    run["settings"] = {name: in_one_line(value) for name, value in run["settings"].items()}
    values = {"headlines": list(zip(headlines, answers, strict=True)), "sections": sections, "drawn": drawn}
    values |= {"run": run, "reading": Markup(reading)}
    write_text(path, environment().get_template("page.html").render(values))


def in_one_line(value: Any) -> Any:
    """Return a setting as text, such as ``steps 20, step_size ε/4``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {'none' if item is None else item}" for name, item in value.items())
    return (", ".join(map(str, value)) or "–") if isinstance(value, list) else value


@functools.cache
def environment() -> Environment:
    """Return the template environment; numbers are formatted by the functions of :mod:`antiphase.report.words`."""
    templates = Environment(
        loader=PackageLoader("antiphase.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
    )

    def breakable(text: str) -> Markup:
        """Allow line breaks after the separators of path-like names, for narrow screens."""
        return Markup(re.sub(r"(?<=[/_.:])(?=[^\W\d])", "<wbr>", str(escape(text))))

    templates.filters |= {"breakable": breakable, "in_one_line": in_one_line, "table_files": table_files}
    templates.filters |= {"eps": eps_label, "attack": words.attack_label, "duration": duration}
    formats = ("percent", "percent_range", "points", "points_interval", "p_text", "lambda_range")
    templates.filters |= {name: getattr(words, name) for name in formats}
    return templates


def text(template: str, part: str, **values: Any) -> str:
    """Return a block of a template of words, with values filled in, in one line."""
    words_of = environment().get_template(template)
    return " ".join("".join(words_of.blocks[part](words_of.new_context(values))).split())


def quoted_place(decided: Sequence[int]) -> int:
    """Return which of several differences a title quotes: the decided one nearest to the middle, else the middle."""
    middle = (len(decided) - 1) // 2
    places = [place for place, sign in enumerate(decided) if sign]
    return min(places, key=lambda place: abs(place - middle), default=middle)


def answer(template: str, part: str, names: Mapping[str, str], **values: Any) -> str:
    """Return a block of a template of words as a title; names lose their middle where it would be too long."""
    title = text(template, part, **{**values, **names})
    for length in range(max(map(len, names.values())), 5, -1):
        if len(title) <= TITLE:
            break
        shown = {key: shortened(name, length) for key, name in names.items()}
        title = text(template, part, **{**values, **shown})
    return title


def embedded(figure: Figure, name: str, description: str) -> dict[str, Any]:
    """Return a figure for a page: inline SVG under a name unique on it, described for screen readers, and downloads."""
    types = {"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf"}
    files = {ending: saved(figure, ending) for ending in types}
    coded = {ending: base64.b64encode(content).decode() for ending, content in files.items()}
    downloads = {ending: f"data:{types[ending]};base64,{text}" for ending, text in coded.items()}
    shown = Markup(inline_svg(files["svg"].decode(), name, description))
    places = [axes.get_subplotspec() for axes in figure.axes]
    wide = any(place.get_gridspec().ncols > 2 for place in places if place)  # scrolls on a narrow screen
    return {"name": name, "svg": shown, "files": files, "downloads": downloads, "wide": wide}
