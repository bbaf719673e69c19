"""MMVP-VLM: pairs of images that look alike to CLIP, each told apart by a statement of its own."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import polars as pl
from jaxtyping import Bool, Float
from torch import Tensor, nn

from antiphase.arguments import FINITE, validated
from antiphase.data.captions import row_pairs
from antiphase.data.mmvp import PAPER_PATTERNS, MmvpSet
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, observed, outcome_rows
from antiphase.evaluation.tasks import EvaluationTask, Groups, Protocol, Source

_GUESS = 0.25  # both statements of a pair by chance
PROMPT = "a photo of "  # the authors' code; put before each statement


@validated
def right_pairs(
    images: Annotated[Float[Tensor, "pairs 2 embed"], FINITE],
    texts: Annotated[Float[Tensor, "pairs 2 embed"], FINITE],
) -> Bool[Tensor, " pairs"]:
    """Return whether both statements of each pair, behind ``PROMPT``, select their own image, from unit vectors.

    A statement t selects image 1 if p(image 1 | t) > ½, with p the softmax over the two images of 100·cos(image, t),
    and image 2 otherwise. A pair is solved if statement 1 selects image 1 and statement 2 image 2.

    Source: S. Tong et al., *Eyes Wide Shut? Exploring the Visual Shortcomings of Multimodal LLMs*, CVPR 2024,
    Section 3, and their ``evaluate_vlm.py``.
    """
    first = (100.0 * (texts @ images.mT)).softmax(-1)[..., 0]  # of each statement
    return (first[:, 0] > 0.5) & ~(first[:, 1] > 0.5)


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    pairs = source.test
    assert isinstance(pairs, MmvpSet)
    files = [file for two in pairs.files for file in two]  # pyright: ignore[reportGeneralTypeIssues]
    statements = [PROMPT + text for two in pairs.statements for text in two]  # pyright: ignore[reportGeneralTypeIssues]
    rows = [(file, (text,), None) for file, text in zip(files, statements, strict=True)]
    flat = row_pairs(pairs.name, "test", pairs.root, rows)
    images = store.project(model, store.image_features(model, flat))
    texts = store.text_vectors(model, statements, f"statements of {pairs.name}")
    right = right_pairs(images.unflatten(0, (-1, 2)), texts.unflatten(0, (-1, 2)))
    return answer_rows(right, pairs.patterns)


def answer_rows(right: Bool[Tensor, " pairs"], patterns: Sequence[int]) -> pl.DataFrame:
    """Return a row for each pair: whether both of its statements found their image."""
    return outcome_rows(unit=range(len(right)), group=list(patterns), score=right.double().tolist())


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    """Return the mean over all patterns, over the paper's where they are there, and each pattern alone."""
    answers, mean = observed(rows, pl.col("score")), partial(Metric, setting, chance=_GUESS)
    if groups is None:
        return [mean("mean", answers, by_group=rows["group"].n_unique() > 1)]
    paper = [number for number, name in enumerate(groups) if name in PAPER_PATTERNS]
    means = [list(range(len(groups))), *([paper] if len(paper) == len(PAPER_PATTERNS) else [])]
    chosen = {f"mean of {len(patterns)}": patterns for patterns in means}
    chosen |= {name: [number] for number, name in enumerate(groups)}
    metrics = [
        mean(title, answers.filter(pl.col("group").is_in(patterns)), by_group=len(patterns) > 1)
        for title, patterns in chosen.items()
    ]
    return [metric for metric in metrics if len(metric.values)]


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
    draws_all=True,
    default_data="mmvp",
    paper_data=("mmvp",),
)
