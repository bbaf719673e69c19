"""Attention maps in plain tensor operations, with all derivatives, including forward mode and second order."""

import inspect
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from antiphase.arguments import validated
from antiphase.errors import UserError


@validated
def softmax_maps(
    q: Float[Tensor, "*#batch queries width"], k: Float[Tensor, "*#batch keys width"], mask: Tensor | None = None
) -> Float[Tensor, "*batch queries keys"]:
    """Compute attention maps, softmax(q·kᵀ / √width).

    ``mask`` is broadcastable to the maps, boolean (True: may attend) or added to the scores. A fully masked row gives
    zeros, with zero gradients.

    >>> softmax_maps(torch.ones(1, 1), torch.tensor([[0.0], [1.0]]))  # [1, e] / (1 + e)
    tensor([[0.2689, 0.7311]])
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is None:
        return scores.softmax(-1)
    check_broadcast("mask", mask, scores.shape)
    bias, dead = open_dead_rows(mask, scores.dtype)
    return (scores + bias).softmax(-1).masked_fill(dead, 0.0)


@validated
def combine(
    positive: Float[Tensor, "*#batch heads queries keys"],
    negative: Float[Tensor, "*#batch heads queries keys"],
    lam: float | Float[Tensor, "..."],
) -> Float[Tensor, "*batch heads queries keys"]:
    """Compute the differential map A1 − λ·A2, whose rows sum to 1 − λ (sensitivity paper, Section 3.2).

    λ is one number, one for each head or one for each query: ``()``, ``(heads,)`` or ``(batch, heads, queries)``.
    """
    if not isinstance(lam, Tensor):
        return torch.sub(positive, negative, alpha=lam)
    check_broadcast("lam", per_head(lam), positive.shape)
    return torch.addcmul(positive, negative, per_head(lam), value=-1)  # allocates only the result


# for the backends, whose calls are checked already: a check takes as long as a small kernel
plain_maps, plain_combine = inspect.unwrap(softmax_maps), inspect.unwrap(combine)


def check_broadcast(name: str, tensor: Tensor, shape: torch.Size) -> None:
    """Refuse a tensor that does not broadcast to the shape of the maps."""
    try:
        torch.broadcast_shapes(tensor.shape, shape)
    except RuntimeError:
        raise UserError(f"{name} of shape {tuple(tensor.shape)}: expected to fit {tuple(shape)}") from None


def open_dead_rows(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Bool[Tensor, "... queries 1"]]:
    """Return an additive mask in which fully masked rows, whose softmax is 0/0, are unmasked; and which these are."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)
    elif not mask.is_floating_point():
        raise UserError(f"mask of {mask.dtype}: expected boolean (True: may attend) or floating point")
    mask = torch.atleast_2d(mask).to(dtype)  # cast before the test: large float32 values become −∞ in float16
    dead = (mask == -math.inf).all(-1, keepdim=True)
    return mask.masked_fill(dead, 0.0), dead


def mean_over_queries(x: Float[Tensor, "*batch queries _"], mask: Tensor | None = None) -> Tensor:
    """Average rows of maps, or of their products with values, over the queries, as DINT does.

    With a mask the mean for a query is over the queries that attend to no key that it may not.
    """
    if mask is None or mask.ndim < 2 or mask.shape[-2] == 1:
        return x.mean(-2, keepdim=True)
    # the least finite number shuts, too
    shut = (~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2).to(x.dtype)
    sees_more = (1 - shut) @ shut.mT > 0  # (other query, query)
    weights = (~sees_more).mT.to(x.dtype)
    return weights / weights.sum(-1, keepdim=True) @ x


def per_head(lam: Tensor) -> Tensor:
    """Shape λ so that it broadcasts over ``(batch, heads, queries, keys)``."""
    return lam if lam.ndim == 0 else lam[:, None, None] if lam.ndim == 1 else lam[..., None]
