"""Attention modules behind one interface: ``forward(x, mask)`` and ``maps(x, mask)``."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from antiphase.attention.functional import Backend, attend
from antiphase.attention.lambdas import DEFAULT_LAMBDA_INIT, Parameterisation, make_lambda
from antiphase.attention.maps import combine, softmax_maps
from antiphase.attention.norm import HeadNorm
from antiphase.attention.views import Parts

_EPS = 1e-5  # of the norm behind each head, as in the released DiffCLIP


class AttentionMaps(NamedTuple):
    """The maps of one attention layer.

    Attributes:
        positive: A1 (standard attention's only map), ``(batch, heads, queries, keys)``.
        negative: A2 of the same shape, or None for standard attention.
        lam: λ, ``()`` or ``(heads,)``; None for standard attention.
    """

    positive: Float[Tensor, "batch heads queries keys"]
    negative: Float[Tensor, "batch heads queries keys"] | None = None
    lam: Float[Tensor, "..."] | None = None

    @property
    def combined(self) -> Float[Tensor, "batch heads queries keys"]:
        """A1 − λ·A2, or A1 where there is no negative map."""
        if self.negative is None or self.lam is None:
            return self.positive
        return combine(self.positive, self.negative, self.lam)


class SoftmaxAttention(nn.Module):
    """Standard multi-head self-attention, with timm's parameter names (``qkv``, ``proj``).

    Args:
        dim: width of the tokens.
        num_heads: number of heads; divides ``dim``.
        qkv_bias: whether the query, key and value projections have biases.
        backend: as in :func:`~antiphase.attention.functional.differential_attention`.
    """

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, backend: Backend = "auto") -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"dim {dim} cannot be divided among {num_heads} heads")
        self.num_heads = num_heads
        self.backend: Backend = backend
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"num_heads={self.num_heads}"

    def parts(self, qkv: Float[Tensor, "batch tokens width"]) -> Parts:
        """Return the queries and keys of the one branch, and the values, as views of their projection."""
        parts = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return (parts[0],), (parts[1],), parts[2]  # not unbound: its views may not be written to

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the attended tokens; ``mask`` as in ``differential_attention``."""
        heads = attend(self.parts, 0.0, mask, self.backend, self.qkv(x))
        return self.proj(heads.transpose(1, 2).flatten(2))

    def maps(self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None) -> AttentionMaps:
        """Return the maps, differentiable in ``x``."""
        (q,), (k,), _ = self.parts(self.qkv(x))
        return AttentionMaps(softmax_maps(q, k, mask))


class DifferentialAttention(nn.Module):
    """Multi-head differential self-attention: (A1 − λ·A2)·V in each head.

    The head count is the standard twin's: ``num_heads`` heads of width d become ``num_heads // 2``
    differential heads with queries and keys of width d in each branch and values of width 2d, so both
    modules have projections of the same size (DiffCLIP's convention). The released DiffCLIP follows the
    product by an RMSNorm over each head's 2d values and a factor 1 − λ_init; the papers' formula has
    neither. The norm's module lends its weight and is never called: a hook that wants the normed heads belongs
    before ``proj``.

    Args:
        dim: width of the tokens.
        num_heads: number of heads of the standard twin; even, divides ``dim``.
        lambda_init: λ_init (0.8: robustness paper, Section 5.1).
        parameterisation: how λ is learned: ``"vector"``, ``"scalar"`` or ``"fixed"``.
        head_norm: whether each head's output passes an RMSNorm (affine, shared by heads, eps 1e-5).
        rescale: whether the output is multiplied by 1 − λ_init.
        qkv_bias: whether the query, key and value projections have biases.
        backend: as in :func:`~antiphase.attention.functional.differential_attention`.

    Raises:
        ValueError: if ``num_heads`` is odd or does not divide ``dim``.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        lambda_init: float = DEFAULT_LAMBDA_INIT,
        parameterisation: Parameterisation = "vector",
        head_norm: bool = True,
        rescale: bool = True,
        qkv_bias: bool = True,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 2 or num_heads % 2:
            raise ValueError(
                f"num_heads {num_heads}: expected the standard twin's head count, which is even "
                "(two of its heads make one differential head)"
            )
        if dim % num_heads:
            raise ValueError(f"dim {dim} cannot be divided among {num_heads} heads")
        self.num_diff_heads = num_heads // 2
        self.width = dim // num_heads
        self.lambda_init = lambda_init
        self.backend: Backend = backend
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.lam = make_lambda(
            parameterisation, lambda_init, width=self.width, num_diff_heads=self.num_diff_heads
        )
        self.norm = nn.RMSNorm(2 * self.width, eps=_EPS) if head_norm else None
        self.scale = 1.0 - lambda_init if rescale else 1.0
        self.proj = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"num_diff_heads={self.num_diff_heads}, lambda_init={self.lambda_init!r}, scale={self.scale!r}"

    def parts(self, qkv: Float[Tensor, "batch tokens width"]) -> Parts:
        """Return the queries and keys of both branches, and the values, as views of their projection.

        Map 2i of the projection is A1 of head i and map 2i + 1 its A2.
        """
        # (queries, keys, values; branch; batch, head, token, width); not unbound: its views may not be written to
        parts = qkv.unflatten(-1, (3, self.num_diff_heads, 2, self.width)).permute(2, 4, 0, 3, 1, 5)
        values = qkv.unflatten(-1, (3, self.num_diff_heads, -1))[:, :, 2].transpose(1, 2)
        return parts[0], parts[1], values

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the attended tokens; ``mask`` as in ``differential_attention``."""
        norm = self.head_norm()
        return self._project(attend(self.parts, self.lam(), mask, self.backend, self.qkv(x), norm=norm))

    def finish(self, heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch tokens dim"]:
        """Return the layer's output from (A1 − λ·A2)·V of each head: norm, factor, projection."""
        norm = self.head_norm()
        return self._project(heads if norm is None else norm(heads))

    def head_norm(self) -> HeadNorm | None:
        """Return the norm behind the product, with the factor 1 − λ_init in its weight."""
        return None if self.norm is None else HeadNorm(self.norm.weight * self.scale, _EPS)

    def _project(self, heads: Tensor) -> Tensor:
        if self.norm is None:
            heads = heads * self.scale
        return self.proj(heads.transpose(1, 2).flatten(2))

    def maps(self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None) -> AttentionMaps:
        """Return both maps and λ, differentiable in ``x``."""
        (q1, q2), (k1, k2), _ = self.parts(self.qkv(x))
        return AttentionMaps(softmax_maps(q1, k1, mask), softmax_maps(q2, k2, mask), self.lam())
