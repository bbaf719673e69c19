"""Attention maps in plain tensor operations: every derivative exists, forward mode and second order too."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def softmax_maps(
    q: Float[Tensor, "*batch queries width"],
    k: Float[Tensor, "*batch keys width"],
    mask: Tensor | None = None,
) -> Float[Tensor, "*batch queries keys"]:
    """Return the attention maps softmax(q kᵀ / √width).

    Args:
        q: queries.
        k: keys, as wide as the queries.
        mask: broadcastable to the maps; boolean (True: may be attended to) or added to the scores.
            A row that may attend to nothing is a row of zeros, with zero gradients.

    >>> import math, torch
    >>> q, k = torch.ones(1, 1), torch.tensor([[0.0], [1.0]])
    >>> softmax_maps(q, k)  # [1, e] / (1 + e)
    tensor([[0.2689, 0.7311]])
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is None:
        return scores.softmax(-1)
    bias, dead = open_dead_rows(mask, scores.dtype)
    return (scores + bias).softmax(-1).masked_fill(dead, 0.0)


def combine(
    positive: Float[Tensor, "*batch heads queries keys"],
    negative: Float[Tensor, "*batch heads queries keys"],
    lam: float | Float[Tensor, "..."],
) -> Float[Tensor, "*batch heads queries keys"]:
    """Return the differential map A1 − λ·A2; its rows sum to 1 − λ (robustness paper, Section 3.2).

    Args:
        positive: A1.
        negative: A2.
        lam: λ, one number or one for each head: shape ``()`` or ``(heads,)``.
    """
    return positive - per_head(lam) * negative


def open_dead_rows(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Bool[Tensor, "... queries 1"]]:
    """Return (additive mask whose all-forbidden rows are opened, those rows).

    A softmax over nothing is 0/0, in the gradient too; computing such a row as if it were free and
    zeroing what comes out keeps both finite.

    Raises:
        ValueError: for a mask of integers.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)
    elif not mask.is_floating_point():
        raise ValueError(
            f"mask of {mask.dtype}: expected boolean (True: may be attended to) or floating numbers"
        )
    mask = torch.atleast_2d(mask).to(dtype)  # what float32 can hold may be −∞ in float16: cast, then look
    dead = (mask == -math.inf).all(-1, keepdim=True)
    return mask.masked_fill(dead, 0.0), dead


def per_head(lam: float | Tensor, dtype: torch.dtype | None = None) -> float | Tensor:
    """Shape one λ for each head so that it broadcasts over ``(heads, queries, keys)``."""
    if not isinstance(lam, Tensor):
        return lam
    lam = lam if dtype is None else lam.to(dtype)
    return lam[:, None, None] if lam.ndim else lam
