"""Means over training seeds and images that are crossed: every model was measured on the same images."""

import math

import numpy as np
from jaxtyping import Float
from scipy import stats

from antiphase.evaluation.statistics import Estimate


def crossed_mean(values: Float[np.ndarray, "seeds samples"], confidence: float = 0.95) -> Estimate:
    """Estimate the mean over crossed seeds and samples.

    With x = μ + seed + sample + residual, the variance of the grand mean is
    σ_seed²/k + σ_sample²/n + σ_residual²/(kn). With S the variance of the seeds' means divided by k, I that of the
    samples' means divided by n and R that of the residuals divided by kn, s² = S + I − R, at least the larger of S and
    I. The interval is m ± t·s, Student's t at Satterthwaite's degrees of freedom s⁴/(S²/(k − 1) + I²/(n − 1)). Samples
    of equal values get the variance with one more hit on either side, (n + 1)/(n + 2)², since 0 hits of n do not imply
    a rate of 0. With one seed the interval is over the samples only.

    Args:
        values: hits, or differences of hits, within [−1, 1]; one row per seed, one column per sample.
        confidence: level in (0, 1).

    Returns:
        The estimate, with n the number of samples; its interval is not clipped to [−1, 1].

    Raises:
        ValueError: There are no values, or one is not finite.

    Source: F. E. Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics
    Bulletin 2:110–114 (1946); the two-way random-effects model.

    >>> crossed_mean(np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])).value
    0.625
    """
    k, n = values.shape
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"{k} seeds × {n} samples: expected at least one of each, and finite values")
    mean = float(values.mean())
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    by_seed, by_sample = values.mean(1), values.mean(0)
    samples = float(by_sample.var(ddof=1))
    samples = (samples if samples > 1e-12 else (n + 1) / (n + 2) ** 2) / n
    if k == 1:
        variance, degrees = samples, n - 1.0
    else:
        seeds = float(by_seed.var(ddof=1)) / k
        rest = values - by_seed[:, None] - by_sample[None] + mean
        rest = float(np.square(rest).sum()) / ((k - 1) * (n - 1)) / (k * n)
        variance = max(seeds + samples - rest, seeds, samples)
        degrees = variance**2 / (seeds**2 / (k - 1) + samples**2 / (n - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, degrees)) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half, n)
