"""Two results side by side: which model is compared with which, on the same images."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from antiphase.api.result import Result
from antiphase.errors import UserError


def paired_models(one: Result, two: Result) -> list[tuple[str, str]]:
    """Return the models of two results as pairs, in their order.

    Raises:
        UserError: they differ in number, or were measured on different images.
    """
    mine, theirs = ([model["name"] for model in each.summary["models"]] for each in (one, two))
    if len(mine) != len(theirs):
        raise UserError(f"compare: {len(mine)} models and {len(theirs)}; expected as many in both results")
    data = [each.record["data_fingerprint"] for each in (one, two)]
    if data[0] != data[1]:
        names = [each.record["data"] for each in (one, two)]
        raise UserError(
            f"compare: different images, {names[0]} and {names[1]}; expected the same data, split and limit"
        )
    return list(zip(mine, theirs, strict=True))


def combined(
    one: Result, two: Result, pairs: Sequence[tuple[str, str]], table: str | None = None
) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """Return the rows of both under names that differ, and the pairs under these names."""
    taken = {name for name, _ in pairs}
    renamed = {name: f"{name} (other)" if name in taken else name for _, name in pairs}
    theirs = two.frame(table).with_columns(pl.col("model").replace(renamed))
    return pl.concat([one.frame(table), theirs]), [(name, renamed[other]) for name, other in pairs]


def nothing_paired(what: str) -> Any:
    """Return the ``differences`` of a kind that has none."""

    def refuse(one: Result, two: Result) -> pl.DataFrame:
        raise UserError(f"compare: {what}")

    return refuse
