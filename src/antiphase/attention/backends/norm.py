"""The RMSNorm behind each differential head, with a backward pass of its own on a CPU."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.backends.native import kernels
from antiphase.attention.modes import plain_backward, plain_forward


class HeadNorm(NamedTuple):
    """The norm that every query's row of a head passes; its weight, ``(value width,)``, is shared by the heads."""

    weight: Tensor
    eps: float

    def __call__(self, heads: Tensor) -> Tensor:
        """Return the normed rows of ``(batch, heads, queries, width)``, each query's heads next to each other."""
        rows = heads.transpose(1, 2).to(self.weight.dtype)  # autocast leaves the weight in float32
        return rms_norm(rows, self.weight, self.eps).transpose(1, 2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight · x / √(mean(x²) + eps), the mean taken over the last dimension, in row-major order.

    On a CPU torch's backward pass keeps two tensors of x's size. Our kernels keep the output, which the next projection
    keeps as well; or x, where a weight is too near to zero to divide the output by it. Every derivative exists.
    """
    fits = x.dtype == weight.dtype and x.shape[-1:] == weight.shape
    able = x.device.type == "cpu" and fits and x.dtype in (torch.float32, torch.bfloat16)
    if plain_forward() or not able or kernels() is None:
        return F.rms_norm(x, weight.shape, weight, eps)
    out, _ = _RMSNorm.apply(x, weight, eps)
    assert isinstance(out, Tensor)
    return out


class _RMSNorm(torch.autograd.Function):
    """Returns 1 / √(mean(x²) + eps) too: through it a second derivative finds its way back to x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        native: Any = kernels()
        out, inverse = native.rms_norm(x.contiguous(), weight.contiguous(), eps)
        if not any(ctx.needs_input_grad):
            return out, inverse  # nothing will ask for what the backward pass needs
        limits = torch.finfo(out.dtype)
        ctx.divide = weight.abs().amin().item() > limits.tiny / limits.eps  # else digits went with underflow
        ctx.save_for_backward(out if ctx.divide else x, inverse, weight)
        ctx.set_materialize_grads(False)
        return out, inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kept, inverse, weight = ctx.saved_tensors
        grad = torch.zeros_like(kept) if grads[0] is None else grads[0]
        with torch.autocast(kept.device.type, enabled=False):
            if grads[1] is not None or plain_backward(grad):
                return *_plain_gradients(grad, grads[1], kept, inverse, weight, ctx.divide), None
            native: Any = kernels()
            rows = (grad.contiguous(), kept.contiguous(), inverse, weight.contiguous())
            return *native.rms_norm_backward(*rows, ctx.divide, ctx.needs_input_grad[1]), None


def _plain_gradients(
    grad: Tensor, to_inverse: Tensor | None, kept: Tensor, inverse: Tensor, weight: Tensor, divide: bool
) -> tuple[Tensor, Tensor]:
    unit = kept / weight if divide else kept * inverse
    along = grad * unit
    to_x = (grad * weight - unit * (along * weight).mean(-1, keepdim=True)) * inverse
    if to_inverse is not None:  # ∂inverse/∂x = −inverse² · unit / n
        to_x = to_x - unit * (to_inverse * inverse.square() / kept.shape[-1])
    return to_x.to(kept.dtype), along.flatten(0, -2).sum(0).to(weight.dtype)
