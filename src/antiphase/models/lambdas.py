"""The current λ of each differential attention layer, own or timm's."""

import torch
from timm.layers.diff_attention import DiffAttention
from torch import Tensor, nn

from antiphase.attention import DifferentialAttention


def layer_lambdas(model: nn.Module) -> list[Tensor]:
    """Return λ of every differential attention layer, first layer first, each ``()`` or ``(heads,)``."""
    found: list[Tensor] = []
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, DifferentialAttention):
                found.append(module.lam().detach())
            elif isinstance(module, DiffAttention):
                found.append(module._compute_lambda().detach())
    return found


def mean_lambdas(model: nn.Module) -> list[float]:
    """Return one number a layer: λ, averaged over the heads where they have one each."""
    return [float(lam.mean()) for lam in layer_lambdas(model)]
