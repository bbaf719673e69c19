"""Claims, estimates and numbers as text: verdicts counted, what sets checks apart, what a verdict takes."""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

from antiphase.report.words import number
from antiphase.statistics import decisions, intervals
from antiphase.studies.cells.training import OTHER_START
from antiphase.studies.claims import MARGINS, OWN, Check, Claim, Tested, Verdict, joint
from antiphase.studies.results import Result

_TEXTS = tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))
QUESTIONS: list[dict[str, Any]] = _TEXTS["questions"]
RULE: str = _TEXTS["rule"].format(points=100 * (MARGINS["points"] or 0), seeds=decisions.LEAST_SEEDS)
TESTED = get_args(Tested)  # the verdicts of claims that were tested
FEW = "too few seeds"
VERDICTS = (*TESTED, FEW, "not judged (smoke)", "not run")
PAPERS = {
    "robustness": "Understanding Sensitivity of Differential Attention through the Lens of Adversarial Robustness",
    "diffclip": "DiffCLIP: Differential Attention Meets CLIP",
    OWN: "Our own questions",
}
SHORT = {"robustness": "Sensitivity paper", "diffclip": "DiffCLIP", OWN: "Our own questions"}
_SHOWN = 12  # checks of a claim whose estimates are shown in one line


def by_source(results: Sequence[Result]) -> dict[str, list[tuple[Result, Claim]]]:
    """Group claims by the paper that makes them, in the order of their first result; our own questions last."""
    sources: dict[str, list[tuple[Result, Claim]]] = {}
    for result in results:
        for claim in result.claims:
            sources.setdefault(claim.whose(result.paper), []).append((result, claim))
    return dict(sorted(sources.items(), key=lambda item: item[0] == OWN))


def by_key(results: Sequence[Result]) -> dict[str, Claim]:
    """Return all claims by ``STUDY/CLAIM``."""
    return {f"{result.name}/{claim.name}": claim for result in results for claim in result.claims}


def page_name(result: Result) -> str:
    """Return the name of a study's page, without an ending."""
    return _plain(f"{result.paper}-{result.name.removeprefix(f'{result.paper}-')}")


def part_name(result: Result, part: str) -> str:
    """Return the name of a file with a part of a study's page, such as a figure, without an ending."""
    return page_name(result) if part == result.name else f"{page_name(result)}-{_plain(part)}"


def _plain(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name).strip("-")


def counts(claims: Sequence[Claim]) -> Mapping[str, int]:
    """Count the verdicts, in the order of ``VERDICTS``."""
    verdicts = Counter(FEW if claim.lacks_seeds else claim.verdict for claim in claims)
    return {verdict: verdicts[verdict] for verdict in VERDICTS if verdicts[verdict]}


def tally(claims: Sequence[Claim]) -> str:
    """Count the verdicts in a line."""
    return ", ".join(f"{verdict} {count}" for verdict, count in counts(claims).items())


def is_tested(claim: Claim) -> bool:
    """Whether a claim has one of the verdicts ``TESTED``, undecided among them, from enough seeds."""
    return claim.verdict in TESTED and not claim.lacks_seeds


def estimate_text(check: Check) -> str:
    """Format the estimate of a check and its interval, and what it is claimed to be above if not 0."""
    above = f", above {number(100 * check.least, 1)}" if check.least else ""
    return "–" if check.estimate is None else " ".join(signed(check.estimate, check.unit)) + above


