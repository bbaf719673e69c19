"""Attention on a CPU, in pieces whose scores stay in the cache from the first product to the last.

One code for standard attention (one branch) and differential attention (two). No whole map is ever held: for the
gradients the maps are made again, piece by piece.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antiphase.attention.backends.contract import Backend, Branches, Call, Parts, recomputed_attention
from antiphase.attention.maps import open_dead_rows

# bytes of scores in a piece of whole heads, by the bytes of a number: with fewer the calls cost more than they save (in
# bf16, whose operations are the quickest, first), more leave the cache (dev/attention-backends.md)
_CACHE = {2: 9 << 19, 4: 9 << 18, 8: 9 << 18}

Stack = Sequence[Tensor]  # (batch, heads, branches, rows, width): one tensor, or one for each branch
Index = tuple[slice, ...]  # of a stack


class Sizes(NamedTuple):
    """What a call has of everything; ``…_apart``: whether each branch's are a tensor of their own."""

    batch: int
    heads: int
    branches: int
    queries: int
    keys: int
    width: int
    value_width: int
    queries_apart: bool
    keys_apart: bool


class Pieces:
    """The pieces of a call: some samples and heads, and of a head that is too large some of its queries."""

    def __init__(self, sizes: Sizes, like: Tensor, *, backward: bool = False) -> None:
        self.sizes, self.like, self.backward = sizes, like, backward
        self.held: dict[str, Tensor] = {}
        self.memories: dict[tuple[int, int, int], Memory] = {}

    def __iter__(self) -> "Iterator[tuple[Index, Memory, list[tuple[Index, Memory]]]]":
        """Yield the place of keys and values, a memory for them, and for each of their pieces a place and a memory.

        The first piece is the largest. The memories of pieces with the same keys and values have these in common.
        """
        batch, heads, branches, queries, keys, *_ = self.sizes
        size = self.like.element_size()
        fit = _CACHE[size] // (branches * keys * size)  # rows of scores
        # rows of a single head: shorter products cost more than leaving the cache
        rows = _cut(queries, 2 * fit)
        for samples in _cut(batch, fit // (heads * queries)):
            for some in _cut(heads, fit // queries):
                within = [
                    ((samples, some, slice(None), each), self.memory(samples, some, each)) for each in rows
                ]
                yield (samples, some), within[0][1], within

    def memory(self, *index: slice) -> "Memory":
        """Return the memory of pieces of a shape."""
        samples, heads, rows = (each.stop - each.start for each in index)
        found = self.memories.get((samples, heads, rows))
        if found is None:
            found = self.memories[samples, heads, rows] = Memory(self, samples, heads, rows)
        return found

    def take(self, name: str, *shape: int) -> Tensor:
        """Return memory of a shape, the same for the same name; the first that is asked for must be the largest."""
        size = math.prod(shape)
        if name not in self.held:
            self.held[name] = self.like.new_empty(size)
        return self.held[name][:size].view(shape)


class Memory:
    """The memory of a piece, used again by the next: what is in use stays in the cache.

    The branches of a head lie next to each other, so that each thread, which takes a stretch of every operation,
    finds in its own cache what it wrote there. A product's batch is samples · heads · branches.

    Attributes:
        queries, keys, values: copies of a piece's, ``(batch of a product, rows, width)``; ``…_stack``: as a stack.
        scores: the scores, and in their place their softmax and their gradient.
        maps: the part of each branch, ``(samples · heads, queries, keys)``.
        combined: A1 − λ·A2, or A1 where there is no other; in A1's own place where nothing wants A1 again and a product
            reads it without a copy. The backward pass uses it again.
        upstream, of_maps, of_each_map, of_keys, of_values: of the backward pass, the gradient that arrives and those of
            the maps, of each branch's map, the keys and the values.
    """

    def __init__(self, pieces: Pieces, samples: int, heads: int, rows: int) -> None:
        # keeps no reference to the pieces, which hold it: a circle waits for the garbage collector
        self.samples, self.heads = samples, heads
        _, _, branches, _, keys, width, value_width, queries_apart, keys_apart = pieces.sizes
        self.queries, self.queries_stack = self._take(pieces, "queries", branches, rows, width, queries_apart)
        self.keys, self.keys_stack = self._take(pieces, "keys", branches, keys, width, keys_apart)
        self.values, self.values_stack = self._take(pieces, "values", 1, keys, value_width)
        self.scores, _ = self._take(pieces, "scores", branches, rows, keys)
        self.maps = self.scores.unflatten(0, (-1, branches)).unbind(1)
        self.combined = self.maps[0]
        if branches > 1 and (pieces.backward or self.scores.element_size() == 2):
            self.combined, _ = self._take(pieces, "combined", 1, rows, keys)
        if pieces.backward:
            self.upstream, self.upstream_stack = self._take(pieces, "upstream", 1, rows, value_width)
            self.of_maps, _ = self._take(pieces, "of maps", branches, rows, keys)
            self.of_each_map = self.of_maps.unflatten(0, (-1, branches)).unbind(1)
            self.of_keys, self.of_keys_stack = self._take(
                pieces, "of keys", branches, keys, width, keys_apart
            )
            self.of_values, self.of_values_stack = self._take(pieces, "of values", 1, keys, value_width)

    def _take(
        self, pieces: Pieces, name: str, branches: int, rows: int, width: int, apart: bool = False
    ) -> tuple[Tensor, Stack]:
        """Return memory as products see it and as a stack."""
        held = pieces.take(name, self.samples, self.heads, branches, rows, width)
        return held.view(-1, rows, width), held.split(1, 2) if apart else (held,)

    def each_head(self, x: Tensor) -> list[Tensor]:
        """Return the part of each head of what is ``(samples · heads, …)``."""
        return [x[head :: self.heads] for head in range(self.heads)]


def _cut(length: int, most: int) -> list[slice]:
    """Return slices of at most ``most`` (at least one), as even as can be."""
    count = -(-length // max(1, most))
    step = -(-length // count)
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


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
