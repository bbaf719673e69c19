"""What the studies found, in Markdown: findings, a page for each study, the block of a README, and their pictures."""

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.report.page import environment
from antiphase.report.table import escaped, markdown
from antiphase.studies import paper_settings, scale
from antiphase.studies.figures import Artefact
from antiphase.studies.report import figures, forest, tables, words
from antiphase.studies.report.words import QUESTIONS, RULE, SHORT, is_tested, page_name, part_name
from antiphase.studies.results import Result

_WIDE_AND_NARROW = (("", False), ("-narrow", True))
_FRACTION = re.compile(r"-?\d+(?:\.\d+)?e[+-]?\d+|-?\d+\.\d+")


def summary(results: Sequence[Result], template: str, folder: str = "", **values: Any) -> str:
    """Fill in a template; ``folder`` is that of the studies' pages, relative to the text, if it links to them."""
    claims = words.by_key(results)
    tested = {key: claim for key, claim in claims.items() if is_tested(claim)}
    begun = [result for result in results if result.done]
    judged = {key.partition("/")[0] for key in tested}
    pages = [f"{folder}/{page_name(result)}.md" if folder and not unfinished(result) else "" for result in begun]
    values |= {"claims": tested, "claims_sheets": tables.claims_sheets(begun, pages), "folder": folder}
    values |= {"questions": QUESTIONS, "rule": RULE, "short": SHORT, "few": words.FEW}
    values["models"] = tables.models_tested(begun, scale.IN_SHORT)
    values["pages"] = [pair for pair in zip(pages, begun, strict=True) if not unfinished(pair[1])]
    values["counts"] = tables.counts_sheet(begun) if claims else None
    values["notes"] = {one.name: one.artefact.notes for one in results if one.artefact and one.name in judged}
    values["scarce"] = [one.title for one in begun if any(claim.lacks_seeds for claim in one.claims)]
    values["open"] = [result for result in results if not result.done or unfinished(result)]
    settings = {"vits": ("figure-2a", "figure-3b", "figure-3c"), "clips": ("figure-2b",), "larger": ("larger-attacks",)}
    for name, studies in settings.items():
        values[name] = {key: value for one in begun if one.name in studies for key, value in one.settings.items()}
    counts = {paper: sum(is_tested(one) for _, one in pairs) for paper, pairs in words.by_source(begun).items()}
    values["tested_by_paper"] = {SHORT.get(paper, paper): count for paper, count in counts.items() if count}
    return _filled(template, values)


def _filled(template: str, values: Mapping[str, Any]) -> str:
    templates = environment().overlay(autoescape=False)
    templates.filters |= {"escaped": escaped, "file": part_name, "markdown": markdown}
    phrases = {"brief": words.brief_numbers, "estimates": words.estimates_line, "price": words.price}
    drawn = {"note": tables.table_note, "panel_tables": tables.panel_tables, "sheet": tables.table_sheet}
    templates.filters |= phrases | drawn
    text = templates.get_template(template).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def unfinished(result: Result) -> bool:
    """Whether cells are missing and nothing can be said yet: its numbers, if any, are those of other studies."""
    unjudged = bool(result.claims) and all(claim.verdict == "not run" for claim in result.claims)
    return result.done < result.total and (result.artefact is None or unjudged)


def write_findings(results: Sequence[Result], path: Path) -> None:
    """Write what the studies found as Markdown, and a page for each study into a folder of its name."""
    pictures = {"claims": forest.forest_lines(results), "answers": forest.answer_lines(results, QUESTIONS)}
    for (name, lines), (ending, narrow) in itertools.product(pictures.items(), _WIDE_AND_NARROW):
        if lines:
            data = json.dumps([asdict(line) for line in lines], ensure_ascii=False)
            figure = functools.partial(forest.forest_figure, lines, narrow=narrow)
            _draw(path.parent / f"{name}{ending}.svg", data, forest, figure)
    for result in results:
        if result.done and not unfinished(result):
            _write_study(result, path)
    write_text(path, summary(results, "findings.md", path.stem, picture=bool(pictures["claims"])))
    claims = words.by_key(results)
    registers = [
        (SHORT[paper], [(one, paper_settings.outcome(one, paper, claims)) for one in paper_settings.entries(paper)])
        for paper in SHORT
        if paper_settings.entries(paper)
    ]
    text = _filled("register.md", {"registers": registers, "findings": path.name})
    write_text(path.parent / path.stem / "register.md", text)


def _write_study(result: Result, findings: Path) -> None:
    folder, artefact = findings.parent / findings.stem, result.artefact or Artefact()
    drawings: list[tuple[Any, str, Callable[[], Figure]]] = [
        (plot, tables.plot_csv(plot) + plot.caption, functools.partial(figures.plot_figure, plot))
        for plot in artefact.plots
        if plot.panels
    ]
    for gallery in artefact.galleries:
        pixels = figures.PIXELS // len(artefact.galleries)
        pictures = itertools.chain(*gallery.rows)
        shown = [(one.title, one.image.tobytes(), one.over is None or one.over.tobytes()) for one in pictures]
        draw = functools.partial(figures.gallery_figure, gallery, pixels)
        drawings.append((gallery, f"{shown}{gallery.caption}", draw))
    for about, data, draw in drawings:
        _draw(folder / f"{part_name(result, about.name)}.svg", data, figures, draw)
    values: dict[str, Any] = {"result": result, "findings": findings.name, "shown": [about for about, *_ in drawings]}
    values["claims"] = [(claim, tables.check_sheet(result, claim, "")) for claim in result.claims]
    write_text(folder / f"{page_name(result)}.md", _filled("findings_study.md", values))


def _draw(path: Path, data: str, code: ModuleType, draw: Callable[[], Figure]) -> None:
    """Draw a picture that ends with a digest of its data and of the code that draws it, unless that one is there.

    Its bytes, which depend on the processor and on matplotlib's version, so change only with its content; the digest
    is of rounded numbers, since their last digits depend on the processor, too.
    """
    text = Path(str(code.__file__)).read_text(encoding="utf-8")
    text += figures.for_both_schemes("<svg>")
    rounded = _FRACTION.sub(lambda match: f"{round(float(match[0]), 9) + 0.0:.6g}", data)
    mark = f"<!-- {hashlib.sha256((rounded + text).encode()).hexdigest()[:16]} -->"
    if not path.exists() or not path.read_text(encoding="utf-8").rstrip().endswith(mark):
        write_text(path, f"{figures.for_both_schemes(figures.text_svg(draw()))}{mark}\n")


def replace_findings(results: Sequence[Result], into: Path, pictures: Path) -> None:
    """Put the answers in short, and their picture from another folder, into a Markdown file between two marks."""
    folder = os.path.relpath(pictures, into.parent)
    replace_marked(into, "findings", summary(results, "readme.md", prefix="" if folder == "." else f"{folder}/"))


def replace_marked(into: Path, mark: str, text: str) -> None:
    """Replace what is between two marks of a file."""
    before, after = read_marked(into, mark)
    write_text(into, f"{before}\n{text}{after}")


def read_marked(file: Path, mark: str) -> tuple[str, str]:
    """Return what is before and behind the text between two marks of a file, with the marks."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    content = file.read_text(encoding="utf-8") if file.exists() else ""
    if begin not in content or end not in content:
        raise UserError(f"{file}: expected a line {begin} and a line {end}, between which the {mark} are put")
    return content.split(begin)[0] + begin, end + content.split(end)[1]
