"""Estimates with 95 % intervals; linearised values, which make functions of means the mean of one value a sample."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy import special, stats

STRATA = 20  # of the covariate that a rate is standardised to
_LARGEST_EXPONENT = 700.0  # exp overflows beyond this
_NO_WIDTH = 1e-12  # rounding of equal values

Values = Float[np.ndarray, " samples"]
Outcomes = Bool[np.ndarray, " samples"]
Parts = Float[np.ndarray, "samples parts"]
SeedsBySamples = Float[np.ndarray, "seeds samples"]
Statistic = Callable[[Float[np.ndarray, "... parts"]], Float[np.ndarray, "..."]]
"""A function of means, which stand in the last axis."""


@dataclass(frozen=True)
class Estimate:
    """A point estimate with its 95 % interval and the number of observations behind it."""

    value: float
    low: float
    high: float
    n: int


Within = Callable[[Estimate], Estimate]  # cuts an interval to the values that there can be


def is_interval(low: float, high: float) -> bool:
    """Return whether two ends bound anything: they are apart, and one of them is finite."""
    return high - low > _NO_WIDTH and (math.isfinite(low) or math.isfinite(high))


def student_t(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t."""
    return float(stats.t.ppf(0.975, degrees))


def proportion(successes: int, n: int) -> Estimate:
    """Estimate a proportion with Wilson's (1927) score interval: every π with |p − π| ≤ z·√(π(1 − π)/n)."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a proportion of {successes} in {n}: expected at least 1 sample, 0 to n successes")
    interval = stats.binomtest(successes, n).proportion_ci(method="wilson")
    return Estimate(successes / n, float(interval.low), float(interval.high), n)


def paired_difference(first: Outcomes, second: Outcomes) -> Estimate:
    """Estimate p₁ − p₂ for two yes/no outcomes observed on the same samples.

    With [lᵢ, uᵢ] the Wilson interval of each proportion and φ the correlation of the two outcomes,

        low  = p₁ − p₂ − √((p₁ − l₁)² − 2φ(p₁ − l₁)(u₂ − p₂) + (u₂ − p₂)²)
        high = p₁ − p₂ + √((u₁ − p₁)² − 2φ(u₁ − p₁)(p₂ − l₂) + (p₂ − l₂)²)

    where n/2 is subtracted from the numerator of φ if that is positive (down to zero at most).

    Source: R. G. Newcombe, "Improved confidence intervals for the difference between binomial proportions
    based on paired data", Statistics in Medicine 17:2635–2650 (1998), method 10.
    """
    check_pairs(first, second)
    n, count, other, both = len(first), int(first.sum()), int(second.sum()), int((first & second).sum())
    only_first, only_second = count - both, other - both
    one, two = proportion(count, n), proportion(other, n)
    numerator = both * (n - both - only_first - only_second) - only_first * only_second
    if numerator > 0:
        numerator = max(numerator - n / 2, 0)
    scale = math.sqrt(count * (n - count) * other * (n - other))
    phi = numerator / scale if scale else 0.0

    def combined(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))  # rounding can leave −1e-18

    difference = (only_first - only_second) / n
    low = difference - combined(one.value - one.low, two.high - two.value)
    return Estimate(difference, low, difference + combined(one.high - one.value, two.value - two.low), n)


def check_pairs(first: np.ndarray, *others: np.ndarray) -> None:
    """Raise a ValueError if arrays of paired samples differ in length or are empty."""
    if any(first.shape != other.shape for other in others) or not first.size:
        sizes = " and ".join(str(array.size) for array in (first, *others))
        raise ValueError(f"paired outcomes of {sizes} samples: expected equal numbers of at least 1")


def mean_over_seeds(values: Sequence[float]) -> Estimate:
    """Estimate a mean over independent training seeds: m ± t·s/√k, Student's t at k − 1 degrees of freedom."""
    if (k := len(values)) < 2:
        raise ValueError(f"mean over {k} seeds: expected at least 2")
    return _around(float(np.mean(values)), float(student_t(k - 1) * np.std(values, ddof=1) / math.sqrt(k)), k)


