"""Attention on a CPU, in pieces whose scores stay in the cache from the first product to the last.

One code for standard attention (one branch) and differential attention (two). No whole map is ever held: for the
gradients the maps are made again, piece by piece.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.backends.contract import Backend, Branches, Call, Parts, recomputed_attention
from antiphase.attention.maps import open_dead_rows

# bytes of scores in a piece of whole heads, by the bytes of a number: with fewer the calls cost more than they save (in
# bf16, whose operations are the quickest, first), more leave the cache (dev/attention-backends.md)
_CACHE = {2: 9 << 19, 4: 9 << 18, 8: 9 << 18}

Stack = Sequence[Tensor]  # (batch, heads, branches, rows, width): one tensor, or one for each branch
Index = tuple[slice, ...]  # of a stack
_Held = tuple[Tensor, Stack]  # memory as products see it, and as a stack


def chunked_attention(parts: Parts, lam: Tensor, mask: Tensor | None) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two, without a derivative; λ is ``()`` or ``(heads,)``."""
    layer = _Layer(parts, lam, mask)
    out = parts[2].new_empty(layer.batch, layer.heads, layer.rows, layer.value_width)
    (places,) = _stack(out)
    for _, _, pieces in layer.pieces():
        for piece, memory in pieces:
            layer.make_maps(piece, memory)
            place = places[piece]  # one stretch of memory: of heads only one sample's, of rows one head's
            torch.bmm(memory.combined, memory.values, out=place.view(-1, *place.shape[3:]))
    return out


def chunked_gradients(
    grad: Tensor, parts: Parts, lam: Tensor, mask: Tensor | None, to_parts: Parts, to_lam: Tensor | None
) -> None:
    """Write the gradients of the parts to their places, ``to_parts``, and add that of λ to ``to_lam`` where given."""
    layer = _Layer(parts, lam, mask, backward=True)
    to_queries, to_keys, to_values = map(_stack, to_parts)
    upstream, scale = _stack(grad), layer.scale
    for group, shared, pieces in layer.pieces():
        more = 0.0  # the weight of what the group's pieces before have found
        for piece, memory in pieces:
            layer.make_maps(piece, memory)
            _load(memory.upstream_stack, upstream, piece)
            to, maps = memory.of_values, memory.combined.mT
            torch.baddbmm(to, maps, memory.upstream, beta=more, out=to)
            torch.bmm(memory.upstream, memory.values.mT, out=memory.of_each_map[0])
            if to_lam is not None:
                _correlate(memory, to_lam[piece[1]] if to_lam.ndim else to_lam)
            layer.differentiate_maps(piece, memory)
            to, scores, queries = memory.of_keys, memory.scores, memory.queries
            torch.baddbmm(to, scores.mT, queries, beta=more, alpha=scale, out=to)
            torch.baddbmm(queries, scores, memory.keys, beta=0, alpha=scale, out=queries)
            _store(memory.queries_stack, to_queries, piece)
            more = 1.0
        _store(shared.of_keys_stack, to_keys, group)
        _store(shared.of_values_stack, to_values, group)


