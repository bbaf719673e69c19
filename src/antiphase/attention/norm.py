"""The RMSNorm behind each differential head, at the price of one pass in either direction."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.modes import plain_backward, plain_forward


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight · x / √(mean(x²) + eps), the mean taken over the last dimension.

    torch has a fused forward pass on a CPU but composes the backward pass of seven that keep two copies
    of x; here one is kept. Every derivative exists.
    """
    if x.is_cuda or plain_forward():
        return F.rms_norm(x, weight.shape, weight, eps)
    out = _RMSNorm.apply(x, weight, eps)
    assert isinstance(out, Tensor)
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return F.rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            return *_gradients(grad, x, weight, ctx.eps), None


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and the weight."""
    inverse = torch.rsqrt(torch.linalg.vecdot(x, x).div(x.shape[-1]) + eps)[..., None]
    unit = x * inverse
    along = grad * unit
    to_weight = along.flatten(0, -2).sum(0)
    share = (along @ weight)[..., None] / x.shape[-1]
    if plain_backward(grad):
        return (grad * weight - unit * share) * inverse, to_weight
    return unit.mul_(share.neg_()).addcmul_(grad, weight).mul_(inverse), to_weight
