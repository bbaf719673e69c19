"""What a model made of each image, caption, episode or pair: rows of one shape for every evaluation."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from antiphase.evaluation.retrieval import ranks

# setting: what tells rows of a task and a data set apart: a prompt ensemble, a probe's objective, a direction.
# unit: id of the image, number of the caption, episode or pair. group: its class or pattern, -1 where it has none.
# rank: how many classes or candidates stand before the right one. score: a share in [0, 1]. cost: a probe's C.
# Answers to POPE: see antiphase.vlm.pope.
ROW_SCHEMA = {
    "setting": pl.String,
    "seed": pl.Int64,
    "unit": pl.Int64,
    "group": pl.Int64,
    "prediction": pl.Int64,
    "rank": pl.Int64,
    "score": pl.Float64,
    "cost": pl.Float64,
}

_ROWS = 4096  # images whose scores are held at a time


def classification_rows(
    scores: Float[Tensor, "n classes"],
    labels: Int64[Tensor, " n"],
    ids: Int64[Tensor, " n"],
    setting: str = "",
    seed: int = 0,
) -> pl.DataFrame:
    """Return a row for each image: the class of the highest score, and the rank of the right one.

    Of equal scores the lower class number stands first, for prediction and rank alike.
    """
    own = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device)[None, :] < labels[:, None]
    before = (~(scores <= own)) | ((scores == own) & earlier)  # NaN stands before
    return outcome_rows(
        setting=setting,
        seed=seed,
        unit=ids.tolist(),
        group=labels.tolist(),
        prediction=scores.argmax(1).tolist(),
        rank=before.sum(1).tolist(),
    )


def zero_shot_rows(
    images: Float[Tensor, "n embed"],
    classes: Float[Tensor, "embed classes"],
    labels: Int64[Tensor, " n"],
    ids: Int64[Tensor, " n"],
    setting: str = "",
) -> pl.DataFrame:
    """Return a row for each image, classified by the cosines of unit vectors."""
    parts = zip(images.split(_ROWS), labels.split(_ROWS), ids.split(_ROWS), strict=True)
    return pl.concat([classification_rows(some @ classes, label, own, setting) for some, label, own in parts])


def retrieval_rows(
    images: Float[Tensor, "n embed"],
    texts: Float[Tensor, "m embed"],
    owners: Int64[Tensor, " m"],
    ids: Int64[Tensor, " n"],
) -> pl.DataFrame:
    """Return a row for each caption (setting ``image``: it looks for its image) and each image (``text``).

    Args:
        images: unit vectors.
        texts: unit vectors of the captions.
        owners: position of each caption's image; every image has one at least.
        ids: of the images.
    """
    own = torch.arange(len(images), device=owners.device)
    by_caption = outcome_rows(
        setting="image",
        seed=0,
        unit=list(range(len(texts))),
        group=ids[owners.cpu()].tolist(),
        rank=ranks(texts, images, own, owners).tolist(),
    )
    by_image = outcome_rows(
        setting="text",
        seed=0,
        unit=ids.tolist(),
        group=ids.tolist(),
        rank=ranks(images, texts, owners, own).tolist(),
    )
    return pl.concat([by_caption, by_image])


def episode_rows(accuracies: Float[Tensor, " episodes"], setting: str, seed: int) -> pl.DataFrame:
    """Return a row for each few-shot episode, with its accuracy."""
    return outcome_rows(
        setting=setting, seed=seed, unit=list(range(len(accuracies))), score=accuracies.tolist()
    )


def answer_rows(right: Bool[Tensor, " pairs"], patterns: Sequence[int]) -> pl.DataFrame:
    """Return a row for each pair of MMVP-VLM: whether both of its statements found their image."""
    return outcome_rows(
        setting="", seed=0, unit=list(range(len(right))), group=list(patterns), score=right.double().tolist()
    )


def outcome_rows(**columns: Any) -> pl.DataFrame:
    """Return rows of ``ROW_SCHEMA``; a group that is not given is −1, any other column null."""
    frame = pl.DataFrame(columns)
    absent = [
        pl.lit(-1 if name == "group" else None).alias(name) for name in ROW_SCHEMA if name not in columns
    ]
    return frame.with_columns(absent).select(pl.col(name).cast(kind) for name, kind in ROW_SCHEMA.items())
