"""What a backend is given, and how gradients are written to their place in the projection's."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antiphase.attention.backends.norm import HeadNorm
from antiphase.attention.maps import per_head, plain_combine, plain_maps
from antiphase.attention.modes import plain_forward

Branches = Sequence[Tensor] | Tensor  # a tensor for each branch, in one tensor where they lie in one
Parts = tuple[Branches, Branches, Tensor]  # queries, keys, values: (batch, heads, tokens, width)

View = Callable[..., Parts]  # from tensors to parts that are views of them, by operations of one result each


class Call(NamedTuple):
    """One call of attention."""

    view: View
    sources: tuple[Tensor, ...]  # the tensors that are viewed, such as one projection
    parts: Parts  # what the view returns: queries and keys, one of each per branch, and the values
    lam: float | Tensor  # λ: (), (heads,) or (batch, heads, queries); ignored if there is only one branch
    mask: Tensor | None  # as in softmax_maps
    norm: HeadNorm | None  # applied last to each query's row of a head

    def finish(self, heads: Tensor) -> Tensor:
        return heads if self.norm is None else self.norm(heads)

    @property
    def dtypes(self) -> set[torch.dtype]:
        return {source.dtype for source in self.sources}


def may_need_gradients(*inputs: object) -> bool:
    """Return whether gradients of any of these inputs may be asked for."""
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)


def maps_of(parts: Parts, lam: float | Tensor, mask: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """Return the map of each branch and the combined one, in plain operations."""
    maps = [plain_maps(q, k, mask) for q, k in zip(parts[0], parts[1], strict=True)]
    return maps, plain_combine(maps[0], maps[1], lam) if len(maps) > 1 else maps[0]


def split(view: View, sources: Sequence[Tensor]) -> Parts:
    """Return the parts, each in memory of its own; of a view's gradient autograd makes three copies, this one."""
    if plain_forward():
        return view(*sources)
    parts: Any = _Split.apply(view, *sources)
    count = len(parts) // 2
    return parts[:count], parts[count : 2 * count], parts[-1]


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, view: View, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.view, ctx.like = view, [(source.shape, source.dtype) for source in sources]
        return tuple(part.contiguous() for part in flat(view(*sources)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_join(ctx.view, ctx.like, grads)


def _join(view: View, like: Sequence[Any], gradients: Sequence[Tensor]) -> list[Tensor]:
    joined = [gradients[0].new_empty(shape, dtype=dtype) for shape, dtype in like]
    places = flat(view(*joined))
    for index, gradient in enumerate(gradients):
        if torch.is_grad_enabled():
            # anew: a view that is older than the first writing knows nothing of it
            places = flat(view(*joined))
        places[index].copy_(gradient)
    return joined


def flat(parts: Parts) -> tuple[Tensor, ...]:
    """Return queries, keys and values in one tuple: one by one, since what is unbound may not be written to."""
    queries, keys, values = parts
    branches = range(len(queries))
    return *(queries[branch] for branch in branches), *(keys[branch] for branch in branches), values


def plain_gradients(
    grad: Tensor, view: View, lam: Tensor, mask: Tensor | None, sources: Sequence[Tensor]
) -> tuple[Tensor | None, list[Tensor]]:
    """Return λ's and the sources' gradients in plain operations, to be differentiated and batched themselves."""
    queries, keys, v = parts = view(*sources)
    maps, combined = maps_of(parts, lam, mask)
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
    return to_lam, _join(view, [(source.shape, source.dtype) for source in sources], gradients)
