"""Captioning, scored by CIDEr."""

import polars as pl
from torch import nn

from antiphase.data import PairSet
from antiphase.data.emoji_questions import ASK_CAPTION
from antiphase.evaluation.answers import answer_all
from antiphase.evaluation.cider import LARGEST, MISSING, cider, has_cider
from antiphase.evaluation.metrics import Metric, observed, outcome_rows
from antiphase.evaluation.tasks.task import EvaluationTask, Features, Groups, Protocol, Source
from antiphase.models.card import card_of

_LONGEST = 48  # tokens of a caption


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    pairs = source.test
    assert isinstance(pairs, PairSet)
    title = f"{card_of(model).name}: captions of {pairs.name}" if store.progress else ""
    found = answer_all(
        model,
        pairs,
        [(at, ASK_CAPTION) for at in range(len(pairs))],
        max_new_tokens=_LONGEST,
        batch_size=store.batch_size,
        title=title,
    )
    scores = cider([answer.text for answer in found], pairs.captions)
    return outcome_rows(setting="", seed=0, unit=pairs.ids.tolist(), score=[one / LARGEST for one in scores])


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    return [Metric(setting, "CIDEr / 10", observed(rows, pl.col("score")))]


TASK = EvaluationTask(
    name="caption",
    title="Captions",
    summary="captions of images, scored by CIDEr",
    notes="CIDEr-D of pycocoevalcap in percent of its largest value, 10: 10 % is what papers print as 100 or 1.0. "
    "Words are split at spaces and punctuation, not by Stanford’s tokeniser. The n-grams are weighted by the "
    "references of the images measured, so compare numbers on the same images only.",
    serves=lambda source: isinstance(source.test, PairSet),
    measure=_measure,
    metrics=_metrics,
    too_small=lambda source, protocol: None if has_cider() else MISSING,
    answers=True,
    default_data="emoji-objects",
    passes=50.0,
)
