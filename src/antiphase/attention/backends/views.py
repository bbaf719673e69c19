"""The parts of a projection, whose gradients come back to their places in one piece."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from antiphase.attention.modes import plain_forward

Branches = Sequence[Tensor] | Tensor  # a tensor for each branch, in one tensor where they lie in one
Parts = tuple[Branches, Branches, Tensor]  # queries, keys, values
View = Callable[..., Parts]  # from tensors to parts that are views of them, by operations of one result each


def split(view: View, sources: Sequence[Tensor]) -> Parts:
    """Return the parts, each in memory of its own; of a view's gradient autograd makes three copies, this one."""
    if plain_forward():
        return view(*sources)
    parts = _Split.apply(view, *sources)
    assert isinstance(parts, tuple)
    count = len(parts) // 2
    return parts[:count], parts[count : 2 * count], parts[-1]


def join(
    view: View, like: Sequence[tuple[torch.Size, torch.dtype]], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradients of the tensors that are viewed, from those of queries, keys and values in this order."""
    found = [gradients[0].new_empty(shape, dtype=dtype) for shape, dtype in like]
    places = flat(view(*found))
    for index, gradient in enumerate(gradients):
        if torch.is_grad_enabled():
            # anew: a view that is older than the first writing knows nothing of it
            places = flat(view(*found))
        places[index].copy_(gradient)
    return found


def flat(parts: Parts) -> tuple[Tensor, ...]:
    """Return queries, keys and values in one tuple: one by one, since what is unbound may not be written to."""
    queries, keys, values = parts
    branches = range(len(queries))
    return *(queries[branch] for branch in branches), *(keys[branch] for branch in branches), values


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, view: View, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.view, ctx.like = view, [(source.shape, source.dtype) for source in sources]
        return tuple(part.contiguous() for part in flat(view(*sources)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *join(ctx.view, ctx.like, grads)
