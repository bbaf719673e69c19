"""What is said of claims and their estimates in a line: verdicts counted, what sets checks apart, what they cost."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from antiphase.statistics.intervals import Estimate
from antiphase.studies.claims import OWN, Check, Claim, Verdict, turned
from antiphase.studies.figures import Artefact, Table
from antiphase.studies.numbers import bracketed, signed, supported, written
from antiphase.studies.results import Result
from antiphase.studies.scale import IN_SHORT

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


VERBS: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "contradicted": ("is contradicted", "are contradicted"),
    "absent": ("is absent", "are absent"),
    "undecided": ("is undecided", "are undecided"),
}
"""What one claim, or several, of a verdict are said to be."""
_PARTS_AT = "1/255"
_WHOSE = {"robustness": "The sensitivity paper", "diffclip": "DiffCLIP's paper", OWN: "Our own questions"}
_BY_CHANCE = 0.025  # of wrong claims that hold


def is_tested(claim: Claim) -> bool:
    """Whether a claim has one of the four verdicts, from enough seeds."""
    return claim.verdict in VERBS and not claim.lacks_seeds


def counted(results: Sequence[Result]) -> str:
    """Count the verdicts in a sentence for each paper and for our own questions; only of studies that were begun."""
    found = by_source([result for result in results if result.done])
    told = (_counted(_WHOSE.get(whose, whose), [claim for _, claim in its]) for whose, its in found.items())
    return " ".join(filter(None, told))


def _counted(whose: str, claims: Sequence[Claim]) -> str:
    """Count the verdicts of one paper.

    >>> _counted("A paper", [Claim("", "", "", []), Claim("", "", "", [])])
    ''
    """
    counts: Counter[Verdict] = Counter(claim.verdict for claim in claims if is_tested(claim))
    if not counts:
        return ""
    tested, every = counts.total(), len(claims)
    of = f"{tested} of {every}" if tested < every else f"all {every}" if every > 1 else "the one"
    against = [
        f"“{one.statement.rstrip('.')}”{in_cases(one)}" for one in claims if one.verdict == "contradicted"
    ]
    named = f" Contradicted: {'; '.join(against)}." if against else ""
    return f"{whose}, {of} claim{'s' if every > 1 else ''} tested: {verdicts_said(counts)}.{named}"


def verdicts_said(counts: Counter[Verdict]) -> str:
    """Say how often each verdict occurs.

    >>> verdicts_said(Counter(["holds", "absent", "holds", "undecided"]))
    '2 hold, 1 is absent and 1 is undecided'
    """
    parts = [
        f"{counts[verdict]} {VERBS[verdict][counts[verdict] > 1]}" for verdict in VERBS if counts[verdict]
    ]
    return parts[-1] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def models_said(results: Sequence[Result]) -> str:
    """Say which models the claims were tested on: their size and data, training seeds and samples."""
    judged = [result for result in results if any(map(is_tested, result.claims))]
    profiles = ", ".join(dict.fromkeys(result.profile for result in judged))
    found: dict[str, list[Claim]] = {}
    for result in judged:
        known = (result.settings.get(name) for name in (IN_SHORT, "data", "models"))
        words = next(filter(None, known), result.label)
        found.setdefault(words, []).extend(filter(is_tested, result.claims))
    told = "; ".join(f"{words}: {_sizes(claims)}" for words, claims in found.items())
    return f"The claims were tested under the profile {profiles}. {told}."


def _sizes(claims: Sequence[Claim]) -> str:
    checks = [check for claim in claims for check in claim.checks if check.estimate is not None]
    seeds = _range(check.seeds for check in checks if check.seeds)
    samples = _range(check.estimate.n for check in checks if check.estimate is not None)
    trained = f"{seeds} training seeds of each model and " if any(check.seeds for check in checks) else ""
    return f"{trained}{samples} test samples for each number"


def how_sure(results: Sequence[Result]) -> str:
    """Say how often the verdicts may be wrong, and what the undecided claims would take.

    The claims of a study share models, so that the dearest alone is counted: the least that all of them take.
    """
    by_study = [
        [claim for claim in result.claims if is_tested(claim) and claim.verdict == "undecided"]
        for result in results
    ]
    tested = sum(is_tested(claim) for result in results for claim in result.claims)
    words = (
        "Each claim is judged by itself: a wrong one is found to hold in at most 2.5 % of the cases, and a right one "
        "to be contradicted in at most 2.5 %. This is not corrected for the number of claims: if all "
        f"{tested} tested claims were wrong, up to {_BY_CHANCE * tested:.1f} of them would be expected to hold."
    )
    priced = [list(filter(None, map(_seconds, claims))) for claims in by_study]
    if any(priced):
        some, every = (sum(map(len, lists)) for lists in (priced, by_study))
        dearest = sum(max(prices) for prices in priced if prices)
        words += (
            f" A verdict on {_of(some, every)} would take at least {core_time(dearest)} in all, if the "
            "differences seen are the true ones."
        )
    return words


def _seconds(claim: Claim) -> float | None:
    """Return the core-seconds that a verdict is expected to take; None if they are not known."""
    seeds = claim.seeds_needed
    return None if seeds is None or claim.seconds is None else seeds * claim.seconds


def _of(some: int, every: int) -> str:
    """Name some of the undecided claims.

    >>> _of(1, 1), _of(4, 4), _of(2, 3)
    ('the undecided claim', 'all 4 undecided claims', '2 of the 3 undecided claims')
    """
    if every == 1:
        return "the undecided claim"
    return f"{'all' if some == every else f'{some} of the'} {every} undecided claims"


def _range(numbers: Iterable[int]) -> str:
    """Return the smallest and the largest of some numbers.

    >>> _range([12_000, 32]), _range([8, 8])
    ('32 to 12,000', '8')
    """
    found = sorted(numbers) or [0]
    return f"{found[0]:,}" if found[0] == found[-1] else f"{found[0]:,} to {found[-1]:,}"


@cache
def findings() -> dict[str, Any]:
    """Return the questions that the findings answer, see ``findings.toml``."""
    return tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def tested(results: Sequence[Result], keys: Sequence[str]) -> list[Claim]:
    """Return the claims ``STUDY/NAME`` that were tested, in the order of the keys."""
    claims = {f"{result.name}/{claim.name}": claim for result in results for claim in result.claims}
    return [claims[key] for key in keys if key in claims and is_tested(claims[key])]


def answer(results: Sequence[Result], question: Mapping[str, Any]) -> str:
    """Return the plain answer to a question: a sentence for each claim that answers it and was tested."""
    sentences = [better_in(Counter(claim.verdict for claim in tested(results, question.get("tasks", ()))))]
    for phrases in question["answers"]:
        for claim in tested(results, [phrases["claim"]]):
            numbers = {
                "apart": apart([100 * check.estimate.value for check in claim.checks if check.estimate]),
                "at": _at(claim),
                "share": _share(results),
                "part": "in part " * bool(in_cases(claim)),
                "each": "; ".join(_each(claim)),
                "fragile": _fragile(claim),
                "lower": " and ".join(_each(claim, "contradicted")),
            }
            sentences.append(phrases[claim.verdict].format(**numbers))
    return " ".join(filter(None, sentences))


def _each(claim: Claim, only: Verdict | None = None) -> list[str]:
    """Return the differences, or the sizes of those with a verdict, each with what sets it apart."""
    names = told_apart([check.what for check in claim.checks])
    return [
        (estimate_text(check) if only is None else estimate_text(turned(check)).lstrip("+"))
        + (f" at {name}" if len(names) > 1 and name else "")
        for check, verdict, name in zip(claim.checks, claim.verdicts, names, strict=True)
        if only in (None, verdict)
    ]


def _fragile(claim: Claim) -> str:
    holds, cases = claim.verdicts.count("holds"), len(claim.checks)
    return f"more fragile at {holds} of {cases} ε" if holds else "not more fragile at any ε"


def better_in(counts: Counter[Verdict]) -> str:
    """Say in how many tasks one model is better than another.

    >>> better_in(Counter(holds=2))
    'Yes: DiffCLIP is better than CLIP in all 2 tasks tested.'
    >>> better_in(Counter(holds=1, undecided=2))
    'In part: DiffCLIP is better than CLIP in 1 of 3 tasks tested; of the other differences, 2 are undecided.'
    >>> better_in(Counter(contradicted=1, undecided=2))
    'No: DiffCLIP is better than CLIP in none of 3 tasks tested; of the differences, 1 is contradicted and 2 are undecided.'
    >>> better_in(Counter(absent=2, undecided=1))
    'Not measurably: DiffCLIP is better than CLIP in none of 3 tasks tested; of the differences, 2 are absent (too small to matter) and 1 is undecided.'
    """  # noqa: E501
    tested, better = counts.total(), counts["holds"]
    if not tested:
        return ""
    if better == tested:
        return f"Yes: DiffCLIP is better than CLIP in {f'all {tested} tasks' if tested > 1 else 'the one task'} tested."
    rest: Counter[Verdict] = Counter(
        {verdict: count for verdict, count in counts.items() if verdict != "holds"}
    )
    told = verdicts_said(rest).replace("absent", "absent (too small to matter)")
    worse = "No" if counts["contradicted"] else "Not measurably"
    how, many, others = ("In part", better, "other differences") if better else (worse, "none", "differences")
    return f"{how}: DiffCLIP is better than CLIP in {many} of {tested} tasks tested; of the {others}, {told}."


def apart(points: Sequence[float]) -> str:
    """Say how far a rate lies above another.

    >>> apart([1.46, 5.3]), apart([-2.0]), apart([0.2, -6.8])
    ('1.5 to 5.3 points higher', '2.0 points lower', '6.8 points lower to 0.2 points higher')
    """
    low, high = min(points), max(points)
    if low < 0 < high:
        return f"{written(-low, 1)} points lower to {written(high, 1)} points higher"
    ends = list(dict.fromkeys(written(abs(end), 1) for end in sorted((low, high), key=abs)))
    return f"{' to '.join(ends)} points {'lower' if high <= 0 and low < 0 else 'higher'}"


def _at(claim: Claim) -> str:
    """Return the first and the last of what sets the differences apart, in parentheses; nothing of one difference."""
    names = told_apart([check.what for check in claim.checks])
    return f" (at {names[0]} to {names[-1]})" if len(names) > 1 and names[0] else ""


def _share(results: Sequence[Result]) -> str:
    """Return the margins' share of the difference, which they and what remains at equal margins add up to."""
    claims = tested(results, ["causes/margins-raise-asr", "causes/remains-at-equal-margins"])
    parts = [[check.estimate.value for check in claim.checks if check.estimate] for claim in claims]
    if len(parts) < 2:
        return "A part"
    return share([part / (part + rest) for part, rest in zip(*parts, strict=True) if part + rest > 0])


