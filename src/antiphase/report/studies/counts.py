"""How many claims were tested, on what, and how sure the verdicts are."""

from collections import Counter
from collections.abc import Iterable, Sequence

from antiphase.report.studies.wording import by_source, core_time, in_cases
from antiphase.studies.claims import OWN, Claim, Verdict
from antiphase.studies.results import Result
from antiphase.studies.scale import IN_SHORT

VERBS: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "contradicted": ("is contradicted", "are contradicted"),
    "absent": ("is absent", "are absent"),
    "undecided": ("is undecided", "are undecided"),
}
"""What one claim, or several, of a verdict are said to be."""
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
