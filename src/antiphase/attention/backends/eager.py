"""Attention in plain tensor operations: forms the maps, subtracts them and multiplies the values once.

All derivatives exist, including forward mode and second order.
"""

from torch import Tensor

from antiphase.attention.backends.contract import Backend, Call
from antiphase.attention.backends.views import split
from antiphase.attention.maps import plain_combine, plain_maps


def _forward(call: Call) -> Tensor:
    queries, keys, v = split(call.view, call.sources)
    maps = [plain_maps(q, k, call.mask) for q, k in zip(queries, keys, strict=True)]
    combined = plain_combine(maps[0], maps[1], call.lam) if len(maps) > 1 else maps[0]
    return call.finish(combined.to(v.dtype) @ v)


EAGER = Backend("eager", _forward)
