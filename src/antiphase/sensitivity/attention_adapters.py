"""Adapters that split attention modules of antiphase, timm, torch and transformers into maps and the rest."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.lambdas import lambda_at, lambda_of, reads_tokens
from antiphase.errors import UserError
from antiphase.sensitivity.detection import DETECTIONS, detected_layer
from antiphase.sensitivity.layers import Branch, Call, CentredBranch, Layer, Turn

Adapter = Callable[[Any, Call], Layer]

# timm's blocks with attention next to the MLP
_BLOCKS = {f"timm.models.vision_transformer.{name}ParallelScalingBlock" for name in ("", "Diff")}


@validated
def register(module: type | str, adapter: Adapter | None) -> None:
    """Register an adapter for a class of attention modules, named in full if its library may not be installed.

    It is a function of (module, call) that returns a :class:`~antiphase.sensitivity.Layer`, whose output is compared
    with the module's own at every call; None to ignore such modules.

    >>> class Pooling(nn.Module): ...
    >>> register(Pooling, None)
    """
    _ADAPTERS[module] = adapter


def find_adapter(module: nn.Module) -> Adapter | Literal["unknown"] | None:
    """Return the adapter of a module; None if the module is ignored, ``"unknown"`` if it has no adapter."""
    if (key := _registered(module)) is not None:
        return _ADAPTERS[key]
    ours = all(callable(getattr(type(module), name, None)) for name in ("parts", "finish"))
    if ours and isinstance(getattr(module, "qkv", None), nn.Linear) and lambda_of(module) is not None:
        return _by_parts
    if module in DETECTIONS and not any(_registered(part) is not None for part in module.modules()):
        return detected_layer
    linear = (isinstance(getattr(module, name, None), nn.Linear) for name in ("q_proj", "k_proj", "v_proj"))
    return guessed if all(linear) and hasattr(module, "head_dim") else "unknown"


def is_known(module: nn.Module) -> bool:
    """Return whether a module has an adapter, or is to be ignored."""
    return not isinstance(find_adapter(module), str)


def block_ends(block: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Return the parts of a block that get its attention's tokens and output, without norm, residual path and scale."""
    return (block.get_submodule("in_proj"), block.get_submodule("ls")) if _registered(block, _BLOCKS) else None


def _registered(module: nn.Module, table: Any = None) -> type | str | None:
    """Return the first of a module's classes that a table has, by itself or by its full name."""
    pairs = ((kind, f"{kind.__module__}.{kind.__qualname__}") for kind in type(module).__mro__)
    return next((key for pair in pairs for key in pair if key in (table or _ADAPTERS)), None)


