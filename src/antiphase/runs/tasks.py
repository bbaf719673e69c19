"""One evaluation of one model on one data set: from stored features to rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import polars as pl
import torch
from torch import Tensor, nn

from antiphase.data import FilePairs, ImageSet, PairSet
from antiphase.data.mmvp import MmvpSet
from antiphase.errors import UserError
from antiphase.evaluation.fewshot import Episodes, draw_episodes, few_shot_accuracies
from antiphase.evaluation.metrics import Task
from antiphase.evaluation.mmvp import PROMPT, right_pairs
from antiphase.evaluation.outcomes import (
    answer_rows,
    classification_rows,
    episode_rows,
    retrieval_rows,
    zero_shot_rows,
)
from antiphase.evaluation.probe import MOST_FITS, Objective, train_probe
from antiphase.evaluation.retrieval import Captions, chosen_captions
from antiphase.evaluation.summary import CLASSES_ALIKE
from antiphase.evaluation.templates import OWN, class_prompts
from antiphase.models.card import card_of
from antiphase.progress import progress_bar
from antiphase.runs.features import FeatureStore


@dataclass(frozen=True)
class Protocol:
    """How the tasks are measured; the defaults are DiffCLIP's (Section 4.1, Appendix B).

    Attributes:
        templates: prompt ensembles of zero-shot; the data's own where they have some, else 80 and 7, if empty.
        captions: which captions of an image retrieve it.
        space: features of the probe and of few-shot: ``"raw"``, before the projection, or ``"projected"``.
        objectives: of the probe.
        iterations: at most, of the probe's L-BFGS.
        seeds: how many, from 0 on, of the probe and of few-shot.
        episodes: of few-shot, for each seed.
        ways, shots, queries: classes, support images and query images a class of an episode.
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


@dataclass(frozen=True)
class Source:
    """What a data set offers: images to evaluate on, images to learn from, where it has them.

    Attributes:
        test: labelled images, pairs, or MMVP-VLM's pairs of images.
        train: of the same classes.
        validation: published apart from both; the probe holds some of ``train`` out where there is none.
    """

    test: ImageSet | PairSet | MmvpSet
    train: ImageSet | PairSet | None = None
    validation: ImageSet | PairSet | None = None

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.test.name

    def tasks(self) -> tuple[Task, ...]:
        """Return what can be measured on it."""
        if isinstance(self.test, MmvpSet):
            return ("mmvp",)
        paired: tuple[Task, ...] = ("retrieval",) if isinstance(self.test, PairSet) else ()
        if self.test.labels is None:
            return paired
        learned: tuple[Task, ...] = () if self.train is None else ("probe", "few-shot")
        return (*paired, "zero-shot", *learned)


def ensembles(source: Source, protocol: Protocol) -> tuple[str, ...]:
    """Return the prompt ensembles of a data set."""
    assert not isinstance(source.test, MmvpSet)
    return protocol.templates or ((OWN,) if source.test.prompts is not None else ("80", "7"))


def task_rows(
    task: Task, model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore
) -> pl.DataFrame:
    """Measure and return rows of :data:`~antiphase.evaluation.outcomes.ROW_SCHEMA`.

    Raises:
        UserError: the model encodes no text, the data have too few images, or an image cannot be read.
    """
    return _TASKS[task](model, source, protocol, store)


