"""Differential attention as pure functions of tensors.

Source: T. Ye et al., *Differential Transformer*, ICLR 2025; as used by *Understanding Sensitivity of
Differential Attention through the Lens of Adversarial Robustness* (2025), Section 3.2.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

Backend = Literal["auto", "eager", "sdpa"]
BACKENDS: tuple[Backend, ...] = ("auto", "eager", "sdpa")


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
    bias, dead = _open_dead_rows(mask, scores.dtype)
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
    return positive - _per_head(lam) * negative


def differential_attention(
    q1: Float[Tensor, "batch heads queries width"],
    k1: Float[Tensor, "batch heads keys width"],
    q2: Float[Tensor, "batch heads queries width"],
    k2: Float[Tensor, "batch heads keys width"],
    v: Float[Tensor, "batch heads keys value_width"],
    lam: float | Float[Tensor, "..."],
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return (softmax(q1 k1ᵀ/√width) − λ·softmax(q2 k2ᵀ/√width)) v.

    Args:
        q1: queries of the positive map.
        k1: keys of the positive map.
        q2: queries of the negative map.
        k2: keys of the negative map.
        v: values, of any width of their own.
        lam: λ, one number or one for each head: shape ``()`` or ``(heads,)``.
        mask: broadcastable to ``(batch, heads, queries, keys)``; boolean (True: may be attended to) or
            added to the scores. A query that may attend to nothing gets zeros.
        backend: ``"eager"`` forms the maps, subtracts them and multiplies v once: every derivative
            exists, forward mode and second order too. ``"sdpa"`` calls torch's fused attention twice
            and never holds a map. ``"auto"`` takes sdpa on a GPU and eager elsewhere, where forming
            the maps is the faster (dev/LOG.md has the timings).

    Raises:
        ValueError: for a backend that does not exist, heads that do not match λ, or a mask of integers.
    """
    _check(backend)
    if isinstance(lam, Tensor) and lam.ndim and lam.shape != (q1.shape[-3],):
        raise ValueError(
            f"lam of shape {tuple(lam.shape)}: expected () or one for each of {q1.shape[-3]} heads"
        )
    if backend == "auto":
        backend = "sdpa" if q1.is_cuda else "eager"
    if backend == "eager":
        maps = combine(softmax_maps(q1, k1, mask), softmax_maps(q2, k2, mask), lam)
        return maps.to(v.dtype) @ v
    positive, negative = _fused(q1, k1, v, mask), _fused(q2, k2, v, mask)
    return positive - _per_head(lam, positive.dtype) * negative


def standard_attention(
    q: Float[Tensor, "batch heads queries width"],
    k: Float[Tensor, "batch heads keys width"],
    v: Float[Tensor, "batch heads keys value_width"],
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return softmax(q kᵀ/√width) v; arguments as in :func:`differential_attention`.

    ``"auto"`` takes sdpa, but eager for bf16 on a CPU, where torch's fused backward pass is the slower.
    """
    _check(backend)
    if backend == "auto":
        backend = "eager" if q.device.type == "cpu" and q.dtype == torch.bfloat16 else "sdpa"
    if backend == "eager":
        return softmax_maps(q, k, mask).to(v.dtype) @ v
    return _fused(q, k, v, mask)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q kᵀ/√width) v by torch's fused attention; masks as in :func:`softmax_maps`."""
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v)
    bias, dead = _open_dead_rows(mask, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).masked_fill(dead, 0.0)


def _check(backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r}: expected one of {', '.join(BACKENDS)}")


def _open_dead_rows(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Bool[Tensor, "... queries 1"]]:
    """Return (additive mask whose all-forbidden rows are opened, those rows).

    A softmax over nothing is 0/0, in the gradient too; computing such a row as if it were free and
    zeroing what comes out keeps both finite.
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


def _per_head(lam: float | Tensor, dtype: torch.dtype | None = None) -> float | Tensor:
    """Shape one λ for each head so that it broadcasts over ``(heads, queries, keys)``."""
    if not isinstance(lam, Tensor):
        return lam
    lam = lam if dtype is None else lam.to(dtype)
    return lam[:, None, None] if lam.ndim else lam
