"""The RMSNorm behind each differential head, with a backward pass of its own on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.modes import plain_backward, plain_forward

_CACHE = 1 << 20  # bytes of rows that are finished together


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight · x / √(mean(x²) + eps), the mean taken over the last dimension.

    On a CPU torch composes the backward pass of operations that keep two tensors of x's size; here one is
    kept. Every derivative exists.
    """
    if x.device.type != "cpu" or plain_forward():
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
            return *_gradients(grad, x, weight, ctx.eps, trained=ctx.needs_input_grad[1]), None


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, *, trained: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x and, where it is trained, the weight."""
    if plain_backward(grad):
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        unit = x * inverse
        along = grad * unit
        share = (along * weight).mean(-1, keepdim=True)
        return (grad * weight - unit * share) * inverse, along.flatten(0, -2).sum(0)
    to_x, to_weight = torch.empty_like(x, memory_format=torch.contiguous_format), torch.zeros_like(weight)
    size = x.shape[-1]
    step = max(1, _CACHE // (size * x.element_size()))
    rows = zip(*(each.reshape(-1, size).split(step) for each in (x, grad, to_x)), strict=True)
    for some, arrived, unit in rows:
        inverse = torch.rsqrt(torch.linalg.vector_norm(some, dim=-1).square_().div_(size) + eps)[:, None]
        torch.mul(some, inverse, out=unit)
        along = arrived * unit
        if trained:  # an attack does not
            to_weight += along.sum(0)
        unit.mul_((along @ weight)[:, None].div_(-size)).addcmul_(arrived, weight).mul_(inverse)
    return to_x, to_weight if trained else None
