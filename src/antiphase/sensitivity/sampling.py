"""The robustness paper's estimator of a local Lipschitz constant: chords to points drawn uniformly from a ball."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.arguments import UNIQUE, Count, Positive, Seed, validated
from antiphase.attacks.engine.search import Rows
from antiphase.attacks.threat import Norm, random_point, row_norm
from antiphase.errors import UserError
from antiphase.sensitivity.eager import eager_attention
from antiphase.sensitivity.operator_norm import Function, check_inputs, checked
from antiphase.streams import key, sample_keys


@dataclass(frozen=True)
class Sampled:
    """What some points of the ball show of each sample.

    Attributes:
        largest: over the points, a lower bound of L(x).
        mean: over the points.
        perturbation: the ξ of the largest.
        norm: in which ξ is measured; the output is in L2.
        ball, eps: which points.
    """

    largest: Float[Tensor, " batch"]
    mean: Float[Tensor, " batch"]
    perturbation: Float[Tensor, "batch *shape"]
    norm: Norm
    ball: Norm
    eps: float


@validated
def uniform_sampling(
    f: Function,
    x: Float[Tensor, "batch *shape"],
    eps: Positive,
    *,
    samples: Count = 100,
    seed: Seed = 0,
    ids: Annotated[Int64[Tensor, " batch"], UNIQUE] | None = None,
    norm: Norm = "l2",
    ball: Norm = "linf",
) -> Sampled:
    """Return the largest and the mean ‖f(x + ξ) − f(x)‖₂ / ‖ξ‖ over ξ drawn uniformly from the ball.

    The robustness paper, Section 5.3, samples ξ uniformly to estimate the supremum of equation (4): its estimator is
    the largest quotient (“mean” there is over layers). With D inputs both values are near the average slope and not
    the steepest: where f is nearly linear the mean comes to ‖J‖_F/√D in L2, and the largest of K is little above it.

    Args:
        f: the function, which treats samples apart.
        x: where.
        eps: ε, above 0, in the units of x; where f works in float32 no less than about 10⁻³ of them.
        samples: K, at least 1, a forward pass each; the paper names none.
        seed: of the draws.
        ids: ids of the samples, the keys of their random draws; positions by default.
        norm: of ξ in the quotient.
        ball: of the draws.

    Raises:
        UserError: for parameters, inputs or outputs out of range, and where x + ξ = x in x's precision.
    """
    (found,) = uniform_sampling_of_all(
        lambda x: [f(x)], x, eps, samples=samples, seed=seed, ids=ids, norm=norm, ball=ball
    )
    return found


@validated
def uniform_sampling_of_all(
    functions: Callable[[Tensor], Sequence[Tensor]],
    x: Float[Tensor, "batch *shape"],
    eps: Positive,
    *,
    samples: Count = 100,
    seed: Seed = 0,
    ids: Annotated[Int64[Tensor, " batch"], UNIQUE] | None = None,
    norm: Norm = "l2",
    ball: Norm = "linf",
) -> list[Sampled]:
    """Return what :func:`uniform_sampling` does for several functions that one pass computes together.

    Args:
        functions: from x to the outputs of each.
        x: where.
        eps: as in :func:`uniform_sampling`, like all that follows.
        samples: points.
        seed: of the draws.
        ids: of the samples.
        norm: of ξ in the quotient.
        ball: of the draws.
    """
    ids = check_ball(x, eps, ids)
    with eager_attention(), torch.no_grad():
        clean = [checked(y, x) for y in functions(x.clone())]
        total = [torch.zeros_like(x.flatten(1)[:, 0]) for _ in clean]
        best = [Rows(quotient=torch.full_like(each, -1.0), delta=torch.zeros_like(x)) for each in total]
        for draw in range(samples):
            moved = draw_point(x, eps, ball, seed, ids, draw)
            delta = moved - x
            for at, y in enumerate(functions(moved)):
                quotient = chord(checked(y, x) - clean[at], delta, norm)
                total[at] += quotient
                keep(best[at], quotient, delta)
    return [
        Sampled(kept["quotient"], each / samples, kept["delta"], norm, ball, eps)
        for kept, each in zip(best, total, strict=True)
    ]


def check_ball(x: Tensor, eps: float, ids: Tensor | None) -> Int64[Tensor, " batch"]:
    """Refuse parameters and inputs out of range; return the samples' ids.

    Raises:
        UserError: naming what is.
    """
    found = check_inputs(x, ids)
    if ((x + eps == x) & (x - eps == x)).flatten(1).all(1).any():
        raise UserError(f"eps {eps}: too small for inputs in {x.dtype}, which x + ξ rounds back to")
    return found


def draw_point(x: Tensor, eps: float, ball: Norm, seed: int, ids: Tensor, draw: int) -> Tensor:
    """Return the draw-th point of each sample's stream, uniform in the ball around x."""
    keys = sample_keys(key(seed, "lipschitz", draw), ids)
    return random_point(x, x.new_full((len(x),), eps), ball, (-math.inf, math.inf), keys)


def chord(change: Tensor, delta: Tensor, norm: Norm) -> Float[Tensor, " batch"]:
    """Return ‖change‖₂ / ‖ξ‖; 0 where ξ was rounded off."""
    length = row_norm(delta, norm)
    return torch.where(length > 0, row_norm(change, "l2").to(length.dtype) / length, 0.0)


def keep(best: Rows, quotient: Tensor, delta: Tensor) -> None:
    """Take what is steeper than the best so far."""
    higher = quotient > best["quotient"]
    best.put("quotient", higher, quotient)
    best.put("delta", higher, delta)
