"""Claims and numbers of studies as files: into a Markdown file, as JSON, as a Markdown page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.report.studies.markdown import markdown_claims, markdown_summary
from antiphase.studies.results import Result

_PREFACE = (
    "A claim is a list of differences that should all be above 0. It *holds* if all their 95 % intervals are above 0. "
    "It is *contradicted* if one of them is below 0 (corrected by Holm for their number), *absent* if one lies within "
    "the margin, 2 points unless the study declares another, and *undecided* otherwise; what a verdict would take is "
    "then given. The intervals are {over}. No claim is judged by fewer than 8 training seeds, and none under the "
    "profile `smoke`.\n\n"
    "Written from stored rows by `antiphase study report --markdown FILE`; `antiphase study claims --into FILE` "
    "replaces the claims only."
)
_BEGIN, _END = "<!-- claims -->", "<!-- /claims -->"


def replace_claims(results: Sequence[Result], into: Path) -> None:
    """Put the claims into a Markdown file between two marks.

    Raises:
        UserError: the file lacks the marks.
    """
    text = into.read_text(encoding="utf-8") if into.exists() else ""
    if _BEGIN not in text or _END not in text:
        raise UserError(
            f"{into}: expected a line {_BEGIN} and a line {_END}, between which the claims are put"
        )
    before, after = text.split(_BEGIN, 1)[0], text.split(_END, 1)[1]
    write_text(into, f"{before}{_between_marks(markdown_claims(results))}{after}")


def _between_marks(claims: str) -> str:
    return f"{_BEGIN}\n{claims}{_END}"


def claims_json(results: Sequence[Result]) -> str:
    """Return the claims as indented JSON."""
    return json.dumps([_plain(result) for result in results], indent=2, ensure_ascii=False)


def _plain(result: Result) -> dict[str, Any]:
    """Return a study's claims for JSON; an interval without end is null."""

    def finite(value: float) -> float | None:
        return value if abs(value) < float("inf") else None

    return {
        "study": result.name, "paper": result.paper, "profile": result.profile, "seeds": list(result.seeds),
        "done": result.done, "cells": result.total,
        "claims": [
            {
                "name": claim.name, "source": claim.source, "statement": claim.statement, "verdict": claim.verdict,
                "seeds_needed": claim.seeds_needed if claim.verdict == "undecided" else None,
                "checks": [
                    {
                        "what": check.what, "verdict": verdict, "unit": check.unit, "margin": claim.margin_of(check),
                        "value": None if check.estimate is None else check.estimate.value,
                        "low": None if check.estimate is None else finite(check.estimate.low),
                        "high": None if check.estimate is None else finite(check.estimate.high),
                        "n": None if check.estimate is None else check.estimate.n, "seeds": check.seeds,
                    }
                    for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
                ],
            }
            for claim in result.claims
        ],
    }  # fmt: skip


def write_findings(results: Sequence[Result], path: Path) -> None:
    """Write the claims and the numbers of those studies that have any as one Markdown page."""
    shown = [result for result in results if result.done]
    several = any(len(result.seeds) > 1 for result in shown)
    preface = _PREFACE.format(
        over="over training seeds and images at once" if several else "over images, for one training seed"
    )
    claims = f"## Claims\n\n{_between_marks(markdown_claims(shown))}"
    write_text(path, f"# What the studies found\n\n{preface}\n\n{claims}\n\n{markdown_summary(shown)}")