def as_share(estimate: Estimate) -> Estimate:
    """Restrict the interval m ± h of a fraction to [0, 1].

    If it extends beyond, it is logit(m) ± h/(m(1 − m)), mapped back: clipped intervals near 0 or 1 have less than
    their nominal coverage. At m = 0 and m = 1, which have no logit, and if it is infinite, it is clipped.
    """
    if estimate.low >= 0 and estimate.high <= 1:
        return estimate
    value, half = estimate.value, estimate.high - estimate.value
    if not math.isfinite(half) or not 0 < value < 1:
        return clipped(estimate, 0.0, 1.0)
    logit, scaled = math.log(value / (1 - value)), half / (value * (1 - value))
    low, high = (float(special.expit(logit + sign * scaled)) for sign in (-1, 1))
    return replace(estimate, low=low, high=high)


def as_size(estimate: Estimate) -> Estimate:
    """Restrict the interval m ± h of a norm, a distance or a Lipschitz constant to values above 0.

    If it reaches 0, it is computed on the log scale by the delta method instead: m·exp(±h/m).
    """
    if estimate.low > 0:
        return estimate
    value, half = estimate.value, estimate.high - estimate.value
    if not math.isfinite(half) or value <= 0:
        return clipped(estimate, 0.0, math.inf)
    scaled = half / value
    high = value * math.exp(scaled) if scaled < _LARGEST_EXPONENT else math.inf
    return replace(estimate, low=value * math.exp(-scaled), high=high)


def as_difference(estimate: Estimate) -> Estimate:
    """Clip the interval of a difference of fractions, or of a cosine, to [−1, 1]; an infinite one is kept."""
    return clipped(estimate, -1.0, 1.0) if math.isfinite(estimate.high) else estimate


def clipped(estimate: Estimate, least: float, most: float) -> Estimate:
    """Clip an interval; the estimate stays inside: a fitted trend may lie beyond what a difference can be."""
    low, high = max(estimate.low, least), min(estimate.high, most)
    return replace(estimate, low=min(low, estimate.value), high=max(high, estimate.value))


def jackknife(parts: Parts, statistic: Statistic) -> Estimate:
    """Estimate a smooth function of means over the samples: ratios of means, angles built from them.

    θ = f(x̄), with θ₍ᵢ₎ the value without sample i: s² = (n − 1)/n·Σ(θ₍ᵢ₎ − θ̄₍.₎)², interval θ ± t·s, Student's t at
    n − 1 degrees of freedom. The interval of a single sample is infinite.

    Source: B. Efron and C. Stein, "The jackknife estimate of variance", Annals of Statistics 9:586–596 (1981).
    """
    if (n := len(parts)) < 1:
        raise ValueError("a mean over no samples")
    value = float(statistic(parts.mean(0)))
    if n == 1:
        return Estimate(value, -math.inf, math.inf, 1)
    left_out = _left_out(parts, statistic)
    spread = math.sqrt((n - 1) / n * float(np.square(left_out - left_out.mean()).sum()))
    return _around(value, student_t(n - 1) * spread, n)


def mean_over_groups(values: Values, groups: Int64[np.ndarray, " samples"]) -> Estimate:
    """Estimate the mean of group means, in which every class has equal weight, of values within [−1, 1].

    m = 1/G·Σ_g x̄_g, s² = 1/G²·Σ_g v_g, v_g = s_g²/n_g with s_g² the variance within group g, interval m ± t·s,
    Student's t, Satterthwaite's (Σ v_g)²/Σ(v_g²/(n_g − 1)) degrees of freedom. A group of equal values gets the
    variance with one more value on either side, (n_g + 1)/(n_g + 2)², since 0 hits of 15 do not imply a rate of 0; a
    group of one sample the mean variance of the others and their n − G degrees; infinite if there are none.
    """
    return with_degrees(values, groups)[0]


def with_degrees(values: Values, groups: Int64[np.ndarray, " samples"]) -> tuple[Estimate, float]:
    """Return :func:`mean_over_groups` with the degrees of freedom of its interval."""
    if not len(values):
        raise ValueError("a mean over no samples")
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.bincount(place, values) / counts
    value, degrees = float(means.mean()), len(values) - len(counts)
    if not degrees:
        return Estimate(value, -math.inf, math.inf, len(values)), 0.0
    within = np.bincount(place, np.square(values - means[place])) / np.maximum(counts - 1, 1)
    within = np.where(within > _NO_WIDTH, within, (counts + 1) / (counts + 2) ** 2)
    within = np.where(counts > 1, within, within[counts > 1].mean())
    parts = within / counts
    effective = float(parts.sum() ** 2 / (parts**2 / np.where(counts > 1, counts - 1, degrees)).sum())
    half = student_t(effective) * math.sqrt(float(parts.sum())) / len(counts)
    return _around(value, half, len(values)), effective


