"""The plain sentences that answer a question first; their words follow from verdicts and estimates."""

from collections import Counter
from collections.abc import Mapping, Sequence

from antiphase.report.studies.counts import is_tested, verdicts_said
from antiphase.report.studies.wording import estimate_text, in_cases, told_apart
from antiphase.studies.claims import Claim, Verdict, turned
from antiphase.studies.numbers import written
from antiphase.studies.results import Result

Key = tuple[str, str]
Phrases = Mapping[Verdict, str]

MARGINS, REMAINS = ("causes", "margins-raise-asr"), ("causes", "remains-at-equal-margins")
FRAGILE: Mapping[Key, Phrases] = {
    ("figure-2a", "fragile-at-depth-1"): {
        "holds": "Yes, with one layer: under PGD DiffViT's ASR is {apart} than ViT's{at}.",
        "contradicted": "Not throughout, with one layer: under PGD DiffViT's ASR is {apart} than ViT's{at}.",
        "absent": "Hardly, with one layer: under PGD DiffViT's ASR is {apart} than ViT's{at}, {part}too little to "
        "matter.",
        "undecided": "That is open with one layer: under PGD DiffViT's ASR is {apart} than ViT's{at}, {part}within "
        "the uncertainty.",
    },
    ("table-2", "fragile-at-depth-4"): {
        "holds": "With four layers, DiffViT's ASR is {apart}{at}.",
        "contradicted": "With four layers, DiffViT's ASR is {apart}{at}, so not higher throughout.",
        "absent": "With four layers the difference is small: {each}.",
        "undecided": "With four layers, DiffViT's ASR is {apart}{at}, {part}within the uncertainty.",
    },
}
WHY: Mapping[Key, Phrases] = {
    MARGINS: {
        "holds": "{share} of the higher ASR comes with DiffViT's smaller clean margins.",
        "contradicted": "It is not DiffViT's clean margins throughout: at some ε they lower the ASR.",
        "absent": "DiffViT's smaller clean margins explain little of it.",
        "undecided": "Whether DiffViT's smaller clean margins are a part of it is open.",
    },
    REMAINS: {
        "holds": "At equal margins, its ASR is still {apart}{at}.",
        "contradicted": "At equal margins, its ASR is not higher throughout: {apart}{at}.",
        "absent": "At equal margins, what remains is {part}too little to matter: {apart}{at}.",
        "undecided": "Whether it is higher at equal margins, too, is open.",
    },
    ("causes", "fragile-at-equal-margins"): {
        "holds": "The subtraction itself raises it at equal margins, too.",
        "contradicted": "The subtraction itself, at equal margins, does not raise it at every ε: it also lowers it.",
        "absent": "The subtraction itself, at equal margins, changes it {part}too little to matter.",
        "undecided": "We cannot yet say whether the subtraction itself causes the rest.",
    },
    ("causes", "angle-raises-asr"): {
        "holds": "Opposed gradients of the two maps, the paper's explanation, raise it.",
        "contradicted": "Opposed gradients of the two maps, the paper's explanation, lower the ASR at some ε.",
        "absent": "Opposed gradients of the two maps, the paper's explanation, add {part}too little to matter.",
        "undecided": "Whether opposed gradients of the two maps, the paper's explanation, raise it is open.",
    },
}
TASKS: Sequence[Key] = (
    ("diffclip-table-1", "probe-average"),
    ("diffclip-table-1", "few-shot-average"),
    ("diffclip-table-2", "retrieval"),
    ("diffclip-table-2", "zero-shot"),
    ("diffclip-figure-3", "better-under-shift"),
    ("diffclip-figure-4", "fine-grained"),
)
"""Claims that DiffCLIP is better than CLIP at a task."""
CLIPS: Mapping[Key, Phrases] = {
    ("diffclip-attention", "more-focused"): {
        "holds": "DiffCLIP's attention maps single out the object better.",
        "contradicted": "DiffCLIP's attention maps single out the object less well.",
        "absent": "DiffCLIP's attention maps single out the object about as well as CLIP's.",
        "undecided": "Whether DiffCLIP's attention maps single out the object better is open.",
    },
    ("figure-2b", "clip-fragile-few-classes"): {
        "holds": "Under PGD DiffCLIP is the more fragile one: its ASR is {apart} than CLIP's{at}.",
        "contradicted": "Under PGD DiffCLIP is {fragile}; its ASR is lower than CLIP's by {lower}.",
        "absent": "Under PGD DiffCLIP is hardly the more fragile one: its ASR is {apart} than CLIP's{at}.",
        "undecided": "Whether DiffCLIP is the more fragile one under PGD is open: its ASR is {apart} than CLIP's{at}.",
    },
}


def chosen(results: Sequence[Result], keys: Sequence[Key]) -> list[Claim]:
    """Return the claims of some studies and names that were tested, in the order of the keys."""
    return [
        claim
        for study, name in keys
        for result in results
        if result.name == study
        for claim in result.claims
        if claim.name == name and is_tested(claim)
    ]


def answer(results: Sequence[Result], phrases: Mapping[Key, Phrases]) -> str:
    """Return a sentence for each claim that was tested."""
    share = _share(results)
    return " ".join(
        phrases[key][claim.verdict].format(
            apart=_apart(claim),
            at=_at(claim),
            share=share,
            part="in part " * bool(in_cases(claim)),
            each="; ".join(_each(claim)),
            fragile=_fragile(claim),
            lower=" and ".join(_each(claim, "contradicted")),
        )
        for key in phrases
        for claim in chosen(results, [key])
    )


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


def tasks_answer(results: Sequence[Result]) -> str:
    """Say in how many tasks DiffCLIP is better than CLIP; empty if none was tested."""
    return better_in(Counter(claim.verdict for claim in chosen(results, TASKS)))


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


def _apart(claim: Claim) -> str:
    return apart([100 * check.estimate.value for check in claim.checks if check.estimate is not None])


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
    found = [chosen(results, [key]) for key in (MARGINS, REMAINS)]
    parts = [
        [check.estimate.value for check in claims[0].checks if check.estimate] for claims in found if claims
    ]
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
