"""Parameterisations of λ, the weight of the subtracted map, and the schedules of its initial value.

A λ module returns λ of shape ``()``, ``(heads,)`` or ``(batch, heads, queries)``, called with the layer's tokens if its
class says ``reads_tokens = True``. ``draw_parameters(stream)`` draws its parameters; ``stream(name)`` is the random
generator of one. A new module is registered in :data:`antiphase.registry.LAMBDAS`, a schedule in ``SCHEDULES``.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import Count, at_least, validated

Stream = Callable[[str], torch.Generator]  # from a parameter's name in the module to its generator

DEFAULT_LAMBDA_INIT = 0.8  # Differential Transformer, Section 3.1; sensitivity paper, Section 5.1


@validated
def constant(lambda_init: float = DEFAULT_LAMBDA_INIT) -> Callable[[int], float]:
    """Return the schedule that gives every layer the same λ_init."""
    return lambda layer: lambda_init


@validated
def depth_scheduled(layer: Annotated[int, at_least(0)]) -> float:
    """Return λ_init = 0.8 − 0.6·exp(−0.3·layer) of the layer, counted from 0.

    Source: Differential Transformer, Section 2.1 (which counts from 1); DiffCLIP's dynamic variant.

    >>> round(depth_scheduled(0), 3), round(depth_scheduled(11), 3)
    (0.2, 0.778)
    """
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


def by_depth(lambda_init: float) -> Callable[[int], float]:
    """Return the schedule :func:`depth_scheduled`, whatever the λ_init."""
    return depth_scheduled


class VectorLambda(nn.Module):
    """λ = exp(q1·k1) − exp(q2·k2) + λ_init, four vectors for all heads (Differential Transformer, equation 2)."""

    @validated
    def __init__(self, width: Count, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.q1, self.k1, self.q2, self.k2 = (nn.Parameter(0.1 * torch.randn(width)) for _ in range(4))

    def draw_parameters(self, stream: Stream) -> None:
        for name, parameter in self.named_parameters():
            nn.init.normal_(parameter, 0.0, 0.1, stream(name))

    def forward(self) -> Float[Tensor, ""]:
        return (self.q1 * self.k1).sum().exp() - (self.q2 * self.k2).sum().exp() + self.lambda_init


class ScalarLambda(nn.Module):
    """λ = exp(a) − exp(b) + λ_init, two learned numbers for each head, 0 at the start (timm's ``dual_lambda=True``)."""

    @validated
    def __init__(self, num_diff_heads: Count, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.a, self.b = (nn.Parameter(torch.zeros(num_diff_heads)) for _ in range(2))

    def draw_parameters(self, stream: Stream) -> None:
        nn.init.zeros_(self.a)
        nn.init.zeros_(self.b)

    def forward(self) -> Float[Tensor, " heads"]:
        return self.a.exp() - self.b.exp() + self.lambda_init


class FixedLambda(nn.Module):
    """λ = λ_init, not learned."""

    value: Tensor

    @validated
    def __init__(self, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.register_buffer("value", torch.tensor(float(lambda_init)), persistent=False)

    def draw_parameters(self, stream: Stream) -> None:
        """Draw nothing: it has no parameters."""

    def forward(self) -> Float[Tensor, ""]:
        return self.value


class GateLambda(nn.Module):
    """λ = σ(x·W), one number for each token and head: ``lambda_proj`` of Diff Transformer V2 (microsoft/unilm)."""

    reads_tokens = True

    @validated
    def __init__(self, dim: Count, num_diff_heads: Count) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, num_diff_heads, bias=False)

    def draw_parameters(self, stream: Stream) -> None:
        bound = self.gate.in_features**-0.5
        nn.init.uniform_(self.gate.weight, -bound, bound, stream("gate.weight"))

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch heads tokens"]:
        return self.gate(x).sigmoid().mT


class LambdaSizes(NamedTuple):
    """Sizes of the layer that a λ module belongs to: widths of the tokens and of a head's queries, and heads."""

    dim: int
    width: int
    num_diff_heads: int


# from the sizes of a layer and λ_init, which the layer's factor 1 − λ_init keeps where λ is zero
make_vector, make_scalar, make_gate, make_fixed, make_zero = (
    lambda sizes, lambda_init: VectorLambda(sizes.width, lambda_init),
    lambda sizes, lambda_init: ScalarLambda(sizes.num_diff_heads, lambda_init),
    lambda sizes, lambda_init: GateLambda(sizes.dim, sizes.num_diff_heads),
    lambda sizes, lambda_init: FixedLambda(lambda_init),
    lambda sizes, lambda_init: FixedLambda(0.0),
)


def lambda_of(module: nn.Module) -> nn.Module | None:
    """Return the λ module of an attention module, None if it has none."""
    lam = getattr(module, "lam", None)
    return lam if isinstance(lam, nn.Module) and hasattr(type(lam), "draw_parameters") else None


def reads_tokens(lam: nn.Module) -> bool:
    """Return whether a λ module is called with the layer's tokens."""
    return getattr(type(lam), "reads_tokens", False)


def lambda_at(lam: nn.Module, x: Float[Tensor, "batch tokens dim"], queries: int | None = None) -> Tensor:
    """Return λ at some tokens, the first ``queries`` of which attend: ``()``, ``(heads,)`` or one for each query."""
    value: Any = lam(x) if reads_tokens(lam) else lam()
    return value[..., :queries] if value.ndim == 3 else value