def _branch(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] | None,
    counts: Sequence[int],
    mask: Tensor | None,
    scale: float | None = None,
    turns: Sequence[Turn | None] = (None, None),
) -> tuple[Branch, Tensor]:
    three = [*zip(weights, biases or (None,) * 3, counts, strict=True)]
    q, k, v = (F.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for w, b, heads in three)
    to_q, to_k, _ = (weight.unflatten(0, (heads, -1)) for weight, _, heads in three)
    if (groups := counts[0] // counts[1]) > 1:
        k, to_k = k.repeat_interleave(groups, 1), to_k.repeat_interleave(groups, 0)
    return Branch(q, k, to_q, to_k, scale, mask, *turns), v


def _merge(heads: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch tokens dim"]:
    return heads.transpose(1, 2).flatten(2)


def _additive(mask: Tensor | None, like: Tensor, causal: bool = False, forbids: bool = False) -> Any:
    """Return a mask to add to the scores; ``forbids``: whether True in a boolean mask forbids attention."""
    if mask is None:
        count = like.shape[1]
        return like.new_full((count, count), -math.inf).triu(1) if causal else None
    if mask.dtype == torch.bool:
        closed = mask if forbids else ~mask
        return torch.zeros_like(closed, dtype=like.dtype).masked_fill(closed, -math.inf)
    return mask.to(like.dtype)


def _pair(both: Branch, *parts: slice) -> list[Branch]:
    def some(part: slice) -> Branch:
        return replace(both, q=both.q[:, part], k=both.k[:, part], to_q=both.to_q[part], to_k=both.to_k[part])

    return list(map(some, parts))


def _layer(
    call: Call,
    branches: Sequence[Branch],
    values: Tensor,
    finish: Callable[[Tensor], Tensor],
    lam: Tensor | None = None,
) -> Layer:
    negative = branches[1] if len(branches) > 1 else None
    return Layer(call.name, call.tokens, branches[0], negative, lam, lambda a: finish(a @ values), call.tangent, values)


def _by_parts(module: Any, call: Call) -> Layer:
    x, lam = call.tokens, lambda_of(module)
    queries, keys, v = module.parts(module.qkv(x))
    to_queries, to_keys, _ = module.parts(module.qkv.weight.mT[None])  # rows of the matrix, as tokens
    mask = _additive(call.given(0, "mask"), x)
    pairs = zip(queries, keys, to_queries, to_keys, strict=True)
    branches: list[Any] = [Branch(q, k, to_q[0].mT, to_k[0].mT, mask=mask) for q, k, to_q, to_k in pairs]
    if getattr(module, "integral", False):
        branches[1] = CentredBranch(branches[0], branches[1], mask)
    finish = module.finish if getattr(module, "gate", None) is None else partial(module.finish, x=x)
    if lam is None:
        return _layer(call, branches, v, finish)
    layer = _layer(call, branches, v, finish, lambda_at(lam, x))
    return replace(layer, lambda_of=partial(lambda_at, lam)) if reads_tokens(lam) else layer


def _timm(module: Any, call: Call) -> Layer:
    """Split timm's attention, differential or not, a module or beside an MLP, which ``finish`` then includes."""
    x, heads = call.tokens, module.num_heads
    differential, parallel = hasattr(module, "lambda_init"), hasattr(module, "in_proj")
    maps = 2 * heads if differential else heads
    if parallel:
        to_mlp, *weights = module.in_proj.weight.split(module.in_split)
        bias = module.in_proj.bias
        mlp_bias, *biases = (None,) * 4 if bias is None else bias.split(module.in_split)
    else:
        bias = module.qkv.bias
        weights, biases = module.qkv.weight.chunk(3), None if bias is None else bias.chunk(3)
        to_mlp = mlp_bias = x  # not used
    mask = _additive(call.given(0, "attn_mask"), x, bool(call.given(1, "is_causal")))
    norms = [None if isinstance(norm, nn.Identity) else norm for norm in (module.q_norm, module.k_norm)]
    branch, v = _branch(x, weights, biases, (maps, maps, heads), mask, module.scale, norms)  # pyright: ignore

    def finish(heads: Tensor) -> Tensor:
        if differential:
            heads = module.sub_norm(heads) * (1.0 - module.lambda_init)
        merged = _merge(heads)
        if parallel:
            bias = mlp_bias if module.mlp_bias is None else module.mlp_bias
            mlp = module.mlp_act(F.linear(x, to_mlp, bias))
            if module.out_proj is None:
                return module.attn_out_proj(merged) + module.mlp_out_proj(mlp)
            return module.out_proj(torch.cat([merged, mlp], -1))
        merged = module.norm(merged) if hasattr(module, "norm") else merged
        gate = getattr(module, "gate", None)
        return module.proj(merged if gate is None else merged * gate(x).sigmoid())

    if not differential:
        return _layer(call, [branch], v, finish)
    return _layer(call, _pair(branch, np.s_[::2], np.s_[1::2]), v, finish, module._compute_lambda().to(x.dtype))


def _torch(module: nn.MultiheadAttention, call: Call) -> Layer:
    if call.is_cross:
        raise UserError(f"{call.name}: cross-attention is not supported, nor attn(x + p, x + p, x); give attn(x, x, x)")
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise UserError(f"{call.name}: keys and values of other widths, bias_k, add_zero_attn are not known")
    x, heads = call.batch_first(call.tokens), module.num_heads
    biases = None if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    mask = _additive(call.given(4, "attn_mask"), x, forbids=True)
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    padding = _additive(call.given(2, "key_padding_mask"), x, forbids=True)
    if padding is not None:
        mask = padding[:, None, None] + (0 if mask is None else mask)
    branch, v = _branch(x, module.in_proj_weight.chunk(3), biases, (heads,) * 3, mask)
    call = replace(call, tokens=x, tangent=None if call.tangent is None else call.batch_first(call.tangent))
    return _layer(call, [branch], v, lambda heads: module.out_proj(_merge(heads)))


def _grouped(module: Any, call: Call) -> tuple[Branch, Tensor, nn.Module]:
    x, layers = call.tokens, (module.q_proj, module.k_proj, module.v_proj)
    counts = [layer.out_features // module.head_dim for layer in layers]
    weights, biases = ([getattr(layer, name) for layer in layers] for name in ("weight", "bias"))
    causal = call.kwargs.get("is_causal", getattr(module, "is_causal", False))
    mask = _additive(call.given(1, "attention_mask"), x, bool(causal))
    turns = [_rotary(call, getattr(module, name, None)) for name in ("q_norm", "k_norm")]
    scale = getattr(module, "scaling", None) or module.scale
    output = module.o_proj if hasattr(module, "o_proj") else module.out_proj
    return *_branch(x, weights, biases, counts, mask, scale, turns), output


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
    values = v.repeat_interleave(len(branch.to_q) // v.shape[1], 1)
    return _layer(call, [branch], values, lambda heads: output(_merge(heads)))


def _diff_llama(module: Any, call: Call) -> Layer:
    """Heads h and h + H/2 are the two branches; both read the values of key heads j and j + J/2."""
    both, v, output = _grouped(module, call)
    one, two = v.chunk(2, 1)
    values = torch.cat([one, two], -1).repeat_interleave(len(both.to_q) // v.shape[1], 1)
    lam = (module.lambda_q1 * module.lambda_k1).sum(dtype=torch.float32).exp()
    lam = lam - (module.lambda_q2 * module.lambda_k2).sum(dtype=torch.float32).exp() + module.lambda_init

    def finish(heads: Tensor) -> Tensor:
        return output(_merge((1.0 - module.lambda_init) * module.groupnorm(heads)))

    half = len(both.to_q) // 2
    return _layer(call, _pair(both, np.s_[:half], np.s_[half:]), values, finish, lam.to(call.tokens.dtype))


_ADAPTERS: dict[type | str, Adapter | None] = {
    SoftmaxAttention: _by_parts,
    DifferentialAttention: _by_parts,
    "timm.layers.attention.Attention": _timm,
    "timm.layers.diff_attention.DiffAttention": _timm,
    **dict.fromkeys(_BLOCKS, _timm),
    "torch.nn.modules.activation.MultiheadAttention": _torch,
    "transformers.models.diffllama.modeling_diffllama.DiffLlamaAttention": _diff_llama,
}
