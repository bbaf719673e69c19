"""From rows of outcomes to the numbers that papers print: each with its interval, and the difference to a twin's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.data.expected_counts import MEAN_PER_CLASS
from antiphase.data.mmvp import PAPER_PATTERNS
from antiphase.registry import TASKS, find
from antiphase.statistics.influence import mcnemar_clustered
from antiphase.statistics.intervals import (
    Estimate,
    jackknife,
    mcnemar_exact,
    mean_over_groups,
    paired_difference,
    proportion,
)
from antiphase.statistics.seeds_by_images import crossed_mean


@dataclass(frozen=True)
class Metric:
    """One number of a task on a data set.

    Attributes:
        setting: of the rows; a direction, an ensemble, an objective.
        name: such as ``"R@5"``.
        values: of each observation, in [0, 1]: columns seed, unit, group, value. Of a ratio, a column ``counted`` says
            which observations are in its denominator.
        by_group: whether every group counts alike.
        clustered: whether the units of a group are no independent draws: the captions of an image.
        seeds_alike: whether the same unit occurs under every seed, as an image does and an episode does not.
        tested: whether a difference of clustered hits has an exact p, see
            :func:`~antiphase.statistics.influence.mcnemar_clustered`.
    """

    setting: str
    name: str
    values: pl.DataFrame
    by_group: bool = False
    clustered: bool = False
    seeds_alike: bool = True
    tested: bool = False


@dataclass(frozen=True)
class Spread:
    """An estimate with what its spread is made of.

    Attributes:
        estimate: the mean over everything, with a 95 % interval over images, captions, pairs or episodes.
        seed_sd: standard deviation over the seeds of each seed's mean; None with one seed.
        unit_sd: standard deviation over the episodes; None for other tasks.
        seeds: how many.
    """

    estimate: Estimate
    seed_sd: float | None
    unit_sd: float | None
    seeds: int


def task_metrics(
    task: str, rows: pl.DataFrame, groups: Mapping[str, Sequence[int]] | None = None
) -> list[Metric]:
    """Return the metrics that the rows of a task on one data set hold.

    Args:
        task: a name of :data:`~antiphase.registry.TASKS`.
        rows: of :data:`~antiphase.evaluation.metrics.ROW_SCHEMA`.
        groups: MMVP only: title and patterns of every mean over patterns.

    Raises:
        UserError: there is no such task.
    """
    metrics = find(TASKS, task, "task").metrics
    by_setting = rows.group_by("setting", maintain_order=True)
    return [metric for (setting,), its in by_setting for metric in metrics(str(setting), its, groups)]


def observed(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Return the observations of a metric: the value of each row, with its seed, unit and group."""
    return rows.select("seed", "unit", "group", value=value.cast(pl.Float64))


def accuracies(setting: str, rows: pl.DataFrame) -> list[Metric]:
    """Return the metrics of a classifier: top-1 accuracy, and its mean over the classes."""
    first = observed(rows, pl.col("rank") < 1)
    return [Metric(setting, "top-1", first), Metric(setting, "per class", first, by_group=True)]


def estimate(metric: Metric) -> Spread:
    """Return a metric's mean and spread.

    Hits of one seed have Wilson's interval, all else Student's t over the units, cut to [0, 1]: over an image's mean
    over seeds, over all episodes, within classes where every class counts alike, over the images that several captions
    belong to. Equal values get the variance that :func:`~antiphase.statistics.seeds_by_images.crossed_mean` gives them.
    """
    values = metric.values
    seeds = values["seed"].n_unique()
    units = _over_seeds(values) if metric.seeds_alike else values
    hits = bool(units["value"].is_in([0.0, 1.0]).all())
    if hits and not metric.by_group and not metric.clustered:
        whole = proportion(int(units["value"].sum()), len(units))
    else:
        whole = _cut(_mean(units, metric), 0.0)
    of_seeds = [_mean(its, metric).value for _, its in values.group_by("seed")]
    seed_sd = float(np.std(of_seeds, ddof=1)) if seeds > 1 else None
    unit_sd = None if metric.seeds_alike or len(values) < 2 else float(values["value"].to_numpy().std(ddof=1))
    return Spread(whole, seed_sd, unit_sd, seeds)


