"""Parameterisations of λ, the weight of the subtracted map, and the schedules of its initial value."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

Parameterisation = Literal["vector", "scalar", "fixed"]
LambdaSchedule = Callable[[int], float]

DEFAULT_LAMBDA_INIT = 0.8  # Differential Transformer, Section 3.1; robustness paper, Section 5.1


def constant(lambda_init: float = DEFAULT_LAMBDA_INIT) -> LambdaSchedule:
    """Return the schedule that gives every layer the same λ_init."""
    return lambda layer: lambda_init


def depth_scheduled(layer: int) -> float:
    """Return λ_init = 0.8 − 0.6·exp(−0.3·layer) of the layer, counted from 0.

    Source: Differential Transformer, Section 2.1 (which counts from 1); DiffCLIP's dynamic variant.

    >>> round(depth_scheduled(0), 3), round(depth_scheduled(11), 3)
    (0.2, 0.778)
    """
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class VectorLambda(nn.Module):
    """λ = exp(q1·k1) − exp(q2·k2) + λ_init with four learned vectors, shared by the heads of a layer.

    Source: Differential Transformer, equation (2); the vectors start as N(0, 0.1).

    Args:
        width: length of the vectors (the query width of a head).
        lambda_init: λ_init, usually in [0, 1].
    """

    def __init__(self, width: int, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.q1, self.k1, self.q2, self.k2 = (nn.Parameter(0.1 * torch.randn(width)) for _ in range(4))

    def forward(self) -> Float[Tensor, ""]:
        """Return the current λ."""
        return (self.q1 * self.k1).sum().exp() - (self.q2 * self.k2).sum().exp() + self.lambda_init


class ScalarLambda(nn.Module):
    """λ = exp(a) − exp(b) + λ_init with two learned numbers for each head, both 0 at the start.

    DiffCLIP's text speaks of scalars for each head without a formula; this is the scalar form that
    timm's ``DiffAttention(dual_lambda=True)`` uses for a layer.

    Args:
        num_diff_heads: number of differential heads.
        lambda_init: λ_init, usually in [0, 1].
    """

    def __init__(self, num_diff_heads: int, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.a, self.b = (nn.Parameter(torch.zeros(num_diff_heads)) for _ in range(2))

    def forward(self) -> Float[Tensor, " heads"]:
        """Return the current λ of each head."""
        return self.a.exp() - self.b.exp() + self.lambda_init


class FixedLambda(nn.Module):
    """λ = λ_init, not learned.

    Args:
        lambda_init: λ.
    """

    value: Tensor

    def __init__(self, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.register_buffer("value", torch.tensor(float(lambda_init)), persistent=False)

    def forward(self) -> Float[Tensor, ""]:
        """Return λ."""
        return self.value


def make_lambda(kind: Parameterisation, lambda_init: float, *, width: int, num_diff_heads: int) -> nn.Module:
    """Return the module that computes λ.

    Raises:
        ValueError: for a parameterisation that does not exist.
    """
    if kind == "vector":
        return VectorLambda(width, lambda_init)
    if kind == "scalar":
        return ScalarLambda(num_diff_heads, lambda_init)
    if kind == "fixed":
        return FixedLambda(lambda_init)
    raise ValueError(f"parameterisation {kind!r} of λ: expected 'vector', 'scalar' or 'fixed'")
