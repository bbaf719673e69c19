"""What is said of claims and their estimates in a line: verdicts counted, what sets checks apart, what they cost."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import polars as pl

from antiphase.studies.claims import OWN, Check, Claim, Verdict
from antiphase.studies.numbers import bracketed, signed, supported, written
from antiphase.studies.results import Result

VERDICTS: tuple[Verdict, ...] = (
    "holds",
    "contradicted",
    "absent",
    "undecided",
    "not judged (smoke)",
    "not run",
)
PAPERS = {
    "robustness": "Understanding Sensitivity of Differential Attention through the Lens of Adversarial Robustness",
    "diffclip": "DiffCLIP: Differential Attention Meets CLIP",
    OWN: "Our own questions",
}
_SHORT = {"robustness": "Sensitivity paper", "diffclip": "DiffCLIP", OWN: "Our own questions"}
_SHOWN = 3  # checks of a claim whose estimates are shown in one line
_LABEL = 28  # characters of what sets a check apart
_HOURS = 120  # core-minutes from which on they are told as core-hours


def paper_title(paper: str) -> str:
    """Return the title of a paper, or the given name of other groups of studies."""
    return PAPERS.get(paper, paper)


def by_paper(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group results by paper, papers in the order of their first result."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.paper, []).append(result)
    return found


def by_source(results: Sequence[Result]) -> dict[str, list[tuple[Result, Claim]]]:
    """Group claims by the paper that makes them, papers in the order of their first result; our own questions last."""
    found: dict[str, list[tuple[Result, Claim]]] = {paper: [] for paper in by_paper(results)}
    for result in results:
        for claim in result.claims:
            found.setdefault(claim.whose(result.paper), []).append((result, claim))
    return {paper: found[paper] for paper in sorted(found, key=lambda paper: paper == OWN) if found[paper]}


def section_of(result: Result, claim: Claim) -> str:
    """Return the paper and the section that make a claim, for the heading of a group.

    >>> result = Result("", "diffclip", "", "", "", "", (), "", 0, 0, None)
    >>> section_of(result, Claim("", "Section 4.2, Table 2", "", []))
    'DiffCLIP, Section 4.2'
    >>> section_of(result, Claim("", "not in the paper", "", []))
    'Our own questions'
    """
    whose = claim.whose(result.paper)
    short = _SHORT.get(whose, whose)
    return short if whose == OWN else f"{short}, {claim.source.partition(',')[0]}"


def with_interval(value: float | None, low: float | None, high: float | None, percent: bool) -> str:
    """Format a value and its interval in one line, fractions in percent with one decimal.

    >>> with_interval(0.41, 0.35, 0.47, percent=True), with_interval(0.1234, 0.08, 0.16, percent=False)
    ('41.0 [35.0, 47.0]', '0.123 [0.080, 0.160]')
    """
    value, low, high = (in_percent(number, percent) for number in (value, low, high))
    digits = 1 if percent else supported(value, low, high)
    return f"{written(value, digits)} {bracketed(low, high, digits)}".rstrip()


def in_percent(value: float | None, percent: bool) -> float | None:
    """Convert a fraction to percent if ``percent`` is set."""
    return 100 * value if percent and value is not None else value


def published_digits(values: Iterable[float | None], percent: bool, least: int) -> int:
    """Return the number of decimals of a paper's numbers, at least ``least``.

    >>> published_digits([0.8498, 0.87, None], True, 1), published_digits([27.6], False, 0)
    (2, 1)
    """
    shown = [in_percent(value, percent) for value in values]
    texts = [f"{value:.{least + 3}f}".rstrip("0").partition(".")[2] for value in shown if value is not None]
    return max(least, *map(len, texts)) if texts else least


def estimate_text(check: Check) -> str:
    """Format the estimate of a check and its interval.

    >>> from antiphase.statistics.intervals import Estimate
    >>> estimate_text(Check("a − b", Estimate(0.0241, -0.0102, 0.0594, 300)))
    '+2.4 points [−1.0, 5.9]'
    """
    return " ".join(estimate_parts(check))


def estimate_parts(check: Check) -> tuple[str, ...]:
    """Format the estimate of a check and its interval, see :func:`~antiphase.studies.numbers.signed`."""
    return ("–",) if check.estimate is None else signed(check.estimate, check.unit)


def estimates_line(claim: Claim) -> str:
    """Format the estimates of a claim's checks in one line, each with what sets it apart.

    A single check is told as a whole. Of many checks those that decide the verdict come first. If not all have the same
    verdict, each estimate is followed by its own.

    >>> from antiphase.statistics.seeds_by_images import CrossedEstimate, Spread
    >>> def over_16_seeds(what, value):
    ...     found = CrossedEstimate(value, value - 0.02, value + 0.02, 300, Spread(16, 300, 0.01**2, 0.0, 0.0))
    ...     return Check(f"a − b at {what}", found)
    >>> estimates_line(Claim("", "", "", [over_16_seeds("1/255", 0.03), over_16_seeds("2/255", 0.04)]))
    '1/255: +3.0 points [1.0, 5.0]; 2/255: +4.0 points [2.0, 6.0]'
    >>> estimates_line(Claim("", "", "", [over_16_seeds("1/255", 0.03), over_16_seeds("2/255", -0.04)]))
    '2/255: −4.0 points [−6.0, −2.0], contradicted; 1/255: +3.0 points [1.0, 5.0], holds'
    """
    names = [check.what for check in claim.checks]
    names = told_apart(names) if len(names) > 1 else names
    known = [at for at, check in enumerate(claim.checks) if check.estimate is not None]
    if not known:
        return "–"
    chosen = sorted(known, key=lambda at: claim.verdicts[at] != claim.verdict)[:_SHOWN]
    more = len(claim.checks) - len(chosen)
    mixed = len(set(claim.verdicts)) > 1
    told = [
        f"{names[at]}: " * bool(names[at])
        + estimate_text(claim.checks[at])
        + f", {claim.verdicts[at]}" * mixed
        for at in chosen
    ]
    return "; ".join(told) + (f"; {more} more" if more else "")


def in_cases(claim: Claim) -> str:
    """Say in how many cases a claim has its verdict, if not in all; with a leading space."""
    same, cases = claim.verdicts.count(claim.verdict), len(claim.checks)
    return f" in {same} of {cases} cases" if same < cases else ""


def told_apart(texts: Sequence[str]) -> list[str]:
    """Return each text without the words that all begin or end with; nothing where that is still long, or one text.

    >>> told_apart(["ASR of a at 1/255, PGD", "ASR of a at 2/255, PGD"]), told_apart(["ASR of a"])
    (['1/255', '2/255'], [''])
    >>> told_apart(["ln L(depth 4) − ln L(depth 1)", "ln L(depth 2) − ln L(depth 1)"])
    ['depth 4', 'depth 2']
    >>> told_apart(["probe: a − b", "few-shot: a − b"])
    ['probe', 'few-shot']
    >>> told_apart(["a at λ 0.8 against 0.5 to 0.7", "a at λ 0.8 against 0.9"])
    ['against 0.5 to 0.7', 'against 0.9']
    """
    words = [re.findall(r"[^\s(),]+", text) for text in texts]
    shortest = min(map(len, words), default=0)
    first = next((at for at in range(shortest) if len({each[at] for each in words}) > 1), shortest)
    last = next(
        (at for at in range(shortest - first) if len({each[-1 - at] for each in words}) > 1), shortest - first
    )
    numbered = all(len(each) - last - first == 1 and each[first].isdecimal() for each in words)
    if first and (numbered or words[0][first - 1] == "against"):
        first -= 1  # a number goes with its word
    apart = [" ".join(each[first : len(each) - last]).strip(",:") for each in words]
    return apart if all(len(each) <= _LABEL for each in apart) else [""] * len(apart)


def price(claim: Claim) -> str:
    """State what a verdict on an undecided claim is expected to take; empty for other claims, or if it is not known.

    >>> from antiphase.statistics.seeds_by_images import CrossedEstimate, Spread
    >>> estimate = CrossedEstimate(0.05, -0.01, 0.11, 300, Spread(3, 300, 0.0002, 0.0, 0.0))
    >>> price(Claim("", "", "", [Check("a − b", estimate)], seconds=60.0))
    '8 seeds, 8 core-minutes'
    """
    if claim.verdict != "undecided":
        return ""
    seeds = claim.seeds_needed
    if seeds is None:
        seen = all(check.over == "images" or check.seeds > 1 for check in claim.checks)
        return "more images needed" if seen and all(check.spread for check in claim.checks) else ""
    return f"{seeds:,} seeds" + ("" if claim.seconds is None else f", {core_time(seeds * claim.seconds)}")


def core_time(seconds: float) -> str:
    """Format core-seconds.

    >>> core_time(30), core_time(5400), core_time(399_000)
    ('1 core-minute', '90 core-minutes', '111 core-hours')
    """
    minutes = max(1, round(seconds / 60))
    if minutes >= _HOURS:
        return f"{minutes / 60:,.0f} core-hours"
    return f"{minutes} core-minute{'s' if minutes > 1 else ''}"


def verdict_note(claim: Claim) -> str:
    """Say why a claim is undecided and what a verdict is expected to take; empty for other claims."""
    return ": ".join(filter(None, ["too few seeds" if claim.lacks_seeds else "", price(claim)]))


def tally(claims: Sequence[Claim]) -> str:
    """Count the verdicts.

    >>> from antiphase.statistics.intervals import Estimate
    >>> tally([Claim("", "", "", [Check("", None)]), Claim("", "", "", [Check("", Estimate(1.0, 0.5, 2.0, 9))])])
    '2 claims: 1 not run, 1 undecided, too few seeds'
    """
    found = Counter(claim.verdict for claim in claims if not claim.lacks_seeds)
    parts = [
        f"{found[verdict]} {'hold' if verdict == 'holds' and found[verdict] > 1 else verdict}"
        for verdict in VERDICTS
        if found[verdict]
    ]
    few = sum(claim.lacks_seeds for claim in claims)
    parts += [f"{few} undecided, too few seeds"] if few else []
    return f"{len(claims)} claim{'s' if len(claims) != 1 else ''}" + (
        f": {', '.join(parts)}" if parts else ""
    )


def basis(frame: pl.DataFrame) -> str:
    """State the number of samples and training seeds behind estimates, if known.

    >>> basis(pl.DataFrame({"n": [1000, 300], "seeds": [3, 3]}))
    'n = 300 to 1,000, 3 seeds'
    """
    words = []
    for column, form in (("n", "n = {}"), ("seeds", "{} seeds")):
        values = frame[column].drop_nulls()
        if values.is_empty():
            continue
        least, most = (f"{end:,}" for end in (values.min(), values.max()))
        text = form.format(least if least == most else f"{least} to {most}")
        words.append(text.removesuffix("s") if text == "1 seeds" else text)
    return ", ".join(words)


def missing_cells(result: Result) -> str:
    """State how many cells of a study are missing; return an empty string if it is complete."""
    if result.done >= result.total:
        return ""
    cells = f"{result.total:,} cell{'s' if result.total != 1 else ''}"
    if result.done == 0:
        return f"None of the {cells} has been run yet."
    done = f"{result.done:,} of {cells} {'is' if result.done == 1 else 'are'} done"
    return (
        f"{done}: the numbers below are based on those."
        if result.artefact
        else f"{done}: too few for any number yet."
    )