class _Layer:
    """What all pieces of a call (some samples and heads, or some queries of a large head) share, and do in memory."""

    def __init__(self, parts: Parts, lam: Tensor, mask: Tensor | None, *, backward: bool = False) -> None:
        self.queries, self.keys, self.values = map(_stack, parts)
        self.like, self.branches, self.backward = parts[2], len(parts[0]), backward
        self.batch, self.heads, _, self.rows, self.width = self.queries[0].shape
        self.columns, self.value_width = parts[2].shape[2:]
        self.scale = self.width**-0.5
        # as numbers: a tensor would first be rounded to the maps' dtype
        self.lam = [lam.item()] if lam.ndim == 0 else lam.tolist()
        self.by_head = lam.ndim == 1
        self.bias = self.dead = None
        if mask is not None:
            bias, dead = open_dead_rows(mask, self.like.dtype)
            shape = self.batch, self.heads, self.rows
            self.bias = bias.expand(*shape, self.columns)[:, :, None]
            self.dead = dead.expand(*shape, 1)[:, :, None] if dead.any() else None
        self.held: dict[str, Tensor] = {}
        self.memories: dict[tuple[int, ...], _Memory] = {}

    def pieces(self) -> "Iterator[tuple[Index, _Memory, list[tuple[Index, _Memory]]]]":
        """Load keys and values of groups of pieces; yield place, memory and pieces of each, the largest first."""
        size = self.like.element_size()
        fit = _CACHE[size] // (self.branches * self.columns * size)  # rows of scores
        # rows of a single head: shorter products cost more than leaving the cache
        cuts = _cut(self.rows, 2 * fit)
        for samples in _cut(self.batch, fit // (self.heads * self.rows)):
            for heads in _cut(self.heads, fit // self.rows):
                pieces = [
                    ((samples, heads, slice(None), rows), self.memory(samples, heads, rows)) for rows in cuts
                ]
                group, memory = (samples, heads), pieces[0][1]
                _load(memory.keys_stack, self.keys, group)
                _load(memory.values_stack, self.values, group)
                yield group, memory, pieces

    def memory(self, *index: slice) -> "_Memory":
        """Return the memory of pieces of a shape."""
        shape = tuple(part.stop - part.start for part in index)
        if shape not in self.memories:
            self.memories[shape] = _Memory(self, *shape)
        return self.memories[shape]

    def take(self, name: str, *shape: int) -> Tensor:
        """Return memory of a shape, the same for the same name; the first that is asked for must be the largest."""
        size = math.prod(shape)
        if name not in self.held:
            self.held[name] = self.like.new_empty(size)
        return self.held[name][:size].view(shape)

    def make_maps(self, piece: Index, memory: "_Memory") -> None:
        """Copy the queries of a piece into memory; make its maps and what is combined of them."""
        _load(memory.queries_stack, self.queries, piece)
        scores = memory.scores
        torch.baddbmm(scores, memory.queries, memory.keys.mT, beta=0, alpha=self.scale, out=scores)
        # a mask sees (samples, heads, branches, queries, keys)
        if self.bias is not None:
            scores.unflatten(0, (memory.samples, memory.heads, -1)).add_(self.bias[piece])
        torch.softmax(scores, -1, out=scores)
        if self.dead is not None:
            scores.unflatten(0, (memory.samples, memory.heads, -1)).masked_fill_(self.dead[piece], 0.0)
        if self.branches == 2:
            for lam, out, one, other in self.by_lambda(piece, memory, memory.combined, *memory.maps):
                torch.sub(one, other, alpha=lam, out=out)

    def differentiate_maps(self, piece: Index, memory: "_Memory") -> None:
        """Put the gradient of the scores in their place, given that of A1 in its own."""
        if self.branches == 2:
            first, second = memory.of_each_map
            for lam, out, one in self.by_lambda(piece, memory, second, first):
                torch.mul(one, -lam, out=out)
        scores = memory.scores
        torch.ops.aten._softmax_backward_data.out(memory.of_maps, scores, -1, scores.dtype, grad_input=scores)

    def by_lambda(self, piece: Index, memory: "_Memory", *tensors: Tensor) -> Iterable[tuple[Any, ...]]:
        """Return each λ of a piece with its part of tensors of ``(samples · heads, …)``."""
        if not self.by_head:
            return [(self.lam[0], *tensors)]
        heads = range(memory.heads)
        by_head = ([tensor[head :: memory.heads] for head in heads] for tensor in tensors)
        return zip(self.lam[piece[1]], *by_head, strict=True)


class _Memory:
    """The memory of a piece, used again by the next: what is in use stays in the cache.

    The branches of a head lie next to each other, so that each thread, which takes a stretch of every operation,
    finds in its own cache what it wrote there. A product's batch is samples · heads · branches; ``…_stack`` is the same
    memory as a stack. ``scores`` become their softmax and their gradient; ``maps`` are the parts of the branches,
    ``combined`` is A1 − λ·A2. ``upstream`` and ``of_…`` are gradients.
    """

    def __init__(self, layer: _Layer, samples: int, heads: int, rows: int) -> None:
        # keeps no reference to the layer, which holds it: a circle waits for the garbage collector
        self.samples, self.heads = samples, heads
        branches, columns, width, value_width = layer.branches, layer.columns, layer.width, layer.value_width

        def take(name: str, branches: int, rows: int, width: int, stack: Stack = ()) -> _Held:
            """Return memory whose stack has a tensor for each branch where ``stack`` has."""
            held = layer.take(name, samples, heads, branches, rows, width)
            return held.view(-1, rows, width), held.split(1, 2) if len(stack) > 1 else (held,)

        self.queries, self.queries_stack = take("queries", branches, rows, width, layer.queries)
        self.keys, self.keys_stack = take("keys", branches, columns, width, layer.keys)
        self.values, self.values_stack = take("values", 1, columns, value_width)
        self.scores, _ = take("scores", branches, rows, columns)
        self.maps = self.scores.unflatten(0, (-1, branches)).unbind(1)
        self.combined = self.maps[0]
        if branches > 1 and (layer.backward or self.scores.element_size() == 2):
            self.combined, _ = take("combined", 1, rows, columns)
        if layer.backward:
            self.upstream, self.upstream_stack = take("upstream", 1, rows, value_width)
            self.of_maps, _ = take("of maps", branches, rows, columns)
            self.of_each_map = self.of_maps.unflatten(0, (-1, branches)).unbind(1)
            self.of_keys, self.of_keys_stack = take("of keys", branches, columns, width, layer.keys)
            self.of_values, self.of_values_stack = take("of values", 1, columns, value_width)


def _cut(length: int, most: int) -> list[slice]:
    """Return slices of at most ``most`` (at least one), as even as can be."""
    count = -(-length // max(1, most))
    step = -(-length // count)
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _correlate(memory: _Memory, to_lam: Tensor) -> None:
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
