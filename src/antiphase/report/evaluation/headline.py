"""The headline of an evaluation: the answer first, then its number with the interval, then the condition.

The rule. Every difference on the page is read: of all tasks, data sets, settings and metrics of which more is better
(``scores``), so not POPE's share of yes. Which are decided is told by :mod:`antiphase.statistics.decisions`, corrected
for all of them. The title says on which side the decided ones lie, and quotes one of the more frequent side: the first
that stands for its task, else the first on the page. Where none is decided, it quotes the first that stands for its
task. The sentences below give the counts and the other decided differences.

The intervals of some tasks are over units that share their images (``dependent_units``: few-shot episodes), so that
they exclude zero too often: these differences decide the title only if there are no others, and have a sentence of
their own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from antiphase.evaluation.rates import by_seed
from antiphase.evaluation.tasks import find_task
from antiphase.report.evaluation.wording import heading
from antiphase.report.words import points_interval
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import Estimate

Difference = Mapping[str, Any]

_LISTED = 4  # decided differences of each side in a sentence


def headline(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return the finding in a title and a few sentences, which are empty where there is no difference to read.

    Args:
        summary: ``summary.json`` of an evaluation.
    """
    differences: Sequence[Difference] = [
        each for each in summary["differences"] if find_task(each["task"]).scores(each["metric"])
    ]
    if not differences:
        names = [model["name"] for model in summary["models"]]
        return f"What {', '.join(names[:3])}{' and others' if len(names) > 3 else ''} can do", ""
    apart = [each for each in differences if not find_task(each["task"]).dependent_units] or differences
    dependent = [each for each in differences if each not in apart]
    units = " and ".join(dict.fromkeys(find_task(each["task"]).dependent_units for each in dependent))
    pairs = list(dict.fromkeys((each["model"], each["twin"]) for each in differences))
    higher, lower = _decided(apart)
    shown = max(higher, lower, key=len) or apart
    quoted = next((each for each in shown if each["headline"]), shown[0])
    who = pairs[0] if len(pairs) == 1 else (_models(pairs, higher + lower), "their twins")
    elsewhere = f" outside {units}" if any(_decided(dependent)) else ""
    title = _few_seeds(summary["models"], pairs) or _verdict(
        *who, len(higher), len(lower), len(apart), elsewhere
    )
    number = _number(quoted, several=len(pairs) > 1)
    lead = [_counts("Of", apart)]
    for side, found in (("Higher", higher), ("Lower", lower)):
        others = [_number(each, several=len(pairs) > 1) for each in found if each is not quoted]
        if others:
            more = f"; {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            lead.append(f"{side}{', too' if quoted in found else ''}: {'; '.join(others[:_LISTED])}{more}.")
    if dependent:
        lead.append(_counts(f"Over {units}, which share their images, of", dependent))
    return f"{title}: {number}", " ".join(lead)


def _verdict(model: str, twin: str, higher: int, lower: int, total: int, elsewhere: str) -> str:
    score = "score" if twin == "their twins" else "scores"
    if not higher and not lower:
        return f"No difference shown between {model} and {twin}{elsewhere}"
    if not higher or not lower:
        return f"{model} {score} {'higher' if higher else 'lower'} than {twin}"
    first, second = (
        (("higher", higher), ("lower", lower)) if higher >= lower else (("lower", lower), ("higher", higher))
    )
    return (
        f"{model} {score} {first[0]} than {twin} in {first[1]} of {total} numbers, {second[0]} in {second[1]}"
    )


def _few_seeds(models: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> str:
    """Return the title where all pairs differ in their training seed alone and are too few for a verdict."""
    if not 1 < len(pairs) < LEAST_SEEDS or any("seed" not in model for model in models):
        return ""
    owner = {name: family for family, names in by_seed(models).items() for name in names}
    sides = {(owner[model], owner[twin]) for model, twin in pairs}
    if len(sides) > 1:
        return ""
    family, against = sides.pop()
    return f"{len(pairs)} training seeds leave undecided whether {family} scores higher than {against}"


def _models(pairs: Sequence[tuple[str, str]], decided: Sequence[Difference]) -> str:
    """Count the models, or those that a decided difference is of."""
    count = len({each["model"] for each in decided})
    return f"{count} of {len(pairs)} models" if 0 < count < len(pairs) else f"{len(pairs)} models"


def _decided(apart: Sequence[Difference]) -> tuple[list[Difference], list[Difference]]:
    """Return the differences that are decided to be above zero, and those below."""
    estimates = [
        Estimate(
            each["difference"],
            -math.inf if each["low"] is None else each["low"],
            math.inf if each["high"] is None else each["high"],
            each["n"],
        )
        for each in apart
    ]
    signs = decide(estimates, [each["p"] for each in apart])
    higher, lower = (
        [each for each, sign in zip(apart, signs, strict=True) if sign == side] for side in (1, -1)
    )
    return higher, lower


def _counts(begin: str, apart: Sequence[Difference]) -> str:
    total, (higher, lower) = len(apart), map(len, _decided(apart))
    return (
        f"{begin} {total} difference{'' if total == 1 else 's'} {higher} {'is' if higher == 1 else 'are'} above zero, "
        f"{lower} below, and {total - higher - lower} undecided (5 % level, corrected by Holm)."
    )


def _number(each: Difference, several: bool) -> str:
    number = points_interval(each["difference"], each["low"], each["high"])
    which = f"{each['model']}, " if several else ""
    return f"{number} in {which}{each['task']}, {heading(each)} on {each['data']} (n = {each['n']:,})"
