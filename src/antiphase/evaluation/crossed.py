"""Means over training seeds and images at once: every model of a family was measured on the same images."""

import math

import numpy as np
from jaxtyping import Float
from scipy import stats

from antiphase.evaluation.statistics import Estimate


def crossed_mean(values: Float[np.ndarray, "seeds samples"], confidence: float = 0.95) -> Estimate:
    """Estimate the mean over seeds and samples that were drawn independently and crossed.

    With x = μ + seed + sample + rest, the variance of the grand mean is σ_seed²/k + σ_sample²/n + σ_rest²/(kn). The
    variance S of the seeds' means over k holds the first and the last part, that of the samples' means I over n the
    second and the last; so s² = S + I − R with R the rest's own, at least the larger of S and I. The interval is
    m ± t·s, Student's t at Satterthwaite's degrees of freedom s⁴/(S²/(k − 1) + I²/(n − 1)). Samples that all agree are
    given the variance of hits with one more on either side, (n + 1)/(n + 2)², as a share of 0 in n is not known to be
    0. One seed says nothing of other seeds: the interval is over the samples then.

    Args:
        values: of each seed (rows) on each sample (columns): hits, or differences of hits, within [−1, 1].
        confidence: level in (0, 1).

    Returns:
        The estimate, n the number of samples; its interval is not cut to [−1, 1].

    Raises:
        ValueError: there is no value, or one is not finite.

    Source: F. E. Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics
    Bulletin 2:110–114 (1946); the two-way random-effects model.

    >>> crossed_mean(np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])).value
    0.625
    """
    k, n = values.shape
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"{k} seeds × {n} samples: expected one of each at least, every value finite")
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
