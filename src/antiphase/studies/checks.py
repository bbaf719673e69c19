"""Checks of claims from the rows of a study: one series above another, a mean above 0, for each of several levels."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.claims import Check, Claim, Unit
from antiphase.studies.estimation import ASR, difference, mean

UNSAID = ("attack", "estimator", "quantity")
"""Columns that a check's words leave out: they say by themselves what is compared."""


def higher(
    rows: pl.DataFrame,
    first: str,
    *,
    than: str,
    value: pl.Expr = ASR,
    what: str = "ASR",
    unit: Unit = "points",
    **levels: Any,
) -> list[Check]:
    """Return the checks mean(first series) > mean(other series), for each combination of levels.

    Args:
        rows: rows of both series.
        first: series that is said to be higher.
        than: the other series.
        value: column to average.
        what: what it is, in words.
        unit: unit of the difference.
        **levels: columns, and the values that select rows of both: one, or several.
    """
    return [
        Check(
            f"{what}({first}) − {what}({than}){in_words(where)}",
            difference(rows, {"series": first, **where}, {"series": than, **where}, value),
            unit,
        )
        for where in combinations(levels)
    ]


def above(rows: pl.DataFrame, what: str, value: pl.Expr, unit: Unit = "", **levels: Any) -> list[Check]:
    """Return the checks mean > 0, for each combination of levels."""
    return [
        Check(f"{what}{in_words(where)}", mean(rows, where, value), unit) for where in combinations(levels)
    ]


def apart(
    rows: pl.DataFrame,
    column: str,
    first: Any,
    second: Any,
    value: pl.Expr,
    what: str,
    unit: Unit = "",
    **levels: Any,
) -> list[Check]:
    """Return the checks mean(first level of a column) > mean(second), for each combination of other levels."""
    return [
        Check(
            f"{what}{in_words(where)}",
            difference(rows, {**where, column: first}, {**where, column: second}, value),
            unit,
        )
        for where in combinations(levels)
    ]


def combinations(levels: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of levels; the last changes fastest."""
    several = [
        list(some) if isinstance(some, list | tuple | pl.Series) else [some] for some in levels.values()
    ]
    for values in product(*several):
        yield dict(zip(levels, values, strict=True))


def in_words(where: Mapping[str, Any]) -> str:
    """Say which rows were chosen.

    >>> in_words({"eps": 1 / 255, "depth": 3, "data": "cifar10"})
    ' at 1/255, depth 3, cifar10'
    """
    said = {name: value for name, value in where.items() if name not in UNSAID}
    eps = f" at {eps_label(said.pop('eps'))}" if "eps" in said else ""
    named = ("data", "site", "at", "perturbation")
    return eps + "".join(
        f", {value}" if name in named else f", {name} {value}" for name, value in said.items()
    )


def each_data(rows: pl.DataFrame, claims: Callable[[pl.DataFrame], list[Claim]]) -> list[Claim]:
    """Return the claims of the rows of each data set, joined: a claim has to hold on every one.

    Args:
        rows: of one table, with a column ``data``.
        claims: from the rows of one data set to its claims.
    """
    sets = rows["data"].unique(maintain_order=True).to_list()
    joined: dict[str, Claim] = {}
    for data in sets:
        for claim in claims(rows.filter(data=data)):
            own = [replace(one, what=f"{one.what}, {data}") if len(sets) > 1 else one for one in claim.checks]
            before = joined[claim.name].checks if claim.name in joined else ()
            joined[claim.name] = replace(claim, checks=[*before, *own])
    return list(joined.values())
