"""Attention modules behind one interface: ``forward(x, mask)`` and ``maps(x, mask)``."""

from typing import Any, NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import Count, validated
from antiphase.attention.backends.choice import BackendName, attend
from antiphase.attention.backends.contract import Parts
from antiphase.attention.backends.norm import HeadNorm
from antiphase.attention.lambdas import DEFAULT_LAMBDA_INIT, LambdaSizes, lambda_at, lambda_of
from antiphase.attention.maps import combine, softmax_maps
from antiphase.errors import UserError
from antiphase.registry import LAMBDAS, find

Tokens = Float[Tensor, "batch tokens dim"]
Projection = Float[Tensor, "batch _ width"]
_EPS = 1e-5  # of the norm behind each head, as in the released DiffCLIP


class AttentionMaps(NamedTuple):
    """The maps of one attention layer; standard attention has the positive one only."""

    positive: Float[Tensor, "batch heads queries keys"]
    negative: Float[Tensor, "batch heads queries keys"] | None = None
    lam: Float[Tensor, "..."] | None = None  # (), (heads,) or (batch, heads, queries)

    @property
    def combined(self) -> Float[Tensor, "batch heads queries keys"]:
        """A1 − λ·A2, or A1 where there is no negative map."""
        if self.negative is None or self.lam is None:
            return self.positive
        return combine(self.positive, self.negative, self.lam)


class _SelfAttention(nn.Module):
    """Projection to queries, keys and values, maps, norm and factor behind each head, projection.

    A head has a map for each of its ``branches``, and values as wide as these together; two maps are weighted by a λ.
    """

    shown: tuple[str, ...]

    def __init__(
        self,
        dim: int,
        heads: int,
        branches: int = 1,
        *,
        parameterisation: str | None = None,
        lambda_init: float = DEFAULT_LAMBDA_INIT,
        head_norm: bool = False,
        scale: float = 1.0,
        qkv_bias: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        if heads < 1 or dim % (heads * branches):
            raise UserError(f"dim {dim} cannot be divided among {heads * branches} heads")
        self.branches, self.width, self.scale = branches, dim // (heads * branches), scale
        self.backend: BackendName = backend
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        if parameterisation is not None:
            make = find(LAMBDAS, parameterisation, "parameterisation of λ")
            self.lam = make(LambdaSizes(dim, self.width, heads), lambda_init)
        self.norm = nn.RMSNorm(branches * self.width, eps=_EPS) if head_norm else None
        self.proj = nn.Linear(dim, dim)

    def parts(self, *projected: Projection) -> Parts:
        """Return queries and keys, one of each per branch, and values, as views of their projection or of two.

        With two branches, map 2i of the projection is A1 of head i and map 2i + 1 its A2.
        """
        q, k, v = _thirds(*projected)
        q, k = (x.unflatten(-1, (-1, self.branches, self.width)).permute(3, 0, 2, 1, 4) for x in (q, k))
        return q, k, v.unflatten(-1, (-1, self.branches * self.width)).transpose(1, 2)

    def forward(
        self, x: Tokens, mask: Tensor | None = None, *, queries: int | None = None
    ) -> Float[Tensor, "batch queries dim"]:
        """Return the attended tokens; if given, only the first ``queries`` attend, to all."""
        lam = lambda_of(self)
        value = 0.0 if lam is None else lambda_at(lam, x, queries)
        projected = _project(self.qkv, x, queries)
        heads = attend(self.parts, value, mask, self.backend, *projected, norm=self.head_norm())
        return self._merge(heads)

    def finish(self, heads: Float[Tensor, "batch heads tokens width"]) -> Tokens:
        """Return the layer's output from (A1 − λ·A2)·V of each head: norm, factor, projection."""
        norm = self.head_norm()
        return self._merge(heads if norm is None else norm(heads))

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)

    def head_norm(self) -> HeadNorm | None:
        """Return the norm behind the product, with the factor 1 − λ_init in its weight."""
        return None if self.norm is None else HeadNorm(self.norm.weight * self.scale, _EPS)

    def _merge(self, heads: Tensor) -> Tensor:
        if self.norm is None and self.scale != 1.0:
            heads = heads * self.scale
        return self.proj(heads.transpose(1, 2).flatten(2))

    def maps(self, x: Tokens, mask: Tensor | None = None) -> AttentionMaps:
        """Return the maps and λ, differentiable in ``x``."""
        queries, keys, _ = self.parts(self.qkv(x))
        maps = [softmax_maps(q, k, mask) for q, k in zip(queries, keys, strict=True)]
        lam = lambda_of(self)
        return AttentionMaps(*maps) if lam is None else AttentionMaps(*maps, lambda_at(lam, x))  # pyright: ignore


class SoftmaxAttention(_SelfAttention):
    """Standard multi-head self-attention, with timm's parameter names (``qkv``, ``proj``).

    ``num_heads`` divides ``dim``, the width of the tokens. For ``backend`` see
    :func:`~antiphase.attention.backends.choice.attend`.
    """

    shown = ("num_heads",)

    @validated
    def __init__(
        self, dim: Count, num_heads: Count, *, qkv_bias: bool = True, backend: BackendName = "auto"
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, backend=backend)
        self.num_heads = num_heads


class NormedAttention(_SelfAttention):
    """Standard multi-head self-attention: proj(scale · RMSNorm(A·V)), the norm over each head's values.

    A control for :class:`DifferentialAttention`, which has the same norm and factor, and a second map.
    """

    shown = ("num_heads", "scale")

    def __init__(
        self, dim: int, num_heads: int, *, scale: float = 1.0 - DEFAULT_LAMBDA_INIT, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, head_norm=True, scale=scale, **options)
        self.num_heads = num_heads


class DifferentialAttention(_SelfAttention):
    """Multi-head differential self-attention: (A1 − λ·A2)·V in each head.

    The head count is the standard twin's: ``num_heads`` heads of width d become ``num_heads // 2`` differential heads
    with queries and keys of width d in each branch and values of width 2d, so both modules have projections of the same
    size (DiffCLIP's convention). The released DiffCLIP follows the product by an RMSNorm over each head's 2d values and
    a factor 1 − λ_init; the papers' formula has neither. ``self.norm`` only stores the weight; its ``forward`` is never
    called. To read the normed heads, hook the input of ``proj``.

    Args:
        dim: width of the tokens.
        num_heads: number of heads of the standard twin; even, divides ``dim``.
        lambda_init: λ_init (0.8: robustness paper, Section 5.1).
        parameterisation: how λ is learned, a name in :data:`antiphase.registry.LAMBDAS`.
        head_norm: whether each head's output passes an RMSNorm (affine, shared by heads, eps 1e-5).
        rescale: whether the output is multiplied by 1 − λ_init.
        qkv_bias: whether the query, key and value projections have biases.
        backend: see :func:`~antiphase.attention.backends.choice.attend`.
    """

    shown = ("num_diff_heads", "lambda_init", "scale")

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
        if num_heads < 2 or num_heads % 2:
            reason = "which is even (two of its heads make one differential head)"
            raise UserError(f"num_heads {num_heads}: expected the standard twin's head count, {reason}")
        super().__init__(
            dim,
            num_heads // 2,
            branches=2,
            parameterisation=parameterisation,
            lambda_init=lambda_init,
            head_norm=head_norm,
            scale=1.0 - lambda_init if rescale else 1.0,
            qkv_bias=qkv_bias,
            backend=backend,
        )
        self.num_diff_heads, self.lambda_init = num_heads // 2, lambda_init


def _project(qkv: nn.Linear, x: Tensor, queries: int | None) -> tuple[Tensor, ...]:
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
