"""What an evaluation task is: how it is measured, what its rows become, and the words that reports use for it."""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import polars as pl
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data import ImageSet, PairSet
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Groups, Metric
from antiphase.registry import TASKS, find

_LISTED = tomllib.loads((files("antiphase.evaluation") / "tasks.toml").read_text(encoding="utf-8"))

Protocol = SimpleNamespace
"""The options of ``antiphase evaluate`` that tasks name in ``fields`` and ``resolves``: how they are measured."""


@dataclass(frozen=True)
class Source:
    """A data set as the tasks see it: images to evaluate on and, where the set has them, images to learn from."""

    test: Any  # labelled images, pairs, or what a task of its own measures, with a name, a length and a fingerprint
    train: ImageSet | PairSet | None = None  # images of the same classes
    validation: ImageSet | PairSet | None = None  # published; without it, the probe holds out some of train

    @property
    def name(self) -> str:
        return self.test.name

    def tasks(self) -> tuple[str, ...]:
        return tuple(task.name for task in all_tasks() if task.serves(self))


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """One evaluation of a model on a data set: its rows, of ``metrics.ROW_SCHEMA``, and their metrics."""

    name: str  # as in TASKS, --tasks and the stored rows
    title: str  # heading of its section on the page
    summary: str  # what is measured, in one line
    notes: str  # how its numbers are counted and how to read them: the paragraph below the heading
    serves: Callable[[Source], bool]  # whether a data set has what the task needs
    measure: Callable[[nn.Module, Source, Protocol, FeatureStore], pl.DataFrame]
    metrics: Callable[[str, pl.DataFrame, Groups | None], list[Metric]]
    # from a setting and the name of a metric to the heading of a number
    heading: Callable[[str, str], str] = lambda setting, metric: f"{setting} {metric}".strip()
    # whether more of a metric is better; headlines count no other
    scores: Callable[[str], bool] = lambda metric: True
    # whether a metric, on a data set, is the one that figures show and headlines quote first
    stands_for: Callable[[str, str], bool] = lambda data, metric: True
    fields: tuple[str, ...] = ()  # settings that the rows depend on
    resolves: tuple[str, ...] = ()  # settings whose meaning depends on the data set
    # these as values for the identity of stored rows
    resolved: Callable[[Source, Protocol], dict[str, Any]] = lambda source, protocol: {}
    # why a data set that it serves has too few classes or images; None if it has enough
    too_small: Callable[[Source, Protocol], str | None] = lambda source, protocol: None
    # what a reader has to know about a model's rows, as warnings: from its name, the rows, the data and the protocol
    doubts: Callable[[str, pl.DataFrame, Source, Protocol], list[str]] = lambda name, rows, source, protocol: []
    reads_text: bool = False  # whether the model has to encode text
    answers: bool = False  # whether the model has to answer questions about images in words
    learns: bool = False  # whether it learns from training images
    # what its intervals are over, if these share images: such intervals are too narrow, so that the headline counts
    # their differences apart
    dependent_units: str = ""
    draws_all: bool = False  # whether its figure shows the metrics that do not stand for it, too
    default_data: str = "openmoji"  # if no data set is named and no other task is asked for
    paper_data: tuple[str, ...] = ()  # data sets of the DiffCLIP paper


def make_task(name: str, **functions: Any) -> EvaluationTask:
    """Return the task of a name in ``tasks.toml``, which does what the functions do."""
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in _LISTED[name].items()}
    return EvaluationTask(name=name, **lists, **functions)


def find_task(name: str) -> EvaluationTask:
    """Return a task by its name; a ``UserError`` if there is none."""
    return find(TASKS, name, "task")


def all_tasks() -> list[EvaluationTask]:
    """Return every registered task."""
    return [find_task(name) for name in TASKS]


def task_settings(tasks: Iterable[EvaluationTask] | None = None) -> set[str]:
    """Return the names of the settings of some tasks, or of all."""
    return {name for task in (all_tasks() if tasks is None else tasks) for name in (*task.fields, *task.resolves)}


def has_labels(source: Source) -> bool:
    """Return whether the test images are labelled."""
    return isinstance(source.test, ImageSet | PairSet) and source.test.labels is not None


def can_learn(source: Source) -> bool:
    """Return whether the test images are labelled and there are images of the same classes to learn from."""
    return has_labels(source) and source.train is not None


def labelled(data: Any) -> tuple[ImageSet | PairSet, Tensor]:
    """Return a data set and its labels, which ``serves`` has found there."""
    assert isinstance(data, ImageSet | PairSet)
    assert data.labels is not None
    return data, data.labels


def image_features(
    model: nn.Module, data: ImageSet | PairSet, protocol: Protocol, store: FeatureStore
) -> Float[Tensor, "n width"]:
    """Return the features of all images in the space that the protocol names."""
    features = store.image_features(model, data)
    return features if protocol.space == "raw" else store.project(model, features)
