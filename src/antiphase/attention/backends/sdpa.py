"""Attention by torch's fused ``scaled_dot_product_attention``, called once per branch."""

import torch.nn.functional as F
from torch import Tensor

from antiphase.attention.backends.contract import Backend, Call
from antiphase.attention.maps import open_dead_rows, plain_combine


def _forward(call: Call) -> Tensor:
    queries, keys, v = call.parts
    outs = [_fused(q, k, v, call.mask) for q, k in zip(queries, keys, strict=True)]
    return call.finish(
        plain_combine(outs[0], outs[1], call.lam).to(outs[0].dtype) if len(outs) > 1 else outs[0]
    )


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q kᵀ/√width) v; masks as in :func:`~antiphase.attention.maps.softmax_maps`."""
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v)
    bias, dead = open_dead_rows(mask, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).masked_fill(dead, 0.0)


SDPA = Backend("sdpa", _forward)
