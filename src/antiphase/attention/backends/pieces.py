"""How a call of attention is cut into pieces for a CPU's cache, and the memory that its pieces share."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

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
