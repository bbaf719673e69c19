"""The largest operator norm of the Jacobian at the image and at random points of the ball."""

from torch import Tensor

from antiphase.sensitivity.estimators.estimator import Estimator, Neighbourhood
from antiphase.sensitivity.lipschitz import local_maximum


def _value(at: Neighbourhood) -> Tensor:
    return local_maximum(
        at.f,
        at.x,
        at.eps,
        points=at.points,
        steps=-(-at.steps // 2),
        slope=at.slope,
        seed=at.seed,
        ids=at.ids,
    ).largest


ESTIMATOR = Estimator(
    name="local maximum",
    estimates="the largest operator norm at the image and at random points of the ball. It is no lower bound: a slope "
    "at another point need not be reached from the image",
    value=_value,
    passes=lambda steps, points: 3 * steps * points,
    from_start=True,
)
