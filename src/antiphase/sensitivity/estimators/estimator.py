"""What an estimator of the local Lipschitz constant is: how it is computed, and the words that reports use for it."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.registry import ESTIMATORS, find
from antiphase.sensitivity.operator_norm import Function, OperatorNorm
from antiphase.sensitivity.sampling import Sampled


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
        passes: approximate cost in forward passes, from steps and points; None if it is negligible.
        panel: for an estimator with a panel of its own in the figure, what the caption calls it. Empty otherwise.
        console: whether the table on the console, which is 80 characters wide, has a column for it.
        from_start: whether rows have always had it. Leave it out for a new estimator: older rows of a run directory
            lack its values, so the directory's images are measured again.
    """

    name: str
    estimates: str
    value: Callable[[Neighbourhood], Float[Tensor, " batch"] | None]
    passes: Callable[[int, int], int] | None = None
    panel: str = ""
    console: bool = False
    from_start: bool = False


def all_estimators() -> list[Estimator]:
    """Return every registered estimator."""
    return [find(ESTIMATORS, name, "estimator") for name in ESTIMATORS]
