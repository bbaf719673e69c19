"""Keyed random numbers: what a sample draws depends only on its key, not on its batch or process.

The j-th number of key k is a fixed function of (k, j), the output function of SplitMix64 (G. Steele, D. Lea, C. Flood,
*Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014) in 64-bit integer arithmetic, equal on every device.
"""

import hashlib
import math
from numbers import Integral

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Keys = Int64[Tensor, " rows"]
Bits = Int64[Tensor, "..."]
Draws = Float[Tensor, "rows count"]

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def _shift_right(x: Bits, bits: int) -> Bits:
    """Shift logically: torch's shift is arithmetic for signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Bits) -> Bits:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def key(*parts: int | str) -> int:
    """Return the 64-bit key of some integers and names, the same on every machine."""
    text = "\x1f".join(f"{'int' if isinstance(part, Integral) else type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by the key of the parts."""
    return torch.Generator().manual_seed(key(*parts) & (2**63 - 1))


def sample_keys(base: int | Keys, samples: Keys) -> Keys:
    """Return one key per row, from a base key (:func:`key`), one for all or one per row, and the sample's id."""
    return _mix(_mix(samples.to(torch.int64) * _GOLDEN + base) + base)


def uniform(keys: Keys, count: int, offset: int | Keys = 0) -> Draws:
    """Return ``count`` uniform float32 numbers in [0, 1) per key, starting at position ``offset`` of its stream."""
    counter = torch.arange(1, count + 1, device=keys.device)[None, :]
    counter = counter + (offset[:, None] if isinstance(offset, Tensor) else offset)
    return _shift_right(_mix(keys[:, None] + counter * _GOLDEN), 40).to(torch.float32) * 2.0**-24


def normal(keys: Keys, count: int, offset: int | Keys = 0) -> Draws:
    """Return ``count`` standard normal numbers per key, by the Box–Muller transform (1958)."""
    radius = (-2.0 * torch.log1p(-uniform(keys, count, offset).double())).sqrt()
    return (radius * (2.0 * math.pi * uniform(_mix(keys), count, offset).double()).cos()).float()