def share(fractions: Sequence[float]) -> str:
    """Say how much of a difference some shares of it are.

    >>> share([0.56, 0.5, 0.45]), share([0.7]), share([0.1, 0.9]), share([])
    ('About half (45 to 56 %, by ε)', 'More than half (70 %)', 'A part (10 to 90 %, by ε)', 'A part')
    """
    ends = [f"{100 * end:.0f}" for end in (min(fractions, default=0), max(fractions, default=0))]
    if not fractions or not 0 <= min(fractions) <= max(fractions) <= 1:
        return "A part"
    distinct = list(dict.fromkeys(ends))
    sizes = {(0.4, 0.6): "About half", (0.0, 0.5): "Less than half", (0.5, 1.0): "More than half"}
    within = (word for (low, high), word in sizes.items() if low <= min(fractions) and max(fractions) <= high)
    return f"{next(within, 'A part')} ({' to '.join(distinct)} %{', by ε' * (len(distinct) > 1)})"


def deciding(claim: Claim) -> Check | None:
    """Return the check that decides the verdict: of those with the claim's verdict, the lowest in standard errors."""
    checks = [
        check
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
        if verdict == claim.verdict
        and check.estimate is not None
        and check.spread is not None
        and check.spread.error
    ]
    return min(checks, key=_in_errors, default=None)


