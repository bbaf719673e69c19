"""Rows of what a perturbation does to the branches of every attention layer."""

import math
from collections.abc import Iterator
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.sensitivity.depth import branch_changes

_PARTS = (
    "positive",
    "negative",
    "moved",
    "clean_positive",
    "clean_moved",
    "clean_correlation",
    "correlation",
    "change_correlation",
)


def branch_rows(
    model: nn.Module,
    images: Float[Tensor, "batch *shape"],
    ids: Int64[Tensor, " batch"],
    perturbed: Float[Tensor, "batch *shape"],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each layer, sample and head: ``BRANCHES_SCHEMA`` without what names model and perturbation.

    Args:
        model: any model with attention.
        images: clean inputs.
        ids: their ids.
        perturbed: perturbed inputs, in the same order.
    """
    for at, change in enumerate(branch_changes(model, images, perturbed)):
        values = {part: getattr(change, part).tolist() for part in _PARTS}
        lam = change.positive.shape[1] * [None] if change.lam is None else change.lam.tolist()
        for row, sample in enumerate(ids.tolist()):
            for head, own in enumerate(lam):
                found = {part: each[row][head] for part, each in values.items()}
                found = {part: None if math.isnan(value) else value for part, value in found.items()}
                yield {"sample": sample, "layer": at, "name": change.name, "head": head, "lam": own} | found