def difference(metric: Metric, twin: Metric) -> tuple[Estimate, float | None]:
    """Return how much higher a model's metric is than its twin's on the same units, with a 95 % interval.

    For hits of one seed the interval is Newcombe's for paired proportions, else Student's t over the differences. For
    hits of one seed whose mean counts all units alike, groups of one size included, the second value is the exact
    McNemar p. The captions of an image are one draw together, as are the questions about one: over the images by
    Student's t, without a p, or if the metric is tested, with an exact one over the images.

    Raises:
        ValueError: the two were not measured on the same units.
    """
    both = metric.values.join(twin.values, on=["seed", "unit"], suffix="_twin", how="inner")
    if not len(both) == len(metric.values) == len(twin.values):
        raise ValueError(f"{metric.name}: the twins were not measured on the same units")
    one, two = both["value"].to_numpy(), both["value_twin"].to_numpy()
    hits = both["seed"].n_unique() == 1 and bool((np.isin(one, (0, 1)) & np.isin(two, (0, 1))).all())
    even = not metric.by_group or both["group"].value_counts()["count"].n_unique() == 1
    p = mcnemar_exact(one > 0.5, two > 0.5) if hits and even and not metric.clustered else None
    if hits and metric.clustered and metric.tested:
        p = mcnemar_clustered(one > 0.5, two > 0.5, both["group"].to_numpy())
    if hits and not metric.by_group and not metric.clustered:
        return paired_difference(one > 0.5, two > 0.5), p
    apart = both.select("seed", "unit", "group", value=pl.col("value") - pl.col("value_twin"))
    return _cut(_mean(_over_seeds(apart) if metric.seeds_alike else apart, metric), -1.0), p


def _over_seeds(values: pl.DataFrame) -> pl.DataFrame:
    counted = [pl.col("counted").any()] if "counted" in values.columns else []
    means = (pl.col("group").first(), pl.col("value").mean(), *counted)
    return values.group_by("unit", maintain_order=True).agg(*means)


def _mean(units: pl.DataFrame, metric: Metric) -> Estimate:
    values = units["value"].to_numpy()
    if metric.by_group:
        return mean_over_groups(values, units["group"].to_numpy())
    draws = len(values)
    if metric.clustered:
        totals = units.group_by("group", maintain_order=True).agg(
            pl.col("value").sum(), count=pl.len().cast(pl.Float64)
        )
        counted = units.filter("counted") if "counted" in units.columns else units
        draws = counted["group"].n_unique()
        found = jackknife(
            totals.select("value", "count").to_numpy(), lambda means: means[..., 0] / means[..., 1]
        )
    else:
        found = jackknife(values[:, None], lambda means: means[..., 0])
    if found.high - found.low < 1e-9:  # 5 hits of 5 do not imply a rate of 1
        found = crossed_mean(np.full((1, draws), found.value))
    return Estimate(found.value, found.low, found.high, len(values))


def _cut(estimate: Estimate, least: float) -> Estimate:
    """Return an estimate whose interval stays within what a rate, or a difference of rates, can be."""
    if not np.isfinite(estimate.high):
        return estimate
    return Estimate(estimate.value, max(estimate.low, least), min(estimate.high, 1.0), estimate.n)


# setting: what tells rows of a task and a data set apart: a prompt ensemble, a probe's objective, a direction.
# unit: id of the image, number of the caption, episode or pair. group: its class or pattern, -1 where it has none.
# rank: how many classes or candidates stand before the right one. score: a share in [0, 1]. cost: a probe's C.
# Answers to POPE: see antiphase.vlm.pope.
ROW_SCHEMA = {
    "setting": pl.String,
    "seed": pl.Int64,
    "unit": pl.Int64,
    "group": pl.Int64,
    "prediction": pl.Int64,
    "rank": pl.Int64,
    "score": pl.Float64,
    "cost": pl.Float64,
}


