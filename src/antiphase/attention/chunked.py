"""Attention on a CPU, in pieces whose scores stay in the cache from the first product to the last.

One code for standard attention (one branch) and differential attention (two). The forward pass keeps nothing
but its inputs; the backward pass makes the maps again, piece by piece, so that no whole map is ever held.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.compiled import compiled_attention
from antiphase.attention.maps import combine, open_dead_rows, per_head, softmax_maps
from antiphase.attention.modes import plain_backward
from antiphase.attention.pieces import Index, Memory, Pieces, Sizes, Stack
from antiphase.attention.views import Branches, Parts, View, join


def chunked_attention(
    view: View, lam: float | Tensor, mask: Tensor | None, *sources: Tensor, native: bool = False
) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two: ``(batch, heads, queries, value width)``.

    First and second derivatives exist, batched ones (vmap) too; forward mode does not.

    Args:
        view: returns queries and keys, one of each a branch, ``(batch, heads, tokens, width)``, and the values
            as views of the sources. Gradients are written through the same views of the sources' gradients,
            so that parts of one projection are never gathered from pieces.
        lam: λ, ``()`` or ``(heads,)``; not looked at where there is one branch.
        mask: as in :func:`~antiphase.attention.maps.softmax_maps`, without a gradient of its own.
        sources: what the parts are seen in.
        native: whether the forward pass is the compiled kernel's, which must take them.
    """
    if not isinstance(lam, Tensor):
        lam = torch.tensor(lam, dtype=torch.float64)
    out = _Chunked.apply(view, lam, mask, native, *sources)
    assert isinstance(out, Tensor)
    return out


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, view: View, lam: Tensor, mask: Tensor | None, native: bool, *sources: Tensor
    ) -> Tensor:
        ctx.view = view
        ctx.save_for_backward(lam, mask, *sources)
        if native:
            return compiled_attention(view(*sources), lam, mask)
        layer = _Layer(view(*sources), lam, mask)
        out = layer.v.new_empty(*layer.sizes[:2], layer.sizes.queries, layer.sizes.value_width)
        (places,) = _stack(out)
        for group, shared, pieces in Pieces(layer.sizes, layer.v):
            layer.load_keys_and_values(group, shared)
            for piece, memory in pieces:
                layer.make_maps(piece, memory)
                place = places[piece]  # one stretch of memory: of heads only one sample's, of rows one head's
                torch.bmm(memory.combined, memory.values, out=place.view(-1, *place.shape[3:]))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, mask, *sources = ctx.saved_tensors
        if plain_backward(grads[0]):
            to_lam, found = _plain_backward(grads[0], ctx.view, lam, mask, sources)
            return None, to_lam, None, None, *found
        layer = _Layer(ctx.view(*sources), lam, mask)
        found = [torch.empty_like(source) for source in sources]
        to_queries, to_keys, to_values = map(_stack, ctx.view(*found))
        upstream = _stack(grads[0])
        needs_lam = layer.sizes.branches == 2 and ctx.needs_input_grad[1]
        to_lam = torch.zeros(lam.shape, dtype=torch.promote_types(layer.v.dtype, torch.float32))
        for group, shared, pieces in Pieces(layer.sizes, layer.v, backward=True):
            layer.load_keys_and_values(group, shared)
            more = 0.0  # the weight of what the group's pieces before have found
            for piece, memory in pieces:
                layer.make_maps(piece, memory)
                _load(memory.upstream_stack, upstream, piece)
                torch.baddbmm(
                    memory.of_values, memory.combined.mT, memory.upstream, beta=more, out=memory.of_values
                )
                torch.bmm(memory.upstream, memory.values.mT, out=memory.of_each_map[0])
                if needs_lam:
                    _correlate(memory, to_lam[piece[1]] if to_lam.ndim else to_lam)
                layer.differentiate_maps(piece, memory)
                scale, queries = layer.scale, memory.queries
                torch.baddbmm(
                    memory.of_keys, memory.scores.mT, queries, beta=more, alpha=scale, out=memory.of_keys
                )
                torch.baddbmm(queries, memory.scores, memory.keys, beta=0, alpha=scale, out=queries)
                _store(memory.queries_stack, to_queries, piece)
                more = 1.0
            _store(shared.of_keys_stack, to_keys, group)
            _store(shared.of_values_stack, to_values, group)
        return None, to_lam.to(lam.dtype) if needs_lam else None, None, None, *found