def _in_errors(check: Check) -> float:
    assert check.estimate is not None
    assert check.spread is not None
    return check.estimate.value / check.spread.error


def summary(results: Sequence[Result]) -> list[str]:
    """Return a paragraph on what was compared, then questions as headings, each with its answers."""
    if not any(is_tested(claim) for result in results for claim in result.claims):
        return []
    lines = [findings()["words"]]
    for question in findings()["questions"]:
        claims = tested(results, question["claims"])
        words = [question["words"]] if claims and "words" in question else []
        parts = [answer(results, question), *words, *_more(results, question)]
        parts += ["\n".join(f"- {sentence(claim)}" for claim in claims)]
        if any(parts):
            lines += [f"## {question['title']}", *filter(None, parts)]
    return [
        *lines,
        "## How sure is that?",
        *filter(None, [counted(results), models_said(results), how_sure(results)]),
    ]


def headlines(results: Sequence[Result]) -> list[str]:
    """Return a list of at most ten lines: each question with its answer, and below it a few of its claims."""
    lines = []
    for question in findings()["questions"]:
        first, last = question["in_readme"]
        below = [sentence(claim) for claim in tested(results, question["claims"][first:last] or ())]
        notes = _note(results, question["levels"]) if "levels" in question else []
        below = (_note(results, question["parts"]) if "parts" in question else []) + below
        lead = " ".join(filter(None, [answer(results, question), *notes]))
        if lead or below:
            lines += [f"- **{question['title']}** {lead}".rstrip(), *(f"  - {line}" for line in below)]
    return [*lines, f"- **All claims:** {words}"] if (words := counted(results)) else lines


