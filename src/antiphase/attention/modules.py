"""Attention modules behind one interface: ``forward(x, mask)`` and ``maps(x, mask)``."""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import Count, validated
from antiphase.attention.backends.choice import BackendName, attend
from antiphase.attention.backends.contract import Parts
from antiphase.attention.backends.norm import HeadNorm
from antiphase.attention.lambdas import DEFAULT_LAMBDA_INIT, LambdaSizes, lambda_at, make_lambda
from antiphase.attention.maps import combine, softmax_maps
from antiphase.errors import UserError

_EPS = 1e-5  # of the norm behind each head, as in the released DiffCLIP


class AttentionMaps(NamedTuple):
    """The maps of one attention layer.

    Attributes:
        positive: A1 (standard attention's only map), ``(batch, heads, queries, keys)``.
        negative: A2 of the same shape, or None for standard attention.
        lam: λ, ``()``, ``(heads,)`` or ``(batch, heads, queries)``; None for standard attention.
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
        backend: see :func:`~antiphase.attention.backends.choice.attend`.
    """

    @validated
    def __init__(
        self, dim: Count, num_heads: Count, *, qkv_bias: bool = True, backend: BackendName = "auto"
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"dim {dim} cannot be divided among {num_heads} heads")
        self.num_heads = num_heads
        self.backend: BackendName = backend
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"num_heads={self.num_heads}"

    def parts(self, *projected: Float[Tensor, "batch _ width"]) -> Parts:
        """Return the queries and keys of the one branch, and the values, as views of their projection.

        Args:
            projected: all three in one tensor, or the queries in one and the keys and values in another.
        """
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in _thirds(*projected))
        return (q,), (k,), v

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None, *, queries: int | None = None
    ) -> Float[Tensor, "batch queries dim"]:
        """Return the attended tokens; arguments as of :class:`DifferentialAttention`'s."""
        heads = attend(self.parts, 0.0, mask, self.backend, *_project_qkv(self.qkv, x, queries))
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
    neither. ``self.norm`` only stores the weight; its ``forward`` is never called. To read the normed heads, hook
    the input of ``proj``.

    Args:
        dim: width of the tokens.
        num_heads: number of heads of the standard twin; even, divides ``dim``.
        lambda_init: λ_init (0.8: robustness paper, Section 5.1).
        parameterisation: how λ is learned, a name in :data:`antiphase.registry.LAMBDAS`: ``"vector"``,
            ``"scalar"``, ``"fixed"``.
        head_norm: whether each head's output passes an RMSNorm (affine, shared by heads, eps 1e-5).
        rescale: whether the output is multiplied by 1 − λ_init.
        qkv_bias: whether the query, key and value projections have biases.
        backend: see :func:`~antiphase.attention.backends.choice.attend`.

    Raises:
        UserError: if ``num_heads`` is odd or does not divide ``dim``.
    """

    @validated
    def __init__(
        self,
        dim: Count,
        num_heads: int,
        *,
        lambda_init: float = DEFAULT_LAMBDA_INIT,
        parameterisation: str = "vector",
        head_norm: bool = True,
        rescale: bool = True,
        qkv_bias: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 2 or num_heads % 2:
            raise UserError(
                f"num_heads {num_heads}: expected the standard twin's head count, which is even "
                "(two of its heads make one differential head)"
            )
        if dim % num_heads:
            raise UserError(f"dim {dim} cannot be divided among {num_heads} heads")
        self.num_diff_heads = num_heads // 2
        self.width = dim // num_heads
        self.lambda_init = lambda_init
        self.backend: BackendName = backend
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.lam = make_lambda(
            parameterisation, LambdaSizes(dim, self.width, self.num_diff_heads), lambda_init
        )
        self.norm = nn.RMSNorm(2 * self.width, eps=_EPS) if head_norm else None
        self.scale = 1.0 - lambda_init if rescale else 1.0
        self.proj = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"num_diff_heads={self.num_diff_heads}, lambda_init={self.lambda_init!r}, scale={self.scale!r}"

    def parts(self, *projected: Float[Tensor, "batch _ width"]) -> Parts:
        """Return the queries and keys of both branches, and the values, as views of their projection.

        Map 2i of the projection is A1 of head i and map 2i + 1 its A2.

        Args:
            projected: all three in one tensor, or the queries in one and the keys and values in another.
        """
        q, k, v = _thirds(*projected)
        branches = (self.num_diff_heads, 2, self.width)
        q, k = (part.unflatten(-1, branches).permute(3, 0, 2, 1, 4) for part in (q, k))
        return q, k, v.unflatten(-1, (self.num_diff_heads, -1)).transpose(1, 2)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None, *, queries: int | None = None
    ) -> Float[Tensor, "batch queries dim"]:
        """Return the attended tokens.

        Args:
            x: tokens.
            mask: as in ``differential_attention``.
            queries: how many tokens attend to all, the first ones; all where not given.
        """
        norm, projected, lam = (
            self.head_norm(),
            _project_qkv(self.qkv, x, queries),
            lambda_at(self.lam, x, queries),
        )
        return self._merge_heads(attend(self.parts, lam, mask, self.backend, *projected, norm=norm))

    def finish(self, heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch tokens dim"]:
        """Return the layer's output from (A1 − λ·A2)·V of each head: norm, factor, projection."""
        norm = self.head_norm()
        return self._merge_heads(heads if norm is None else norm(heads))

    def head_norm(self) -> HeadNorm | None:
        """Return the norm behind the product, with the factor 1 − λ_init in its weight."""
        return None if self.norm is None else HeadNorm(self.norm.weight * self.scale, _EPS)

    def _merge_heads(self, heads: Tensor) -> Tensor:
        if self.norm is None:
            heads = heads * self.scale
        return self.proj(heads.transpose(1, 2).flatten(2))

    def maps(self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None) -> AttentionMaps:
        """Return both maps and λ, differentiable in ``x``."""
        (q1, q2), (k1, k2), _ = self.parts(self.qkv(x))
        return AttentionMaps(softmax_maps(q1, k1, mask), softmax_maps(q2, k2, mask), lambda_at(self.lam, x))


