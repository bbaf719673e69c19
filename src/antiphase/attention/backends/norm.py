"""The RMSNorm behind each differential head, with a backward pass of its own on a CPU."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.backends.native import kernels
from antiphase.attention.modes import plain_backward, plain_forward

_CACHE = 1 << 20  # bytes of rows that are finished together


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

    On a CPU torch's backward pass keeps two tensors of x's size. Here the output is kept, which the next projection
    keeps as well; or x, where a weight is too near to zero to divide the output by it. Every derivative exists.
    """
    if x.device.type != "cpu" or plain_forward():
        return F.rms_norm(x, weight.shape, weight, eps)
    out, _ = _RMSNorm.apply(x, weight, eps)
    assert isinstance(out, Tensor)
    return out


class _RMSNorm(torch.autograd.Function):
    """Returns 1 / √(mean(x²) + eps) too: through it a second derivative finds its way back to x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out, inverse = _normalise(x, weight, eps)
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
            return *_gradients(grad, kept, inverse, weight, ctx.divide, ctx.needs_input_grad[1]), None


def _normalise(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm's output in x's dtype and 1 / √(mean(x²) + eps), at least in float32."""
    if (native := _native(x, weight)) is not None:
        return native.rms_norm(x.contiguous(), weight.contiguous(), eps)
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.empty(x.shape, dtype=wide)
    values = x if x.dtype == wide else out.copy_(x)  # in bf16 the rest happens in place
    norm = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(values, inverse, out=out).mul_(weight).to(x.dtype), inverse


def _native(x: Tensor, weight: Tensor) -> Any | None:
    """Return the kernels, where there are some for x."""
    fits = x.dtype == weight.dtype and x.shape[-1:] == weight.shape
    return kernels() if fits and x.dtype in (torch.float32, torch.bfloat16) else None


def _gradients(
    grad: Tensor, kept: Tensor, inverse: Tensor, weight: Tensor, divide: bool, trained: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x and, where it is trained, the weight."""
    if (native := _native(kept, weight)) is not None:
        rows = (grad.contiguous(), kept.contiguous(), inverse, weight.contiguous())
        return native.rms_norm_backward(*rows, divide, trained)
    to_x = torch.empty_like(kept, memory_format=torch.contiguous_format)
    to_weight = torch.zeros_like(weight) if trained else None
    size = kept.shape[-1]
    step = max(1, _CACHE // (size * kept.element_size()))
    rows = (
        each.reshape(-1, each.shape[-1]).split(step) for each in (kept, inverse.to(kept.dtype), grad, to_x)
    )
    for some, over, arrived, unit in zip(*rows, strict=True):
        torch.div(some, weight, out=unit) if divide else torch.mul(some, over, out=unit)
        along = arrived * unit
        if to_weight is not None:  # an attack does not train it
            to_weight += along.sum(0)
        unit.mul_((along @ weight)[:, None].div_(-size)).addcmul_(arrived, weight).mul_(over)
    return to_x, to_weight


def _plain_gradients(
    grad: Tensor, to_inverse: Tensor | None, kept: Tensor, inverse: Tensor, weight: Tensor, divide: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and the weight in plain operations, of both outputs."""
    unit = kept / weight if divide else kept * inverse
    along = grad * unit
    to_x = (grad * weight - unit * (along * weight).mean(-1, keepdim=True)) * inverse
    if to_inverse is not None:  # ∂inverse/∂x = −inverse² · unit / n
        to_x = to_x - unit * (to_inverse * inverse.square() / kept.shape[-1])
    return to_x.to(kept.dtype), along.flatten(0, -2).sum(0).to(weight.dtype)
