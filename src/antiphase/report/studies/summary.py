"""What the studies found, as answers to a few questions; every number is computed.

The lists say which claims answer which question; the words of a claim are its statement in its study.
"""

import re
from collections.abc import Sequence

import polars as pl

from antiphase.report.studies import answers
from antiphase.report.studies.answers import answer, chosen, tasks_answer
from antiphase.report.studies.counts import counted, how_sure, is_tested, models_said
from antiphase.report.studies.forest import deciding
from antiphase.report.studies.wording import basis, estimates_line, in_cases, price
from antiphase.statistics.intervals import Estimate
from antiphase.studies.claims import Claim
from antiphase.studies.figures import Artefact, Table
from antiphase.studies.numbers import signed
from antiphase.studies.results import Result

FRAGILE = (
    ("figure-2a", "fragile-at-depth-1"),
    ("table-2", "fragile-at-depth-4"),
    ("figure-3a", "pgd-fragile-when-shallow"),
    ("figure-3a", "pgd-robust-when-deep"),
    ("figure-2c", "fragile-to-patches"),
    ("figure-3a", "pgd-falls-with-depth"),
    ("figure-3b", "autoattack-fragile-when-shallow"),
    ("table-3", "training-lowers-asr"),
)
"""Claims that say when, and by how much, differential attention is more fragile."""
WHY = (
    ("causes", "margins-raise-asr"),
    ("causes", "remains-at-equal-margins"),
    ("causes", "fragile-at-equal-margins"),
    ("causes", "angle-raises-asr"),
    ("causes", "norm-raises-asr"),
    ("causes", "other-initial-weights"),
    ("layer-sensitivity", "angle-amplifies"),
    ("layer-sensitivity", "subtraction-cancels"),
    ("figure-5", "opposed-everywhere"),
    ("figure-4", "da-is-steeper-truly"),
    ("table-1", "asr-peaks"),
)
"""Claims that say why."""
CLIPS = (
    ("diffclip-figure-1", "better-in-six-tasks"),
    *answers.TASKS,
    ("diffclip-attention", "more-focused"),
    ("map-correlation", "maps-share"),
    ("map-correlation", "noise-is-shared"),
    ("figure-2b", "clip-fragile-few-classes"),
    ("figure-2d", "clip-fragile-to-patches"),
)
"""Claims that say what differential attention does for a CLIP."""
LEVELS, PARTS, PARTS_AT = "figure-2a", "causes", "1/255"
"""The studies whose first notes say how high the ASR is, and how the difference falls into parts, at this ε."""

MORE_FRAGILE, CAUSES, HELP, SURE = (
    "Is differential attention more fragile?",
    "Why?",
    "Does it help a CLIP?",
    "How sure is that?",
)
_WORDS = (
    "A ViT and its twin DiffViT, which has differential attention, are trained alike and attacked alike. ASR, the "
    "attack success rate, is the share of all images, classified rightly or not, whose prediction the attack changes. "
    "A positive difference is as claimed; brackets hold 95 % intervals. A difference that is absent is too small to "
    "matter; it need not be 0."
)
_OF_CLIPS = (
    "A CLIP and its twin DiffCLIP are trained alike, do the same tasks on the same images, and are attacked."
)


def summary(results: Sequence[Result]) -> list[str]:
    """Return a paragraph on what was compared, then questions as headings, each with its answers."""
    if not any(is_tested(claim) for result in results for claim in result.claims):
        return []
    on_clips = _bullets(chosen(results, CLIPS))
    found = {
        MORE_FRAGILE: [
            _lead(results, MORE_FRAGILE),
            *_note(results, LEVELS),
            *_bullets(chosen(results, FRAGILE)),
        ],
        CAUSES: [_lead(results, CAUSES), *_parts(results), *_bullets(chosen(results, WHY))],
        HELP: [_lead(results, HELP), _OF_CLIPS, *on_clips] if on_clips else [],
        SURE: [counted(results), models_said(results), how_sure(results)],
    }
    answered = ([f"## {words}", *filter(None, its)] for words, its in found.items() if any(its))
    return [_WORDS, *(each for section in answered for each in section)]


def headlines(results: Sequence[Result]) -> list[str]:
    """Return a list of at most ten lines: each question with its answer, and below it a few of its claims."""
    below = {
        MORE_FRAGILE: [*map(sentence, chosen(results, FRAGILE)[:2])],
        CAUSES: [*_note(results, PARTS), *map(sentence, chosen(results, WHY[1:4]))],
        HELP: [],
    }
    leads = {words: _lead(results, words) for words in below}
    leads[MORE_FRAGILE] = " ".join(filter(None, [leads[MORE_FRAGILE], *_note(results, LEVELS)]))
    lines = []
    for words, its in below.items():
        if leads[words] or its:
            lines += [f"- **{words}** {leads[words]}".rstrip(), *(f"  - {each}" for each in its)]
    return [*lines, f"- **All claims:** {told}"] if (told := counted(results)) else lines


def _lead(results: Sequence[Result], question: str) -> str:
    """Return the plain answer to a question."""
    if question == HELP:
        return " ".join(filter(None, [tasks_answer(results), answer(results, answers.CLIPS)]))
    return answer(results, answers.FRAGILE if question == MORE_FRAGILE else answers.WHY)


def _bullets(claims: Sequence[Claim]) -> list[str]:
    """Return one Markdown list."""
    return ["\n".join(f"- {sentence(claim)}" for claim in claims)] if claims else []


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


def _parts(results: Sequence[Result]) -> list[str]:
    """Return a sentence and a table of the parts of the difference, for each data set."""
    tables = [
        table
        for artefact in _drawn(results, PARTS)
        for table in artefact.tables
        if table.name.endswith("-parts")
    ]
    return [part for table in tables for part in _of_parts(table)]


def _of_parts(table: Table) -> list[str]:
    at = table.cells.filter(pl.col("column") == PARTS_AT, ~pl.col("row").str.ends_with("other order"))
    rows = [
        " ".join(signed(Estimate(row["value"], row["low"], row["high"], row["n"]), "points"))
        for row in at.iter_rows(named=True)
    ]
    lines = [f"| {name} | {told} |" for name, told in zip(at["row"], rows, strict=True)]
    title = f"{table.title}, under PGD at {PARTS_AT}, from a study of its own ({basis(at)}):"
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
