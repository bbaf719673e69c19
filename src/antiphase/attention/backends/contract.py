"""The contract of a backend: what it is given, what it takes, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from antiphase.attention.backends.norm import HeadNorm
from antiphase.attention.backends.views import Parts, View


class Call(NamedTuple):
    """One call of attention.

    Attributes:
        view: returns the queries, keys and values as views of the sources.
        sources: the tensors that are viewed, such as one projection.
        parts: what the view returns: queries and keys, one of each per branch, ``(batch, heads, tokens, width)``,
            and the values.
        lam: λ: a number, or a tensor of shape ``()``, ``(heads,)`` or ``(batch, heads, queries)``; ignored if there
            is only one branch.
        mask: as in :func:`~antiphase.attention.maps.softmax_maps`.
        norm: applied last to each query's row of a head; None for no norm.
    """

    view: View
    sources: tuple[Tensor, ...]
    parts: Parts
    lam: float | Tensor
    mask: Tensor | None
    norm: HeadNorm | None

    def finish(self, heads: Tensor) -> Tensor:
        """Return the heads' output after the norm."""
        return heads if self.norm is None else self.norm(heads)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of the sources."""
        return {source.dtype for source in self.sources}


@dataclass(frozen=True)
class Backend:
    """One way to compute a call.

    Attributes:
        name: as callers choose it.
        forward: returns A1 v for one branch and (A1 − λ·A2) v for two, normed, of shape
            ``(batch, heads, queries, value width)``. The result has gradients.
        refusal: returns None if the backend takes the call, else what it expected, in words.
        own_backward: whether the backend writes the gradients itself, through ``Call.view``. Such a backend computes
            in the dtype of autocast, and only calls with tokens, with the same batch and heads in all parts and
            with at most one λ per head. If not, autograd differentiates ``forward``.
    """

    name: str
    forward: Callable[[Call], Tensor]
    refusal: Callable[[Call], str | None] = lambda call: None
    own_backward: bool = False


def may_need_gradients(*inputs: object) -> bool:
    """Return whether gradients of any of these inputs may be asked for."""
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
