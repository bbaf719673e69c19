"""What attention a model has: its kind, as far as its modules' classes tell, and the current λ of each layer."""

import re
from collections.abc import Set
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.attention.lambdas import lambda_at, lambda_of, reads_tokens

AttentionKind = Literal["softmax", "differential", "none", "unknown"]

_LIBRARIES = {"antiphase", "open_clip", "timm", "torch", "torchvision", "transformers"}
# by full name, so that these libraries need not be imported
_KNOWN: dict[str, AttentionKind] = {
    "antiphase.attention.modules.DifferentialAttention": "differential",
    "timm.layers.diff_attention.DiffAttention": "differential",
    "timm.models.vision_transformer.DiffParallelScalingBlock": "differential",
    "transformers.models.diffllama.modeling_diffllama.DiffLlamaAttention": "differential",
    "antiphase.attention.modules.SoftmaxAttention": "softmax",
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
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))


def attention_kind(model: nn.Module) -> AttentionKind:
    """Return the kind of attention of a model, as far as its modules' classes tell.

    ``"differential"`` if any module is known as such; otherwise ``"unknown"`` if any module looks like attention, but
    is not known or has a ``forward`` of the user's; otherwise ``"softmax"`` if any module is known as such; otherwise
    ``"none"``. A module looks like attention by the names of its class, submodules or parameters.

    >>> attention_kind(nn.MultiheadAttention(4, 2)), attention_kind(nn.Linear(2, 2))
    ('softmax', 'none')
    """
    return strongest({kind for _, kind in attention_modules(model)})


def strongest(kinds: Set[AttentionKind]) -> AttentionKind:
    """Return the kind of a model whose modules have these kinds of attention."""
    order: tuple[AttentionKind, ...] = ("differential", "unknown", "softmax")
    return next((kind for kind in order if kind in kinds), "none")  # pyright: ignore[reportReturnType]


def attention_modules(module: nn.Module) -> list[tuple[nn.Module, AttentionKind]]:
    """Return the modules that are known as attention or look like it, with their kinds by their classes."""
    if known := _known(module):
        return [(module, known)]
    inside = [pair for part in module.children() for pair in attention_modules(part)]
    # by keys(), since TorchScript's dictionaries do not iterate
    parts: Any = [*module._modules.keys(), *module._parameters.keys(), *module._buffers.keys()]
    like_attention = named_attention(module) or any(map(_PART.fullmatch, parts)) or _softmax_in_graph(module)
    return inside if inside or not like_attention else [(module, "unknown")]


def is_own_code(model: nn.Module) -> bool:
    """Return whether any module's class or ``forward`` is not from antiphase or a library that it knows."""
    return any(_is_users(type(part)) or "forward" in vars(part) for part in model.modules())


def named_attention(module: nn.Module) -> bool:
    """Return whether a module's class name contains "attention" or "attn"."""
    return bool(_CLASS.search(type(module).__name__))


def _is_users(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _LIBRARIES


def _softmax_in_graph(module: nn.Module) -> bool:
    """Return whether an exported, scripted or traced module, which has no parts of known classes, computes softmax."""
    kept = {torch.jit.ScriptModule: "inlined_graph", torch.fx.GraphModule: "graph"}
    graphs = (str(getattr(module, name, "")) for kind, name in kept.items() if isinstance(module, kind))
    return any(re.search("softmax|scaled_dot_product", graph) for graph in graphs)


def _known(module: nn.Module) -> AttentionKind | None:
    kind: Any = type(module)
    for base in kind.__mro__:
        if known := _KNOWN.get(f"{base.__module__}.{base.__qualname__}"):
            changed = "forward" in vars(module) or (_is_users(kind) and kind.forward is not base.forward)
            return "unknown" if changed else known
    if lambda_of(module) is not None:
        return "differential"
    parts = dict(module.named_children()) if kind.__module__.startswith("transformers.") else {}
    plain = any(all(isinstance(parts.get(name), nn.Linear) for name in names) for names in _PROJECTIONS)
    return "softmax" if plain else None


@validated
def layer_lambdas(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Return λ of every differential attention layer, own or of a library that is known, first layer first.

    Each has the shape ``()``, ``(heads,)`` or, if it depends on the tokens, ``(batch, heads, queries)``. Layers of the
    last kind are left out unless the model's ``inputs`` are given.
    """
    tokens = _tokens(model, inputs) if inputs else {}
    lambdas: list[Tensor] = []
    with torch.no_grad():
        for module in model.modules():
            lam = lambda_of(module)
            if lam is not None and reads_tokens(lam):
                lambdas += [lambda_at(lam, tokens[lam]).detach()] if lam in tokens else []
            elif lam is not None:
                lambdas.append(lam().detach())
            elif (timm := getattr(module, "_compute_lambda", None)) and _known(module) == "differential":
                lambdas.append(timm().detach())
    return lambdas


@validated
def mean_lambdas(model: nn.Module, *inputs: Tensor) -> list[float]:
    """Return one number per layer: λ averaged over heads, samples and queries; arguments of :func:`layer_lambdas`.

    In a user's own attention, which has no λ module, it was measured when the model was loaded.
    """
    means = [float(lam.mean()) for lam in layer_lambdas(model, *inputs)]
    measured = getattr(getattr(model, "card", None), "lambdas", ())
    return list(measured) if len(measured) > len(means) else means


def _tokens(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[nn.Module, Tensor]:
    """Return what each λ module that depends on the tokens is given when the model runs on the inputs."""
    tokens: dict[nn.Module, Tensor] = {}
    with ExitStack() as hooks, torch.no_grad():
        readers = [module for module in model.modules() if reads_tokens(module)]
        for module in readers:
            hook = module.register_forward_pre_hook(lambda module, args: tokens.update({module: args[0]}))
            hooks.callback(hook.remove)
        if readers:
            model(*inputs)
    return tokens
