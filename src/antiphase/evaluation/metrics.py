"""From what a model made of each image, caption, episode or pair to the numbers that papers print, with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.data.sources import EMOJI_SETS, MEAN_PER_CLASS
from antiphase.registry import TASKS, find
from antiphase.statistics import decisions, intervals, seeds_by_images

Numbers = Int64[Tensor, " n"]
Groups = Sequence[str]  # names of the groups that rows number: MMVP's patterns
# setting: what tells rows of a task and a data set apart: a prompt ensemble, a probe's objective, a direction.
# unit: id of the image, number of the caption, episode or pair. group: its class or pattern, -1 where it has none.
# rank: how many classes or candidates stand before the right one. score: a share in [0, 1]. cost: a probe's C.
_WHOLE = dict.fromkeys(("seed", "unit", "group", "prediction", "rank"), pl.Int64)
ROW_SCHEMA = {"setting": pl.String} | _WHOLE | {"score": pl.Float64, "cost": pl.Float64}
# data whose classes are of unequal size, so that each is to count alike: the protocol's and the emoji's nine groups
CLASSES_ALIKE = MEAN_PER_CLASS.union(EMOJI_SETS)


def outcome_rows(**columns: Any) -> pl.DataFrame:
    """Return rows of ``ROW_SCHEMA``; a missing seed is 0, a missing setting empty, a missing group −1, others null."""
    usual = dict.fromkeys(ROW_SCHEMA) | {"setting": "", "seed": 0, "group": -1}
    plain = {name: one.tolist() if isinstance(one, Tensor) else one for name, one in columns.items()}
    lists = {name: values for name, values in plain.items() if not isinstance(values, int | str)}
    single = {name: pl.lit(value) for name, value in (usual | columns).items() if name not in lists}
    return pl.DataFrame(lists).with_columns(**single).cast(dict[Any, Any](ROW_SCHEMA)).select(*ROW_SCHEMA)


def classification_rows(
    scores: Float[Tensor, "n classes"], labels: Numbers, ids: Numbers, setting: str = "", seed: int = 0
) -> pl.DataFrame:
    """Return a row for each image: the class of the highest score, and the rank of the right one; ties in order."""
    right = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device)[None, :] < labels[:, None]
    before = (~(scores <= right)) | ((scores == right) & earlier)  # NaN stands before
    about = {"setting": setting, "seed": seed, "unit": ids, "group": labels}
    return outcome_rows(**about, prediction=scores.argmax(1), rank=before.sum(1))


@dataclass(frozen=True)
class Metric:
    """One number of a task on a data set."""

    setting: str  # of the rows
    name: str  # such as "R@5"
    # of each observation, in [0, 1]: columns seed, unit, group, value; of a ratio, a column ``counted`` says which
    # observations are in its denominator
    values: pl.DataFrame
    by_group: bool = False  # whether every group counts alike
    clustered: bool = False  # whether the units of a group are no independent draws: the captions of an image
    seeds_alike: bool = True  # whether a unit occurs under every seed, as an image does and an episode not
    tested: bool = False  # whether a difference of clustered hits has an exact p, see ``mcnemar_clustered``
    chance: float | None = None  # what answers at random reach, where it is known
    constant: float | None = None  # what the best answer that is always the same reaches


def observed(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Return the observations of a metric: the value of each row, with its seed, unit and group."""
    return rows.select("seed", "unit", "group", value=value.cast(pl.Float64))


def accuracies(setting: str, rows: pl.DataFrame, tops: Sequence[int] = (1,), groups: Groups = ()) -> list[Metric]:
    """Return top-k accuracies and the mean of the first over the classes; a constant answer has the k largest.

    Chance is among all classes, ``groups``; without them, among those that occur.
    """
    shares = rows.group_by("group").agg(pl.len() / len(rows))["len"].sort(descending=True)
    chance = 1 / len(groups or shares)
    metrics = []
    for k in tops:
        hits, most = observed(rows, pl.col("rank") < k), float(shares[:k].sum())
        metrics.append(Metric(setting, f"top-{k}", hits, chance=min(1.0, k * chance), constant=most))
    return [*metrics, replace(metrics[0], name="per class", by_group=True, constant=1 / len(shares))]


def accuracy_stands_for(data: str, metric: str) -> bool:
    """Return whether an accuracy is the one that stands for a classifier on a data set."""
    return metric == ("per class" if data in CLASSES_ALIKE else "top-1")


def task_metrics(task: str, rows: pl.DataFrame, groups: Sequence[str] | None = None) -> list[Metric]:
    """Return the metrics that the rows of a task on one data set hold; ``groups`` names the groups of the rows."""
    metrics = find(TASKS, task, "task").metrics
    by_setting = rows.group_by("setting", maintain_order=True)
    return [metric for (setting,), block in by_setting for metric in metrics(str(setting), block, groups)]


@dataclass(frozen=True)
class MetricEstimate(intervals.Estimate):
    """A metric's mean over everything, with its interval over images, captions, pairs or episodes."""

    seed_sd: float | None  # standard deviation over the seeds of each seed's mean; None with one seed
    unit_sd: float | None  # standard deviation over the episodes; None for other tasks
    seeds: int


