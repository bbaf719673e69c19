"""Adapters that split attention modules of antiphase, timm, torch and transformers into maps and the rest."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.lambdas import lambda_at, lambda_of
from antiphase.errors import UserError
from antiphase.sensitivity.blocks import BLOCKS, full_name
from antiphase.sensitivity.branches import Branch, Turn
from antiphase.sensitivity.finding import found_layer, is_found
from antiphase.sensitivity.layers import Call, Layer, is_cross

Adapter = Callable[[Any, Call], Layer]
_ADAPTERS: dict[type | str, Adapter | None] = {}


@validated
def register(module: type | str, adapter: Adapter | None) -> None:
    """Register an adapter for a class of attention modules.

    The output of the adapter's layer is compared with the module's own output at every call.

    Args:
        module: the class, or its full name if its library may not be installed.
        adapter: function of (module, call) that returns a :class:`~antiphase.sensitivity.Layer`; None to
            ignore such modules.

    >>> class Pooling(nn.Module): ...
    >>> register(Pooling, None)
    """
    _ADAPTERS[module] = adapter


def find_adapter(module: nn.Module) -> Adapter | Literal["unknown"] | None:
    """Return the adapter of a module; None if the module is ignored, ``"unknown"`` if it has no adapter."""
    if (key := _registered(module)) is not None:
        return _ADAPTERS[key]
    if _has_our_parts(module):
        return _by_parts
    if is_found(module) and not any(_registered(part) is not None for part in module.modules()):
        return found_layer
    return guessed if _has_projections(module) else "unknown"


def _registered(module: nn.Module) -> type | str | None:
    """Return the key of a module's adapter."""
    keys = (key for kind in type(module).__mro__ for key in (kind, full_name(kind)))
    return next((key for key in keys if key in _ADAPTERS), None)


