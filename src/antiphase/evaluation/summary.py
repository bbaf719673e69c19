"""From the rows of an evaluation to its summary: every number that a table prints, with its interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from antiphase.data.expected_counts import MEAN_PER_CLASS
from antiphase.data.mmvp import PAPER_PATTERNS
from antiphase.evaluation.metrics import Metric, difference, estimate, task_metrics
from antiphase.registry import TASKS, find

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
