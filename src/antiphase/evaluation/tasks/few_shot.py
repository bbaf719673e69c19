"""Few-shot: episodes of a few classes, classified by the nearest prototype."""

import polars as pl
from torch import Tensor, nn

from antiphase.data.expected_counts import PROBE_SETS
from antiphase.errors import UserError
from antiphase.evaluation.fewshot import Episodes, draw_episodes, few_shot_accuracies
from antiphase.evaluation.metrics import Metric, observed
from antiphase.evaluation.outcomes import episode_rows
from antiphase.evaluation.tasks.task import (
    EvaluationTask,
    Features,
    Groups,
    Protocol,
    Source,
    can_learn,
    image_features,
    labelled,
)
from antiphase.modules import device_of


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    test, labels = labelled(source.test)
    train, train_labels = labelled(source.train)
    place = device_of(model)
    support = image_features(model, train, protocol, store).to(place)
    queries = image_features(model, test, protocol, store).to(place)
    found = []
    for seed in range(protocol.seeds):
        episodes = _episodes(train_labels, labels, test.name, protocol, protocol.episodes, seed)
        accuracies = few_shot_accuracies(support, queries, episodes)
        found.append(episode_rows(accuracies.cpu(), f"{protocol.ways}-way {protocol.shots}-shot", seed))
    return pl.concat(found)


def _episodes(train: Tensor, test: Tensor, name: str, protocol: Protocol, count: int, seed: int) -> Episodes:
    try:
        return draw_episodes(
            train,
            test,
            episodes=count,
            ways=protocol.ways,
            shots=protocol.shots,
            queries=protocol.queries,
            seed=seed,
        )
    except UserError as error:
        raise UserError(f"few-shot on {name}: {error}") from None


def _too_small(source: Source, protocol: Protocol) -> str | None:
    test, labels = labelled(source.test)
    try:
        _episodes(labelled(source.train)[1], labels, test.name, protocol, 1, 0)
    except UserError as error:
        return str(error)
    return None


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    return [Metric(setting, "accuracy", observed(rows, pl.col("score")), seeds_alike=False)]


TASK = EvaluationTask(
    name="few-shot",
    title="Few-shot",
    summary="5-way 5-shot episodes, nearest prototype",
    notes="Every episode has its own classes and images; both models of a pair have the same episodes. Intervals "
    "are over the episodes, which share their images: they say nothing of other images. What another draw of "
    "episodes does is in the standard deviation over seeds.",
    serves=can_learn,
    measure=_measure,
    metrics=_metrics,
    fields=("space", "seeds", "episodes", "ways", "shots", "queries"),
    too_small=_too_small,
    learns=True,
    dependent_units="few-shot episodes",
    paper_data=PROBE_SETS,
    passes=10.0,
)