def estimates_line(claim: Claim) -> str:
    """Format the estimates of a claim's checks in one line, each with what sets it apart; a unit of all is said once.

    Those that decide the verdict come first, those beside it last. If the verdicts differ, each is followed by its own.
    """
    names = told_apart([check.what for check in claim.checks])
    several = zip(names, claim.checks, claim.verdicts, _own_verdicts(claim), strict=True)
    checks = sorted(several, key=lambda one: (one[2] == "beside", one[2] != claim.verdict))
    told = [(name, estimate_text(check) + ending) for name, check, _, ending in checks if check.estimate]
    if {check.unit for check in claim.checks} == {"points"}:
        told[1:] = [(name, text.replace(" points", "")) for name, text in told[1:]]
    more = [f"{len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return "; ".join(_by_end(told[:_SHOWN]) + more) or "–"


def _by_end(told: Sequence[tuple[str, str]]) -> list[str]:
    """Write names before texts; names of several parts are gathered by their last: ``END: name text, name text``."""
    groups: dict[str, list[tuple[list[str], str]]] = {}
    for name, text in told:
        parts = re.split(r", (?![^(]*\))", name)
        groups.setdefault(parts[-1], []).append((parts, text))
    if len(groups) == len(told) or any(len(parts) == 1 for group in groups.values() for parts, _ in group):
        return [f"{name}: {text}" for name, text in told]
    lines = []
    for group in groups.values():
        shared = _shared([parts[:0:-1] for parts, _ in group])
        texts = (f"{', '.join(parts[:-shared])} {text.replace('], ', '] ')}" for parts, text in group)
        lines.append(f"{', '.join(group[0][0][-shared:])}: {', '.join(texts)}")
    return lines


def _own_verdicts(claim: Claim) -> list[str]:
    """Return what to write behind the estimate of each check: its verdict if they differ, else nothing."""
    mixed, words = len(set(claim.verdicts) - {"beside"}) > 1, []
    for check, verdict in zip(claim.checks, claim.verdicts, strict=True):
        words.append(f", {verdict} {caveat(check, verdict)}".rstrip() * (mixed and check.decides))
    return words


def caveat(check: Check, verdict: Verdict) -> str:
    """Return why a difference is undecided although 0 is not in its interval; mostly empty."""
    if verdict != "undecided" or not check.excess or check.excess.low <= 0 <= check.excess.high:
        return ""
    few = check.over == "seeds" and check.seeds < decisions.LEAST_SEEDS
    return f"with {FEW}" if few else "after Holm" if check.excess.high < 0 else "where exceptions are allowed"


def brief_numbers(claim: Claim) -> dict[str, str]:
    """Return what decides a claim's verdict, without unit: the estimates, the smallest by its name, seeds and ε."""
    pairs = zip(claim.checks, _own_verdicts(claim), strict=True)
    pairs = [(check, verdict) for check, verdict in pairs if check.decides and check.estimate]
    checks, verdicts = [check for check, _ in pairs], [verdict for _, verdict in pairs]
    numbers = [estimate_text(check).replace(" points", "") for check in checks]
    names = told_apart([check.what for check in checks])
    texts = [f"{name}, {number}" for name, number in zip(names, numbers, strict=True)]
    values = [check.estimate.value for check in checks if check.estimate]
    least = texts[values.index(min(values))] if texts else "–"
    beside = " ".join(check.what for check in claim.checks if not check.decides)
    eps = [*dict.fromkeys(re.findall(r"[\d.]+(?=/255)", beside))]
    seeds = " to ".join(dict.fromkeys(f"{end(check.seeds for check in checks)}" for end in (min, max) if checks))
    behind = f"{seeds} seeds" + (f", ε from {eps[0]}/255 to {eps[-1]}/255" if len(eps) > 1 else "")
    estimate = numbers[0] if len(checks) == 1 else "; ".join(texts)
    listing = ("; " if any(verdicts) else " and ").join(map(str.__add__, numbers, verdicts))
    places = [(i, OTHER_START in one.what) for i, one in enumerate(claim.checks) if one.decides]
    alike = {joint([claim.verdicts[i] for i, kind in places if kind is it]) for _, it in places} == {claim.verdict}
    weights = "both initial weights" if alike else "one of two initial weights"
    return {"estimate": estimate, "each": listing, "least": least, "behind": behind, "weights": weights}


def told_apart(texts: Sequence[str]) -> list[str]:
    """Return each text without the words that all begin or end with; a single text as it is."""
    if len(texts) < 2:
        return list(texts)
    words = [re.findall(r"N\([^)]*\),?|[^\s()]+\)*,?", text) for text in texts]
    words = [[word if word.startswith("N(") else word.replace(")", "") for word in phrase] for phrase in words]
    first = _shared(words)
    last = _shared([phrase[first:][::-1] for phrase in words])
    number = all(re.match(r"[\d.]+,?$", phrase[first]) for phrase in words if len(phrase) > first)
    if first and (number or any(len(phrase) - last <= first for phrase in words)):
        first -= 1  # a number goes with its word, and none is left without a word
    return [" ".join(phrase[first : len(phrase) - last]).strip(":,") for phrase in words]


def _shared(words: Sequence[Sequence[str]]) -> int:
    """Return the number of words that all begin with, whether a comma follows or not."""
    plain = ([word.rstrip(",") for word in phrase] for phrase in words)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*plain, strict=False)))


def price(claim: Claim) -> str:
    """State what a verdict on an undecided claim is expected to take; empty for other claims, or if it is not known."""
    seeds = claim.seeds_needed if claim.verdict == "undecided" else None
    if seeds is None:
        return ""
    hours = "" if claim.seconds is None else f", {seeds * claim.seconds / 3600:,.1f} core-hours"
    return f"{seeds:,} seeds{hours}"


def bracketed(low: float | None, high: float | None, digits: int) -> str:
    """Format an interval in brackets; return an empty string if an end is missing or nothing is between them."""
    if low is None or high is None or not low < high:
        return ""
    return f"[{number(low, digits)}, {number(high, digits)}]"


def supported(value: float | None, low: float | None, high: float | None) -> int:
    """Return the number of decimals: two significant digits of the half-width, or three of a value without interval."""
    ends = [end for end in (low, high) if end is not None and math.isfinite(end)]
    if len(ends) == 2 and ends[1] > ends[0]:
        return max(0, min(6, 1 - math.floor(math.log10((ends[1] - ends[0]) / 2))))
    if not value or not math.isfinite(value):
        return 1
    return max(0, min(6, 2 - math.floor(math.log10(abs(value)))))


def signed(estimate: intervals.Estimate, unit: str) -> tuple[str, str]:
    """Format a difference with its unit, and its interval: nonzero ends are not rounded to 0 or to one number."""
    scale = 100.0 if unit == "points" else 1.0
    value, low, high = (scale * part for part in (estimate.value, estimate.low, estimate.high))
    digits = 1 if unit == "points" else supported(value, low, high)
    ends = [end for end in (low, high) if end and math.isfinite(end)]
    while digits < 6 and low < high and len({0.0, *(round(end, digits) for end in ends)}) <= len(ends):
        digits += 1
    return f"{number(value, digits, sign=True)} {unit}".strip(), bracketed(low, high, digits)


def deciding(claim: Claim) -> Check | None:
    """Return the check that decides the verdict: of those with the claim's verdict, the lowest in standard errors.

    Of an undecided claim it is the lowest of all.
    """
    every = claim.verdict == "undecided"
    errors = [
        (check.excess.value / check.spread.error, check)
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
        if check.decides and (every or verdict == claim.verdict)
        if check.excess and check.spread and check.spread.error
    ]
    return min(errors, key=lambda one: one[0], default=(0.0, None))[1]
