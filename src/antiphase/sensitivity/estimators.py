"""Estimators of the local Lipschitz constant; :data:`antiphase.registry.ESTIMATORS` lists them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.registry import ESTIMATORS, find
from antiphase.sensitivity.lipschitz import (
    Function,
    OperatorNorm,
    Sampled,
    exact_norm,
    gradient_ascent,
    local_maximum,
)

_FEW_OUTPUTS = 128  # as many backward passes give the whole Jacobian


@dataclass(frozen=True)
class Neighbourhood:
    """Where a local Lipschitz constant is estimated, with how much effort, and what is known there already.

    The length of a perturbation and of the output's change are L2 norms; the ball is an L∞ ball.

    Attributes:
        f: the function, which treats samples apart.
        x: the images.
        ids: their ids, which key the random draws.
        eps: radius of the ball, in units of the [0, 1] pixel range.
        steps: number of gradient ascent steps.
        points: number of random points of the ball at which slopes are looked for.
        seed: random seed.
        sampled: slopes to points drawn uniformly from the ball.
        slope: the operator norm of the Jacobian at x, by power iteration, with its direction.
    """

    f: Function
    x: Float[Tensor, "batch *shape"]
    ids: Int64[Tensor, " batch"]
    eps: float
    steps: int
    points: int
    seed: int
    sampled: Sampled
    slope: OperatorNorm


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """One estimator of the local Lipschitz constant.

    Attributes:
        name: as in ``ESTIMATORS``, the stored rows and the tables.
        estimates: what its value is and how it relates to the constant: a phrase for the page.
        value: returns the value of each sample, or None if it cannot be computed for the function.
        panel: for an estimator with a panel of its own in the figure, what the caption calls it. Empty otherwise.
        console: whether the table on the console, which is 80 characters wide, has a column for it.
        from_start: whether rows have always had it. Leave it out for a new estimator: older rows of a run directory
            lack its values, so the directory's images are measured again.
    """

    name: str
    estimates: str
    value: Callable[[Neighbourhood], Float[Tensor, " batch"] | None]
    panel: str = ""
    console: bool = False
    from_start: bool = False


def all_estimators() -> list[Estimator]:
    """Return every registered estimator."""
    return [find(ESTIMATORS, name, "estimator") for name in ESTIMATORS]


SAMPLED_MEAN = Estimator(
    name="sampled mean",
    estimates="the mean slope to points drawn uniformly from the ball. It is close to the average slope, ‖J‖_F over "
    "the root of the number of pixels, far below the constant",
    value=lambda near: near.sampled.mean,
    console=True,
    from_start=True,
)

SAMPLED_MAXIMUM = Estimator(
    name="sampled maximum",
    estimates="the largest of these slopes, a lower bound: the paper’s estimator of the supremum (Section 5.3)",
    value=lambda near: near.sampled.largest,
    panel="the paper’s estimator",
    console=True,
    from_start=True,
)

POWER_ITERATION = Estimator(
    name="power iteration",
    estimates="the operator norm of the Jacobian at the image, the steepest slope of a tiny perturbation; a closer "
    "lower bound",
    value=lambda near: near.slope.value,
    console=True,
    from_start=True,
)


def _ascended(near: Neighbourhood) -> Tensor:
    known: dict[str, Any] = {"slope": near.slope, "sampled": near.sampled, "seed": near.seed, "ids": near.ids}
    return gradient_ascent(near.f, near.x, near.eps, steps=near.steps, restarts=1, **known).value


GRADIENT_ASCENT = Estimator(
    name="gradient ascent",
    estimates="the steepest slope that a search within the ball found, the best lower bound",
    value=_ascended,
    panel="the best lower bound",
    console=True,
    from_start=True,
)


def _largest_nearby(near: Neighbourhood) -> Tensor:
    steps = -(-near.steps // 2)
    known: dict[str, Any] = {"slope": near.slope, "seed": near.seed, "ids": near.ids}
    return local_maximum(near.f, near.x, near.eps, points=near.points, steps=steps, **known).largest


LOCAL_MAXIMUM = Estimator(
    name="local maximum",
    estimates="the largest operator norm at the image and at random points of the ball. It is no lower bound: a slope "
    "at another point need not be reached from the image",
    value=_largest_nearby,
    from_start=True,
)


def _exact(near: Neighbourhood) -> Tensor | None:
    few = near.f(near.x[:1].clone()).numel() <= _FEW_OUTPUTS
    return exact_norm(near.f, near.x).value if few else None


EXACT = Estimator(
    name="exact",
    estimates="what power iteration approaches, from the whole Jacobian; for functions with few outputs",
    value=_exact,
    from_start=True,
)
