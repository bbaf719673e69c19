"""What differs between a card and one of the same audit, measured again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from antiphase.report.card.model import BY_HAND, RobustnessCard

_ELSEWHERE = ("versions", "hardware", "warnings", "options", "command")  # of the machine, not of the models
_RATES = ("value", "low", "high", "difference")  # in shares, so that a tolerance in points applies
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Disagreement:
    """One field in which two cards differ.

    Attributes:
        field: its place, such as ``models[0].rates[1].asr.value``.
        card: what the card says.
        measured: what was measured again.
    """

    field: str
    card: Any
    measured: Any


def disagreements(card: RobustnessCard, again: RobustnessCard, tolerance: float = 0.0) -> list[Disagreement]:
    """Return every field of a card that does not agree with a second measurement.

    Machine, versions, warnings and what was filled in by hand are not compared.

    Args:
        card: as published.
        again: of the repeated audit.
        tolerance: by how much rates, differences and the ends of their intervals may differ, as a share in [0, 1].
            If it is above zero, p-values are not compared.
    """
    return [
        Disagreement(place, one, other)
        for place, one, other in _pairs(card.content(), again.content(), "")
        if not _agree(place, one, other, tolerance)
    ]


def count_numbers(card: RobustnessCard) -> int:
    """Return how many numbers of a card are compared."""
    content = card.content()
    return sum(
        isinstance(one, float | int) and not isinstance(one, bool)
        for _, one, _ in _pairs(content, content, "")
    )


def _pairs(one: Any, other: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            if key not in BY_HAND and (place or key not in _ELSEWHERE):
                yield from _pairs(one.get(key), other.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list):
        for at in range(max(len(one), len(other))):
            mine, others = (each[at] if at < len(each) else None for each in (one, other))
            yield from _pairs(mine, others, f"{place}[{at}]")
    else:
        yield place, one, other


def _agree(place: str, one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, bool) or not (isinstance(one, int | float) and isinstance(other, int | float)):
        return one == other
    name = place.rpartition(".")[2]
    if tolerance and name == "p_value":
        return True
    of_rates = name in _RATES and place.startswith(("models", "differences", "mean_differences"))
    return abs(one - other) <= (tolerance if of_rates else 0.0) + _ROUNDING
