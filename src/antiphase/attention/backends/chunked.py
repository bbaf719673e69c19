"""Attention on a CPU, in pieces whose scores stay in the cache from the first product to the last.

One code for standard attention (one branch) and differential attention (two). No whole map is ever held: for the
gradients the maps are made again, piece by piece.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.backends.autograd import recomputed_attention
from antiphase.attention.backends.contract import Backend, Call
from antiphase.attention.backends.pieces import Index, Memory, Pieces, Sizes, Stack
from antiphase.attention.backends.views import Branches, Parts
from antiphase.attention.maps import open_dead_rows


def chunked_attention(parts: Parts, lam: Tensor, mask: Tensor | None) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two, without a derivative.

    Args:
        parts: queries and keys, one of each a branch, ``(batch, heads, tokens, width)``, and the values.
        lam: λ, ``()`` or ``(heads,)``; not looked at where there is one branch.
        mask: as in :func:`~antiphase.attention.maps.softmax_maps`.

    Returns:
        ``(batch, heads, queries, value width)``.
    """
    layer = _Layer(parts, lam, mask)
    out = layer.v.new_empty(*layer.sizes[:2], layer.sizes.queries, layer.sizes.value_width)
    (places,) = _stack(out)
    for group, shared, pieces in Pieces(layer.sizes, layer.v):
        layer.load_keys_and_values(group, shared)
        for piece, memory in pieces:
            layer.make_maps(piece, memory)
            place = places[piece]  # one stretch of memory: of heads only one sample's, of rows one head's
            torch.bmm(memory.combined, memory.values, out=place.view(-1, *place.shape[3:]))
    return out


def chunked_gradients(
    grad: Tensor, parts: Parts, lam: Tensor, mask: Tensor | None, to_parts: Parts, to_lam: Tensor | None
) -> None:
    """Write the gradients of queries, keys and values to their places, and add that of λ.

    Args:
        grad: that of the output, ``(batch, heads, queries, value width)``.
        parts: as in :func:`chunked_attention`.
        lam: as there.
        mask: as there.
        to_parts: where the gradients are written, of the parts' shapes.
        to_lam: what λ's gradient is added to, of λ's shape, if it is wanted.
    """
    layer = _Layer(parts, lam, mask)
    to_queries, to_keys, to_values = map(_stack, to_parts)
    upstream = _stack(grad)
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
            if to_lam is not None:
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


def _forward(call: Call) -> Tensor:
    return call.finish(recomputed_attention(call, chunked_attention, chunked_gradients))


CHUNKED = Backend("chunked", _forward, own_backward=True)
