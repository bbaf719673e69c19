"""Estimates from the rows of a study: means over training seeds and images, and differences of means."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl

from antiphase.errors import UserError
from antiphase.evaluation.crossed import crossed_mean
from antiphase.evaluation.statistics import Estimate, as_difference, as_share, as_size
from antiphase.studies.artefact import ESTIMATES

SEED, SAMPLE = "training_seed", "sample"
ASR = pl.col("success").cast(pl.Float64)
CORRECT = (pl.col("prediction") == pl.col("label")).cast(pl.Float64)
Kind = Literal["share", "size", "difference", "number"]
_WITHIN: dict[Kind, Callable[[Estimate], Estimate]] = {
    "share": as_share, "size": as_size, "difference": as_difference, "number": lambda estimate: estimate,
}  # fmt: skip


def estimates(
    rows: pl.DataFrame,
    by: Sequence[str],
    value: pl.Expr,
    kind: Kind = "share",
) -> pl.DataFrame:
    """Average a value over seeds and samples for each group, with an interval over both.

    Args:
        rows: one row per seed and sample of a group; several (heads, layers) are averaged first.
        by: columns that define the groups, which keep the order of their first rows.
        value: column to average.
        kind: range of the value, and so of its interval: a fraction in [0, 1], a size (norm, distance, Lipschitz
            constant) above 0, a difference of fractions in [−1, 1], or any number.

    Returns:
        Columns ``*by`` and those of ``ESTIMATES``.

    Raises:
        UserError: The seeds of a group were not measured on the same samples.
    """
    found = []
    for key, block in rows.group_by(by, maintain_order=True):
        matrix = _matrix(block, value, str(key))
        estimate = _WITHIN[kind](crossed_mean(matrix))
        found.append((*key, estimate.value, estimate.low, estimate.high, estimate.n, len(matrix)))
    schema: dict[str, Any] = {name: rows.schema[name] for name in by}
    return pl.DataFrame(found, schema | ESTIMATES, orient="row")


def over(*found: pl.DataFrame, samples: str = "images") -> str:
    """Return a phrase for captions: the number of training seeds and samples that intervals are over.

    Args:
        *found: frames with columns ``n`` and ``seeds``.
        samples: the noun for what ``n`` counts.

    >>> over(pl.DataFrame({"n": [300, 1000], "seeds": [3, 3]}))
    '3 training seeds and 300 to 1,000 images'
    >>> over(pl.DataFrame({"n": [2], "seeds": [1]}), samples="pairs")
    '2 pairs, for one training seed'
    """
    frame = pl.concat([each.select("n", "seeds") for each in found]).drop_nulls()
    if frame.is_empty():
        return samples
    ends = frame.select(
        least=pl.concat_list(pl.min("n", "seeds")), most=pl.concat_list(pl.max("n", "seeds"))
    ).row(0)
    n, seeds = (f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in zip(*ends, strict=True))
    return (
        f"{n} {samples}, for one training seed"
        if seeds == "1"
        else f"{seeds} training seeds and {n} {samples}"
    )


def difference(
    rows: pl.DataFrame, first: Mapping[str, Any], second: Mapping[str, Any], value: pl.Expr
) -> Estimate | None:
    """Estimate mean(first) − mean(second), paired by training seed and sample.

    Args:
        rows: rows of both.
        first: columns and values that select the rows of the first.
        second: the same for the second.
        value: column to average.

    Returns:
        The estimate; None if one of them has no rows, or they share no seed.

    Raises:
        UserError: The two were not measured on the same seeds and samples.
    """
    one, two = (_chosen(rows, which) for which in (first, second))
    if one.is_empty() or two.is_empty():
        return None
    seeds = sorted(set(one[SEED]) & set(two[SEED]))
    if not seeds:
        return None
    one, two = (block.filter(pl.col(SEED).is_in(seeds)) for block in (one, two))
    matrices = [_matrix(block, value, str(dict(which))) for block, which in ((one, first), (two, second))]
    if set(one[SAMPLE]) != set(two[SAMPLE]):
        raise UserError(
            f"{dict(first)} and {dict(second)}: measured on different images; measure both with the same settings"
        )
    return crossed_mean(matrices[0] - matrices[1])


def _chosen(rows: pl.DataFrame, which: Mapping[str, Any]) -> pl.DataFrame:
    for column, value in which.items():
        near = (pl.col(column) - value).abs() < 1e-9 if isinstance(value, float) else pl.col(column) == value
        rows = rows.filter(near)
    return rows


def _matrix(block: pl.DataFrame, value: pl.Expr, what: str) -> np.ndarray:
    """Return (seeds, samples)."""
    if (
        "cell" in block.columns
        and block.group_by(SEED, SAMPLE).agg(pl.col("cell").n_unique())["cell"].max() != 1
    ):
        raise UserError(
            f"{what}: rows of several cells per seed and sample; select one by a column such as lambda_schedule, "
            "attack or eps"
        )
    means = (
        block.select(SEED, SAMPLE, value=value)
        .group_by(SEED, SAMPLE)
        .agg(pl.mean("value"))
        .sort(SEED, SAMPLE)
    )
    seeds, samples = means[SEED].unique(maintain_order=True), means[SAMPLE].unique().sort()
    whole = len(means) == len(seeds) * len(samples)
    matrix = means["value"].to_numpy().astype(np.float64).reshape(len(seeds), -1) if whole else None
    # every seed has every sample exactly once
    if matrix is None or not np.isfinite(matrix).all():
        raise UserError(f"{what}: not every seed was measured on the same images, or a value is not finite")
    return matrix
