"""The operator norm at the image from the whole Jacobian, for functions with few outputs."""

from torch import Tensor

from antiphase.sensitivity.estimators.estimator import Estimator, Neighbourhood
from antiphase.sensitivity.operator_norm import exact_norm

_FEW_OUTPUTS = 128  # as many backward passes give the whole Jacobian


def _value(at: Neighbourhood) -> Tensor | None:
    if at.f(at.x[:1].clone()).numel() > _FEW_OUTPUTS:
        return None
    return exact_norm(at.f, at.x).value


ESTIMATOR = Estimator(
    name="exact",
    estimates="what power iteration approaches, from the whole Jacobian; for functions with few outputs",
    value=_value,
    from_start=True,
)
