"""The robustness paper's uniform sampling (Section 5.3): the maximum of the slopes, its estimator, and their mean."""

from antiphase.sensitivity.estimators.estimator import Estimator

MEAN = Estimator(
    name="sampled mean",
    estimates="the mean slope to points drawn uniformly from the ball. It is close to the average slope, ‖J‖_F over "
    "the root of the number of pixels, far below the constant",
    value=lambda at: at.sampled.mean,
    console=True,
    from_start=True,
)
MAXIMUM = Estimator(
    name="sampled maximum",
    estimates="the largest of these slopes, a lower bound: the paper’s estimator of the supremum (Section 5.3)",
    value=lambda at: at.sampled.largest,
    panel="the paper’s estimator",
    console=True,
    from_start=True,
)
