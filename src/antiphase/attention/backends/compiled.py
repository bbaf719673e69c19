"""What a backend is given, and what compiled kernels compute on a CPU: attention, and the norm behind each head."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.backends.native import kernels
from antiphase.attention.maps import open_dead_rows, per_head, plain_combine, plain_maps
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
                return *_plain_norm_gradients(grad, grads[1], kept, inverse, weight, ctx.divide), None
            native: Any = kernels()
            rows = (grad.contiguous(), kept.contiguous(), inverse, weight.contiguous())
            return *native.rms_norm_backward(*rows, ctx.divide, ctx.needs_input_grad[1]), None


def _plain_norm_gradients(
    grad: Tensor, to_inverse: Tensor | None, kept: Tensor, inverse: Tensor, weight: Tensor, divide: bool
) -> tuple[Tensor, Tensor]:
    unit = kept / weight if divide else kept * inverse
    along = grad * unit
    to_x = (grad * weight - unit * (along * weight).mean(-1, keepdim=True)) * inverse
    if to_inverse is not None:  # ∂inverse/∂x = −inverse² · unit / n
        to_x = to_x - unit * (to_inverse * inverse.square() / kept.shape[-1])
    return to_x.to(kept.dtype), along.flatten(0, -2).sum(0).to(weight.dtype)


Branches = Sequence[Tensor] | Tensor  # a tensor for each branch, in one tensor where they lie in one
Parts = tuple[Branches, Branches, Tensor]  # queries, keys, values: (batch, heads, tokens, width)

View = Callable[..., Parts]  # from tensors to parts that are views of them, by operations of one result each


class Call(NamedTuple):
    """One call of attention."""

    view: View
    sources: tuple[Tensor, ...]  # the tensors that are viewed, such as one projection
    parts: Parts  # what the view returns: queries and keys, one of each per branch, and the values
    lam: float | Tensor  # λ: (), (heads,) or (batch, heads, queries); ignored if there is only one branch
    mask: Tensor | None  # as in softmax_maps
    norm: HeadNorm | None  # applied last to each query's row of a head

    def finish(self, heads: Tensor) -> Tensor:
        return heads if self.norm is None else self.norm(heads)

    @property
    def dtypes(self) -> set[torch.dtype]:
        return {source.dtype for source in self.sources}


def maps_of(parts: Parts, lam: float | Tensor, mask: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """Return the map of each branch and the combined one, in plain operations."""
    maps = [plain_maps(q, k, mask) for q, k in zip(parts[0], parts[1], strict=True)]
    return maps, plain_combine(maps[0], maps[1], lam) if len(maps) > 1 else maps[0]


def flat(parts: Parts) -> tuple[Tensor, ...]:
    """Return queries, keys and values in one tuple: one by one, since what is unbound may not be written to."""
    queries, keys, values = parts
    branches = range(len(queries))
    return *(queries[branch] for branch in branches), *(keys[branch] for branch in branches), values


def plain_gradients(
    grad: Tensor, view: View, lam: Tensor, mask: Tensor | None, sources: Sequence[Tensor]
) -> tuple[Tensor | None, list[Tensor]]:
    """Return λ's and the sources' gradients in plain operations, to be differentiated and batched themselves."""
    queries, keys, v = parts = view(*sources)
    maps, combined = maps_of(parts, lam, mask)
    inner = grad @ v.mT
    scale = queries[0].shape[-1] ** -0.5
    of_scores = [one * (inner - (one * inner).sum(-1, keepdim=True)) * scale for one in maps]
    to_lam = None
    if len(maps) > 1:
        of_scores[1] = of_scores[1] * -per_head(lam)
        to_lam = -(inner * maps[1]).sum((0, 2, 3) if lam.ndim else None).to(lam.dtype)
    of_scores = [one.to(v.dtype) for one in of_scores]
    to_queries = [one @ k for one, k in zip(of_scores, keys, strict=True)]
    to_keys = [one.mT @ q for one, q in zip(of_scores, queries, strict=True)]
    gradients = (*to_queries, *to_keys, combined.to(v.dtype).mT @ grad)
    joined = [grad.new_empty(source.shape, dtype=source.dtype) for source in sources]
    for index, gradient in enumerate(gradients):  # views made anew: an older one knows nothing of the last writing
        flat(view(*joined))[index].copy_(gradient)
    return to_lam, joined


def takes(dtypes: set[torch.dtype], width: int) -> bool:
    """Return whether there is a kernel for parts of these dtypes, queries and keys of this width."""
    if dtypes == {torch.bfloat16} and width % 2 == 0:  # numbers go in pairs, to a matrix unit
        native = kernels()
        return native is not None and native.multiplies_bf16()
    return dtypes == {torch.float32} and kernels() is not None


def native_attention(call: Call) -> Tensor:
    """Return the attention of a call; the backward pass makes the maps again.

    First and second derivatives exist, also batched ones; forward mode does not. The mask has no gradient. Gradients
    are written through the same views: parts must not overlap, and together cover their sources.
    """
    inputs = (call.lam, *call.sources, None if call.norm is None else call.norm.weight)
    differentiable = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if not plain_forward() and not differentiable:
        return compiled_attention(call.parts, call.lam, call.mask, call.norm)
    lam = call.lam if isinstance(call.lam, Tensor) else torch.tensor(call.lam, dtype=torch.float64)
    heads: Any = _Recomputed.apply(call.view, lam, call.mask, *call.sources)
    return call.finish(heads)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, view: View, lam: Tensor, mask: Tensor | None, *sources: Tensor) -> Tensor:
        ctx.view = view
        ctx.save_for_backward(lam, mask, *sources)
        return compiled_attention(view(*sources), lam, mask)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lam, mask, *sources = ctx.saved_tensors
        grad, parts = grads[0], ctx.view(*sources)
        if (grad.dtype == torch.bfloat16 and grad.shape[-1] % 2 == 1) or plain_backward(grad):
            to_lam, to_sources = plain_gradients(grad, ctx.view, lam, mask, sources)
            return None, to_lam, None, *to_sources
        to_sources, to_lam = [torch.empty_like(source) for source in sources], None
        if ctx.needs_input_grad[1] and len(parts[0]) > 1:
            to_lam = torch.zeros(lam.shape, dtype=torch.promote_types(grad.dtype, torch.float32))
        compiled_gradients(grad, parts, lam, mask, ctx.view(*to_sources), to_lam)
        return None, None if to_lam is None else to_lam.to(lam.dtype), None, *to_sources


def compiled_attention(parts: Parts, lam: Any, mask: Tensor | None, norm: HeadNorm | None = None) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two, without a derivative; λ is ``()`` or ``(heads,)``."""
    native: Any = kernels()
    v = parts[2]
    if norm is not None and (norm.weight.dtype not in (v.dtype, torch.float32) or norm.weight.shape != v.shape[-1:]):
        return norm(compiled_attention(parts, lam, mask))
    weight, eps = (None, 0.0) if norm is None else (norm.weight.contiguous(), norm.eps)
    return native.attention(*_inputs(parts, lam, mask), weight, eps)