class _Layer:
    """What all pieces of a call are cut from, and what is done with each in its memory."""

    def __init__(self, parts: Parts, lam: Tensor, mask: Tensor | None) -> None:
        self.queries, self.keys, self.values = map(_stack, parts)
        self.v = parts[2]
        batch, heads, _, queries, width = self.queries[0].shape
        keys, value_width = self.v.shape[2:]
        apart = len(self.queries) > 1, len(self.keys) > 1
        self.sizes = Sizes(batch, heads, len(parts[0]), queries, keys, width, value_width, *apart)
        self.scale = width**-0.5
        # as numbers: a tensor would first be rounded to the maps' dtype
        self.lam = [lam.item()] if lam.ndim == 0 else lam.tolist()
        self.by_head = lam.ndim == 1
        self.bias = self.dead = None
        if mask is not None:
            bias, dead = open_dead_rows(mask, self.v.dtype)
            self.bias = bias.expand(batch, heads, queries, keys)[:, :, None]
            self.dead = dead.expand(batch, heads, queries, 1)[:, :, None] if dead.any() else None

    def load_keys_and_values(self, group: Index, memory: Memory) -> None:
        """Copy the keys and values of a group into memory."""
        _load(memory.keys_stack, self.keys, group)
        _load(memory.values_stack, self.values, group)

    def make_maps(self, piece: Index, memory: Memory) -> None:
        """Copy the queries of a piece into memory; make its maps and what is combined of them."""
        _load(memory.queries_stack, self.queries, piece)
        scores = memory.scores
        torch.baddbmm(scores, memory.queries, memory.keys.mT, beta=0, alpha=self.scale, out=scores)
        if self.bias is not None:
            _whole(memory).add_(self.bias[piece])
        torch.softmax(scores, -1, out=scores)
        if self.dead is not None:
            _whole(memory).masked_fill_(self.dead[piece], 0.0)
        if self.sizes.branches == 1:
            return
        first, second = memory.maps
        for lam, out, one, other in self.by_lambda(piece, memory, memory.combined, first, second):
            torch.sub(one, other, alpha=lam, out=out)

    def differentiate_maps(self, piece: Index, memory: Memory) -> None:
        """Put the gradient of the scores in their place, given that of A1 in its own."""
        if self.sizes.branches == 2:
            first, second = memory.of_each_map
            for lam, out, one in self.by_lambda(piece, memory, second, first):
                torch.mul(one, -lam, out=out)
        scores = memory.scores
        torch.ops.aten._softmax_backward_data.out(memory.of_maps, scores, -1, scores.dtype, grad_input=scores)

    def by_lambda(self, piece: Index, memory: Memory, *each: Tensor) -> Iterable[tuple[Any, ...]]:
        """Return each λ of a piece with its part of tensors of ``(samples · heads, …)``."""
        if not self.by_head:
            return [(self.lam[0], *each)]
        return zip(self.lam[piece[1]], *map(memory.each_head, each), strict=True)


def _whole(memory: Memory) -> Tensor:
    """Return the scores of a piece as what a mask is seen as: ``(samples, heads, branches, queries, keys)``."""
    return memory.scores.unflatten(0, (memory.samples, memory.heads, -1))


def _correlate(memory: Memory, to_lam: Tensor) -> None:
    """Subtract Σ ∂/∂(A1 − λ·A2) · A2 of a piece from the gradient of its λ."""
    product = torch.mul(memory.of_each_map[0], memory.maps[1], out=memory.combined)
    of_rows = product.sum(-1)  # in the maps' dtype: a sum into another first makes a copy
    if to_lam.ndim:
        to_lam -= of_rows.view(-1, len(to_lam), of_rows.shape[1]).sum((0, 2), dtype=to_lam.dtype)
    else:
        to_lam -= of_rows.sum(dtype=to_lam.dtype)


def _stack(branches: Branches) -> Stack:
    """Return what :data:`Stack` says, as views; values and other single tensors are one branch."""
    if not isinstance(branches, Tensor):
        return [branch[:, :, None] for branch in branches]
    return [branches[:, :, None] if branches.ndim == 4 else branches.permute(1, 2, 0, 3, 4)]


def _load(held: Stack, stack: Stack, piece: Index) -> None:
    """Copy a piece of a stack into memory."""
    for one, whole in zip(held, stack, strict=True):
        one.copy_(whole[piece])


def _store(held: Stack, stack: Stack, piece: Index) -> None:
    """Copy memory to its place in a stack."""
    for one, whole in zip(held, stack, strict=True):
        whole[piece].copy_(one)


def _plain_backward(
    grad: Tensor, view: View, lam: Tensor, mask: Tensor | None, sources: Sequence[Tensor]
) -> tuple[Tensor | None, list[Tensor]]:
    """Return λ's and the sources' gradients in plain operations, to be differentiated and batched themselves."""
    queries, keys, v = view(*sources)
    maps = [softmax_maps(q, k, mask) for q, k in zip(queries, keys, strict=True)]
    combined = combine(maps[0], maps[1], lam) if len(maps) > 1 else maps[0]
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
