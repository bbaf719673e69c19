"""MMVP-VLM: pairs of images that look alike, told apart by a statement each."""

import polars as pl
import torch
from torch import nn

from antiphase.data import FilePairs
from antiphase.data.mmvp import MmvpSet
from antiphase.evaluation.metrics import Metric, observed
from antiphase.evaluation.mmvp import PROMPT, right_pairs
from antiphase.evaluation.outcomes import answer_rows
from antiphase.evaluation.tasks.task import EvaluationTask, Features, Groups, Protocol, Source


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    pairs = source.test
    assert isinstance(pairs, MmvpSet)
    flat = FilePairs(
        name=pairs.name,
        split="test",
        ids=torch.arange(2 * len(pairs)),
        root=pairs.root,
        captions=tuple((PROMPT + text,) for two in pairs.statements for text in two),
        files=tuple(file for two in pairs.files for file in two),
    )
    images = store.project(model, store.image_features(model, flat))
    texts = store.text_vectors(
        model, [several[0] for several in flat.captions], f"statements of {pairs.name}"
    )
    right = right_pairs(images.unflatten(0, (-1, 2)), texts.unflatten(0, (-1, 2)))
    return answer_rows(right, pairs.patterns)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    answers = observed(rows, pl.col("score"))
    found = []
    for title, chosen in (groups or {"mean": rows["group"].unique().to_list()}).items():
        some = answers.filter(pl.col("group").is_in(list(chosen)))
        if len(some):
            found.append(Metric(setting, title, some, by_group=len(chosen) > 1))
    return found


TASK = EvaluationTask(
    name="mmvp",
    title="MMVP-VLM",
    summary="MMVP-VLM's pairs of images that look alike",
    notes="A pair counts where both statements find their own image of the two; guessing has 25 %.",
    serves=lambda source: isinstance(source.test, MmvpSet),
    measure=_measure,
    metrics=_metrics,
    stands_for=lambda data, metric: metric.startswith("mean of "),
    reads_text=True,
    radar=True,
    default_data="mmvp",
    paper_data=("mmvp",),
)
