"""The choice of a backend: checks a call and hands it to the backend that was asked for, or to the fastest one."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.backends import compiled
from antiphase.attention.backends.chunked import CHUNKED
from antiphase.attention.backends.compiled import NATIVE
from antiphase.attention.backends.contract import (
    Backend,
    Branches,
    Call,
    View,
    maps_of,
    may_need_gradients,
    split,
)
from antiphase.attention.backends.norm import HeadNorm
from antiphase.attention.maps import open_dead_rows, plain_combine
from antiphase.attention.modes import plain_forward
from antiphase.errors import UserError

BackendName = Literal["auto", "eager", "chunked", "native", "sdpa"]
_FEW, _VERY_FEW = 64, 32  # keys


def _eager(call: Call) -> Tensor:
    """Form the maps, subtract them and multiply the values once."""
    queries, keys, v = split(call.view, call.sources)
    _, combined = maps_of((queries, keys, v), call.lam, call.mask)
    return call.finish(combined.to(v.dtype) @ v)


def _sdpa(call: Call) -> Tensor:
    queries, keys, v = call.parts
    outs = [_fused(q, k, v, call.mask) for q, k in zip(queries, keys, strict=True)]
    dtype = outs[0].dtype
    return call.finish(plain_combine(outs[0], outs[1], call.lam).to(dtype) if len(outs) > 1 else outs[0])


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v)
    bias, dead = open_dead_rows(mask, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).masked_fill(dead, 0.0)


EAGER, SDPA = Backend("eager", _eager), Backend("sdpa", _sdpa)
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (EAGER, CHUNKED, NATIVE, SDPA)}


def attend(
    view: View,
    lam: float | Tensor,
    mask: Tensor | None,
    backend: BackendName,
    *sources: Tensor,
    norm: HeadNorm | None = None,
) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two, normed, of parts that are views of the sources.

    - ``"auto"`` takes the fastest backend that can compute the call (dev/attention-backends.md).
    - ``"eager"`` forms the maps; all derivatives exist, including forward mode and second order.
    - ``"chunked"`` works in pieces that fit a CPU's cache and keeps no map; no forward mode.
    - ``"native"`` does that in C++, built at first use: float32 on Linux on x86-64 with AVX-512 and a C++ compiler,
      bfloat16 if the processor has AVX512-BF16.
    - ``"sdpa"`` calls torch's fused attention for each branch.

    A λ for each query goes through ``"eager"`` in place of ``"chunked"`` and ``"native"``.
    """
    if backend != "auto" and backend not in BACKENDS:
        raise UserError(f"backend {backend!r}: expected one of auto, {', '.join(BACKENDS)}")
    call = Call(view, sources, view(*sources), lam, mask, norm)
    of_queries, of_keys = _shapes(call.parts[0]), _shapes(call.parts[1])
    regular = _check(of_queries, of_keys, call.parts[2].shape, lam)
    chosen = _fastest(call, of_queries) if backend == "auto" else BACKENDS[backend]
    if chosen.own_backward:
        device = call.parts[2].device.type
        if device != "cpu":
            raise ValueError(
                f"backend {chosen.name!r} on {device}: expected a CPU; 'auto' takes one that is available"
            )
        if not regular:
            chosen = EAGER
        elif torch.is_autocast_enabled(device):
            sources = tuple(source.to(torch.get_autocast_dtype(device)) for source in sources)
            call = call._replace(sources=sources, parts=view(*sources))
    if (expected := chosen.refusal(call)) is not None:
        kinds = f"{' and '.join(sorted(map(str, call.dtypes)))}, {of_queries[0][-1]} wide"
        words = f"expected {expected}; 'auto' takes one that is available"
        raise UserError(f"backend {chosen.name!r} for {kinds}: {words}")
    return chosen.forward(call)


def _fastest(call: Call, queries: Sequence[torch.Size]) -> Backend:
    """Return the backend that was the fastest on a CPU among those that can compute the call."""
    v = call.parts[2]
    if v.device.type != "cpu":
        return SDPA
    if plain_forward() or (call.mask is not None and call.mask.requires_grad):
        return EAGER
    dtypes = {torch.get_autocast_dtype("cpu")} if torch.is_autocast_enabled("cpu") else call.dtypes
    native = compiled.takes(dtypes, queries[0][-1])
    if len(queries) == 1 and torch.bfloat16 not in dtypes and (not native or v.shape[-2] <= _VERY_FEW):
        return SDPA
    if native:
        return NATIVE
    if v.shape[-2] <= _FEW and may_need_gradients(call.lam, *call.sources):
        return EAGER  # keeping such small maps is faster than computing them again in pieces
    return CHUNKED


def _shapes(branches: Branches) -> list[torch.Size]:
    """Return the shape of each branch, without making views of those that lie in one tensor."""
    if isinstance(branches, Tensor):
        return [branches.shape[1:]] * len(branches)
    return [branch.shape for branch in branches]


def _check(
    queries: list[torch.Size], keys: list[torch.Size], values: torch.Size, lam: float | Tensor
) -> bool:
    """Refuse shapes that do not fit; return whether a backend with a backward pass of its own can compute them."""
    of_lam, (*every, _) = lam.shape if isinstance(lam, Tensor) else (), queries[0]
    if tuple(of_lam) not in ((), (every[-2],), tuple(every)):
        words = f"expected (), one for each of {every[-2]} heads, or {tuple(every)}: one for each query"
        raise UserError(f"lam of shape {tuple(of_lam)}: {words}")
    shapes = [*queries, *keys, values]
    tokens, widths = [shape[-2] for shape in shapes], [shape[-1] for shape in shapes[:-1]]
    if len({*tokens[: len(queries)]}) > 1 or len({*tokens[len(queries) :]}) > 1:
        words = "expected one number for all queries and one for all keys and values"
        raise UserError(f"queries, keys and values of {', '.join(map(str, tokens))} tokens: {words}")
    if len({*widths}) > 1:
        raise UserError(f"queries and keys {', '.join(map(str, widths))} wide: expected one width for all")
    return len(of_lam) < 2 and 0 not in (*queries[0], *values) and len({shape[:-2] for shape in shapes}) == 1
