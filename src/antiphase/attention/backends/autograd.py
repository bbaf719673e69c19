"""Attention that keeps nothing but its inputs for a gradient: the backward pass makes the maps again."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.backends.contract import Call
from antiphase.attention.backends.views import Parts, View, join
from antiphase.attention.maps import per_head, plain_combine, plain_maps
from antiphase.attention.modes import plain_backward

Forward = Callable[[Parts, Tensor, Tensor | None], Tensor]  # of parts, λ and mask
Backward = Callable[
    [Tensor, Parts, Tensor, Tensor | None, Parts, Tensor | None], None
]  # see `chunked_gradients`


def recomputed_attention(call: Call, forward: Forward, backward: Backward) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two, not normed: ``(batch, heads, queries, value width)``.

    First and second derivatives exist, also batched ones (vmap); forward mode does not.

    Args:
        call: with λ of shape ``()`` or ``(heads,)`` and a mask without a gradient of its own. Gradients are written
            through the same views of the sources' gradients, so that parts of one projection need not be gathered:
            parts must not overlap, and together cover their sources.
        forward: computes the output from parts, λ and mask.
        backward: writes the gradients of the parts to their places.
    """
    lam = call.lam
    if not isinstance(lam, Tensor):
        lam = torch.tensor(lam, dtype=torch.float64)
    out = _Recomputed.apply(call.view, lam, call.mask, forward, backward, *call.sources)
    assert isinstance(out, Tensor)
    return out


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        view: View,
        lam: Tensor,
        mask: Tensor | None,
        forward: Forward,
        backward: Backward,
        *sources: Tensor,
    ) -> Tensor:
        ctx.view, ctx.write = view, backward
        ctx.save_for_backward(lam, mask, *sources)
        return forward(view(*sources), lam, mask)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, mask, *sources = ctx.saved_tensors
        if plain_backward(grads[0]):
            to_lam, found = _plain_backward(grads[0], ctx.view, lam, mask, sources)
            return None, to_lam, None, None, None, *found
        parts, found = ctx.view(*sources), [torch.empty_like(source) for source in sources]
        to_lam = None
        if ctx.needs_input_grad[1] and len(parts[0]) > 1:
            to_lam = torch.zeros(lam.shape, dtype=torch.promote_types(grads[0].dtype, torch.float32))
        ctx.write(grads[0], parts, lam, mask, ctx.view(*found), to_lam)
        return None, None if to_lam is None else to_lam.to(lam.dtype), None, None, None, *found


def _plain_backward(
    grad: Tensor, view: View, lam: Tensor, mask: Tensor | None, sources: Sequence[Tensor]
) -> tuple[Tensor | None, list[Tensor]]:
    """Return λ's and the sources' gradients in plain operations, to be differentiated and batched themselves."""
    queries, keys, v = view(*sources)
    maps = [plain_maps(q, k, mask) for q, k in zip(queries, keys, strict=True)]
    combined = plain_combine(maps[0], maps[1], lam) if len(maps) > 1 else maps[0]
    inner = grad @ v.mT
    scale = queries[0].shape[-1] ** -0.5
    of_scores = [one * (inner - (one * inner).sum(-1, keepdim=True)) * scale for one in maps]
    to_lam = None
    if len(maps) > 1:
        of_scores[1] = of_scores[1] * -per_head(lam)
        to_lam = -(inner * maps[1]).sum((0, 2, 3) if lam.ndim else None).to(lam.dtype)
    of_scores = [one.to(v.dtype) for one in of_scores]
    gradients = (
        *(one @ k for one, k in zip(of_scores, keys, strict=True)),
        *(one.mT @ q for one, q in zip(of_scores, queries, strict=True)),
        combined.to(v.dtype).mT @ grad,
    )
    return to_lam, join(view, [(source.shape, source.dtype) for source in sources], gradients)