def classification_rows(
    scores: Float[Tensor, "n classes"],
    labels: Int64[Tensor, " n"],
    ids: Int64[Tensor, " n"],
    setting: str = "",
    seed: int = 0,
) -> pl.DataFrame:
    """Return a row for each image: the class of the highest score, and the rank of the right one.

    Of equal scores the lower class number stands first, for prediction and rank alike.
    """
    own = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device)[None, :] < labels[:, None]
    before = (~(scores <= own)) | ((scores == own) & earlier)  # NaN stands before
    return outcome_rows(
        setting=setting,
        seed=seed,
        unit=ids.tolist(),
        group=labels.tolist(),
        prediction=scores.argmax(1).tolist(),
        rank=before.sum(1).tolist(),
    )


def outcome_rows(**columns: Any) -> pl.DataFrame:
    """Return rows of ``ROW_SCHEMA``; a group that is not given is −1, any other column null."""
    frame = pl.DataFrame(columns)
    absent = [
        pl.lit(-1 if name == "group" else None).alias(name) for name in ROW_SCHEMA if name not in columns
    ]
    return frame.with_columns(absent).select(pl.col(name).cast(kind) for name, kind in ROW_SCHEMA.items())


# data whose classes are of unequal size, so that each is to count alike: the protocol's and the emoji's nine groups
CLASSES_ALIKE = MEAN_PER_CLASS | {"openmoji", "noto-emoji"}


def accuracy_stands_for(data: str, metric: str) -> bool:
    """Return whether an accuracy is the one that stands for a classifier on a data set.

    >>> accuracy_stands_for("pets", "per class"), accuracy_stands_for("cifar10", "per class")
    (True, False)
    """
    return metric == ("per class" if data in CLASSES_ALIKE else "top-1")


def summarise_tasks(
    rows: pl.DataFrame, twins: Mapping[str, str], patterns: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """Return every metric of every model, with its spread, and its difference to the twin's.

    Args:
        rows: of ``rows.parquet``.
        twins: name of the twin of each model that has one.
        patterns: names of MMVP's patterns, by data set.
    """
    found: dict[tuple[str, ...], Metric] = {}
    results, differences = [], []
    for (model, task, data), its in rows.group_by("model", "task", "data", maintain_order=True):
        names = (patterns or {}).get(str(data))
        groups = None if names is None else _pattern_groups(names)
        for metric in task_metrics(str(task), its, groups):
            key = (str(model), str(task), str(data), metric.setting, metric.name)
            found[key] = metric
            spread = estimate(metric)
            results.append(
                dict(zip(("model", "task", "data", "setting", "metric"), key, strict=True))
                | {
                    "value": spread.estimate.value,
                    "low": _finite(spread.estimate.low),
                    "high": _finite(spread.estimate.high),
                    "n": spread.estimate.n,
                    "seed_sd": spread.seed_sd,
                    "unit_sd": spread.unit_sd,
                    "seeds": spread.seeds,
                    "headline": _stands_for(key, metric),
                }
            )
    for (model, *key), metric in found.items():
        twin = twins.get(model)
        if twin is None or (twin, *key) not in found:
            continue
        apart, p = difference(metric, found[twin, *key])
        differences.append(
            {"model": model, "twin": twin}
            | dict(zip(("task", "data", "setting", "metric"), key, strict=True))
            | {
                "difference": apart.value,
                "low": _finite(apart.low),
                "high": _finite(apart.high),
                "p": p,
                "n": apart.n,
                "headline": _stands_for((model, *key), metric),
            }
        )
    return {"results": results, "differences": differences}


def _stands_for(key: Sequence[str], metric: Metric) -> bool:
    _, task, data, *_ = key
    return find(TASKS, task, "task").stands_for(data, metric.name)


def _pattern_groups(names: Sequence[str]) -> dict[str, list[int]]:
    """Return MMVP's metrics: the mean over all patterns, over the paper's where they are there, and each alone."""
    groups = {f"mean of {len(names)}": list(range(len(names)))}
    paper = [number for number, name in enumerate(names) if name in PAPER_PATTERNS]
    if len(paper) == len(PAPER_PATTERNS):
        groups[f"mean of {len(paper)}"] = paper
    return groups | {name: [number] for number, name in enumerate(names)}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
