"""The robustness paper's uniform sampling (Section 5.3): the mean and the maximum of the slopes."""

from antiphase.sensitivity.estimators.estimator import Estimator

MEAN = Estimator(
    name="sampled mean",
    estimates="the mean slope to points drawn uniformly from the ball (Section 5.3 of the paper). It is close to the "
    "average slope, ‖J‖_F over the root of the number of pixels, far below the constant",
    value=lambda at: at.sampled.mean,
    panel="the paper’s estimator",
    console=True,
    from_start=True,
)
MAXIMUM = Estimator(
    name="sampled maximum",
    estimates="the largest of these slopes, a lower bound",
    value=lambda at: at.sampled.largest,
    console=True,
    from_start=True,
)