def _more(results: Sequence[Result], question: Mapping[str, Any]) -> list[str]:
    """Return the note or the table of parts that follows the answer to a question."""
    notes = _note(results, question["levels"]) if "levels" in question else []
    return notes + (_parts(results, question["parts"]) if "parts" in question else [])


def _drawn(results: Sequence[Result], study: str) -> list[Artefact]:
    """Return what a study drew, if enough seeds are finished for a verdict."""
    return [
        result.artefact
        for result in results
        if result.name == study and result.artefact and any(map(is_tested, result.claims))
    ]


def _note(results: Sequence[Result], study: str) -> list[str]:
    """Return the first note of a study."""
    return [note for artefact in _drawn(results, study) for note in artefact.notes[:1]]


def _parts(results: Sequence[Result], study: str) -> list[str]:
    """Return a sentence and a table of the parts of the difference, for each data set."""
    tables = [
        table
        for artefact in _drawn(results, study)
        for table in artefact.tables
        if table.name.endswith("-parts")
    ]
    return [part for table in tables for part in _of_parts(table)]


def _of_parts(table: Table) -> list[str]:
    at = table.cells.filter(pl.col("column") == _PARTS_AT, ~pl.col("row").str.ends_with("other order"))
    rows = [
        " ".join(signed(Estimate(row["value"], row["low"], row["high"], row["n"]), "points"))
        for row in at.iter_rows(named=True)
    ]
    lines = [f"| {name} | {told} |" for name, told in zip(at["row"], rows, strict=True)]
    title = f"{table.title}, under PGD at {_PARTS_AT}, from a study of its own ({basis(at)}):"
    return [title, "\n".join(["| part | difference [95 % interval] |", "| --- | ---: |", *lines])]


def sentence(claim: Claim) -> str:
    """Return a claim, the answer, and its differences."""
    paid = price(claim)
    told = "" if deciding(claim) is None else f"{estimates_line(claim)}{_larger(claim)}"
    asked = f"a verdict would take about {paid} in all" if "seeds" in paid else paid
    numbers = "; ".join(filter(None, [told, asked]))
    details = f"{in_cases(claim)}{_within(claim)}{f' ({numbers})' if numbers else ''}"
    return f"{claim.statement.rstrip('.')}: **{claim.verdict}**{details}."


def _larger(claim: Claim) -> str:
    """Say which of two is larger, if the difference is against the claim.

    >>> from antiphase.studies.claims import Check
    >>> _larger(Claim("", "", "", [Check("ASR(ViT) − ASR(DiffViT) at 1/255", Estimate(-0.01, -0.02, 0.0, 9))]))
    ": DiffViT's is larger, but not for certain"
    """
    (check, *others) = claim.checks
    found = re.match(r"(\w+)\(\w+\) − \1\((\w+)\)", check.what)
    against = not others and check.estimate is not None and check.estimate.value < 0
    doubt = "" if check.estimate is not None and check.estimate.high < 0 else ", but not for certain"
    return f": {found[2]}'s is larger{doubt}" if found and against else ""


def _within(claim: Claim) -> str:
    """Say of a claim that is absent how small the differences are there."""
    near = [
        (claim.margin_of(check), check.unit)
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
        if verdict == "absent"
    ]
    margin, unit = near[0] if near else (None, "")
    if claim.verdict != "absent" or margin is None:
        return ""
    size = f"±{100 * margin if unit == 'points' else margin:g} {unit}".rstrip()
    return f", within {size}"
