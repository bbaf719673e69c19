"""Attention on a CPU, in pieces whose scores stay in the cache from the first product to the last.

One code for standard attention (one branch) and differential attention (two). The forward pass keeps nothing
but its inputs; the backward pass makes the maps again, piece by piece, so that no whole map is ever held.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.maps import combine, open_dead_rows, per_head, softmax_maps
from antiphase.attention.modes import plain_backward
from antiphase.attention.views import Branches, Parts, View, join

# bytes of scores in a piece of whole heads, by the bytes of a number: with fewer the calls cost more than they save (in
# bf16, whose operations are the quickest, first), more leave the cache (dev/LOG.md)
_CACHE = {2: 9 << 19, 4: 9 << 18, 8: 9 << 18}

Piece = tuple[slice, ...]  # samples, heads and, of what has them, queries
Stack = list[Tensor]  # (batch, heads, branches, rows, width): one tensor, or one for each branch


def chunked_attention(view: View, lam: float | Tensor, mask: Tensor | None, *sources: Tensor) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two: ``(batch, heads, queries, value width)``.

    First and second derivatives exist, batched ones (vmap) too; forward mode does not.

    Args:
        view: returns queries and keys, one of each a branch, ``(batch, heads, tokens, width)``, and the values
            as views of the sources. Gradients are written through the same views of the sources' gradients,
            so that parts of one projection are never gathered from pieces.
        lam: λ, ``()`` or ``(heads,)``; not looked at where there is one branch.
        mask: as in :func:`~antiphase.attention.maps.softmax_maps`, without a gradient of its own.
        sources: what the parts are seen in.
    """
    if not isinstance(lam, Tensor):
        lam = torch.tensor(lam, dtype=torch.float64)
    out = _Chunked.apply(view, lam, mask, *sources)
    assert isinstance(out, Tensor)
    return out


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, view: View, lam: Tensor, mask: Tensor | None, *sources: Tensor) -> Tensor:
        ctx.view = view
        ctx.save_for_backward(lam, mask, *sources)
        layer = _Layer(view(*sources), lam, mask)
        out = layer.v.new_empty(*layer.shape[:3], layer.v.shape[-1])
        for group, pieces in layer.pieces():
            keys, values = layer.load("keys", layer.keys, group), layer.load("values", layer.values, group)
            for piece in pieces:
                maps = layer.maps(layer.load("queries", layer.queries, piece), keys, piece)
                place = out[piece]  # one stretch of memory: of heads only one sample's, of rows one head's
                torch.bmm(layer.combine(maps, piece), values, out=place.view(-1, *place.shape[2:]))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, mask, *sources = ctx.saved_tensors
        if plain_backward(grads[0]):
            return None, *_plain_backward(grads[0], ctx.view, lam, mask, sources)
        layer = _Layer(ctx.view(*sources), lam, mask)
        found = [torch.empty_like(source) for source in sources]
        to_queries, to_keys, to_values = map(_stack, ctx.view(*found))
        upstream = _stack(grads[0])
        needs_lam = layer.count == 2 and ctx.needs_input_grad[1]
        to_lam = torch.zeros(lam.shape, dtype=torch.promote_types(layer.v.dtype, torch.float32))
        for group, pieces in layer.pieces():
            keys, values = layer.load("keys", layer.keys, group), layer.load("values", layer.values, group)
            of_keys, of_values = layer.take("of keys", *keys.shape), layer.take("of values", *values.shape)
            for piece in pieces:
                more = float(piece is not pieces[0])
                queries = layer.load("queries", layer.queries, piece)
                grad = layer.load("grad", upstream, piece)
                maps = layer.maps(queries, keys, piece)
                combined = layer.combine(maps, piece, keep=True)
                torch.baddbmm(of_values, combined.mT, grad, beta=more, out=of_values)
                inner = torch.bmm(grad, values.mT, out=layer.take("inner", *combined.shape))
                if needs_lam:
                    layer.correlate(inner, maps, piece, to_lam)
                of_scores = layer.of_scores(inner, maps, piece)
                torch.baddbmm(of_keys, of_scores.mT, queries, beta=more, alpha=layer.scale, out=of_keys)
                torch.baddbmm(queries, of_scores, keys, beta=0, alpha=layer.scale, out=queries)
                layer.store(to_queries, piece, queries)
            layer.store(to_keys, group, of_keys)
            layer.store(to_values, group, of_values)
        return None, to_lam.to(lam.dtype) if needs_lam else None, None, *found


