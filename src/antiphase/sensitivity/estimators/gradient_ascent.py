"""The steepest slope that gradient ascent finds within the ball."""

from torch import Tensor

from antiphase.sensitivity.estimators.estimator import Estimator, Neighbourhood
from antiphase.sensitivity.lipschitz import gradient_ascent


def _value(at: Neighbourhood) -> Tensor:
    return gradient_ascent(
        at.f,
        at.x,
        at.eps,
        steps=at.steps,
        restarts=1,
        slope=at.slope,
        sampled=at.sampled,
        seed=at.seed,
        ids=at.ids,
    ).value


ESTIMATOR = Estimator(
    name="gradient ascent",
    estimates="the steepest slope that a search within the ball found, the best lower bound",
    value=_value,
    passes=lambda steps, points: 6 * steps,
    panel="the best lower bound",
    console=True,
    from_start=True,
)
