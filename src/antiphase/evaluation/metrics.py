"""From rows of outcomes to the numbers that papers print: each with its interval, and the difference to a twin's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from antiphase.evaluation.statistics import (
    Estimate,
    jackknife,
    mcnemar_exact,
    mean_over_groups,
    paired_difference,
    proportion,
)

Task = Literal["retrieval", "zero-shot", "probe", "few-shot", "mmvp"]
TASKS: dict[str, str] = {
    "retrieval": "R@1, 5, 10 of images by captions and of captions by images",
    "zero-shot": "classification by the cosine to class prompts",
    "probe": "a linear classifier of frozen features",
    "few-shot": "5-way 5-shot episodes, nearest prototype",
    "mmvp": "MMVP-VLM's pairs of images that look alike",
}
"""Name of each task and what it is, in one line."""

_TOP = 5


@dataclass(frozen=True)
class Metric:
    """One number of a task on a data set.

    Attributes:
        setting: of the rows; a direction, an ensemble, an objective.
        name: such as ``"R@5"``.
        values: of each observation, in [0, 1]: columns seed, unit, group, value.
        by_group: whether every group counts alike.
        clustered: whether the units of a group are no independent draws: the captions of an image.
        seeds_alike: whether the same unit occurs under every seed, as an image does and an episode does not.
    """

    setting: str
    name: str
    values: pl.DataFrame
    by_group: bool = False
    clustered: bool = False
    seeds_alike: bool = True


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
    task: Task, rows: pl.DataFrame, groups: Mapping[str, Sequence[int]] | None = None
) -> list[Metric]:
    """Return the metrics that the rows of a task on one data set hold.

    Args:
        task: one of ``TASKS``.
        rows: of :data:`~antiphase.evaluation.outcomes.ROW_SCHEMA`.
        groups: MMVP's alone: title and patterns of every mean over patterns.
    """
    found = []
    for (setting,), its in rows.group_by("setting", maintain_order=True):
        setting = str(setting)
        if task == "retrieval":
            several = its["group"].n_unique() < len(its)
            found += [
                Metric(setting, f"R@{k}", _values(its, pl.col("rank") < k), clustered=several)
                for k in (1, 5, 10)
            ]
        elif task == "few-shot":
            found.append(Metric(setting, "accuracy", _values(its, pl.col("score")), seeds_alike=False))
        elif task == "mmvp":
            answers = _values(its, pl.col("score"))
            for title, chosen in (groups or {"mean": its["group"].unique().to_list()}).items():
                some = answers.filter(pl.col("group").is_in(list(chosen)))
                if len(some):
                    found.append(Metric(setting, title, some, by_group=len(chosen) > 1))
        else:
            first = _values(its, pl.col("rank") < 1)
            found.append(Metric(setting, "top-1", first))
            if its["group"].n_unique() > _TOP and task == "zero-shot":
                found.append(Metric(setting, f"top-{_TOP}", _values(its, pl.col("rank") < _TOP)))
            found.append(Metric(setting, "per class", first, by_group=True))
    return found


def estimate(metric: Metric) -> Spread:
    """Return a metric's mean and spread.

    Hits of one seed have Wilson's interval, all else Student's t over the units, cut to [0, 1]: over an image's mean
    over seeds, over all episodes, within classes where every class counts alike, over the images that several captions
    belong to.
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
    McNemar p. The captions of an image are one draw together: over the images by Student's t, without a p.

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
    if hits and not metric.by_group and not metric.clustered:
        return paired_difference(one > 0.5, two > 0.5), p
    apart = both.select("seed", "unit", "group", value=pl.col("value") - pl.col("value_twin"))
    return _cut(_mean(_over_seeds(apart) if metric.seeds_alike else apart, metric), -1.0), p


def _values(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    return rows.select("seed", "unit", "group", value=value.cast(pl.Float64))


def _over_seeds(values: pl.DataFrame) -> pl.DataFrame:
    return values.group_by("unit", maintain_order=True).agg(pl.col("group").first(), pl.col("value").mean())


def _mean(units: pl.DataFrame, metric: Metric) -> Estimate:
    values = units["value"].to_numpy()
    if metric.by_group:
        return mean_over_groups(values, units["group"].to_numpy())
    if not metric.clustered:
        return jackknife(values[:, None], lambda means: means[..., 0])
    totals = units.group_by("group", maintain_order=True).agg(
        pl.col("value").sum(), count=pl.len().cast(pl.Float64)
    )
    found = jackknife(totals.select("value", "count").to_numpy(), lambda means: means[..., 0] / means[..., 1])
    return Estimate(found.value, found.low, found.high, len(values))


def _cut(estimate: Estimate, least: float) -> Estimate:
    """Return an estimate whose interval stays within what a rate, or a difference of rates, can be."""
    if not np.isfinite(estimate.high):
        return estimate
    return Estimate(estimate.value, max(estimate.low, least), min(estimate.high, 1.0), estimate.n)
