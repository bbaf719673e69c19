"""Means over training seeds and images that are crossed: every model was measured on the same images. And their power.

With x = μ + seed + sample + residual, the variance of the grand mean is σ_seed²/k + σ_sample²/n + σ_residual²/(kn).

Source: F. E. Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics Bulletin
2:110–114 (1946); the two-way random-effects model.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int64
from scipy import stats

from antiphase.statistics import decisions, intervals

Groups = Int64[np.ndarray, " samples"]
POWER = 0.8  # probability with which a difference is to be found
MOST_SEEDS = 1000
_LARGE = 30.0  # noncentrality beyond which a test always rejects; scipy's tail is inaccurate there


@dataclass(frozen=True)
class Spread:
    """The variance of a mean over k seeds and n samples, and what it is made of."""

    seeds: int  # k
    n: int
    by_seed: float  # S, the variance of the seeds' means divided by k; 0 with one seed
    by_sample: float  # I, the variance of the samples' means divided by n
    rest: float  # R, the variance of the residuals divided by kn; 0 with one seed
    by_group: float | None = None  # degrees of freedom of I, if samples are of groups that count alike; else n − 1

    @property
    def variance(self) -> float:
        """s² = S + I − R, at least the larger of S and I."""
        return max(self.by_seed + self.by_sample - self.rest, self.by_seed, self.by_sample)

    @property
    def error(self) -> float:
        """The standard error s."""
        return math.sqrt(self.variance)

    @property
    def degrees(self) -> float:
        """Satterthwaite's degrees of freedom s⁴/(S²/(k − 1) + I²/ν), ν those of I; ν with one seed."""
        of_samples = self.n - 1.0 if self.by_group is None else self.by_group
        if self.seeds == 1 or not self.variance:
            return of_samples
        return self.variance**2 / (self.by_seed**2 / (self.seeds - 1) + self.by_sample**2 / of_samples)

    def at(self, seeds: int) -> "Spread":
        """Return the spread that another number of seeds is expected to have on the same samples."""
        scale = self.seeds / seeds
        rest = self.rest * scale
        by_sample = max(self.by_sample - self.rest, 0.0) + rest
        return replace(self, seeds=seeds, by_seed=self.by_seed * scale, by_sample=by_sample, rest=rest)


@dataclass(frozen=True)
class CrossedEstimate(intervals.Estimate):
    """An estimate over crossed seeds and samples."""

    spread: Spread | None = None  # its variance; None if there is one sample
    # whose rows it is made from, if known
    cells: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def seeds(self) -> int:
        """Number of training seeds; 0 if there is one sample."""
        return 0 if self.spread is None else self.spread.seeds


def crossed_mean(values: intervals.SeedsBySamples, groups: Groups | None = None, hits: bool = True) -> CrossedEstimate:
    """Estimate the mean over crossed seeds and samples.

    The interval is m ± t·s, with the error and the degrees of freedom of :class:`Spread`; it is not clipped. With one
    seed it is over the samples only.

    Args:
        groups: the group of each sample, where groups count alike and values differ from the mean by what they differ
            by within their group. With Q_g the sum of squares of group g of n_g samples, I has
            ν = (Σ Q_g)²/Σ(Q_g²/(n_g − 1)) degrees of freedom: few where a small group varies most.
        hits: whether values are hits, or differences of hits, within [−1, 1]. Samples of equal values then get the
            variance with one more hit on either side, (n + 1)/(n + 2)²: 0 hits of n do not imply a rate of 0.
    """
    k, n = values.shape
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"{k} seeds × {n} samples: expected at least one of each, and finite values")
    mean = float(values.mean())
    if n == 1:
        return CrossedEstimate(mean, -math.inf, math.inf, 1)
    by_seed, by_sample = values.mean(1), values.mean(0)
    samples = float(by_sample.var(ddof=1))
    samples = (samples if samples > 1e-12 or not hits else (n + 1) / (n + 2) ** 2) / n
    spread = Spread(1, n, 0.0, samples, 0.0, None if groups is None else _degrees(by_sample - mean, groups))
    if k > 1:
        rest = values - by_seed[:, None] - by_sample[None] + mean
        rest = float(np.square(rest).sum()) / ((k - 1) * (n - 1)) / (k * n)
        spread = replace(spread, seeds=k, by_seed=float(by_seed.var(ddof=1)) / k, rest=rest)
    half = intervals.student_t(spread.degrees) * spread.error
    half = half if half > 1e-12 * abs(mean) else 0.0  # rounding of equal values
    return CrossedEstimate(mean, mean - half, mean + half, n, spread)


def _degrees(deviations: intervals.Values, groups: Groups) -> float | None:
    squares, sizes = np.bincount(groups, np.square(deviations)), np.bincount(groups)
    several = sizes > 1
    whole = float((squares[several] ** 2 / (sizes[several] - 1)).sum())
    return float(squares.sum()) ** 2 / whole if whole else None


def power_of(difference: float, spread: Spread, level: float = decisions.LEVEL / 2) -> float:
    """Return the probability that a true difference is found off 0 on its side, at a one-sided level l.

    P(T > t₁₋ₗ) for T noncentral t with |difference|/s and the degrees of freedom of the spread (J. Cohen, "Statistical
    Power Analysis for the Behavioral Sciences", 1988, section 2).
    """
    if not spread.error:
        return 1.0 if difference else 0.0
    shift, critical = abs(difference) / spread.error, stats.t.ppf(1 - level, spread.degrees)
    return 1.0 if shift > _LARGE else float(stats.nct.sf(float(critical), spread.degrees, shift))


def power_within(difference: float, margin: float, spread: Spread) -> float:
    """Return P(|m̂| < margin − t₀.₉₇₅·s): the 95 % interval lies within ±margin, m̂ normal around the difference."""
    if not spread.error:
        return float(abs(difference) < margin)
    room, shift = margin / spread.error - intervals.student_t(spread.degrees), difference / spread.error
    return max(0.0, float(stats.norm.cdf(room - shift) - stats.norm.cdf(-room - shift)))


def seeds_until(enough: Callable[[int], bool], least: int = 2) -> int | None:
    """Return the smallest number of seeds from ``least`` on that is enough; None if ``MOST_SEEDS`` are not."""
    return least + bisect.bisect_left(range(least, MOST_SEEDS), x=True, key=enough) if enough(MOST_SEEDS) else None
