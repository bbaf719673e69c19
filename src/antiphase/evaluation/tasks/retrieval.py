"""Retrieval: find an image by its caption, and a caption by its image."""

import polars as pl
from torch import nn

from antiphase.data import PairSet
from antiphase.data.expected_counts import RETRIEVAL_SETS
from antiphase.evaluation.metrics import Metric, observed
from antiphase.evaluation.outcomes import retrieval_rows
from antiphase.evaluation.retrieval import chosen_captions
from antiphase.evaluation.tasks.task import EvaluationTask, Features, Groups, Protocol, Source
from antiphase.modules import device_of


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    pairs = source.test
    assert isinstance(pairs, PairSet)
    texts, owners = chosen_captions(pairs, protocol.captions)
    place = device_of(model)
    images = store.project(model, store.image_features(model, pairs))
    words = store.text_vectors(model, texts, f"captions of {pairs.name}")
    return retrieval_rows(images.to(place), words.to(place), owners.to(place), pairs.ids)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    several = rows["group"].n_unique() < len(rows)
    return [
        Metric(setting, f"R@{k}", observed(rows, pl.col("rank") < k), clustered=several) for k in (1, 5, 10)
    ]


TASK = EvaluationTask(
    name="retrieval",
    title="Retrieval",
    summary="R@1, 5, 10 of images by captions and of captions by images",
    notes="Image R@k counts the captions whose image is among the first k, text R@k the images of which a "
    "caption is. Candidates that are exactly as similar stand before the right one.",
    serves=lambda source: isinstance(source.test, PairSet),
    measure=_measure,
    metrics=_metrics,
    stands_for=lambda data, metric: metric == "R@5",
    fields=("captions",),
    reads_text=True,
    paper_data=RETRIEVAL_SETS,
)