class _Layer:
    """One call: its parts, and how they are cut into pieces.

    In a piece the branches of a head lie next to each other, so that each thread, which takes a stretch of every
    operation, finds in its own cache what it wrote there.
    """

    def __init__(self, parts: Parts, lam: Tensor, mask: Tensor | None) -> None:
        queries, _, self.v = parts
        self.queries, self.keys, self.values = map(_stack, parts)
        self.count = len(queries)
        self.lam = lam if lam.ndim else lam.item()
        self.shape = torch.Size((*queries[0].shape[:3], self.v.shape[2]))
        self.scale = queries[0].shape[-1] ** -0.5
        self.bias = self.dead = None
        if mask is not None:
            bias, dead = open_dead_rows(mask, self.v.dtype)
            self.bias = bias.expand(self.shape)
            self.dead = dead.expand(*self.shape[:3], 1) if dead.any() else None
        self.memory: dict[str, Tensor] = {}
        self.taken: dict[tuple[str | int, ...], Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return memory of a shape, the same for the same name: what is in use stays in the cache.

        The first piece, which makes it, is the largest.
        """
        key = (name, *shape)
        if key not in self.taken:
            size = math.prod(shape)
            if name not in self.memory:
                self.memory[name] = self.v.new_empty(size)
            self.taken[key] = self.memory[name][:size].view(shape)
        return self.taken[key]

    def load(self, name: str, stack: Stack, piece: Piece) -> Tensor:
        """Return a piece of each branch, ``(samples · heads · branches, rows, width)``, in memory of its own."""
        some = [_at(whole, piece) for whole in stack]
        samples, heads, _, rows, width = some[0].shape
        branches = sum(one.shape[2] for one in some)
        held = self.take(name, samples, heads, branches, rows, width)
        for one, place in zip(some, held.split(some[0].shape[2], 2), strict=True):
            place.copy_(one)
        return held.view(-1, rows, width)

    def pieces(self) -> Iterator[tuple[Piece, list[Piece]]]:
        """Yield samples and heads, and these with each group of their queries."""
        batch, heads, queries, keys = self.shape
        size = self.v.element_size()
        fit = _CACHE[size] // (self.count * keys * size)  # rows of scores
        for samples in _cut(batch, fit // (heads * queries)):
            for some in _cut(heads, fit // queries):
                # rows of a single head: shorter products cost more than leaving the cache
                yield (samples, some), [(samples, some, rows) for rows in _cut(queries, 2 * fit)]

    def maps(self, queries: Tensor, keys: Tensor, piece: Piece) -> Tensor:
        """Return the maps of a piece, ``(samples · heads, branches, queries, keys)``, in memory used again."""
        shape = len(queries), queries.shape[1], keys.shape[1]
        flat = self.take("maps", *shape)
        torch.baddbmm(flat, queries, keys.mT, beta=0, alpha=self.scale, out=flat)
        if self.bias is not None:
            bias = self.bias[piece][:, :, None]
            flat.view(*bias.shape[:2], -1, *shape[1:]).add_(bias)
        torch.softmax(flat, -1, out=flat)
        if self.dead is not None:
            dead = self.dead[piece][:, :, None]
            flat.view(*dead.shape[:2], -1, *shape[1:]).masked_fill_(dead, 0.0)
        return flat.view(-1, self.count, *shape[1:])

    def combine(self, maps: Tensor, piece: Piece, *, keep: bool = False) -> Tensor:
        """Return A1 − λ·A2 of a piece, or A1 where there is no other; ``keep``: the maps are wanted again."""
        if self.count == 1:
            return maps[:, 0]
        # in bf16 a product copies what is not one stretch of memory
        over = maps.element_size() > 2 and not keep
        out = maps[:, 0] if over else self.take("combined", len(maps), *maps.shape[2:])
        if not isinstance(self.lam, Tensor):
            return torch.sub(maps[:, 0], maps[:, 1], alpha=self.lam, out=out)
        # as numbers: a tensor would first be rounded to the maps' dtype
        lambdas = self.lam[piece[1]].tolist()
        for head, lam in enumerate(lambdas):
            one = slice(head, None, len(lambdas))
            torch.sub(maps[one, 0], maps[one, 1], alpha=lam, out=out[one])
        return out

    def correlate(self, inner: Tensor, maps: Tensor, piece: Piece, to_lam: Tensor) -> None:
        """Subtract Σ inner · A2 of a piece from λ's gradient."""
        product = torch.mul(inner, maps[:, 1], out=self.take("combined", *inner.shape))
        of_rows = product.sum(-1)  # in the maps' dtype: a sum into another first makes a copy
        if to_lam.ndim:
            share = to_lam[piece[1]]
            share -= of_rows.view(-1, len(share), of_rows.shape[1]).sum((0, 2), dtype=to_lam.dtype)
        else:
            to_lam -= of_rows.sum(dtype=to_lam.dtype)

    def of_scores(self, inner: Tensor, maps: Tensor, piece: Piece) -> Tensor:
        """Return the scores' gradients, shaped as the scores, in the maps' memory."""
        of_maps = inner
        if self.count == 2:
            samples = piece[0].stop - piece[0].start
            inner = inner.view(samples, -1, *inner.shape[1:])
            of_maps = self.take("both", *inner.shape[:2], *maps.shape[1:])
            of_maps[:, :, 0] = inner
            lam = self.lam[piece[1]][:, None, None] if isinstance(self.lam, Tensor) else self.lam
            torch.mul(inner, -lam, out=of_maps[:, :, 1])
        flat = maps.view(-1, *maps.shape[2:])
        of_maps = of_maps.view(flat.shape)
        return torch.ops.aten._softmax_backward_data.out(of_maps, flat, -1, flat.dtype, grad_input=flat)

    def store(self, stack: Stack, piece: Piece, found: Tensor) -> None:
        """Write the gradients of a piece, laid out as :meth:`load` does, to their places."""
        places = [_at(whole, piece) for whole in stack]
        samples, heads, branches, rows, width = places[0].shape
        held = found.view(samples, heads, -1, rows, width)
        for place, one in zip(places, held.split(branches, 2), strict=True):
            place.copy_(one)


def _stack(branches: Branches) -> Stack:
    """Return what :data:`Stack` says, as views; values and other single tensors are one branch."""
    if not isinstance(branches, Tensor):
        return [branch[:, :, None] for branch in branches]
    return [branches[:, :, None] if branches.ndim == 4 else branches.permute(1, 2, 0, 3, 4)]


def _at(whole: Tensor, piece: Piece) -> Tensor:
    """Return a piece of all branches."""
    return whole[(*piece[:2], slice(None), *piece[2:])]


def _cut(length: int, most: int) -> list[slice]:
    """Return slices of at most ``most`` (at least one), as even as can be."""
    count = -(-length // max(1, most))
    step = -(-length // count)
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _plain_backward(
    grad: Tensor, view: View, lam: Tensor, mask: Tensor | None, sources: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients in plain operations, which can be differentiated and batched themselves."""
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
    return to_lam, None, *join(view, [(source.shape, source.dtype) for source in sources], gradients)