def estimate(metric: Metric) -> MetricEstimate:
    """Return a metric's mean and spread.

    Hits of one seed have Wilson's interval, all else Student's t, cut to [0, 1], over the units: an image's mean over
    seeds, all episodes, the images of captions; within classes where every class counts alike. Equal values get the
    variance of :func:`~antiphase.statistics.seeds_by_images.crossed_mean`.
    """
    values = metric.values
    seeds = values["seed"].n_unique()
    units = _over_seeds(values, metric)
    if bool(units["value"].is_in([0.0, 1.0]).all()) and not metric.by_group and not metric.clustered:
        whole = intervals.proportion(int(units["value"].sum()), len(units))
    else:
        whole = _mean(units, metric)
        whole = intervals.clipped(whole, 0.0, 1.0) if np.isfinite(whole.high) else whole
    of_seeds = [_mean(block, metric).value for _, block in values.group_by("seed", maintain_order=True)]
    seed_sd = float(np.std(of_seeds, ddof=1)) if seeds > 1 else None
    unit_sd = None if metric.seeds_alike or len(values) < 2 else float(values["value"].to_numpy().std(ddof=1))
    return MetricEstimate(**vars(whole), seed_sd=seed_sd, unit_sd=unit_sd, seeds=seeds)


def difference(metric: Metric, twin: Metric) -> tuple[intervals.Estimate, float | None]:
    """Return how much higher a model's metric is than its twin's on the same units, with a 95 % interval and a p.

    Hits of one seed have Newcombe's interval for paired proportions and, if all units count alike, the exact McNemar
    p; all else Student's t over the differences. The captions of an image, or the questions about one, are one draw:
    Student's t over the images, with its p, or if the metric is tested, with an exact one. So have classes that count
    alike. None: the p that belongs to the interval at n − 1 degrees of freedom.
    """
    both = metric.values.join(twin.values, on=["seed", "unit"], suffix="_twin", how="inner")
    if not len(both) == len(metric.values) == len(twin.values):
        raise ValueError(f"{metric.name}: the twins were not measured on the same units")
    values = both.select("value", "value_twin").to_numpy().T
    hits = both["seed"].n_unique() == 1 and bool(np.isin(values, (0, 1)).all())
    one, two = values > 0.5
    even = not metric.by_group or both["group"].value_counts()["count"].n_unique() == 1
    p = None
    if hits and metric.tested and metric.clustered:
        p = decisions.mcnemar_clustered(one, two, both["group"].to_numpy())
    elif hits and even and not metric.clustered:
        p = decisions.mcnemar_exact(one, two)
    if hits and not metric.by_group and not metric.clustered:
        return intervals.paired_difference(one, two), p
    apart = both.select("seed", "unit", "group", value=pl.col("value") - pl.col("value_twin"))
    units = _over_seeds(apart, metric)
    whole = _mean(units, metric)
    if p is None and metric.by_group:
        p = decisions.interval_p(*intervals.with_degrees(units["value"].to_numpy(), units["group"].to_numpy()))
    elif p is None and metric.clustered:
        p = decisions.interval_p(whole, both["group"].n_unique() - 1)
    return intervals.as_difference(whole), p


def summarise_tasks(
    rows: pl.DataFrame, twins: Mapping[str, str], groups: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """Return every metric of every model (``results``), and its difference to the twin's (``differences``).

    ``twins`` has the twin's name for each model that has one, ``groups`` the names of MMVP's patterns by data set.
    """
    metrics: dict[tuple[str, ...], Metric] = {}
    for (model, task, data), block in rows.group_by("model", "task", "data", maintain_order=True):
        for metric in task_metrics(str(task), block, (groups or {}).get(str(data))):
            metrics[str(model), str(task), str(data), metric.setting, metric.name] = metric
    results, differences = [], []
    for (model, *key), metric in metrics.items():
        about = dict(zip(("task", "data", "setting", "metric"), key, strict=True))
        headline = find(TASKS, about["task"], "task").stands_for(about["data"], about["metric"])
        known = {"headline": headline, "chance": metric.chance, "constant": metric.constant}
        results.append({"model": model} | about | finite(asdict(estimate(metric))) | known)
        if (twin := twins.get(model)) is not None and (twin, *key) in metrics:
            apart, p = difference(metric, metrics[twin, *key])
            numbers = {"difference": apart.value, "low": apart.low, "high": apart.high, "p": p, "n": apart.n}
            differences.append({"model": model, "twin": twin} | about | finite(numbers) | {"headline": headline})
    return {"results": results, "differences": differences}


def finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers for JSON, which has no infinity: null for an infinite end."""
    open_ends = [name for name, value in numbers.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**numbers, **dict.fromkeys(open_ends)}


def _over_seeds(values: pl.DataFrame, metric: Metric) -> pl.DataFrame:
    """Return one value a unit: its mean over the seeds, where the seeds have the same units."""
    if not metric.seeds_alike:
        return values
    counted = [pl.any("counted")] if "counted" in values.columns else []
    return values.group_by("unit", maintain_order=True).agg(pl.first("group"), pl.mean("value"), *counted)


def _mean(units: pl.DataFrame, metric: Metric) -> intervals.Estimate:
    values = units["value"].to_numpy()
    if metric.by_group:
        return intervals.mean_over_groups(values, units["group"].to_numpy())
    if metric.clustered:
        totals = units.group_by("group", maintain_order=True).agg(pl.sum("value"), pl.len().cast(pl.Float64))
        draws = (units.filter("counted") if "counted" in units.columns else units)["group"].n_unique()
        whole = intervals.jackknife(totals.drop("group").to_numpy(), lambda means: means[..., 0] / means[..., 1])
    else:
        draws, whole = len(values), intervals.jackknife(values[:, None], lambda means: means[..., 0])
    if whole.high - whole.low < 1e-9:  # 5 hits of 5 do not imply a rate of 1
        whole = seeds_by_images.crossed_mean(np.full((1, draws), whole.value))
    return intervals.Estimate(whole.value, whole.low, whole.high, len(values))
