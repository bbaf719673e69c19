"""The two branches of a differential layer, head by head: queries, keys and the matrices that made them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.attention import DifferentialAttention


@dataclass(frozen=True)
class Branch:
    """One softmax map in each head: A = softmax(q·kᵀ/√d), q = x·W_qᵀ + b_q, k = x·W_kᵀ + b_k.

    Everything that sensitivity at the layer's tokens x needs follows from these four.
    """

    q: Float[Tensor, "batch heads tokens width"]
    k: Float[Tensor, "batch heads tokens width"]
    to_q: Float[Tensor, "heads width dim"]
    to_k: Float[Tensor, "heads width dim"]

    @cached_property
    def attention(self) -> Float[Tensor, "batch heads tokens tokens"]:
        """The map A."""
        return (self.q @ self.k.mT * self.scale).softmax(-1)

    @property
    def scale(self) -> float:
        """1/√d."""
        return self.q.shape[-1] ** -0.5

    @cached_property
    def by_key(self) -> Float[Tensor, "batch heads tokens dim"]:
        """u: row i is the derivative of score s_ij by token j, the same for every j ≠ i."""
        return self.q @ self.to_k * self.scale

    @cached_property
    def by_query(self) -> Float[Tensor, "batch heads tokens dim"]:
        """M: row j is the derivative of score s_ij by token i, the same for every i ≠ j."""
        return self.k @ self.to_q * self.scale

    def vjp(
        self, cotangent: Float[Tensor, "batch heads tokens tokens"]
    ) -> Float[Tensor, "batch heads tokens dim"]:
        """Return Jᵀv: the gradient of Σ A·v by the tokens, for each head alone.

        ∂/∂s_i = P_i·v_i with P_i = diag(a_i) − a_i·a_iᵀ; token m then collects Σ_i (P_i·v_i)_m·u_i as a key
        and Σ_j (P_m·v_m)_j·M_j as a query.
        """
        a = self.attention
        scores = a * (cotangent - (a * cotangent).sum(-1, keepdim=True))
        return scores.mT @ self.by_key + scores @ self.by_query

    def jvp(self, direction: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return J·t: how the map changes as the tokens move along ``direction``."""
        a, moved = self.attention, direction[:, None]
        scores = self.by_key @ moved.mT + (moved @ self.by_query.mT)
        return a * (scores - (a * scores).sum(-1, keepdim=True))


def branches(module: DifferentialAttention, x: Float[Tensor, "batch tokens dim"]) -> tuple[Branch, Branch]:
    """Return the positive and the negative branch of a layer at its tokens, without a graph.

    Args:
        module: a differential layer.
        x: its input.
    """
    with torch.no_grad():
        q1, k1, q2, k2, _ = module._project(x)
        to_q, to_k, _ = module.qkv.weight.detach().chunk(3)
        layout = (module.num_diff_heads, 2, module.width, x.shape[-1])
        to_q, to_k = to_q.view(layout), to_k.view(layout)
        return (
            Branch(q1, k1, to_q[:, 0], to_k[:, 0]),
            Branch(q2, k2, to_q[:, 1], to_k[:, 1]),
        )
