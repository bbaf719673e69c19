"""The choice of a backend: checks a call and hands it to the backend that was asked for, or to the fastest one."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.backends.compiled import Call, HeadNorm, View, maps_of, native_attention, takes
from antiphase.attention.maps import open_dead_rows, plain_combine
from antiphase.attention.modes import plain_forward
from antiphase.errors import UserError

BackendName = Literal["auto", "eager", "native", "sdpa"]
_VERY_FEW = 32  # keys
_NATIVE = "float32 or, with AVX512-BF16, bfloat16 of even width, on a CPU with AVX-512 under Linux, and g++"


def _eager(call: Call) -> Tensor:
    v = call.parts[2]
    _, combined = maps_of(call.parts, call.lam, call.mask)
    return call.finish(combined.to(v.dtype) @ v)


def _sdpa(call: Call) -> Tensor:
    queries, keys, v = call.parts
    bias, dead = (None, None) if call.mask is None else open_dead_rows(call.mask, v.dtype)
    outs = [F.scaled_dot_product_attention(q, k, v, bias) for q, k in zip(queries, keys, strict=True)]
    outs = outs if dead is None else [out.masked_fill(dead, 0.0) for out in outs]
    return call.finish(plain_combine(outs[0], outs[1], call.lam).to(outs[0].dtype) if len(outs) > 1 else outs[0])


BACKENDS: dict[str, Callable[[Call], Tensor]] = {"eager": _eager, "native": native_attention, "sdpa": _sdpa}


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
    - ``"native"``, in C++ built at first use, keeps no map and has no forward mode; a λ for each query takes "eager".
    - ``"sdpa"`` calls torch's fused attention for each branch.
    """
    if backend != "auto" and backend not in BACKENDS:
        raise UserError(f"backend {backend!r}: expected one of auto, {', '.join(BACKENDS)}")
    call = Call(view, sources, view(*sources), lam, mask, norm)
    queries, keys = ([branch.shape for branch in branches] for branches in call.parts[:2])
    regular = _check(queries, keys, call.parts[2].shape, lam)
    name = _fastest(call, queries) if backend == "auto" else backend
    if name == "native" and not regular:
        name = "eager"
    if name == "native":
        device = call.parts[2].device.type
        if torch.is_autocast_enabled(device):
            sources = tuple(source.to(torch.get_autocast_dtype(device)) for source in sources)
            call = call._replace(sources=sources, parts=view(*sources))
        if device != "cpu" or not takes(call.dtypes, queries[0][-1]):
            kinds = f"{' and '.join(sorted(map(str, call.dtypes)))}, {queries[0][-1]} wide"
            raise UserError(f"backend 'native' for {kinds}: expected {_NATIVE}; or take 'auto'")
    return BACKENDS[name](call)


def attend_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, backend: BackendName) -> Tensor:
    """Return A v of heads of one map each; heads that share keys and values are more queries of one head."""
    heads, keys, tokens = q.shape[1], k.shape[1], q.shape[2]
    if (group := heads // keys) > 1:
        q = q.unflatten(1, (keys, group)).flatten(2, 3)
        if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
            mask = torch.cat([mask] * group, -2)
    out = attend(lambda q, k, v: ((q,), (k,), v), 0.0, mask, backend, q, k, v)
    return out.unflatten(2, (group, tokens)).flatten(1, 2) if group > 1 else out


def _fastest(call: Call, queries: Sequence[torch.Size]) -> str:
    if (v := call.parts[2]).device.type != "cpu":
        return "sdpa"
    if plain_forward() or (call.mask is not None and call.mask.requires_grad):
        return "eager"
    dtypes = {torch.get_autocast_dtype("cpu")} if torch.is_autocast_enabled("cpu") else call.dtypes
    native = takes(dtypes, queries[0][-1])
    if len(queries) == 1 and torch.bfloat16 not in dtypes and (not native or v.shape[-2] <= _VERY_FEW):
        return "sdpa"
    return "native" if native else "eager"


def _check(queries: list[torch.Size], keys: list[torch.Size], values: torch.Size, lam: Any) -> bool:
    """Return whether the kernels can compute parts of these shapes; refuse a λ that does not fit."""
    of_lam, every = tuple(lam.shape) if isinstance(lam, Tensor) else (), tuple(queries[0][:-1])
    if of_lam not in ((), every[-2:-1], every):
        words = f"expected (), one for each of {every[-2]} heads, or {every}: one for each query"
        raise UserError(f"lam of shape {of_lam}: {words}")
    leading = {shape[:-2] for shape in (*queries, *keys, values)}
    return len(of_lam) < 2 and 0 not in (*queries[0], *values) and len(leading) == 1
