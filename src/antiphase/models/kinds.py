"""Which kind of attention a model has, read off its modules."""

import re
from typing import Any, Literal

from torch import nn

from antiphase.attention import DifferentialAttention, SoftmaxAttention

AttentionKind = Literal["softmax", "differential", "none", "unknown"]

# by full name, so that no library is imported to look for its modules
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
_CLASS = re.compile("attention|attn", re.IGNORECASE)
_PART = re.compile(r"(\w*_)?(attn|attention)|(to_|w_?)?(q|qkv|query|queries)(_proj|_lin|_linear)?")
_LAMBDA = re.compile(r"lam(bda)?(_\w*|\d*)")
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))


def attention_kind(model: nn.Module) -> AttentionKind:
    """Return which attention a model has.

    ``"differential"`` if any module is known to be, or looks like attention and has a λ of its own
    (``lam…``, ``lambda…``); else ``"unknown"`` if any module looks like attention but is not known;
    else ``"softmax"`` if any module is known to be; else ``"none"``. A module looks like attention if its class's name
    contains "attention" or "attn", or if one of its parts is named as queries or attention usually are.

    >>> attention_kind(nn.MultiheadAttention(4, 2)), attention_kind(nn.Linear(2, 2))
    ('softmax', 'none')
    """
    found = _kinds(model)
    order: tuple[AttentionKind, ...] = ("differential", "unknown", "softmax")
    strongest: list[AttentionKind] = [kind for kind in order if kind in found]
    return strongest[0] if strongest else "none"


def named_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class says that it is attention."""
    return bool(_CLASS.search(type(module).__name__))


def _kinds(module: nn.Module) -> set[AttentionKind]:
    parts: Any = [*module._modules, *module._parameters, *module._buffers]
    weighted = any(map(_LAMBDA.fullmatch, [*parts, *vars(module)]))
    known = _known(module)
    if known is not None:
        return _either(weighted, known)  # a user's subclass of standard attention may have a λ
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
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__]
    for name in names:
        if name in _KNOWN:
            return _KNOWN[name]
    if type(module).__module__.startswith("transformers.") and _projects(module):
        return "softmax"
    return None


def _projects(module: nn.Module) -> bool:
    """Whether a module has linear layers for queries, keys and values."""
    parts = dict(module.named_children())
    return any(all(isinstance(parts.get(name), nn.Linear) for name in names) for names in _PROJECTIONS)
