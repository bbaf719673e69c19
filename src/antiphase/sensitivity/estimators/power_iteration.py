"""The operator norm of the Jacobian at the image, by power iteration."""

from antiphase.sensitivity.estimators.estimator import Estimator

ESTIMATOR = Estimator(
    name="power iteration",
    estimates="the operator norm of the Jacobian at the image, the steepest slope of a tiny perturbation; a closer "
    "lower bound",
    value=lambda at: at.slope.value,
    passes=lambda steps, points: 6 * steps,
    console=True,
    from_start=True,
)
