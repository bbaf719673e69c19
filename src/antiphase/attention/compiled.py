"""The forward pass of attention by a compiled kernel, on the machines that can have it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from antiphase.attention.maps import open_dead_rows
from antiphase.attention.norm import HeadNorm
from antiphase.attention.views import Branches, Parts
from antiphase.native import kernels


def takes(dtype: torch.dtype, width: int) -> bool:
    """Return whether there is a kernel for queries and keys of a dtype and width."""
    if dtype == torch.bfloat16 and width % 2 == 0:  # numbers go in pairs, to a matrix unit
        found = kernels()
        return found is not None and found.multiplies_bf16()
    return dtype == torch.float32 and kernels() is not None


def compiled_attention(
    parts: Parts, lam: float | Tensor, mask: Tensor | None, norm: HeadNorm | None = None
) -> Tensor:
    """Return A1 v for one branch, (A1 − λ·A2) v for two, without a derivative.

    Args:
        parts: queries and keys, one of each a branch, ``(batch, heads, tokens, width)``, and the values.
        lam: λ, ``()`` or ``(heads,)``; not looked at where there is one branch.
        mask: as in :func:`~antiphase.attention.maps.softmax_maps`.
        norm: what each query's row of a head passes last: before it leaves the cache, where dtypes agree.

    Returns:
        ``(batch, heads, queries, value width)``, a view of ``(batch, queries, heads, value width)``.
    """
    queries, keys, v = _rows(parts[0]), _rows(parts[1]), _row(parts[2])
    if norm is not None and (norm.weight.dtype != v.dtype or norm.weight.shape != v.shape[-1:]):
        return norm(compiled_attention(parts, lam, mask))
    batch, heads, keys_held, _ = v.shape
    bias = dead = None
    if mask is not None:
        shape = batch, heads, queries[0].shape[-2]
        bias, dead = open_dead_rows(mask, v.dtype)
        bias = bias.float().expand(*bias.shape[:-1], keys_held)  # only a row of it is read in one stretch
        bias = (bias if bias.stride(-1) == 1 else bias.contiguous()).expand(*shape, keys_held)
        dead = dead.expand(*shape, 1) if dead.any() else None
    lam = torch.as_tensor(lam, dtype=torch.float32).expand(heads).contiguous()
    found = kernels()
    assert found is not None
    weight, eps = (None, 0.0) if norm is None else (norm.weight.contiguous(), norm.eps)
    return found.attention(queries, keys, v, lam, bias, dead, weight, eps)


def _rows(branches: Branches) -> Sequence[Tensor]:
    return [_row(branch) for branch in (branches.unbind() if isinstance(branches, Tensor) else branches)]


def _row(x: Tensor) -> Tensor:
    """Return a part whose rows are one stretch each, of bf16 an even number of numbers apart."""
    *_, apart, within = x.stride()
    return x if within == 1 and (apart % 2 == 0 or x.dtype != torch.bfloat16) else x.contiguous()
