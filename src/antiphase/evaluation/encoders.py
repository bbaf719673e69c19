"""What a dual encoder makes of a set of pairs: a row for each caption, and the numbers that follow."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from antiphase.data.pairs import PairSet
from antiphase.evaluation.retrieval import Captions, embed_pairs, ranks
from antiphase.evaluation.statistics import Estimate, jackknife, proportion
from antiphase.models.zeroshot import PAPER_TEMPLATE, zero_shot_classifier

# A row a caption. image_rank: of its image for the caption; on the row of an image's first caption (number 0)
# also text_rank: of the best of its captions for the image, and label and prediction among the set's classes, -1
# where it has none. 0 is a hit at 1.
ROW_SCHEMA = {
    "sample": pl.Int64, "caption": pl.Int64, "image_rank": pl.Int64, "text_rank": pl.Int64, "label": pl.Int64,
    "prediction": pl.Int64,
}  # fmt: skip
METRICS = ("image R@1", "image R@5", "text R@1", "text R@5", "zero-shot", "zero-shot per class")


def encoder_rows(
    model: nn.Module, pairs: PairSet, *, templates: Sequence[str] = (PAPER_TEMPLATE,),
    prompts: Sequence[Sequence[str]] | None = None, captions: Captions = "all", batch_size: int = 256,
) -> pl.DataFrame:  # fmt: skip
    """Measure retrieval and zero-shot classification in one pass over the images; return ``ROW_SCHEMA`` rows.

    Args:
        model: a loaded dual encoder in evaluation mode.
        pairs: images with captions.
        templates: of the class prompts.
        prompts: whole texts for each class in place of templates.
        captions: ``"all"`` of an image retrieve it, as CLIP_benchmark has it, or the ``"first"``.
        batch_size: images or captions at a time; affects no result but by rounding.

    Raises:
        UserError: the model encodes no text.
    """
    weights = None
    if pairs.labels is not None:
        weights = zero_shot_classifier(model, pairs.class_names, templates, prompts=prompts).weights.cpu()
    image, text, owners = embed_pairs(model, pairs, captions=captions, batch_size=batch_size)
    own = torch.arange(len(pairs))
    predicted = torch.full_like(own, -1) if weights is None else (image @ weights).argmax(1)
    labels = torch.full_like(own, -1) if pairs.labels is None else pairs.labels
    by_caption = pl.DataFrame(
        {"position": owners.numpy(), "image_rank": ranks(text, image, own, owners).numpy()}
    ).with_columns(caption=pl.int_range(pl.len()).over("position"))
    by_image = pl.DataFrame(
        {
            "position": own.numpy(), "caption": 0, "text_rank": ranks(image, text, owners, own).numpy(),
            "label": labels.numpy(), "prediction": predicted.numpy(),
        }
    )  # fmt: skip
    both = by_caption.join(by_image, ["position", "caption"], "left", maintain_order="left")
    both = both.with_columns(sample=pl.Series(pairs.ids.numpy()).gather(both["position"]))
    return both.select(pl.col(name).cast(kind) for name, kind in ROW_SCHEMA.items())


def encoder_metrics(rows: pl.DataFrame) -> dict[str, Estimate]:
    """Return each metric of ``METRICS`` that the rows hold, with a 95 % interval over the images or captions.

    The interval is Wilson's; that of the mean over the classes' accuracies, where every class counts alike,
    is the jackknife's.
    """
    images = rows.filter(caption=0)
    hits = {f"image R@{k}": rows["image_rank"] < k for k in (1, 5)}
    hits |= {f"text R@{k}": images["text_rank"] < k for k in (1, 5)}
    if (images["label"] >= 0).all():
        hits["zero-shot"] = images["label"] == images["prediction"]
    found = {name: proportion(int(hit.sum()), len(hit)) for name, hit in hits.items()}
    if "zero-shot" in hits:
        found["zero-shot per class"] = _per_class(images["label"].to_numpy(), hits["zero-shot"].to_numpy())
    return found


def _per_class(labels: np.ndarray, hits: np.ndarray) -> Estimate:
    """Return the mean over the classes that occur of the share of hits in each."""
    belongs = labels[:, None] == np.unique(labels)[None, :]
    parts = np.concatenate([belongs & hits[:, None], belongs], 1).astype(float)

    def mean_over_classes(means: np.ndarray) -> np.ndarray:
        right, all_of_it = np.split(means, 2, axis=-1)
        # a class of one sample is gone when that is left out
        return np.divide(right, all_of_it, out=np.zeros_like(right), where=all_of_it > 1e-12).sum(-1) / (
            all_of_it > 1e-12
        ).sum(-1)

    return jackknife(parts, mean_over_classes)


def encoder_numbers(model: nn.Module, pairs: PairSet, **options: Any) -> dict[str, float]:
    """Return the metrics alone, rounded, for a training log; arguments as of :func:`encoder_rows`."""
    found = encoder_metrics(encoder_rows(model, pairs, **options))
    return {name: round(estimate.value, 4) for name, estimate in found.items()}
