"""Attention modules behind one interface: ``forward(x, mask)`` and ``maps(x, mask)``."""

from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import Count, Positive, validated
from antiphase.attention.backends.choice import BackendName, attend, attend_grouped
from antiphase.attention.backends.compiled import HeadNorm, Parts
from antiphase.attention.lambdas import DEFAULT_LAMBDA_INIT, LambdaSizes, lambda_at, lambda_of
from antiphase.attention.maps import combine, mean_over_queries, plain_combine, softmax_maps
from antiphase.attention.variants import Layout, Variant, layout_of
from antiphase.errors import UserError
from antiphase.registry import LAMBDAS, VARIANTS, find

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
    """Projection to queries, keys and values, the maps of the layout, λ, norm and factor, gate, projection."""

    shown: tuple[str, ...]

    def __init__(
        self,
        dim: int,
        layout: Layout,
        *,
        parameterisation: str | None = None,
        lambda_init: float = DEFAULT_LAMBDA_INIT,
        lambda_max: float | None = None,
        temperature: float = 1.0,
        integral: bool = False,
        head_norm: bool = False,
        scale: float = 1.0,
        output_gate: bool = False,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        self.layout, self.width, self.integral, self.scale = layout, layout.width, integral, scale
        self.backend: BackendName = backend
        self.temperature, self.lambda_max = temperature, lambda_max
        self.qkv = nn.Linear(dim, sum(layout.rows), bias=qkv_bias)
        if parameterisation is not None:
            make = find(LAMBDAS, parameterisation, "parameterisation of λ")
            self.lam = make(LambdaSizes(dim, layout.width, layout.signal), lambda_init)
            if lambda_max is not None:
                self.lam.register_forward_hook(partial(_bounded, lambda_max))
        self.norm = nn.RMSNorm(layout.values, eps=_EPS) if head_norm else None
        self.gate = nn.Linear(dim, dim, bias=proj_bias) if output_gate else None
        self.proj = nn.Linear(dim, dim, bias=proj_bias)

    def parts(self, *projected: Projection) -> Parts:
        """Return queries and keys, one of each per map of a head, and values: views, unless heads share some."""
        layout = self.layout
        q, k, v = self._split(*projected)
        branches, values = 2 if layout.paired else 1, v.unflatten(-1, (-1, layout.values)).transpose(1, 2)
        if not layout.shared and (layout.paired or not layout.noise):
            q, k = (x.unflatten(-1, (-1, branches, layout.width)).permute(3, 0, 2, 1, 4) for x in (q, k))
            return q, k, values
        (one, two), keys = self._queries(q), self._heads(k)
        times = layout.signal // layout.keys
        first = keys[:, : layout.keys].repeat_interleave(times, 1)
        values = values.repeat_interleave(times, 1)
        if layout.shared:
            return (one, two), (first, first), values
        second = keys[:, layout.keys :]
        two, second = (x.repeat_interleave(layout.signal // layout.noise, 1) for x in (two, second))
        return (one, two), (first, second), values

    def forward(
        self, x: Tokens, mask: Tensor | None = None, *, queries: int | None = None
    ) -> Float[Tensor, "batch queries dim"]:
        """Return the attended tokens; if given, only the first ``queries`` attend, to all."""
        if self.integral and queries is not None:  # the mean is over all queries
            return self.forward(x, mask)[:, :queries]
        lam = lambda_of(self)
        value = 0.0 if lam is None else lambda_at(lam, x, queries)
        projected = _project(self.qkv, self.layout.rows[0], x, queries)
        layout = self.layout
        of_query = isinstance(value, Tensor) and value.ndim == 3
        apart = self.integral or of_query or self.temperature != 1.0
        if apart or layout.shared or (layout.noise and not layout.paired):
            one, two = self._products(mask, *projected)
            if self.integral:
                two = two - mean_over_queries(one, mask)
            return self.finish(plain_combine(one, two, value).to(one.dtype), x[:, :queries])
        heads = attend(self.parts, value, mask, self.backend, *projected, norm=self.head_norm())
        return self._merge(heads, x[:, :queries])

    def finish(self, heads: Float[Tensor, "batch heads tokens width"], x: Tokens | None = None) -> Tokens:
        """Return the output from (A1 − λ·A2)·V of each head: norm, factor, projection; a gate reads x."""
        norm = self.head_norm()
        return self._merge(heads if norm is None else norm(heads), x)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)

    def head_norm(self) -> HeadNorm | None:
        return None if self.norm is None else HeadNorm(self.norm.weight * self.scale, _EPS)

    def maps(self, x: Tokens, mask: Tensor | None = None) -> AttentionMaps:
        """Return the maps and λ, differentiable in ``x``; DINT's negative map is A2 minus the mean of A1."""
        queries, keys, _ = self.parts(self.qkv(x))
        maps = [softmax_maps(q, k, mask) for q, k in zip(queries, keys, strict=True)]
        if self.integral:
            maps[1] = maps[1] - mean_over_queries(maps[0], mask)
        lam = lambda_of(self)
        return AttentionMaps(*maps) if lam is None else AttentionMaps(*maps, lambda_at(lam, x))  # pyright: ignore

    def _merge(self, heads: Tensor, x: Tensor | None) -> Tensor:
        if self.norm is None and self.scale != 1.0:
            heads = heads * self.scale
        merged = heads.transpose(1, 2).flatten(2)
        return self.proj(merged if self.gate is None else merged * self.gate(x).sigmoid())

    def _products(self, mask: Tensor | None, *projected: Tensor) -> tuple[Tensor, Tensor]:
        layout, backend = self.layout, self.backend
        of_heads = mask is not None and mask.ndim > 2 and mask.shape[-3] > 1
        if of_heads or (layout.paired and not layout.shared):
            queries, keys, values = self.parts(*projected)
            one, two = (attend_grouped(q, k, values, mask, backend) for q, k in zip(queries, keys, strict=True))
            return one, two
        *first, last = projected  # split, whose gradient is one concatenation
        q, k, v = (*first, *last.split(layout.rows[len(first) :], -1))
        q = self._warmed(q)
        keys, values = self._heads(k), v.unflatten(-1, (-1, layout.values)).transpose(1, 2)
        if layout.shared:
            one, two = attend_grouped(self._heads(q), keys, values, mask, backend).unflatten(1, (-1, 2)).unbind(2)
            return one, two
        one, two = self._queries(q)
        products = attend_grouped(one, keys[:, : layout.keys], values, mask, backend)
        # A2 multiplies all values of its group at once
        times = max(1, layout.keys // layout.noise)
        wide = v.unflatten(-1, (-1, times * layout.values)).transpose(1, 2)
        if wide.shape[1] < layout.noise:
            wide = wide.repeat_interleave(layout.noise // wide.shape[1], 1)
        others = attend_grouped(two, keys[:, layout.keys :], wide, mask, backend).unflatten(-1, (times, -1))
        others = others.transpose(2, 3).flatten(1, 2)
        return products, others.repeat_interleave(layout.signal // others.shape[1], 1)

    def _split(self, first: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the projections to queries, keys and values; slices, since what is split may not be written to."""
        to_q, to_k, _ = self.layout.rows
        if rest:
            return self._warmed(first), rest[0][..., :to_k], rest[0][..., to_k:]
        return self._warmed(first[..., :to_q]), first[..., to_q : to_q + to_k], first[..., to_q + to_k :]

    def _warmed(self, q: Tensor) -> Tensor:
        """Divide the queries of A2 by the temperature."""
        if self.temperature == 1.0:
            return q
        factors = q.new_ones(1, 1, q.shape[-1])
        self._queries(factors)[1].div_(self.temperature)
        return q * factors

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.layout.width)).transpose(1, 2)

    def _queries(self, q: Tensor) -> tuple[Tensor, Tensor]:
        heads = self._heads(q)
        if self.layout.paired:
            return heads[:, ::2], heads[:, 1::2]
        return heads[:, : self.layout.signal], heads[:, self.layout.signal :]


def _bounded(highest: float, module: nn.Module, inputs: Any, lam: Tensor) -> Tensor:
    return lam.clamp(max=highest)


def _standard(dim: int, num_heads: int) -> Layout:
    if num_heads < 1 or dim % num_heads:
        raise UserError(f"dim {dim} cannot be divided among {num_heads} heads")
    return Layout(num_heads, 0, num_heads, dim // num_heads, dim // num_heads)


class SoftmaxAttention(_SelfAttention):
    """Standard multi-head self-attention, with timm's parameter names (``qkv``, ``proj``)."""

    shown = ("num_heads",)

    @validated
    def __init__(self, dim: Count, num_heads: Count, *, qkv_bias: bool = True, backend: BackendName = "auto") -> None:
        super().__init__(dim, _standard(dim, num_heads), qkv_bias=qkv_bias, backend=backend)
        self.num_heads = num_heads


class NormedAttention(_SelfAttention):
    """Standard self-attention with V1's norm over each head's values and its factor: proj(scale · RMSNorm(A·V))."""

    shown = ("num_heads", "scale")

    def __init__(self, dim: int, num_heads: int, *, scale: float = 1.0 - DEFAULT_LAMBDA_INIT, **options: Any) -> None:
        super().__init__(dim, _standard(dim, num_heads), head_norm=True, scale=scale, **options)
        self.num_heads = num_heads


class DifferentialAttention(_SelfAttention):
    """Multi-head differential self-attention: (A1 − λ·A2)·V in each head, in one of the registered variants.

    The head count is the standard twin's. In V1 ``num_heads`` heads of width d become ``num_heads // 2`` differential
    heads with queries and keys of width d in each branch and values of width 2d (DiffCLIP's convention). The released
    DiffCLIP follows the product by an RMSNorm over each head's 2d values and a factor 1 − λ_init; the papers' formula
    has neither. The other variants keep ``num_heads`` heads of width d, each with a second map; docs/variants.md has
    their equations. ``self.norm`` only stores the weight: to read the normed heads, hook the input of ``proj``.

    Args:
        dim: width of the tokens.
        num_heads: number of heads of the standard twin; divides ``dim``, even for V1 and DINT.
        variant: a name in :data:`antiphase.registry.VARIANTS`, which gives what is None below its value.
        lambda_init: λ_init (0.8: sensitivity paper, Section 5.1).
        parameterisation: how λ is learned, a name in :data:`antiphase.registry.LAMBDAS`.
        head_norm: whether each head's output passes an RMSNorm (affine, shared by heads, eps 1e-5).
        rescale: whether the output is multiplied by 1 − λ_init.
        qkv_bias: whether the query, key and value projections have biases.
        bias: whether any projection has biases.
        lambda_max: λ is cut off above it, where it has no gradient; None: no bound. At least ``lambda_init``.
        temperature: τ in A2 = softmax(Q2·K2ᵀ/(τ·√d)); above 1 it flattens A2.
        ratio: grouped variants: heads that share one A2, a divisor of ``num_heads``; None: the largest up to 4.
        kv_heads: all but V1 and DINT: heads of values, and of the keys of A1; None: ``num_heads``.
        output_gate: whether the heads are multiplied by σ(x·W_g) before the output projection.
        backend: see :func:`~antiphase.attention.backends.choice.attend`.
    """

    @validated
    def __init__(
        self,
        dim: Count,
        num_heads: int,
        *,
        variant: str = "v1",
        lambda_init: float = DEFAULT_LAMBDA_INIT,
        parameterisation: str | None = None,
        head_norm: bool | None = None,
        rescale: bool | None = None,
        qkv_bias: bool = True,
        bias: bool | None = None,
        lambda_max: float | None = None,
        temperature: Positive = 1.0,
        ratio: int | None = None,
        kv_heads: int | None = None,
        output_gate: bool = False,
        backend: BackendName = "auto",
    ) -> None:
        form: Variant = find(VARIANTS, variant, "variant")
        given = dict(parameterisation=parameterisation, head_norm=head_norm, rescale=rescale, bias=bias)
        settings: dict[str, Any] = form.defaults | {name: value for name, value in given.items() if value is not None}
        options: Any = {name: settings[name] for name in ("parameterisation", "head_norm")}
        if lambda_max is not None and not lambda_max >= lambda_init:
            raise UserError(f"lambda_max {lambda_max:g}: expected lambda_init, {lambda_init:g}, or more")
        options |= dict(lambda_max=lambda_max, temperature=temperature)
        options |= dict(lambda_init=lambda_init, integral=form.combined == "integral", output_gate=output_gate)
        options |= dict(qkv_bias=qkv_bias and settings["bias"], proj_bias=settings["bias"], backend=backend)
        options["scale"] = 1.0 - lambda_init if settings["rescale"] else 1.0
        super().__init__(dim, layout_of(form, dim, num_heads, ratio, kv_heads), **options)
        self.num_diff_heads, self.lambda_init, self.variant = self.layout.signal, lambda_init, variant
        self.shown = ("num_diff_heads", "lambda_init", "scale")
        self.shown += ("variant", "layout") if variant != "v1" else ()


def _project(qkv: nn.Linear, rows: int, x: Tensor, queries: int | None) -> tuple[Tensor, ...]:
    if queries is None:
        return (qkv(x),)
    if type(qkv) is not nn.Linear or "forward" in vars(qkv):  # another layer in its place: ask for all
        projected = qkv(x)
        return projected[:, :queries, :rows], projected[..., rows:]
    weights = qkv.weight[:rows], qkv.weight[rows:]
    biases = (None, None) if qkv.bias is None else (qkv.bias[:rows], qkv.bias[rows:])
    return F.linear(x[:, :queries], weights[0], biases[0]), F.linear(x, weights[1], biases[1])