def compiled_gradients(
    grad: Tensor, parts: Parts, lam: Tensor, mask: Tensor | None, to_parts: Parts, to_lam: Tensor | None
) -> None:
    """Write the gradients of the parts to their places, ``to_parts``, and add that of λ to ``to_lam`` if wanted."""
    native: Any = kernels()
    places = flat(to_parts)
    rows = [_writable(place) for place in places]
    count = len(parts[0])
    of_heads = native.attention_backward(  # (batch, heads)
        _row(grad), *_inputs(parts, lam, mask), rows[:count], rows[count:-1], rows[-1]
    )
    for place, row in zip(places, rows, strict=True):
        if place is not row:
            place.copy_(row)
    if to_lam is not None:
        to_lam += of_heads.sum(0) if to_lam.ndim else of_heads.sum()


def _inputs(parts: Parts, lam: float | Tensor, mask: Tensor | None) -> tuple[Any, ...]:
    *branches, v = map(_row, flat(parts))
    queries, keys = branches[: len(parts[0])], branches[len(parts[0]) :]
    batch, heads, keys_held, _ = v.shape
    bias = dead = None
    if mask is not None:
        shape = batch, heads, queries[0].shape[-2]
        bias, dead = open_dead_rows(mask.detach(), v.dtype)
        bias = bias.float().expand(*bias.shape[:-1], keys_held)  # only a row of it is read in one stretch
        bias = (bias if bias.stride(-1) == 1 else bias.contiguous()).expand(*shape, keys_held)
        dead = dead.expand(*shape, 1) if dead.any() else None
    return queries, keys, v, torch.as_tensor(lam, dtype=torch.float32).expand(heads).contiguous(), bias, dead


def _row(x: Tensor) -> Tensor:
    return x if _in_rows(x) else x.contiguous()


def _writable(place: Tensor) -> Tensor:
    """Return a place that the kernels can write to, or memory for what torch then copies there, or refuses to."""
    shared = any(step == 0 and size > 1 for step, size in zip(place.stride(), place.shape, strict=True))
    return place if _in_rows(place) and not shared else torch.empty_like(place, memory_format=torch.contiguous_format)


def _in_rows(x: Tensor) -> bool:
    """Return whether each row is one stretch, apart from the next, of bf16 by an even number of numbers."""
    *_, apart, within = x.stride()
    return within == 1 and apart >= x.shape[-1] and (apart % 2 == 0 or x.dtype != torch.bfloat16)
