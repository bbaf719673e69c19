"""What the studies found, as answers to a few questions; every number is computed.

The lists say which claims answer which question; the words of a claim are its statement in its study.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from antiphase.report.studies.forest import deciding
from antiphase.report.studies.wording import by_paper, core_time, estimates_line, price
from antiphase.studies.claims import Claim, Verdict
from antiphase.studies.results import Result

FRAGILE = (
    ("figure-2a", "fragile-at-depth-1"), ("figure-3a", "pgd-fragile-when-shallow"), ("table-2", "fragile-at-depth-4"),
    ("figure-3a", "pgd-robust-when-deep"), ("figure-2c", "fragile-to-patches"), ("figure-3a", "pgd-falls-with-depth"),
    ("figure-3b", "autoattack-fragile-when-shallow"),
    ("figure-2b", "clip-fragile-few-classes"), ("table-3", "training-lowers-asr"),
)  # fmt: skip
"""Claims that say when, and by how much, differential attention is more fragile."""
WHY = (
    ("causes", "fragile-at-equal-margins"), ("causes", "angle-raises-asr"), ("causes", "margins-raise-asr"),
    ("causes", "remains-at-equal-margins"), ("causes", "norm-raises-asr"), ("causes", "other-initial-weights"),
    ("layer-sensitivity", "angle-amplifies"), ("layer-sensitivity", "subtraction-cancels"),
    ("figure-5", "opposed-everywhere"), ("figure-4", "da-is-steeper-truly"), ("table-1", "asr-peaks"),
)  # fmt: skip
"""Claims that say why."""
HELPS = (
    ("diffclip-figure-1", "better-in-six-tasks"), ("diffclip-table-1", "probe-average"),
    ("diffclip-table-1", "few-shot-average"), ("diffclip-table-2", "retrieval"), ("diffclip-table-2", "zero-shot"),
    ("diffclip-figure-3", "better-under-shift"), ("diffclip-figure-4", "fine-grained"),
    ("diffclip-attention", "more-focused"), ("map-correlation", "maps-share"), ("map-correlation", "noise-is-shared"),
)  # fmt: skip
"""Claims that say what differential attention does for a CLIP."""
LEVELS, PARTS = "figure-2a", "causes"
"""The studies whose first notes say how high the ASR is, and how the difference falls into parts."""

_WORDS = (
    "A ViT and its twin DiffViT, which has differential attention, are trained alike and attacked alike. ASR, the "
    "attack success rate, is the share of all images, classified rightly or not, whose prediction the attack changes. "
    "A positive difference is as claimed; brackets hold 95 % intervals."
)
_OF_CLIPS = "A CLIP and its twin DiffCLIP do the same tasks on the same images."
VERBS: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "contradicted": ("is contradicted", "are contradicted"),
    "absent": ("claims a difference that is absent", "claim a difference that is absent"),
    "undecided": ("is undecided", "are undecided"),
}
"""What one claim, or several, of a verdict are said to do."""
_WHOSE = {"robustness": "The paper on sensitivity", "diffclip": "DiffCLIP's paper", "own": "Our own studies"}


def summary(results: Sequence[Result]) -> list[str]:
    """Return a paragraph on what was compared, then questions as headings, each with its answers."""
    claims = [claim for result in results for claim in result.claims if _tested(claim)]
    if not claims:
        return []
    found = {
        "Is differential attention more fragile?": [
            *_note(results, LEVELS),
            *_bullets(_chosen(results, FRAGILE)),
        ],
        "Why?": [*_note(results, PARTS), *_bullets(_chosen(results, WHY))],
        "Does it help a CLIP?": [_OF_CLIPS, *of_clips]
        if (of_clips := _bullets(_chosen(results, HELPS)))
        else [],
        "How sure is that?": [_scale(results, claims), _sure(results)],
    }
    answered = ([f"## {question}", *answers] for question, answers in found.items() if answers)
    return [_WORDS, *(each for section in answered for each in section)]


def headlines(results: Sequence[Result], most: int) -> list[str]:
    """Return the first answers: on fragility, the parts of the difference, then its causes, a sentence each."""
    fragile, why = (list(map(sentence, _chosen(results, claims))) for claims in (FRAGILE, WHY))
    levels, causes = _note(results, LEVELS), [*_note(results, PARTS), *why[:3]]
    return [*levels, *fragile[: most - len(levels) - len(causes)], *causes][:most]


def _bullets(claims: Sequence[Claim]) -> list[str]:
    """Return one Markdown list."""
    return ["\n".join(f"- {sentence(claim)}" for claim in claims)] if claims else []


def _note(results: Sequence[Result], study: str) -> list[str]:
    """Return the first note of a study, if enough seeds are finished for a verdict."""
    return [
        note
        for result in results
        if result.name == study and result.artefact and any(map(_tested, result.claims))
        for note in result.artefact.notes[:1]
    ]


def counted(results: Sequence[Result]) -> str:
    """Count the verdicts in a sentence for each paper, and what was not tested yet; only of studies that were begun."""
    found = [
        (_WHOSE.get(paper, paper), [claim for result in several if result.done for claim in result.claims])
        for paper, several in by_paper(results).items()
    ]
    return " ".join(filter(None, (_counted(whose, claims) for whose, claims in found)))


def _counted(whose: str, claims: Sequence[Claim]) -> str:
    """Count the verdicts of one paper.

    >>> _counted("A paper", [Claim("", "", "", []), Claim("", "", "", [])])
    ''
    """
    counts: Counter[Verdict] = Counter(claim.verdict for claim in claims if not claim.lacks_seeds)
    parts = [
        f"{counts[verdict]} {VERBS[verdict][counts[verdict] > 1]}" for verdict in VERBS if counts[verdict]
    ]
    if not parts:
        return ""
    tested, every = sum(counts[verdict] for verdict in VERBS), len(claims)
    of = f"{tested} of {every}" if tested < every else f"all {every}" if every > 1 else "the one"
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    against = [claim.statement for claim in claims if claim.verdict == "contradicted"]
    named = f" Contradicted: {' '.join(against)}" if against else ""
    return f"{whose}, {of} claim{'s' if every > 1 else ''} tested: {listed}.{named}"


def sentence(claim: Claim) -> str:
    """Return a claim, the answer, and its differences."""
    paid = price(claim)
    told = "" if deciding(claim) is None else estimates_line(claim)
    asked = f"a verdict would take about {paid} in all" if "seeds" in paid else paid
    numbers = "; ".join(filter(None, [told, asked]))
    return f"{claim.statement.rstrip('.')}: **{claim.verdict}**{_within(claim)}{f' ({numbers})' if numbers else ''}."


def _within(claim: Claim) -> str:
    """Say of a claim that is absent in how many cases it is, and how small the differences are there."""
    near = [
        (claim.margin_of(check), check.unit)
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True) if verdict == "absent"
    ]  # fmt: skip
    margin, unit = near[0] if near else (None, "")
    if claim.verdict != "absent" or margin is None:
        return ""
    size = f"±{100 * margin if unit == 'points' else margin:g} {unit}".rstrip()
    cases = len(claim.checks)
    return f" in {len(near)} of {cases} cases, within {size}" if len(near) < cases else f", within {size}"


def _tested(claim: Claim) -> bool:
    return claim.verdict in VERBS and not claim.lacks_seeds


def _scale(results: Sequence[Result], claims: Sequence[Claim]) -> str:
    judged = [result for result in results if any(claim in claims for claim in result.claims)]
    data = _listed(word for result in judged for word in result.settings.get("data", "").split(", "))
    checks = [check for claim in claims for check in claim.checks if check.estimate is not None]
    seeds = _range([check.seeds for check in checks if check.seeds])
    images = _range([check.estimate.n for check in checks if check.estimate is not None])
    profiles = _listed(result.profile for result in judged)
    of = f" on {data}" if data else ""
    return (
        f"{counted(results)} They were tested on the "
        f"models of the profile {profiles}{of}, with {seeds} training seeds of each model and {images} images."
    )


def _chosen(results: Sequence[Result], chosen: Sequence[tuple[str, str]]) -> list[Claim]:
    return [
        claim
        for study, name in chosen
        for result in results if result.name == study
        for claim in result.claims if name in ("", claim.name) and _tested(claim)
    ]  # fmt: skip


def _sure(results: Sequence[Result]) -> str:
    """Say how often the verdicts may be wrong, and what the undecided claims would take.

    The claims of a study share models, so that the dearest alone is counted: the least that all of them take.
    """
    by_study = [
        [claim for claim in result.claims if _tested(claim) and claim.verdict == "undecided"]
        for result in results
    ]
    words = (
        "Each claim is judged by itself: a wrong one is found to hold in at most 2.5 % of the cases, and a right one "
        "to be contradicted in at most 2.5 %. This is not corrected for the number of claims: of 40 wrong ones, up "
        "to one is expected to hold."
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


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers, default=0), max(numbers, default=0)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, words)))
