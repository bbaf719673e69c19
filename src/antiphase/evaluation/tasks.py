"""What an evaluation task is: how it is measured, what its rows become, and the words that reports use for it."""

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data import ImageSet, PairSet
from antiphase.evaluation.metrics import Metric
from antiphase.registry import TASKS, find

Captions = Literal["first", "all"]  # of each image
Objective = Literal["norm", "squared"]  # of the penalty on a probe's weights
Groups = Mapping[str, Sequence[int]]
"""Title and patterns of every mean over MMVP's patterns."""


@dataclass(frozen=True)
class Protocol:
    """How the tasks are measured; the defaults are DiffCLIP's (Section 4.1, Appendix B).

    Attributes:
        templates: prompt ensembles of zero-shot. If empty: the data's own prompts if they have some, else 80 and 7.
        captions: which captions of an image retrieve it.
        space: features of the probe and of few-shot: ``"raw"``, before the projection, or ``"projected"``.
        objectives: of the probe.
        iterations: maximum number of L-BFGS iterations of the probe.
        seeds: number of seeds of the probe and of few-shot: 0, 1, …
        episodes: number of few-shot episodes for each seed.
        ways, shots, queries: classes of an episode; support and query images of each class.
        suffix: put behind every question that a model answers in words, on a line of its own.
    """

    templates: tuple[str, ...] = ()
    captions: Captions = "all"
    space: Literal["raw", "projected"] = "raw"
    objectives: tuple[Objective, ...] = ("norm",)
    iterations: int = 1000
    seeds: int = 3
    episodes: int = 5000
    ways: int = 5
    shots: int = 5
    queries: int = 6
    suffix: str = ""


@typing.runtime_checkable
class QuestionSet(typing.Protocol):
    """A data set that is neither labelled images nor pairs, such as one of questions; its task knows more of it."""

    name: str

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """Return the SHA-256 of all that affects its rows."""
        ...


@dataclass(frozen=True)
class Source:
    """A data set as the tasks see it: images to evaluate on and, where the set has them, images to learn from.

    Attributes:
        test: labelled images, pairs, or what a task of its own measures.
        train: images of the same classes.
        validation: a published validation split. Without one, the probe holds out a part of ``train``.
    """

    test: ImageSet | PairSet | QuestionSet
    train: ImageSet | PairSet | None = None
    validation: ImageSet | PairSet | None = None

    @property
    def name(self) -> str:
        return self.test.name

    def tasks(self) -> tuple[str, ...]:
        """Return the names of the tasks that can be measured on it."""
        return tuple(task.name for task in all_tasks() if task.serves(self))


class Features(typing.Protocol):
    """Features of images and vectors of texts, computed once for each model and kept on disk."""

    @property
    def batch_size(self) -> int: ...

    @property
    def progress(self) -> bool:
        """Whether to show progress bars."""
        ...

    def image_features(self, model: nn.Module, data: ImageSet | PairSet) -> Float[Tensor, "n width"]:
        """Return the features of all images before the projection."""
        ...

    def project(self, model: nn.Module, features: Float[Tensor, "n width"]) -> Float[Tensor, "n embed"]:
        """Return unit vectors in the space shared with texts."""
        ...

    def text_vectors(self, model: nn.Module, texts: Sequence[str], title: str) -> Float[Tensor, "n embed"]:
        """Return unit vectors of texts."""
        ...

    def class_vectors(
        self, model: nn.Module, prompts: Sequence[Sequence[str]], title: str
    ) -> Float[Tensor, "embed classes"]:
        """Return the zero-shot weights, one unit vector a column."""
        ...


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """One evaluation of a model on a data set.

    Attributes:
        name: as in ``TASKS``, ``--tasks`` and the stored rows.
        title: heading of its section on the page.
        summary: what is measured, in one line.
        notes: how its numbers are counted and how to read them: the paragraph below the heading.
        serves: whether a data set has what the task needs.
        measure: measures a model and returns rows of :data:`~antiphase.evaluation.metrics.ROW_SCHEMA`.
        metrics: from a setting, its rows and MMVP's groups to the metrics that the rows hold.
        heading: from a setting and the name of a metric to the heading of a number.
        scores: whether more of a metric is better; headlines count no other.
        stands_for: whether a metric, on a data set, is the one that figures show and headlines quote first.
        fields: names of the :class:`Protocol` fields that the rows depend on.
        resolved: protocol fields whose meaning depends on the data set, as values for the identity of stored rows.
        resolves: the names of these fields.
        too_small: says why a data set that it serves has too few classes or images; None if it has enough.
        reads_text: whether the model has to encode text.
        answers: whether the model has to answer questions about images in words.
        learns: whether it learns from training images.
        dependent_units: what its intervals are over, if these share images: such intervals are too narrow, so the
            headline counts their differences apart. Empty otherwise.
        radar: whether the metrics that do not stand for it are drawn as a radar chart, instead of dots.
        default_data: the data set used if none is named and no other task is asked for.
        paper_data: data sets of the DiffCLIP paper.
        passes: approximate cost in forward passes over the test images, for ``study plan``.
    """

    name: str
    title: str
    summary: str
    notes: str
    serves: Callable[[Source], bool]
    measure: Callable[[nn.Module, Source, Protocol, Features], pl.DataFrame]
    metrics: Callable[[str, pl.DataFrame, Groups | None], list[Metric]]
    heading: Callable[[str, str], str] = lambda setting, metric: f"{setting} {metric}".strip()
    scores: Callable[[str], bool] = lambda metric: True
    stands_for: Callable[[str, str], bool] = lambda data, metric: True
    fields: tuple[str, ...] = ()
    resolved: Callable[[Source, Protocol], dict[str, Any]] = lambda source, protocol: {}
    resolves: tuple[str, ...] = ()
    too_small: Callable[[Source, Protocol], str | None] = lambda source, protocol: None
    reads_text: bool = False
    answers: bool = False
    learns: bool = False
    dependent_units: str = ""
    radar: bool = False
    default_data: str = "openmoji"
    paper_data: tuple[str, ...] = ()
    passes: float = 2.0


def find_task(name: str) -> EvaluationTask:
    """Return a task by its name; a ``UserError`` if there is none."""
    return find(TASKS, name, "task")


def all_tasks() -> list[EvaluationTask]:
    """Return every registered task."""
    return [find_task(name) for name in TASKS]


def has_labels(source: Source) -> bool:
    """Return whether the test images are labelled."""
    return isinstance(source.test, ImageSet | PairSet) and source.test.labels is not None


def can_learn(source: Source) -> bool:
    """Return whether the test images are labelled and there are images of the same classes to learn from."""
    return has_labels(source) and source.train is not None


def labelled(data: ImageSet | PairSet | QuestionSet | None) -> tuple[ImageSet | PairSet, Tensor]:
    """Return a data set and its labels, which ``serves`` has found there."""
    assert isinstance(data, ImageSet | PairSet)
    assert data.labels is not None
    return data, data.labels


def image_features(
    model: nn.Module, data: ImageSet | PairSet, protocol: Protocol, store: Features
) -> Float[Tensor, "n width"]:
    """Return the features of all images in the space that the protocol names."""
    features = store.image_features(model, data)
    return features if protocol.space == "raw" else store.project(model, features)
