"""Tell the kind of attention of a model from its modules' classes, and what is known of other libraries' attention."""

import re
from collections.abc import Callable, Set
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.lambdas import lambda_at, lambda_of, reads_tokens

AttentionKind = Literal["softmax", "differential", "none", "unknown"]

_LIBRARIES = {"antiphase", "open_clip", "timm", "torch", "torchvision", "transformers"}
_OWN: dict[type, AttentionKind] = {DifferentialAttention: "differential", SoftmaxAttention: "softmax"}
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
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))


def attention_kind(model: nn.Module) -> AttentionKind:
    """Return the kind of attention of a model, as far as its modules' classes tell.

    ``"differential"`` if any module is known as such; otherwise ``"unknown"`` if any module looks like attention, but
    is not known or has a ``forward`` of the user's; otherwise ``"softmax"`` if any module is known as such; otherwise
    ``"none"``. A module looks like attention if its class name contains "attention" or "attn", or if a submodule or
    parameter has a usual name of queries or attention. :func:`~antiphase.sensitivity.maps.attention_of` runs the model.

    >>> attention_kind(nn.MultiheadAttention(4, 2)), attention_kind(nn.Linear(2, 2))
    ('softmax', 'none')
    """
    return strongest({kind for _, kind in attention_modules(model)})


def strongest(kinds: Set[AttentionKind]) -> AttentionKind:
    """Return the kind of a model whose modules have these kinds of attention."""
    order: tuple[AttentionKind, ...] = ("differential", "unknown", "softmax")
    found: list[AttentionKind] = [kind for kind in order if kind in kinds]
    return found[0] if found else "none"


def is_own_code(model: nn.Module) -> bool:
    """Return whether any module's class or ``forward`` is not from antiphase or a library that it knows."""
    return any(
        type(part).__module__.partition(".")[0] not in _LIBRARIES or "forward" in vars(part)
        for part in model.modules()
    )


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


def attention_modules(module: nn.Module) -> list[tuple[nn.Module, AttentionKind]]:
    """Return the modules that are known as attention or look like it, with their kinds by their classes."""
    known = _known(module)
    if known is not None:
        return [(module, known)]
    inside = [found for part in module.children() for found in attention_modules(part)]
    # by keys(), since TorchScript's dictionaries do not iterate
    parts: Any = [*module._modules.keys(), *module._parameters.keys(), *module._buffers.keys()]
    like_attention = named_attention(module) or any(map(_PART.fullmatch, parts)) or _softmax_in_graph(module)
    if inside or not like_attention:
        return inside
    return [(module, "unknown")]


def _softmax_in_graph(module: nn.Module) -> bool:
    """Return whether an exported, scripted or traced module, which has no parts of known classes, computes softmax."""
    kept = {torch.jit.ScriptModule: "inlined_graph", torch.fx.GraphModule: "graph"}
    graphs = (str(getattr(module, name, "")) for kind, name in kept.items() if isinstance(module, kind))
    return any(re.search("softmax|scaled_dot_product", graph) for graph in graphs)


def _known(module: nn.Module) -> AttentionKind | None:
    for kind in type(module).__mro__:
        own: AttentionKind | None = _OWN.get(kind) or _KNOWN.get(f"{kind.__module__}.{kind.__qualname__}")
        if own is not None:
            return own if _works_as(module, kind) else "unknown"
    if lambda_of(module) is not None:
        return "differential"
    if type(module).__module__.startswith("transformers.") and _projects(module):
        return "softmax"
    return None


def _works_as(module: nn.Module, kind: type[Any]) -> bool:
    """Return whether a module is of a class, or of a subclass that leaves ``forward`` as it is or is of a library."""
    own = type(module).__module__.partition(".")[0] not in _LIBRARIES
    return "forward" not in vars(module) and not (own and type(module).forward is not kind.forward)


def _projects(module: nn.Module) -> bool:
    """Return whether a module has linear layers for queries, keys and values."""
    parts = dict(module.named_children())
    return any(all(isinstance(parts.get(name), nn.Linear) for name in names) for names in _PROJECTIONS)


@validated
def layer_lambdas(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Return λ of every differential attention layer, first layer first.

    Each has the shape ``()``, ``(heads,)`` or, if it depends on the tokens, ``(batch, heads, queries)``.

    Args:
        model: any model.
        inputs: of the model. They are needed for layers whose λ depends on the tokens: without inputs these are
            left out.
    """
    tokens = _tokens(model, inputs)
    found: list[Tensor] = []
    with torch.no_grad():
        for module in model.modules():
            lam = lambda_of(module)
            if lam is not None and not reads_tokens(lam):
                found.append(lam().detach())
            elif lam is not None and lam in tokens:
                found.append(lambda_at(lam, tokens[lam]).detach())
            elif (known := known_lambda(module)) is not None:
                found.append(known.detach())
    return found


@validated
def mean_lambdas(model: nn.Module, *inputs: Tensor) -> list[float]:
    """Return one number per layer: λ averaged over heads, samples and queries; arguments of :func:`layer_lambdas`.

    Of a user's own attention, which has no λ module, they are those that were measured when the model was loaded.
    """
    found = [float(lam.mean()) for lam in layer_lambdas(model, *inputs)]
    measured = getattr(getattr(model, "card", None), "lambdas", ())
    return list(measured) if len(measured) > len(found) else found


def _tokens(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[nn.Module, Tensor]:
    """Return what each λ module that depends on the tokens is given when the model runs on the inputs."""
    found: dict[nn.Module, Tensor] = {}
    readers = [module for module in model.modules() if reads_tokens(module)]
    if not (inputs and readers):
        return found

    def keep(module: nn.Module, given: tuple[Any, ...]) -> None:
        found[module] = given[0]

    hooks = [module.register_forward_pre_hook(keep) for module in readers]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found
