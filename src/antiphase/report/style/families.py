"""Families of models that differ only in their training seed: each has one colour and one mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.evaluation.rates import by_seed

# Okabe and Ito's colour-blind-safe palette; the first family of each kind of attention has the same colour in every
# report.
_FIRST = {"softmax": "#0072B2", "differential": "#D55E00"}
_FURTHER = ("#009E73", "#CC79A7", "#56B4E9", "#E69F00")


@dataclass(frozen=True)
class Family:
    """The models of one architecture and recipe, trained with different seeds."""

    name: str
    color: str
    models: tuple[str, ...]


def families(models: Sequence[Mapping[str, Any]]) -> list[Family]:
    """Give each family of ``antiphase.evaluation.rates.by_seed`` a colour.

    >>> models = [{"name": f"vit-{seed}", "attention": "softmax", "seed": seed} for seed in (0, 1)]
    >>> families(models)
    [Family(name='vit', color='#0072B2', models=('vit-0', 'vit-1'))]
    """
    attention = {model["name"]: model["attention"] for model in models}
    first, further = dict(_FIRST), list(_FURTHER)
    found = []
    for name, members in by_seed(models).items():
        color = first.pop(attention[members[0]], None) or further[0]
        if color == further[0]:
            further.append(further.pop(0))  # reuse colours if there are more families
        found.append(Family(name, color, tuple(members)))
    return found


def seed_counts(groups: Sequence[Family]) -> str:
    """Return the number of training seeds per family, as a number or range; empty if all have one.

    >>> seed_counts([Family("a", "", ("a-0", "a-1")), Family("b", "", ("b-0", "b-1", "b-2")), Family("c", "", ("c",))])
    '2 to 3'
    """
    counts = [len(family.models) for family in groups if len(family.models) > 1]
    if not counts:
        return ""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
