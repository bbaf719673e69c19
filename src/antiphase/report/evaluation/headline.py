"""The headline of an evaluation: the answer first, then its number with the interval, then the condition.

The rule. Every difference on the page is read: of all tasks, data sets, settings and metrics of which more is better
(``scores``), so not POPE's share of yes. It is decided where its 95 % interval excludes zero. The title says on which
side the decided ones lie, and quotes one of the more frequent side: the first that stands for its task, else the first
on the page. Where none is decided, it quotes the first that stands for its task. The sentences below give the counts
and the other decided differences.

The intervals of some tasks are over units that share their images (``dependent_units``: few-shot episodes), so that
they exclude zero too often: these differences decide the title only if there are no others, and have a sentence of
their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphase.evaluation.tasks import find_task
from antiphase.report.evaluation.wording import heading
from antiphase.report.style.wording import points_interval

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
    higher, lower = _higher(apart), _lower(apart)
    shown = max(higher, lower, key=len) or apart
    quoted = next((each for each in shown if each["headline"]), shown[0])
    who = pairs[0] if len(pairs) == 1 else (f"{len(pairs)} models", "their twins")
    elsewhere = f" outside {units}" if _higher(dependent) or _lower(dependent) else ""
    title = _verdict(*who, len(higher), len(lower), len(apart), elsewhere)
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


def _higher(apart: Sequence[Difference]) -> list[Difference]:
    return [each for each in apart if each["low"] is not None and each["low"] > 0]


def _lower(apart: Sequence[Difference]) -> list[Difference]:
    return [each for each in apart if each["high"] is not None and each["high"] < 0]


def _counts(begin: str, apart: Sequence[Difference]) -> str:
    total, higher, lower = len(apart), len(_higher(apart)), len(_lower(apart))
    return (
        f"{begin} {total} difference{'' if total == 1 else 's'} {higher} {'is' if higher == 1 else 'are'} above zero, "
        f"{lower} below, and {total - higher - lower} undecided, with 95 % intervals that include zero."
    )


def _number(each: Difference, several: bool) -> str:
    number = points_interval(each["difference"], each["low"], each["high"])
    which = f"{each['model']}, " if several else ""
    return f"{number} in {which}{each['task']}, {heading(each)} on {each['data']} (n = {each['n']:,})"