def _project_qkv(qkv: nn.Linear, x: Tensor, queries: int | None) -> tuple[Tensor, ...]:
    """Return the projection of all tokens, or that of the first to queries and of all to keys and values."""
    if queries is None:
        return (qkv(x),)
    if type(qkv) is not nn.Linear or "forward" in vars(qkv):  # another layer in its place: ask for all
        projected = qkv(x)
        dim = projected.shape[-1] // 3
        return projected[:, :queries, :dim], projected[..., dim:]
    dim = qkv.out_features // 3
    weights = qkv.weight[:dim], qkv.weight[dim:]
    biases = (None, None) if qkv.bias is None else (qkv.bias[:dim], qkv.bias[dim:])
    return F.linear(x[:, :queries], weights[0], biases[0]), F.linear(x, weights[1], biases[1])


def _thirds(first: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the projections to queries, keys and values; slices, since what is split may not be written to."""
    if rest:
        (second,), dim = rest, first.shape[-1]
        return first, second[..., :dim], second[..., dim:]
    dim = first.shape[-1] // 3
    return first[..., :dim], first[..., dim : 2 * dim], first[..., 2 * dim :]


_EPS = 1e-5  # as in DifferentialAttention


class NormedAttention(nn.Module):
    """Standard multi-head self-attention: proj(scale · RMSNorm(A·V)), the norm over each head's values.

    A control for :class:`~antiphase.attention.DifferentialAttention`, which has the same norm and factor and subtracts
    a second map besides. Parameter names are those of :class:`~antiphase.attention.SoftmaxAttention` and ``norm``.

    Args:
        dim: width of the tokens.
        num_heads: number of heads; divides ``dim``.
        scale: factor behind the norm; 1 − λ_init of the differential twin, 0.2 by default.
        backend: see :func:`~antiphase.attention.backends.choice.attend`.

    Raises:
        UserError: if ``num_heads`` does not divide ``dim``.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        scale: float = 1.0 - DEFAULT_LAMBDA_INIT,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"dim {dim} cannot be divided among {num_heads} heads")
        self.num_heads = num_heads
        self.scale = scale
        self.backend: BackendName = backend
        self.qkv = nn.Linear(dim, 3 * dim)
        self.norm = nn.RMSNorm(dim // num_heads, eps=_EPS)
        self.proj = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"num_heads={self.num_heads}, scale={self.scale!r}"

    def parts(self, projected: Float[Tensor, "batch tokens width"]) -> Parts:
        """Return the queries and keys of the one branch, and the values, as views of their projection."""
        dim = projected.shape[-1] // 3
        thirds = (projected[..., start : start + dim] for start in (0, dim, 2 * dim))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in thirds)
        return (q,), (k,), v

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the attended tokens; ``mask`` as in ``differential_attention``."""
        heads = attend(self.parts, 0.0, mask, self.backend, self.qkv(x), norm=self._head_norm())
        return self.proj(heads.transpose(1, 2).flatten(2))

    def finish(self, heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch tokens dim"]:
        """Return the layer's output from A·V of each head: norm, factor, projection."""
        return self.proj(self._head_norm()(heads).transpose(1, 2).flatten(2))

    def maps(self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None) -> AttentionMaps:
        """Return the maps, differentiable in ``x``."""
        (q,), (k,), _ = self.parts(self.qkv(x))
        return AttentionMaps(softmax_maps(q, k, mask))

    def _head_norm(self) -> HeadNorm:
        return HeadNorm(self.norm.weight * self.scale, _EPS)
