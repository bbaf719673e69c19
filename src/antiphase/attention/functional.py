"""Differential attention as a pure function of tensors, and the choice of what computes it.

Source: T. Ye et al., *Differential Transformer*, ICLR 2025; as used by *Understanding Sensitivity of
Differential Attention through the Lens of Adversarial Robustness* (2025), Section 3.2.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from antiphase.attention.backends import compiled
from antiphase.attention.backends.autograd import recomputed_attention
from antiphase.attention.backends.compiled import compiled_attention
from antiphase.attention.backends.norm import HeadNorm
from antiphase.attention.backends.views import Branches, Parts, View, split
from antiphase.attention.maps import combine, open_dead_rows, softmax_maps
from antiphase.attention.modes import plain_forward

Backend = Literal["auto", "eager", "chunked", "native", "sdpa"]
_FEW, _VERY_FEW = 64, 32  # keys
BACKENDS: tuple[Backend, ...] = ("auto", "eager", "chunked", "native", "sdpa")


def differential_attention(
    q1: Float[Tensor, "batch heads queries width"],
    k1: Float[Tensor, "batch heads keys width"],
    q2: Float[Tensor, "batch heads queries width"],
    k2: Float[Tensor, "batch heads keys width"],
    v: Float[Tensor, "batch heads keys value_width"],
    lam: float | Float[Tensor, "..."],
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return (softmax(q1 k1ᵀ/√width) − λ·softmax(q2 k2ᵀ/√width)) v.

    Args:
        q1: queries of the positive map.
        k1: keys of the positive map.
        q2: queries of the negative map.
        k2: keys of the negative map.
        v: values, of any width of their own.
        lam: λ, one number or one for each head: shape ``()`` or ``(heads,)``.
        mask: broadcastable to ``(batch, heads, queries, keys)``; boolean (True: may be attended to) or
            added to the scores. A query that may attend to nothing gets zeros.
        backend: see :func:`attend`.

    Raises:
        ValueError: for a backend that does not exist or cannot take the inputs, heads that do not match λ, or
            a mask of integers.
    """
    return attend(_two_branches, lam, mask, backend, q1, k1, q2, k2, v)


