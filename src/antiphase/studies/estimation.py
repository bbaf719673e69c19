"""Estimates from the rows of a study: means over training seeds and images, differences, trends and peaks of means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import polars as pl

from antiphase.errors import UserError
from antiphase.statistics.intervals import Estimate, as_difference, as_share, as_size
from antiphase.statistics.seeds_by_images import CrossedEstimate, crossed_mean
from antiphase.studies.figures import BY_SEED, ESTIMATES

SEED = "training_seed"
SAMPLE = "sample"
STRATUM = "stratum"  # of a sample, where strata count alike: a class, a data set
ASR = pl.col("success").cast(pl.Float64)
CORRECT = (pl.col("prediction") == pl.col("label")).cast(pl.Float64)
Kind = Literal["share", "size", "difference", "number"]
Group = Mapping[str, Any]  # the columns and values that select its rows
_WITHIN: dict[Kind, Callable[[Estimate], Estimate]] = {
    "share": as_share,
    "size": as_size,
    "difference": as_difference,
    "number": lambda estimate: estimate,
}


def estimates(rows: pl.DataFrame, by: Sequence[str], value: pl.Expr, kind: Kind = "share") -> pl.DataFrame:
    """Average a value over seeds and samples for each group, with an interval over both.

    Args:
        by: columns that define the groups, which keep the order of their first rows.
        kind: range of the value, and so of its interval: a fraction in [0, 1], a size (norm, distance, Lipschitz
            constant) above 0, a difference of fractions in [−1, 1], or any number.
    """
    records = []
    for key, block in rows.group_by(by, maintain_order=True):
        matrix = as_matrix(block, value, str(key))
        estimate = _WITHIN[kind](crossed_mean(matrix, _groups(block), hits=kind in ("share", "difference")))
        by_seed = matrix.mean(1).tolist()
        records.append((*key, estimate.value, estimate.low, estimate.high, estimate.n, len(matrix), by_seed))
    schema: dict[str, Any] = {name: rows.schema[name] for name in by}
    return pl.DataFrame(records, schema | ESTIMATES | {BY_SEED: pl.List(pl.Float64)}, orient="row")


def over(*tables: pl.DataFrame, samples: str = "images") -> str:
    """Return a phrase for captions: the number of training seeds and samples that intervals are over."""
    frame = pl.concat([table.select("n", "seeds") for table in tables]).drop_nulls()
    if frame.is_empty():
        return samples
    ends = ([f"{end:,}" for end in (frame[name].min(), frame[name].max())] for name in ("n", "seeds"))
    n, seeds = (" to ".join(dict.fromkeys(pair)) for pair in ends)
    return f"{n} {samples}, for one training seed" if seeds == "1" else f"{seeds} training seeds and {n} {samples}"


def difference(rows: pl.DataFrame, first: Group, second: Group, value: pl.Expr) -> CrossedEstimate | None:
    """Estimate mean(first) − mean(second), paired by training seed, of those that both have, and sample."""
    return contrast(rows, [(1.0, first), (-1.0, second)], value)


def mean(rows: pl.DataFrame, which: Group, value: pl.Expr) -> CrossedEstimate | None:
    """Estimate a mean, such as that of ``ASR - 0.9``, to be compared with 0; None without rows."""
    return contrast(rows, [(1.0, which)], value)


def share_above(rows: pl.DataFrame, which: Group, value: pl.Expr, level: float) -> CrossedEstimate | None:
    """Estimate a share, of values in [0, 1], minus a level; level + the ends of the interval stay within [0, 1]."""
    if (estimate := contrast(rows, [(1.0, which)], value)) is None:
        return None
    share = as_share(estimate)
    return replace(estimate, value=estimate.value - level, low=share.low - level, high=share.high - level)


def gaps(attacks: pl.DataFrame, first: str = "DiffViT", second: str = "ViT") -> pl.DataFrame:
    """Return the difference in success between two series for each image and ε, in ``value``: 1, 0 or −1."""
    keys = ["data", "depth", "dim", SEED, SAMPLE, "eps"]
    one, other = (attacks.filter(series=series).select(*keys, "cell", value=ASR) for series in (first, second))
    cells, value = pl.concat_list("cell", "cell_right"), pl.col("value") - pl.col("value_right")
    return one.join(other, on=keys, nulls_equal=True, maintain_order="left").select(*keys, cell=cells, value=value)


def trend(
    rows: pl.DataFrame, column: str, where: Group, value: pl.Expr, scale: Literal["linear", "log2"] = "linear"
) -> CrossedEstimate | None:
    """Estimate how much a mean rises from the lowest to the highest level of a column, along a fitted line.

    With x the levels (or their log2) and w = (x − x̄)/Σ(x − x̄)²·(x_max − x_min), the contrast Σ w·mean(level): the slope
    of least squares times the range, for each training seed and sample. All levels count, not only the ends.
    """
    if len(levels := _levels(rows, column, where)) < 2:
        return None
    if scale == "log2" and levels[0] <= 0:
        raise UserError(f"trend over log2 of {column} {levels[0]}: expected levels above 0")
    x = np.log2(levels) if scale == "log2" else np.array(levels, float)
    centred = x - x.mean()
    weights = (centred / np.square(centred).sum() * (x[-1] - x[0])).tolist()
    return contrast(rows, list(zip(weights, [{**where, column: level} for level in levels], strict=True)), value)


def peak(rows: pl.DataFrame, by: str, at: Any, of: Group, value: pl.Expr) -> list[tuple[str, CrossedEstimate | None]]:
    """Estimate how far a mean at one level of a column lies above the average of the levels below, and of those above.

    At a peak both differences are above 0.
    """
    levels, differences = _levels(rows, by, of), []
    sides = {"below": [level for level in levels if level < at], "above": [level for level in levels if level > at]}
    for side, others in sides.items():
        if others:
            groups = [(-1.0 / len(others), {**of, by: level}) for level in others]
            differences.append((side, contrast(rows, [(1.0, {**of, by: at}), *groups], value)))
    return differences


def contrast(rows: pl.DataFrame, groups: Sequence[tuple[float, Group]], value: pl.Expr) -> CrossedEstimate | None:
    """Estimate Σ weight·mean(group), paired by training seed and sample, over the seeds that all groups have.

    Args:
        groups: the weight of each group, and the columns and values that select its rows.
    """
    weights, selections = zip(*groups, strict=True)
    blocks = [_chosen(rows, which) for which in selections]
    if not (seeds := set.intersection(*(set(block[SEED].unique()) for block in blocks))):
        return None
    blocks = [block.filter(pl.col(SEED).is_in(sorted(seeds))) for block in blocks]
    combined, cells = 0.0, set()
    for weight, which, block in zip(weights, selections, blocks, strict=True):
        combined = combined + weight * as_matrix(block, value, str(dict(which)))
        if set(block[SAMPLE].unique()) != set(blocks[0][SAMPLE].unique()):
            pair = f"{dict(selections[0])} and {dict(which)}"
            raise UserError(f"{pair}: measured on different images; measure both with the same settings")
        if "cell" in block.columns:  # a row made of several cells has a list of them
            identities = block["cell"].unique()
            cells.update(identities.explode() if identities.dtype == pl.List else identities)
    return replace(crossed_mean(np.asarray(combined), _groups(blocks[0])), cells=tuple(sorted(cells)))


def _levels(rows: pl.DataFrame, column: str, where: Group) -> list[Any]:
    return _chosen(rows, where)[column].drop_nulls().unique().sort().to_list()


def _chosen(rows: pl.DataFrame, which: Group) -> pl.DataFrame:
    near = [
        (pl.col(column) - value).abs() < 1e-9 if isinstance(value, float) else pl.col(column) == value
        for column, value in which.items()
    ]
    return rows.filter(near) if near else rows


def _groups(block: pl.DataFrame) -> np.ndarray | None:
    """Return the group of each sample in the order of :func:`as_matrix`; None if samples are of one."""
    if STRATUM not in block.columns:
        return None
    groups = block.group_by(SAMPLE).agg(pl.first(STRATUM)).sort(SAMPLE)[STRATUM].rank("dense")
    return groups.to_numpy().astype(np.int64) if groups.n_unique() > 1 else None


def as_matrix(block: pl.DataFrame, value: pl.Expr, group: str) -> np.ndarray:
    """Return (seeds, samples)."""
    means = block.select(SEED, SAMPLE, value=value).group_by(SEED, SAMPLE).agg(pl.mean("value")).sort(SEED, SAMPLE)
    repeated = "cell" in block.columns and len(means) < len(block)
    if repeated and block.group_by(SEED, SAMPLE).agg(pl.col("cell").n_unique())["cell"].max() != 1:
        fix = "select one by a column such as lambda_schedule, attack or eps"
        raise UserError(f"{group}: rows of several cells per seed and sample; {fix}")
    seeds, samples = means[SEED].n_unique(), means[SAMPLE].n_unique()
    whole = len(means) == seeds * samples
    matrix = means["value"].to_numpy().astype(np.float64).reshape(seeds, -1) if whole else None
    # every seed has every sample exactly once
    if matrix is None or not np.isfinite(matrix).all():
        raise UserError(f"{group}: not every seed was measured on the same images, or a value is not finite")
    return matrix
