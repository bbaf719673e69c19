"""Random queries, keys and values of a given shape."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def draw_inputs(
    batch=2, heads=3, queries=5, keys=7, width=11, value_width=13, *, seed=0, dtype=torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return q1, k1, q2, k2, v; all sizes are distinct primes unless told otherwise."""
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, heads, *shape, generator=stream, dtype=torch.float64).to(dtype)

    query, key = (queries, width), (keys, width)
    return normal(*query), normal(*key), normal(*query), normal(*key), normal(keys, value_width)


@pytest.fixture
def inputs() -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    return draw_inputs


@pytest.fixture
def tokens() -> Callable[..., Tensor]:
    """Return a function that draws tokens (batch, tokens, dim)."""

    def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)

    return draw


@pytest.fixture
def redraw() -> Callable[[torch.nn.Module], torch.nn.Module]:
    """Return a function that draws all of a module's parameters anew, so that none is 0 or 1."""

    def redraw(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
        stream = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_(0.0, 0.3, generator=stream)
        return module

    return redraw
