"""The current λ of each differential attention layer, own or timm's."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.attention import DifferentialAttention

_OF_TIMM = {
    "timm.layers.diff_attention": "DiffAttention",
    "timm.models.vision_transformer": "DiffParallelScalingBlock",
}


def layer_lambdas(model: nn.Module) -> list[Tensor]:
    """Return λ of every differential attention layer, first layer first, each ``()`` or ``(heads,)``."""
    found: list[Tensor] = []
    # seconds to import, and where nobody has, no model holds a layer of it
    of_timm: Any = tuple(
        getattr(sys.modules[place], name)
        for place, name in _OF_TIMM.items()
        if hasattr(sys.modules.get(place), name)
    )
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, DifferentialAttention):
                found.append(module.lam().detach())
            elif isinstance(module, of_timm):
                layer: Any = module
                found.append(layer._compute_lambda().detach())
    return found


def mean_lambdas(model: nn.Module) -> list[float]:
    """Return one number a layer: λ, averaged over the heads where they have one each."""
    return [float(lam.mean()) for lam in layer_lambdas(model)]
