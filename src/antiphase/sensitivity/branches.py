"""One softmax map per head, and its derivatives with respect to the layer's tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.arguments import validated
from antiphase.attention.maps import masked_softmax
from antiphase.sensitivity.eager import prepare_forward_mode

Turn = Callable[[Tensor], Tensor]


@validated
@dataclass(frozen=True)
class Branch:
    """A = softmax(s·q̃·k̃ᵀ + mask) with q̃ = turn_q(q), k̃ = turn_k(k), q = x·W_qᵀ + b_q, k = x·W_kᵀ + b_k.

    Attributes:
        q, k: projected queries and keys.
        to_q, to_k: W_q and W_k of each head.
        scale: s; None: 1/√width.
        mask: added to the scores, broadcastable to the map; −∞ forbids attention.
        turn_q, turn_k: map applied to each head's queries or keys, such as a norm or rotary positions. None: the
            identity; only then do the closed forms ``by_key`` and ``by_query`` hold.
    """

    q: Float[Tensor, "batch heads tokens width"]
    k: Float[Tensor, "batch heads tokens width"]
    to_q: Float[Tensor, "heads width dim"]
    to_k: Float[Tensor, "heads width dim"]
    scale: float | None = None
    mask: Tensor | None = None
    turn_q: Turn | None = None
    turn_k: Turn | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.to_q.shape[0]

    @property
    def factor(self) -> float:
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def plain(self) -> bool:
        """Whether queries and keys are used exactly as projected."""
        return self.turn_q is None and self.turn_k is None

    def double(self) -> "Branch":
        """Convert to float64, which avoids cancellation for peaked maps."""
        mask = None if self.mask is None else self.mask.double()
        q, k, to_q, to_k = (part.double() for part in (self.q, self.k, self.to_q, self.to_k))
        return Branch(q, k, to_q, to_k, self.factor, mask, self.turn_q, self.turn_k)

    @cached_property
    def turned_q(self) -> Float[Tensor, "batch heads tokens width"]:
        return self.q if self.turn_q is None else self.turn_q(self.q)

    @cached_property
    def turned_k(self) -> Float[Tensor, "batch heads tokens width"]:
        return self.k if self.turn_k is None else self.turn_k(self.k)

    @cached_property
    def attention(self) -> Float[Tensor, "batch heads tokens tokens"]:
        """The map A."""
        return masked_softmax((self.turned_q * self.factor) @ self.turned_k.mT, self.mask)

    @cached_property
    def by_key(self) -> Float[Tensor, "batch heads tokens dim"]:
        """U of a plain branch: row i is ∂s_ij/∂x_j, the same for every j ≠ i."""
        return self.q @ self.to_k * self.factor

    @cached_property
    def by_query(self) -> Float[Tensor, "batch heads tokens dim"]:
        """M of a plain branch: row j is ∂s_ij/∂x_i, the same for every i ≠ j."""
        return self.k @ self.to_q * self.factor

    def vjp(
        self, cotangent: Float[Tensor, "batch heads tokens tokens"]
    ) -> Float[Tensor, "batch heads tokens dim"]:
        """Return Jᵀv, the gradient of Σ A·v with respect to the tokens, separately for each head.

        The gradient with respect to the scores is S_i = P_i·v_i with P_i = diag(a_i) − a_i·a_iᵀ; q̃ receives S·k̃
        and k̃ receives Sᵀ·q̃.
        """
        a = self.attention
        scores = (a * (cotangent - (a * cotangent).sum(-1, keepdim=True))) * self.factor
        to_query = _pull(self.turn_q, self.q, scores @ self.turned_k)
        to_key = _pull(self.turn_k, self.k, scores.mT @ self.turned_q)
        return to_query @ self.to_q + to_key @ self.to_k

    def jvp(self, direction: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return J·t, the derivative of the map as the tokens move along ``direction``."""
        a, moved = self.attention, direction[:, None]
        query = _push(self.turn_q, self.q, moved @ self.to_q.mT)
        key = _push(self.turn_k, self.k, moved @ self.to_k.mT)
        scores = (query @ self.turned_k.mT + self.turned_q @ key.mT) * self.factor
        return a * (scores - (a * scores).sum(-1, keepdim=True))


def _pull(turn: Turn | None, at: Tensor, cotangent: Tensor) -> Tensor:
    return cotangent if turn is None else torch.func.vjp(turn, at)[1](cotangent)[0]


def _push(turn: Turn | None, at: Tensor, tangent: Tensor) -> Tensor:
    if turn is None:
        return tangent
    prepare_forward_mode()
    return torch.func.jvp(turn, (at,), (tangent,))[1]
