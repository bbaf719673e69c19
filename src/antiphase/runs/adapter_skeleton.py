"""A skeleton of adapters for attention that is not recognised."""

import re
from collections.abc import Mapping

import torch
from torch import nn

from antiphase.commands.loading import find_device, load_models
from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.models.card import card_of
from antiphase.models.zeroshot import as_dual_encoder, is_dual_encoder
from antiphase.modules import device_of
from antiphase.runs.options.sense import SenseOptions
from antiphase.sensitivity.maps import unrecognised

_HEAD = '''"""Adapters for attention that antiphase does not recognise.

Complete the lines marked "fill in", then import this file where the model is built. antiphase compares
finish(A1 − λ·A2) with the output of the module at every call.
"""

from antiphase.sensitivity import Branch, Layer, register
'''
_ADAPTER = '''

def adapter_of_{function}(module, call):
    """Split {kind}, in the model: {places}.

    Its parts: {parts}.
    """
    x = call.tokens  # (batch, tokens, dim)
    heads = module.num_heads  # fill in: pairs of maps (heads of standard attention)

    def project(layer):
        """Return queries or keys (batch, heads, tokens, width) and the matrix of each head (heads, width, dim)."""
        return layer(x).unflatten(-1, (heads, -1)).transpose(1, 2), layer.weight.unflatten(0, (heads, -1))

    (q1, to_q1), (k1, to_k1) = project(module.q1), project(module.k1)  # fill in: A1
    (q2, to_q2), (k2, to_k2) = project(module.q2), project(module.k2)  # fill in: A2; none in standard attention
    v, _ = project(module.v)  # fill in: layer of the values
    positive = Branch(q1, k1, to_q1, to_k1)  # fill in: scale= if it is not 1/√width, mask= if there is one
    negative = Branch(q2, k2, to_q2, to_k2)  # None for standard attention
    lam = module.lam  # fill in: λ, of shape (), (heads,) or (batch, heads, tokens); None for standard attention

    def finish(combined):
        """Return the module's output for A1 − λ·A2, of shape (batch, heads, tokens, tokens)."""
        return module.out((combined @ v).transpose(1, 2).flatten(2))  # fill in: what follows the maps

    return Layer(call.name, x, positive, negative, lam, finish, call.tangent)


register("{kind}", adapter_of_{function})
'''


def write_skeleton(options: SenseOptions) -> str:
    """Write adapters to complete for the models of ``sense``, and return what was done.

    Raises:
        UserError: if the file exists, or a model cannot be loaded.
    """
    path = options.write_adapter
    assert path is not None
    if path.exists():
        raise UserError(f"{path}: exists; give another name")
    found: dict[str, nn.Module] = {}
    for model in load_models(
        [*options.model, *options.against], find_device(options.device), options.random_weights
    ):
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(2, *card_of(model).image_shape, generator=generator)
        call = as_dual_encoder(model).encode_image if is_dual_encoder(model) else model
        found |= unrecognised(model, images.to(device_of(model)), call)
    if not found:
        return "all attention is recognised; no adapter is needed"
    write_text(path, skeleton(found))
    return f"{path}: complete it, then import it where the model is built"


def skeleton(modules: Mapping[str, nn.Module]) -> str:
    """Return the text of a file with an adapter to complete for each class of the modules, by their names."""
    places: dict[str, list[str]] = {}
    for name, module in modules.items():
        places.setdefault(_full_name(module), []).append(name or "the model itself")
    adapters = [
        _ADAPTER.format(
            kind=kind,
            function=re.sub(r"\W", "_", kind),
            places=", ".join(names),
            parts="; ".join(_parts(next(m for m in modules.values() if _full_name(m) == kind))) or "none",
        )
        for kind, names in places.items()
    ]
    return _HEAD + "".join(adapters)


def _full_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _parts(module: nn.Module) -> list[str]:
    children = [
        f"{name} {type(part).__name__}({part.extra_repr()})" for name, part in module.named_children()
    ]
    own = [f"{name} {tuple(value.shape)}" for name, value in module.named_parameters(recurse=False)]
    return [*children, *own]
