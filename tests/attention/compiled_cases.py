"""What the compiled kernels are tried on, and how near they must come."""

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention.backends.choice import attend
from antiphase.attention.backends.native import kernels

DTYPES = [torch.float32, torch.bfloat16]
MASKS = {
    "none": lambda draw, q, k: None,
    "boolean": lambda draw, q, k: torch.rand(2, 1, q, k, generator=draw) < 0.6,
    "causal": lambda draw, q, k: torch.ones(q, k, dtype=torch.bool).tril(),
    "padding": lambda draw, q, k: torch.rand(2, 1, 1, k, generator=draw) < 0.5,
    "queries": lambda draw, q, k: torch.rand(q, 1, generator=draw) < 0.5,
    "additive": lambda draw, q, k: torch.randn(3, q, k, generator=draw),
    "nothing": lambda draw, q, k: torch.zeros(q, k, dtype=torch.bool),
}


LAYOUTS = ["transposed", "every second", "shifted", "broadcast", "one token"]


def parts_seen(layout, dtype):
    """Return a function that draws a part of a shape whose numbers lie as the layout says."""
    draw = torch.Generator().manual_seed(0)

    def part(batch, heads, rows, width):
        def normal(*shape):
            return torch.randn(shape, generator=draw).to(dtype)

        if layout == "transposed":
            return normal(batch, heads, width, rows).mT
        if layout == "every second":
            return normal(batch, heads, rows, 2 * width + 1)[..., 1::2]
        if layout == "shifted":
            return normal(batch, heads, rows, width + 1)[..., 1:]
        few = {"broadcast": (1, heads, rows, width), "one token": (batch, heads, 1, width)}[layout]
        return normal(*few).expand(batch, heads, rows, width)

    return part


def standard_attention(q, k, v, *, mask=None, backend="auto"):
    """Return softmax(q kᵀ/√width) v by a backend."""
    return attend(lambda q, k, v: ((q,), (k,), v), 0.0, mask, backend, q, k, v)


def mask_of(kind, draw, queries, keys, dtype):
    """Return a mask; what is added to scores in numbers that the dtype has, as attention rounds it."""
    mask = MASKS[kind](draw, queries, keys)
    return mask if mask is None or mask.dtype == torch.bool else mask.to(dtype).float()


def skip_unless_taken(dtype):
    if dtype == torch.bfloat16 and not kernels().multiplies_bf16():
        pytest.skip("the kernel takes bfloat16 with AVX512-BF16 only")


def assert_near(actual, exact, dtype):
    assert actual.dtype == dtype
    assert actual.isfinite().all()
    size = max(1.0, float(exact.abs().max()))
    assert_close(actual.double(), exact, rtol=0, atol={torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype] * size)
