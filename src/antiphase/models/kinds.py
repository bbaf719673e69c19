"""Detect the kind of attention of a model from its modules, and what is known of other libraries' attention."""

import re
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from antiphase.attention import DifferentialAttention, SoftmaxAttention

AttentionKind = Literal["softmax", "differential", "none", "unknown"]

# by full name, so that these libraries need not be imported
_KNOWN: dict[str, AttentionKind] = {
    "timm.layers.diff_attention.DiffAttention": "differential",
    "timm.models.vision_transformer.DiffParallelScalingBlock": "differential",
    "transformers.models.diffllama.modeling_diffllama.DiffLlamaAttention": "differential",
    "timm.layers.attention.Attention": "softmax",
    "timm.layers.attention.AttentionRope": "softmax",
    "timm.layers.attention_pool.AttentionPoolLatent": "softmax",
    "timm.models.eva.EvaAttention": "softmax",
    "timm.models.swin_transformer.WindowAttention": "softmax",
    "timm.models.vision_transformer.ParallelScalingBlock": "softmax",
    "torch.nn.modules.activation.MultiheadAttention": "softmax",
    "open_clip.modified_resnet.AttentionPool2d": "softmax",
}
# from a module of differential attention to its λ
_LAMBDA_OF: dict[str, Callable[[Any], Tensor]] = {
    "timm.layers.diff_attention.DiffAttention": lambda module: module._compute_lambda(),
    "timm.models.vision_transformer.DiffParallelScalingBlock": lambda module: module._compute_lambda(),
}
_CLASS = re.compile("attention|attn", re.IGNORECASE)
_PART = re.compile(r"(\w*_)?(attn|attention)|(to_|w_?)?(q|qkv|query|queries)(_proj|_lin|_linear)?")
_LAMBDA = re.compile(r"lam(bda)?(_\w*|\d*)")
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))


def attention_kind(model: nn.Module) -> AttentionKind:
    """Return the kind of attention of a model.

    ``"differential"`` if any module is known as such, or looks like attention and has a λ (``lam…``, ``lambda…``);
    otherwise ``"unknown"`` if any module looks like attention but is not known; otherwise ``"softmax"`` if any module
    is known as such; otherwise ``"none"``. A module looks like attention if its class name contains "attention" or
    "attn", or if a submodule or parameter has a usual name of queries or attention.

    >>> attention_kind(nn.MultiheadAttention(4, 2)), attention_kind(nn.Linear(2, 2))
    ('softmax', 'none')
    """
    found = _kinds(model)
    order: tuple[AttentionKind, ...] = ("differential", "unknown", "softmax")
    strongest: list[AttentionKind] = [kind for kind in order if kind in found]
    return strongest[0] if strongest else "none"


def named_attention(module: nn.Module) -> bool:
    """Return whether a module's class name contains "attention" or "attn"."""
    return bool(_CLASS.search(type(module).__name__))


def known_lambda(module: nn.Module) -> Tensor | None:
    """Return λ of another library's differential attention, None for a module of which it is not known."""
    read = next((_LAMBDA_OF[name] for name in _names(module) if name in _LAMBDA_OF), None)
    return None if read is None else read(module)


def _names(module: nn.Module) -> list[str]:
    """Return the full names of a module's class and of those that it is derived from."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__]


def _kinds(module: nn.Module) -> set[AttentionKind]:
    parts: Any = [*module._modules, *module._parameters, *module._buffers]
    weighted = any(map(_LAMBDA.fullmatch, [*parts, *vars(module)]))
    known = _known(module)
    if known is not None:
        return _either(weighted, known)  # a subclass of standard attention may add a λ
    inside: set[AttentionKind] = set()
    for part in module.children():
        inside |= _kinds(part)
    if inside or not (named_attention(module) or any(map(_PART.fullmatch, parts))):
        return inside
    return _either(weighted, "unknown")


def _either(weighted: bool, otherwise: AttentionKind) -> set[AttentionKind]:
    return {"differential"} if weighted else {otherwise}


def _known(module: nn.Module) -> AttentionKind | None:
    if isinstance(module, DifferentialAttention):
        return "differential"
    if isinstance(module, SoftmaxAttention):
        return "softmax"
    for name in _names(module):
        if name in _KNOWN:
            return _KNOWN[name]
    if type(module).__module__.startswith("transformers.") and _projects(module):
        return "softmax"
    return None


def _projects(module: nn.Module) -> bool:
    """Return whether a module has linear layers for queries, keys and values."""
    parts = dict(module.named_children())
    return any(all(isinstance(parts.get(name), nn.Linear) for name in names) for names in _PROJECTIONS)