def standard_attention(
    q: Float[Tensor, "batch heads queries width"],
    k: Float[Tensor, "batch heads keys width"],
    v: Float[Tensor, "batch heads keys value_width"],
    *,
    mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return softmax(q kᵀ/√width) v; arguments as in :func:`differential_attention`."""
    return attend(_one_branch, 0.0, mask, backend, q, k, v)


def _one_branch(q: Tensor, k: Tensor, v: Tensor) -> Parts:
    return (q,), (k,), v


def _two_branches(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor) -> Parts:
    return (q1, q2), (k1, k2), v


def attend(
    view: View,
    lam: float | Tensor,
    mask: Tensor | None,
    backend: Backend,
    *sources: Tensor,
    norm: HeadNorm | None = None,
) -> Tensor:
    """Return the attended values of parts that are views of some tensors, such as one projection.

    Args:
        view: returns the queries and the keys, one of each a branch, and the values, as views of the sources.
        lam: as in :func:`differential_attention`; not looked at where there is one branch.
        mask: as there.
        backend: ``"auto"`` takes, of those that can do what is asked, what was measured to be the quickest on
            a CPU (dev/attention-backends.md); on other devices torch's attention, unmeasured. ``"eager"`` forms the
            maps, subtracts them and multiplies v once: every derivative exists, forward mode and second order too.
            ``"chunked"`` does the same in pieces that fit a CPU's cache and keeps no map; no forward mode.
            ``"native"`` does that in C++, built at first use: float32 on Linux on x86-64 with AVX-512 and a C++
            compiler, bfloat16 where the processor multiplies it (AVX512-BF16, which all with AMX have).
            ``"sdpa"`` calls torch's fused attention for each branch.
        sources: what is viewed.
        norm: what each query's row of a head passes last, if anything.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    queries, keys, v = view(*sources)
    if isinstance(lam, Tensor) and lam.ndim and lam.shape != (queries[0].shape[-3],):
        raise ValueError(
            f"lam of shape {tuple(lam.shape)}: expected () or one for each of {queries[0].shape[-3]} heads"
        )
    of_queries, of_keys = _shapes(queries), _shapes(keys)
    if backend == "auto":
        backend = _quickest(of_queries, v, lam, mask, sources)
    shapes = [*of_queries, *of_keys, v.shape]
    if len({shape[-2] for shape in of_queries}) > 1 or len({shape[-2] for shape in (*of_keys, v.shape)}) > 1:
        raise ValueError(
            f"queries, keys and values of {', '.join(str(shape[-2]) for shape in shapes)} tokens: expected one "
            "number for all queries and one for all keys and values"
        )
    widths = [shape[-1] for shape in (*of_queries, *of_keys)]
    if len(set(widths)) > 1:
        raise ValueError(f"queries and keys {', '.join(map(str, widths))} wide: expected one width for all")
    if backend in ("chunked", "native") and (
        0 in (*shapes[0], *v.shape) or len({shape[:-2] for shape in shapes}) > 1
    ):
        backend = "eager"  # nothing to cut, or heads that are broadcast
    if backend in ("chunked", "native") and torch.is_autocast_enabled(v.device.type):
        sources = tuple(source.to(torch.get_autocast_dtype(v.device.type)) for source in sources)
        queries, keys, v = view(*sources)
    if backend == "native":
        dtypes = {source.dtype for source in sources}
        if not compiled.takes(dtypes, widths[0]):
            raise ValueError(
                f"backend 'native' for {' and '.join(sorted(map(str, dtypes)))}, {widths[0]} wide: expected float32 "
                "or, with AVX512-BF16, bfloat16 of even width, on Linux on x86-64 with AVX-512 and g++; 'auto' "
                "takes what there is"
            )
        if not plain_forward() and not _differentiated(lam, norm, sources):
            return compiled_attention((queries, keys, v), lam, mask, norm)
    heads = _heads(backend, view, lam, mask, sources)
    return heads if norm is None else norm(heads)


def _heads(
    backend: Backend, view: View, lam: float | Tensor, mask: Tensor | None, sources: Sequence[Tensor]
) -> Tensor:
    """Return what a backend makes of parts that it can take."""
    if backend in ("chunked", "native"):
        return recomputed_attention(view, lam, mask, *sources, native=backend == "native")
    if backend == "eager":
        queries, keys, v = split(view, sources)
        maps = [softmax_maps(q, k, mask) for q, k in zip(queries, keys, strict=True)]
        combined = combine(maps[0], maps[1], lam) if len(maps) > 1 else maps[0]
        return combined.to(v.dtype) @ v
    queries, keys, v = view(*sources)
    outs = [_fused(q, k, v, mask) for q, k in zip(queries, keys, strict=True)]
    return combine(outs[0], outs[1], lam).to(outs[0].dtype) if len(outs) > 1 else outs[0]


def _differentiated(lam: float | Tensor, norm: HeadNorm | None, sources: Sequence[Tensor]) -> bool:
    """Return whether any gradient may be asked for."""
    weights = () if norm is None else (norm.weight,)
    inputs = (x for x in (lam, *weights, *sources) if isinstance(x, Tensor))
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def _shapes(branches: Branches) -> list[torch.Size]:
    """Return the shape of each branch, without making views of those that lie in one tensor."""
    if isinstance(branches, Tensor):
        return [branches.shape[1:]] * len(branches)
    return [branch.shape for branch in branches]


def _quickest(
    queries: Sequence[torch.Size],
    v: Tensor,
    lam: float | Tensor,
    mask: Tensor | None,
    sources: Sequence[Tensor],
) -> Backend:
    """Return the backend that was the quickest on a CPU of those that can do what is asked."""
    if v.device.type != "cpu":
        return "sdpa"
    if plain_forward() or (mask is not None and mask.requires_grad):
        return "eager"
    dtypes = {source.dtype for source in sources}
    if torch.is_autocast_enabled("cpu"):
        dtypes = {torch.get_autocast_dtype("cpu")}
    native = compiled.takes(dtypes, queries[0][-1])
    if len(queries) == 1 and torch.bfloat16 not in dtypes and (not native or v.shape[-2] <= _VERY_FEW):
        return "sdpa"
    if native:
        return "native"
    if v.shape[-2] <= _FEW and _differentiated(lam, None, sources):
        return "eager"  # keeping such small maps is quicker than making them again in pieces
    return "chunked"


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q kᵀ/√width) v by torch's fused attention; masks as in :func:`softmax_maps`."""
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v)
    bias, dead = open_dead_rows(mask, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).masked_fill(dead, 0.0)
