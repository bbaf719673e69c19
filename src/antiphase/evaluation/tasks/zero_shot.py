"""Zero-shot classification by class prompts."""

from typing import Any

import polars as pl
from torch import nn

from antiphase.data.expected_counts import IMAGENET_SETS
from antiphase.evaluation.metrics import Metric, accuracies, observed
from antiphase.evaluation.outcomes import zero_shot_rows
from antiphase.evaluation.summary import accuracy_stands_for
from antiphase.evaluation.tasks.task import (
    EvaluationTask,
    Features,
    Groups,
    Protocol,
    Source,
    has_labels,
    labelled,
)
from antiphase.evaluation.templates import OWN, class_prompts
from antiphase.files import digest

_TOP = 5


def _ensembles(source: Source, protocol: Protocol) -> tuple[str, ...]:
    test, _ = labelled(source.test)
    return protocol.templates or ((OWN,) if test.prompts is not None else ("80", "7"))


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    test, labels = labelled(source.test)
    images = store.project(model, store.image_features(model, test))
    found = []
    for name in _ensembles(source, protocol):
        prompts = class_prompts(name, test.class_names, test.prompts)
        classes = store.class_vectors(model, prompts, f"{name} prompts of {test.name}")
        found.append(zero_shot_rows(images, classes, labels, test.ids, name))
    return pl.concat(found)


def _prompts(source: Source, protocol: Protocol) -> dict[str, Any]:
    test, _ = labelled(source.test)
    return {
        "prompts": {
            name: digest(*map("\x1f".join, class_prompts(name, test.class_names, test.prompts)))
            for name in _ensembles(source, protocol)
        }
    }


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    first, per_class = accuracies(setting, rows)
    if rows["group"].n_unique() <= _TOP:
        return [first, per_class]
    return [first, Metric(setting, f"top-{_TOP}", observed(rows, pl.col("rank") < _TOP)), per_class]


def _heading(setting: str, metric: str) -> str:
    """Name a number by its prompts, of which several templates are named by the first.

    >>> _heading("80", "top-1"), _heading("an emoji of {}", "top-1")
    ('80 prompts, top-1', '“an emoji of {}” prompts, top-1')
    """
    first, _, rest = setting.partition("\n")
    short = f"“{first}”" + (" and others" if rest else "") if "{}" in setting else setting
    return f"{short} prompts, {metric}"


TASK = EvaluationTask(
    name="zero-shot",
    title="Zero-shot",
    summary="classification by the cosine to class prompts",
    notes="An image belongs to the class whose mean prompt vector is nearest. Per class is the mean over the "
    "classes’ accuracies, each of which counts alike.",
    serves=has_labels,
    measure=_measure,
    metrics=_metrics,
    heading=_heading,
    stands_for=accuracy_stands_for,
    resolved=_prompts,
    resolves=("templates",),
    reads_text=True,
    paper_data=IMAGENET_SETS,
)
