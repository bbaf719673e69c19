"""From the rows of a study's cells to estimates: means over training seeds and images, differences of them."""

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
    """Return the mean of a value over seeds and samples for each group, with its interval over both.

    Args:
        rows: one for each seed and sample of a group, or several, whose mean is taken (heads, layers).
        by: columns that groups are told apart by; they keep the order of their first rows.
        value: what is averaged.
        kind: what the value is, so that its interval stays within its range: a share in [0, 1], a size (norm,
            distance, Lipschitz constant) above 0, a difference of shares in [−1, 1], or any other number.

    Returns:
        Columns ``*by`` and those of ``ESTIMATES``.

    Raises:
        UserError: the seeds of a group were not measured on the same samples.
    """
    found = []
    for key, block in rows.group_by(by, maintain_order=True):
        matrix = _matrix(block, value, str(key))
        estimate = _WITHIN[kind](crossed_mean(matrix))
        found.append((*key, estimate.value, estimate.low, estimate.high, estimate.n, len(matrix)))
    schema: dict[str, Any] = {name: rows.schema[name] for name in by}
    return pl.DataFrame(found, schema | ESTIMATES, orient="row")


def over(*found: pl.DataFrame, samples: str = "images") -> str:
    """Say in a caption what intervals are over: how many training seeds and samples.

    Args:
        *found: columns ``n`` and ``seeds``.
        samples: what ``n`` counts.

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
        rows: that both are among.
        first: columns and the values that choose the rows of the first.
        second: the same for the second.
        value: what is averaged.

    Returns:
        The estimate; None where one of them has no rows, or they share no seed.

    Raises:
        UserError: the two were not measured on the same seeds and samples.
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
            f"{dict(first)} and {dict(second)}: measured on other images; run both with one setting"
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
            f"{what}: several cells would be averaged into one; tell them apart by a column, such as lambda_schedule, "
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
    # as many rows as pairs, each pair once: every seed has every sample
    if matrix is None or not np.isfinite(matrix).all():
        raise UserError(f"{what}: not every seed was measured on the same images, or a value is not finite")
    return matrix