def _left_out(parts: np.ndarray, statistic: Statistic) -> Values:
    return statistic((parts.sum(0) - parts) / (len(parts) - 1))


def _around(value: float, half: float, n: int) -> Estimate:
    return Estimate(value, value - half, value + half, n)


# Values whose mean is a statistic that is no mean, and whose spread is that of the statistic, to first order: θ plus n
# times each observation's influence on θ. They can be averaged over clusters and training seeds like other values.


def linearised(parts: Parts, statistic: Statistic) -> Values:
    """Return one value a sample whose mean is f(x̄) and whose variance over n is that of :func:`jackknife`.

    v_i = θ + (n − 1)·(θ̄₍.₎ − θ₍ᵢ₎).
    """
    n, value = len(parts), statistic(parts.mean(0))
    if n == 1:
        return np.full(1, value)
    left_out = _left_out(parts, statistic)
    return value + (n - 1) * (left_out.mean() - left_out)


def ratio_values(numerator: Values, denominator: Values) -> Values:
    """Return values whose mean is θ = Σa / Σb: θ + n·(aᵢ − θ·bᵢ) / Σb."""
    if not (total := float(denominator.sum())):
        raise ValueError("a ratio to nothing")
    ratio = float(numerator.sum()) / total
    return ratio + len(numerator) * (numerator - ratio * denominator) / total


def auc_values(scores: Values, truth: Outcomes) -> Values:
    """Return values whose mean is the area under the ROC curve.

    The area A is the probability that a positive scores higher than a negative; ties count half. The value is
    A + n·(Vᵢ − A) / mᵢ, with Vᵢ the share of the observations of the other kind that observation i is on the right side
    of, and mᵢ the number of its own kind.

    Source: N. A. Obuchowski, "Nonparametric analysis of clustered ROC curve data", Biometrics 53:567–578 (1997).
    """
    positive, negative = np.sort(scores[truth]), np.sort(scores[~truth])
    if not len(positive) or not len(negative):
        raise ValueError("an area under a curve of one kind of observation")
    same, other = np.where(truth, len(positive), len(negative)), np.where(truth, len(negative), len(positive))
    places = ([np.searchsorted(kind, scores, side) for kind in (negative, positive)] for side in ("left", "right"))
    below = sum(np.where(truth, *pair) for pair in places) / 2 / other
    right = np.where(truth, below, 1 - below)
    area = float(right[truth].mean())
    return area + len(scores) * (right - area) / same


def standardised(
    values: SeedsBySamples, covariate: SeedsBySamples, population: Sequence[SeedsBySamples], strata: int = STRATA
) -> SeedsBySamples:
    """Return values whose mean is Σ_k w_k·μ_k: the rate if a model's images had a common population's covariate.

    Post-stratification, such as by the margin: models with smaller ones are broken more often. The strata k lie between
    the quantiles of the population's covariate; w_k is the share of the population in stratum k, p_k that of the
    model's own images, and μ_k the mean of the model's values there, or in the nearest stratum that has some. Image i
    of a seed gets (1/R)·Σ_r μ_k(r,i) + (w_k/p_k)·(y_i − μ_k), k its own stratum and k(r,i) that of the r-th of the R
    members of the population. Models are comparable if images of the same stratum are.

    Source: R. J. A. Little, "Post-stratification: a modeler's perspective", JASA 88:1001–1012 (1993).
    """
    pooled = np.stack(population)
    inner = np.unique(np.quantile(pooled, np.arange(1, strata) / strata))
    count = len(inner) + 1
    stratum, pooled_stratum = (np.searchsorted(inner, array, side="right") for array in (covariate, pooled))
    sizes = np.bincount(stratum.ravel(), minlength=count)
    sums = np.bincount(stratum.ravel(), values.ravel().astype(float), count)
    weights = np.bincount(pooled_stratum.ravel(), minlength=count) / pooled.size
    filled = np.flatnonzero(sizes)
    nearest = filled[np.abs(np.arange(count)[:, None] - filled).argmin(1)]
    means = (sums[filled] / sizes[filled])[np.searchsorted(filled, nearest)]
    weights = np.bincount(nearest, weights, count)  # an empty stratum hands its weight to its stand-in
    ratios = np.divide(weights * stratum.size, sizes, out=np.zeros(count), where=sizes > 0)
    return means[pooled_stratum].mean(0) + ratios[stratum] * (values - means[stratum])
