"""How a call of attention is cut into pieces for a CPU's cache, and the memory that its pieces share."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

# bytes of scores in a piece of whole heads, by the bytes of a number: with fewer the calls cost more than they save (in
# bf16, whose operations are the quickest, first), more leave the cache (dev/LOG.md)
_CACHE = {2: 9 << 19, 4: 9 << 18, 8: 9 << 18}

Stack = Sequence[Tensor]  # (batch, heads, branches, rows, width): one tensor, or one for each branch
Index = tuple[slice, ...]  # of a stack


class Sizes(NamedTuple):
    """What a call has of everything; ``apart``: whether each branch's queries and keys are a tensor of their own."""

    batch: int
    heads: int
    branches: int
    queries: int
    keys: int
    width: int
    value_width: int
    apart: bool


class Pieces:
    """The pieces of a call: some samples and heads, and of a head that is too large some of its queries."""

    def __init__(self, sizes: Sizes, like: Tensor, *, backward: bool = False) -> None:
        self.sizes, self.like, self.backward = sizes, like, backward
        self.held: dict[str, Tensor] = {}
        self.memories: dict[tuple[int, int, int], Memory] = {}

    def __iter__(self) -> "Iterator[tuple[Index, list[tuple[Index, Memory]]]]":
        """Yield where the keys and values of some pieces lie, and of each piece where its queries lie and its memory.

        The first piece is the largest.
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
                yield (samples, some), within

    def memory(self, *index: slice) -> "Memory":
        """Return the memory of pieces of a shape."""
        samples, heads, rows = (each.stop - each.start for each in index)
        found = self.memories.get((samples, heads, rows))
        if found is None:
            found = self.memories[samples, heads, rows] = Memory(self, samples, heads, rows)
        return found

    def take(self, name: str, *shape: int) -> Tensor:
        """Return memory of a shape, the same for the same name; the first that is asked for is the largest."""
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
        combined: for A1 − λ·A2: A1's own place where nothing wants A1 again and a product reads it without a copy.
        upstream, of_maps, of_each_map, of_keys, of_values: of the backward pass, the gradient that arrives and those of
            the maps, of each branch's map, the keys and the values.
    """

    def __init__(self, pieces: Pieces, samples: int, heads: int, rows: int) -> None:
        def take(name: str, branches: int, rows: int, width: int) -> tuple[Tensor, Stack]:
            held = pieces.take(name, samples, heads, branches, rows, width)
            apart = branches > 1 and pieces.sizes.apart
            return held.view(-1, rows, width), held.split(1, 2) if apart else (held,)

        # not the pieces: what refers in a circle is not freed at once
        self.samples, self.heads = samples, heads
        _, _, branches, _, keys, width, value_width, _ = pieces.sizes
        self.queries, self.queries_stack = take("queries", branches, rows, width)
        self.keys, self.keys_stack = take("keys", branches, keys, width)
        self.values, self.values_stack = take("values", 1, keys, value_width)
        self.scores, _ = take("scores", branches, rows, keys)
        self.maps = self.scores.unflatten(0, (-1, branches)).unbind(1)
        self.combined = self.maps[0]
        if branches > 1 and (pieces.backward or self.scores.element_size() == 2):
            self.combined, _ = take("combined", 1, rows, keys)
        if pieces.backward:
            self.upstream, self.upstream_stack = take("upstream", 1, rows, value_width)
            self.of_maps, _ = take("of maps", branches, rows, keys)
            self.of_each_map = self.of_maps.unflatten(0, (-1, branches)).unbind(1)
            self.of_keys, self.of_keys_stack = take("of keys", branches, keys, width)
            self.of_values, self.of_values_stack = take("of values", 1, keys, value_width)

    def each_head(self, x: Tensor) -> list[Tensor]:
        """Return the part of each head of what is ``(samples · heads, …)``."""
        return [x[head :: self.heads] for head in range(self.heads)]


def _cut(length: int, most: int) -> list[slice]:
    """Return slices of at most ``most`` (at least one), as even as can be."""
    count = -(-length // max(1, most))
    step = -(-length // count)
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