def _zero_shot(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    test, labels = _labelled(source.test)
    images = store.project(model, store.image_features(model, test))
    found = []
    for name in ensembles(source, protocol):
        prompts = class_prompts(name, test.class_names, test.prompts)
        classes = store.class_vectors(model, prompts, f"{name} prompts of {test.name}")
        found.append(zero_shot_rows(images, classes, labels, test.ids, name))
    return pl.concat(found)


def _retrieval(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    pairs = source.test
    assert isinstance(pairs, PairSet)
    texts, owners = chosen_captions(pairs, protocol.captions)
    place = next(model.parameters()).device
    images = store.project(model, store.image_features(model, pairs))
    words = store.text_vectors(model, texts, f"captions of {pairs.name}")
    return retrieval_rows(images.to(place), words.to(place), owners.to(place), pairs.ids)


def _probe(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    test, labels = _labelled(source.test)
    train, train_labels = _labelled(source.train)
    place = next(model.parameters()).device
    features = _features(model, train, protocol, store).to(place)
    validation = None
    if source.validation is not None:
        held, held_labels = _labelled(source.validation)
        validation = (_features(model, held, protocol, store).to(place), held_labels.to(place))
    tested = _features(model, test, protocol, store).to(place)
    found = []
    for objective in protocol.objectives:
        # the seed draws what is held out: with a validation split there is nothing to draw
        for seed in range(protocol.seeds if validation is None else 1):
            title = f"{card_of(model).name}: {test.name}, probe {objective}, seed {seed}"
            with progress_bar(title, MOST_FITS, store.progress) as advance:
                probe = train_probe(
                    features, train_labels.to(place), validation, len(test.class_names), seed=seed,
                    objective=objective, mean_per_class=test.name in CLASSES_ALIKE,
                    max_iter=protocol.iterations, on_fit=lambda: advance(1),
                )  # fmt: skip
            rows = classification_rows(probe.scores(tested).cpu(), labels, test.ids, objective, seed)
            found.append(rows.with_columns(cost=pl.lit(probe.cost)))
    return pl.concat(found)


def _few_shot(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    test, labels = _labelled(source.test)
    train, train_labels = _labelled(source.train)
    place = next(model.parameters()).device
    support = _features(model, train, protocol, store).to(place)
    queries = _features(model, test, protocol, store).to(place)
    found = []
    for seed in range(protocol.seeds):
        episodes = _episodes(train_labels, labels, test.name, protocol, protocol.episodes, seed)
        accuracies = few_shot_accuracies(support, queries, episodes)
        found.append(episode_rows(accuracies.cpu(), f"{protocol.ways}-way {protocol.shots}-shot", seed))
    return pl.concat(found)


def _episodes(train: Tensor, test: Tensor, name: str, protocol: Protocol, count: int, seed: int) -> Episodes:
    try:
        return draw_episodes(
            train, test, episodes=count, ways=protocol.ways, shots=protocol.shots, queries=protocol.queries,
            seed=seed,
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"few-shot on {name}: {error}") from None


def lack(task: Task, source: Source, protocol: Protocol) -> str | None:
    """Return why a task of the source's own cannot be measured on it; None where it can.

    Few-shot needs enough classes, and images in each.
    """
    if task != "few-shot":
        return None
    test, labels = _labelled(source.test)
    try:
        _episodes(_labelled(source.train)[1], labels, test.name, protocol, 1, 0)
    except UserError as error:
        return str(error)
    return None


def _mmvp(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    pairs = source.test
    assert isinstance(pairs, MmvpSet)
    flat = FilePairs(
        name=pairs.name, split="test", ids=torch.arange(2 * len(pairs)), root=pairs.root,
        captions=tuple((PROMPT + text,) for two in pairs.statements for text in two),
        files=tuple(file for two in pairs.files for file in two),
    )  # fmt: skip
    images = store.project(model, store.image_features(model, flat))
    texts = store.text_vectors(
        model, [several[0] for several in flat.captions], f"statements of {pairs.name}"
    )
    right = right_pairs(images.unflatten(0, (-1, 2)), texts.unflatten(0, (-1, 2)))
    return answer_rows(right, pairs.patterns)


_TASKS: dict[Task, Callable[[nn.Module, Source, Protocol, FeatureStore], pl.DataFrame]] = {
    "retrieval": _retrieval,
    "zero-shot": _zero_shot,
    "probe": _probe,
    "few-shot": _few_shot,
    "mmvp": _mmvp,
}


def _features(model: nn.Module, data: ImageSet | PairSet, protocol: Protocol, store: FeatureStore) -> Tensor:
    features = store.image_features(model, data)
    return features if protocol.space == "raw" else store.project(model, features)


def _labelled(data: ImageSet | PairSet | MmvpSet | None) -> tuple[ImageSet | PairSet, Tensor]:
    assert data is not None
    assert not isinstance(data, MmvpSet)
    assert data.labels is not None
    return data, data.labels
