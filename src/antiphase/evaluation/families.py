"""Models that differ only in their training seed, and averages over them."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from antiphase.evaluation.statistics import Estimate, as_difference, as_share, mean_over_seeds


def by_seed(models: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Group models by attention and by name without the seed at its end; models without a seed are apart.

    Args:
        models: ``name``, ``attention`` and ``seed`` of each.

    Returns:
        The names of the models of each family, by the family's name.

    >>> by_seed([{"name": f"vit-{seed}", "attention": "softmax", "seed": seed} for seed in (0, 1)])
    {'vit': ['vit-0', 'vit-1']}
    """
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for model in models:
        name, seed = model["name"], model["seed"]
        stem = name if seed is None else re.sub(rf"[-_]?(seed|s)?[-_]?{seed}$", "", name) or name
        groups.setdefault((model["attention"], stem, seed is None), []).append(name)
    taken = [stem for _, stem, _ in groups] + [model["name"] for model in models]
    return {
        (stem if taken.count(stem) == 1 else f"{stem}, {attention}") if len(names) > 1 else names[0]: names
        for (attention, stem, _), names in groups.items()
    }


def over_seeds(
    frame: pl.DataFrame, keys: Sequence[str], column: str, within: Callable[[Estimate], Estimate]
) -> pl.DataFrame:
    """Average ``column`` over each group of at least two rows, one row per seed, with Student's t interval.

    Args:
        frame: the rows.
        keys: columns that define the groups.
        column: column to average.
        within: restricts the interval to the range of the values.

    Returns:
        Columns ``*keys, value, low, high, n``, groups in the order of the rows, without smaller groups.
    """
    means = []
    for key, group in frame.group_by(keys, maintain_order=True):
        if len(group) > 1:
            mean = within(mean_over_seeds(group[column].to_list()))
            means.append((*key, mean.value, mean.low, mean.high, mean.n))
    schema: dict[str, Any] = {name: frame.schema[name] for name in keys}
    numbers = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "n": pl.Int64}
    return pl.DataFrame(means, schema=schema | numbers, orient="row")


def family_results(results: pl.DataFrame, families: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Average each rate over the seeds of each family of ``by_seed``.

    Returns:
        Columns ``family, attack, norm, eps, metric, value, low, high, n``.
    """
    owner = _owner(families)
    named = results.with_columns(family=pl.col("model").replace_strict(owner, return_dtype=pl.String))
    return over_seeds(named, ["family", "attack", "norm", "eps", "metric"], "value", as_share)


def family_comparisons(comparisons: pl.DataFrame, families: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Average the paired differences of each two families over their pairs.

    Pairs must be independent: there is no mean if two pairs share a model.

    Returns:
        Columns ``family, against_family, attack, norm, eps, value, low, high, n``.
    """
    owner = _owner(families)
    pairs = comparisons.with_columns(
        family=pl.col("model").replace_strict(owner, return_dtype=pl.String),
        against_family=pl.col("against").replace_strict(owner, return_dtype=pl.String),
    )
    keys = ["family", "against_family", "attack", "norm", "eps"]
    apart = pairs.filter(
        (pl.col("model").n_unique().over(keys) == pl.len().over(keys))
        & (pl.col("against").n_unique().over(keys) == pl.len().over(keys))
    )
    return over_seeds(apart, keys, "difference", as_difference)


def over_images(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Average the paired differences of ASR over the pairs, with an interval over the images for these weights.

    With dᵢ the mean over the pairs of (first model broken) − (second model broken) at image i, the interval is
    d̄ ± 1.96·s/√n over the n images, clipped to [−1, 1].

    Returns:
        Columns ``attack, norm, eps, image_low, image_high``.
    """
    broken = rows.select("model", "attack", "norm", "eps", "sample", pl.col("success").cast(pl.Float64))
    keys = ["attack", "norm", "eps", "sample"]
    signed = [
        broken.filter(model=name).with_columns(success=sign * pl.col("success"))
        for pair in pairs
        for name, sign in zip(pair, (1.0, -1.0), strict=True)
    ]
    images = pl.concat(signed).group_by(keys).agg(d=pl.sum("success") / len(pairs))
    half = 1.96 * pl.std("d") / pl.len().sqrt()
    return images.group_by(keys[:3]).agg(
        image_low=(pl.mean("d") - half).clip(lower_bound=-1.0),
        image_high=(pl.mean("d") + half).clip(upper_bound=1.0),
    )


def _owner(families: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {model: name for name, models in families.items() for model in models}