def _by_head(x: Tensor, linear_weight: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """Return the projected tokens and the weight matrix of each head."""
    y = torch.nn.functional.linear(x, linear_weight, bias)
    return y.unflatten(-1, (heads, -1)).transpose(1, 2), linear_weight.unflatten(0, (heads, -1))


def _qkv(module: Any, x: Tensor, heads: int, values: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return (projection, matrix) of queries, keys and values of a fused ``qkv`` layer."""
    weights = module.qkv.weight.chunk(3)
    biases = (None,) * 3 if module.qkv.bias is None else module.qkv.bias.chunk(3)
    counts = (heads, heads, values)
    return tuple(_by_head(x, w, b, n) for w, b, n in zip(weights, biases, counts, strict=True))


def _merge(heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch tokens dim"]:
    return heads.transpose(1, 2).flatten(2)


def _additive(
    mask: Tensor | None, like: Tensor, causal: bool = False, forbids: bool = False
) -> Tensor | None:
    """Return a mask to add to the scores; ``forbids``: whether True in a boolean mask forbids attention."""
    if mask is None:
        if not causal:
            return None
        count = like.shape[1]
        mask, forbids = torch.ones(count, count, dtype=torch.bool, device=like.device).tril(), False
    if mask.dtype == torch.bool:
        closed = mask if forbids else ~mask
        return torch.zeros_like(closed, dtype=like.dtype).masked_fill(closed, -math.inf)
    return mask.to(like.dtype)


def _turn(norm: nn.Module) -> Turn | None:
    return None if isinstance(norm, nn.Identity) else norm


def _softmax(module: SoftmaxAttention, call: Call) -> Layer:
    x = call.tokens
    (q, to_q), (k, to_k), (v, _) = _qkv(module, x, module.num_heads, module.num_heads)
    branch = Branch(q, k, to_q, to_k, mask=_additive(call.given(0, "mask"), x))
    return Layer(call.name, x, branch, None, None, lambda a: module.proj(_merge(a @ v)), call.tangent, v)


def _differential(module: DifferentialAttention, call: Call) -> Layer:
    x, heads = call.tokens, module.num_diff_heads
    (q, to_q), (k, to_k), (v, _) = _qkv(module, x, 2 * heads, heads)
    mask = _additive(call.given(0, "mask"), x)
    positive, negative = _alternating(Branch(q, k, to_q, to_k, mask=mask))
    lam = lambda_at(module.lam, x)
    return Layer(call.name, x, positive, negative, lam, lambda a: module.finish(a @ v), call.tangent, v)


def _has_our_parts(module: Any) -> bool:
    """Whether a module has the parts of :class:`~antiphase.attention.DifferentialAttention`."""
    methods = all(callable(getattr(type(module), name, None)) for name in ("parts", "finish"))
    return methods and isinstance(getattr(module, "qkv", None), nn.Linear) and lambda_of(module) is not None


def _by_parts(module: Any, call: Call) -> Layer:
    """Take apart a variant of differential attention that projects by ``qkv`` and splits by ``parts``."""
    x = call.tokens
    (q1, q2), (k1, k2), v = module.parts(module.qkv(x))
    (to_q1, to_q2), (to_k1, to_k2), _ = module.parts(
        module.qkv.weight.mT[None]
    )  # rows of the matrix, as tokens
    mask = _additive(call.given(0, "mask"), x)
    positive = Branch(q1, k1, to_q1[0].mT, to_k1[0].mT, mask=mask)
    negative = Branch(q2, k2, to_q2[0].mT, to_k2[0].mT, mask=mask)
    lam = lambda_at(module.lam, x)
    return Layer(call.name, x, positive, negative, lam, lambda a: module.finish(a @ v), call.tangent, v)


def _timm(module: Any, call: Call) -> Layer:
    x = call.tokens
    (q, to_q), (k, to_k), (v, _) = _qkv(module, x, module.num_heads, module.num_heads)
    mask = _additive(call.given(0, "attn_mask"), x, bool(call.given(1, "is_causal")))
    branch = Branch(q, k, to_q, to_k, module.scale, mask, _turn(module.q_norm), _turn(module.k_norm))

    def finish(a: Tensor) -> Tensor:
        heads = module.norm(_merge(a @ v)) if hasattr(module, "norm") else _merge(a @ v)
        gate = getattr(module, "gate", None)
        return module.proj(heads if gate is None else heads * gate(x).sigmoid())

    return Layer(call.name, x, branch, None, None, finish, call.tangent, v)


def _timm_differential(module: Any, call: Call) -> Layer:
    x = call.tokens
    (q, to_q), (k, to_k), (v, _) = _qkv(module, x, 2 * module.num_heads, module.num_heads)
    mask = _additive(call.given(0, "attn_mask"), x, bool(call.given(1, "is_causal")))
    both = Branch(q, k, to_q, to_k, module.scale, mask, _turn(module.q_norm), _turn(module.k_norm))
    positive, negative = _alternating(both)

    def finish(a: Tensor) -> Tensor:
        heads = module.sub_norm(a @ v) * (1.0 - module.lambda_init)
        return module.proj(module.norm(_merge(heads)))

    lam = module._compute_lambda().to(x.dtype)
    return Layer(call.name, x, positive, negative, lam, finish, call.tangent, v)


def _alternating(both: Branch) -> tuple[Branch, Branch]:
    """Split the heads of a branch into A1's (0, 2, …) and A2's (1, 3, …)."""
    one, two = (
        replace(both, q=both.q[:, i::2], k=both.k[:, i::2], to_q=both.to_q[i::2], to_k=both.to_k[i::2])
        for i in (0, 1)
    )
    return one, two


def _timm_parallel(module: Any, call: Call) -> Layer:
    """Split ParallelScalingBlock or DiffParallelScalingBlock; ``finish`` includes the parallel MLP."""
    x, heads = call.tokens, module.num_heads
    differential = hasattr(module, "lambda_init")
    maps = 2 * heads if differential else heads
    to_mlp, *weights = module.in_proj.weight.split(module.in_split)
    mlp_bias, *biases = (
        (None,) * 4 if module.in_proj.bias is None else module.in_proj.bias.split(module.in_split)
    )
    (q, to_q), (k, to_k), (v, _) = (
        _by_head(x, w, b, n) for w, b, n in zip(weights, biases, (maps, maps, heads), strict=True)
    )
    mask = _additive(call.given(0, "attn_mask"), x, bool(call.given(1, "is_causal")))
    branch = Branch(q, k, to_q, to_k, module.scale, mask, _turn(module.q_norm), _turn(module.k_norm))

    def finish(a: Tensor) -> Tensor:
        heads = a @ v
        if differential:
            heads = module.sub_norm(heads) * (1.0 - module.lambda_init)
        bias = mlp_bias if module.mlp_bias is None else module.mlp_bias
        mlp = module.mlp_act(torch.nn.functional.linear(x, to_mlp, bias))
        if module.out_proj is None:
            return module.attn_out_proj(_merge(heads)) + module.mlp_out_proj(mlp)
        return module.out_proj(torch.cat([_merge(heads), mlp], -1))

    if not differential:
        return Layer(call.name, x, branch, None, None, finish, call.tangent, v)
    lam = module._compute_lambda().to(x.dtype)
    return Layer(call.name, x, *_alternating(branch), lam, finish, call.tangent, v)


def _torch(module: nn.MultiheadAttention, call: Call) -> Layer:
    if is_cross(call):
        raise UserError(f"{call.name}: cross-attention is not supported; expected self-attention")
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise UserError(
            f"{call.name}: expected keys and values as wide as the queries, without bias_k or add_zero_attn"
        )
    if not module.batch_first:
        tangent = None if call.tangent is None else call.tangent.transpose(0, 1)
        call = replace(call, tokens=call.tokens.transpose(0, 1), tangent=tangent)
    x, heads = call.tokens, module.num_heads
    weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    (q, to_q), (k, to_k), (v, _) = (_by_head(x, w, b, heads) for w, b in zip(weights, biases, strict=True))
    mask = _additive(call.given(4, "attn_mask"), x, forbids=True)
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    padding = _additive(call.given(2, "key_padding_mask"), x, forbids=True)
    if padding is not None:
        mask = padding[:, None, None] if mask is None else mask + padding[:, None, None]
    branch = Branch(q, k, to_q, to_k, mask=mask)
    return Layer(call.name, x, branch, None, None, lambda a: module.out_proj(_merge(a @ v)), call.tangent, v)


def _has_projections(module: Any) -> bool:
    """Return whether a module has separate linear layers for queries, keys and values, as in transformers."""
    names = ("q_proj", "k_proj", "v_proj")
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in names) and hasattr(
        module, "head_dim"
    )


def _grouped(module: Any, call: Call) -> tuple[Branch, Tensor, nn.Module]:
    """Return the branch of all query heads, the values of all key heads, and the output projection."""
    x, width = call.tokens, module.head_dim
    (q, to_q), (k, to_k), (v, _) = (
        _by_head(x, layer.weight, layer.bias, layer.out_features // width)
        for layer in (module.q_proj, module.k_proj, module.v_proj)
    )
    groups = q.shape[1] // k.shape[1]
    k, to_k = k.repeat_interleave(groups, 1), to_k.repeat_interleave(groups, 0)
    causal = call.kwargs.get("is_causal", getattr(module, "is_causal", False))
    mask = _additive(call.given(1, "attention_mask"), x, bool(causal))
    turn_q, turn_k = (_rotary(call, getattr(module, name, None)) for name in ("q_norm", "k_norm"))
    scale = getattr(module, "scaling", None) or module.scale
    output = module.o_proj if hasattr(module, "o_proj") else module.out_proj
    return Branch(q, k, to_q, to_k, scale, mask, turn_q, turn_k), v, output


def _rotary(call: Call, norm: nn.Module | None) -> Turn | None:
    """Return the map applied to queries or keys: a norm, then rotary positions (J. Su et al., RoFormer, 2021)."""
    positions = call.given(0, "position_embeddings")
    if not isinstance(positions, tuple):
        return norm
    cos, sin = (part[:, None] for part in positions)

    def turn(x: Tensor) -> Tensor:
        x = x if norm is None else norm(x)
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat([-two, one], -1) * sin

    return turn


def guessed(module: Any, call: Call) -> Layer:
    """Split an unregistered module with ``q_proj``, ``k_proj`` and ``v_proj`` as attention of transformers."""
    branch, v, output = _grouped(module, call)
    values = v.repeat_interleave(branch.q.shape[1] // v.shape[1], 1)
    return Layer(
        call.name, call.tokens, branch, None, None, lambda a: output(_merge(a @ values)), call.tangent, values
    )


def _diff_llama(module: Any, call: Call) -> Layer:
    """Heads h and h + H/2 are the two branches; both read the values of key heads j and j + J/2."""
    both, v, output = _grouped(module, call)
    half = both.q.shape[1] // 2
    one, two = v.chunk(2, 1)
    values = torch.cat([one, two], -1).repeat_interleave(half // one.shape[1], 1)
    positive, negative = (
        replace(both, q=both.q[:, part], k=both.k[:, part], to_q=both.to_q[part], to_k=both.to_k[part])
        for part in (slice(half), slice(half, None))
    )
    one_lam = (module.lambda_q1 * module.lambda_k1).sum(dtype=torch.float32).exp()
    lam = one_lam - (module.lambda_q2 * module.lambda_k2).sum(dtype=torch.float32).exp() + module.lambda_init

    def finish(a: Tensor) -> Tensor:
        return output(_merge((1.0 - module.lambda_init) * module.groupnorm(a @ values)))

    return Layer(
        call.name, call.tokens, positive, negative, lam.to(call.tokens.dtype), finish, call.tangent, values
    )


_ADAPTERS |= {
    SoftmaxAttention: _softmax,
    DifferentialAttention: _differential,
    "timm.layers.attention.Attention": _timm,
    "timm.layers.diff_attention.DiffAttention": _timm_differential,
    **dict.fromkeys(BLOCKS, _timm_parallel),
    "torch.nn.modules.activation.MultiheadAttention": _torch,
    "transformers.models.diffllama.modeling_diffllama.DiffLlamaAttention": _diff_llama,
}
