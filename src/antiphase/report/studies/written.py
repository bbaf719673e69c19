"""Claims and numbers of studies as files: into a Markdown file, as JSON, as a Markdown page with a picture."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.report.studies import forest
from antiphase.report.studies.markdown import escaped, markdown_claims, markdown_summary
from antiphase.report.studies.summary import headlines, summary
from antiphase.studies.claims import RULE
from antiphase.studies.results import Result

_PREFACE = (
    f"{RULE} Under the profile `smoke` no claim is judged. Undecided claims also list the training seeds that a "
    "verdict would take, and their cost. The intervals are {over}. *Not run*: rows are missing.\n\n"
    "Written from stored rows by `antiphase study report --markdown FILE`; `antiphase study claims --into FILE` "
    "replaces the claims only."
)
_FILE, _NARROW = "claims.svg", "claims-narrow.svg"
_ALT = "Each tested claim with the difference that decides it and 95 % interval; colour and shape show the verdict"
_CAPTION = (
    "*Each tested claim with the difference that decides it, the 95 % interval (right of 0: as claimed) and the "
    "verdict by colour and shape. Shaded: differences too small to matter. Intervals are cut at the edge of the axis.*"
)


def replace_claims(results: Sequence[Result], into: Path) -> None:
    """Put the claims into a Markdown file between two marks.

    Raises:
        UserError: the file lacks the marks.
    """
    replace_marked(into, "claims", markdown_claims(results))


def replace_findings(results: Sequence[Result], into: Path, pictures: Path) -> None:
    """Put the picture of the claims and at most ten lines into a Markdown file between two marks.

    Args:
        results: the results.
        into: the file.
        pictures: the folder of the pictures that ``write_findings`` wrote.

    Raises:
        UserError: the file lacks the marks.
    """
    lines = "\n".join(map(_told, headlines(results)))
    folder = os.path.relpath(pictures, into.parent)
    picture = _picture("" if folder == "." else f"{folder}/")
    replace_marked(into, "findings", "\n\n".join(filter(None, [picture, lines])) + "\n")


def replace_marked(into: Path, mark: str, text: str) -> None:
    """Replace what is between two marks of a file.

    Raises:
        UserError: the file lacks the marks.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    found = into.read_text(encoding="utf-8") if into.exists() else ""
    if begin not in found or end not in found:
        raise UserError(f"{into}: expected a line {begin} and a line {end}, between which the {mark} are put")
    before, after = found.split(begin, 1)[0], found.split(end, 1)[1]
    write_text(into, f"{before}{begin}\n{text}{end}{after}")


def _told(text: str) -> str:
    """Escape a paragraph, heading, list or table of the summary."""
    lines = (re.fullmatch(r"(#+ | *- |)(.*)", line) for line in text.splitlines())
    return "\n".join(f"{line[1]}{'|'.join(map(_marked, line[2].split('|')))}" for line in lines if line)


def _marked(text: str) -> str:
    """Escape a sentence of the summary except for its bold words."""
    return "**".join(
        " " * part.startswith(" ") + escaped(part) + " " * part.endswith(" ") for part in text.split("**")
    )


def plain_claims(result: Result) -> dict[str, Any]:
    """Return a study's claims for JSON; an interval without end is null."""

    def finite(value: float) -> float | None:
        return value if abs(value) < float("inf") else None

    return {
        "study": result.name,
        "paper": result.paper,
        "profile": result.profile,
        "seeds": list(result.seeds),
        "done": result.done,
        "cells": result.total,
        "claims": [
            {
                "name": claim.name,
                "source": claim.source,
                "statement": claim.statement,
                "verdict": claim.verdict,
                "seeds_needed": claim.seeds_needed if claim.verdict == "undecided" else None,
                "checks": [
                    {
                        "what": check.what,
                        "verdict": verdict,
                        "unit": check.unit,
                        "margin": claim.margin_of(check),
                        "value": None if check.estimate is None else check.estimate.value,
                        "low": None if check.estimate is None else finite(check.estimate.low),
                        "high": None if check.estimate is None else finite(check.estimate.high),
                        "n": None if check.estimate is None else check.estimate.n,
                        "seeds": check.seeds,
                    }
                    for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
                ],
            }
            for claim in result.claims
        ],
    }


def write_findings(results: Sequence[Result], path: Path) -> None:
    """Write what the studies found as one Markdown page: a few questions, a picture of all claims, then the tables.

    The picture is written next to the page, once for wide and once for narrow screens.
    """
    shown = [result for result in results if result.done]
    several = any(len(result.seeds) > 1 for result in shown)
    preface = _PREFACE.format(
        over="over training seeds and images at once" if several else "over images, for one training seed"
    )
    drawn = _write_pictures(shown, path.parent)
    parts = [
        "# What the studies found",
        *map(_told, summary(shown)),
        *(["## All claims at a glance", _picture(""), _CAPTION] if drawn else []),
        "## Claims",
        preface,
        f"<!-- claims -->\n{markdown_claims(shown)}<!-- /claims -->",
        markdown_summary(shown),
    ]
    write_text(path, "\n\n".join(parts))


def _write_pictures(results: Sequence[Result], folder: Path) -> bool:
    """Draw all claims, unless the pictures there show the same data; return whether there is anything to draw.

    A picture ends with a digest of what it shows and of the code that drew it. So its bytes, which may depend on the
    processor and on the version of matplotlib, change only with its content.
    """
    lines = forest.forest_lines(results)
    if not lines:
        return False
    data = json.dumps([asdict(line) for line in lines], ensure_ascii=False)
    code = Path(forest.__file__).read_text(encoding="utf-8")
    mark = f"<!-- {hashlib.sha256((data + code).encode()).hexdigest()[:16]} -->"
    for name, narrow in ((_FILE, False), (_NARROW, True)):
        path = folder / name
        if not path.exists() or not path.read_text(encoding="utf-8").rstrip().endswith(mark):
            write_text(path, f"{forest.forest_svg(lines, narrow=narrow)}{mark}\n")
    return True


def _picture(folder: str) -> str:
    return (
        f'<picture><source media="(max-width: 640px)" srcset="{folder}{_NARROW}">'
        f'<img alt="{_ALT}" src="{folder}{_FILE}"></picture>'
    )
