"""From each sample's least adversarial distance to the ε at which a given share of the samples falls.

For attacks that minimise the norm (CW, FAB): robustness paper, Figure 3(c).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from antiphase.errors import UserError


@dataclass(frozen=True)
class NormAt:
    """The ε at which the attack success rate reaches a level, with its bootstrap interval.

    Attributes:
        level: the rate, in (0, 1].
        eps: the least ε with a rate of at least ``level``; infinite where too few samples fell at all.
        low, high: of the interval.
        n: samples.
    """

    level: float
    eps: float
    low: float
    high: float
    n: int


def asr_by_eps(
    distance: Float[np.ndarray, " samples"], success: Bool[np.ndarray, " samples"]
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    """Return the distribution of the least distances: ASR(ε) = #(fallen at a distance of at most ε) / n.

    Args:
        distance: least adversarial distance of each sample, in the norm's units.
        success: whether the sample fell; where not, its distance is not looked at.

    Returns:
        The distances at which the rate rises, ascending and each once, and the rate from there on. Empty
        where no sample fell.

    Raises:
        UserError: for no samples, lengths that differ, or a negative or NaN distance of a fallen sample.

    >>> asr_by_eps(np.array([0.2, 0.1, 0.2, 9.0]), np.array([True, True, True, False]))
    (array([0.1, 0.2]), array([0.25, 0.75]))
    """
    ordered = _ordered(distance, success)
    eps, counts = np.unique(ordered[np.isfinite(ordered)], return_counts=True)
    return eps, counts.cumsum() / len(ordered)


def eps_at(
    distance: Float[np.ndarray, " samples"],
    success: Bool[np.ndarray, " samples"],
    levels: Sequence[float] = (0.5, 0.95, 1.0),
    confidence: float = 0.95,
) -> list[NormAt]:
    """Return the ε at which the ASR reaches each level.

    It is an order statistic: the k-th least distance, k = ⌈level·n⌉. In a resample of the n samples with
    replacement the k-th least is at most the j-th of the original with probability I_{j/n}(k, n − k + 1)
    (the regularised incomplete beta function), so that the bootstrap's percentile interval is known
    exactly, without drawing. At a level of 1 it cannot reach above the largest distance seen, so it says
    little of the images that were not sampled.

    Source: B. Efron, *Bootstrap Methods: Another Look at the Jackknife*, 1979, Section 3 (the median).

    Args:
        distance: least adversarial distance of each sample, in the norm's units.
        success: whether the sample fell; one that did not counts as infinitely far.
        levels: rates, each in (0, 1].
        confidence: of the intervals, in (0, 1).

    Raises:
        UserError: as :func:`asr_by_eps`, and for a level or confidence out of range.

    >>> fallen = np.array([True] * 9 + [False])
    >>> [row.eps for row in eps_at(np.arange(1.0, 11.0), fallen, levels=(0.5, 0.9, 1.0))]
    [5.0, 9.0, inf]
    """
    if not all(0 < level <= 1 for level in levels) or not 0 < confidence < 1:
        raise UserError(
            f"levels {tuple(levels)} and confidence {confidence}: expected rates in (0, 1] and (0, 1)"
        )
    ordered = _ordered(distance, success)
    n = len(ordered)

    def kth(k: int) -> float:
        return float(ordered[min(max(k, 1), n) - 1])

    rows = []
    for level in levels:
        k = math.ceil(level * n - 1e-9)  # 0.07 · 100 is just above 7
        low, high = (
            math.ceil(n * stats.beta.ppf(tail, k, n - k + 1))
            for tail in ((1 - confidence) / 2, (1 + confidence) / 2)
        )
        rows.append(NormAt(level, kth(k), kth(low), kth(high), n))
    return rows


def _ordered(
    distance: Float[np.ndarray, " samples"], success: Bool[np.ndarray, " samples"]
) -> Float[np.ndarray, " samples"]:
    """Return the distances in ascending order, infinite where the attack failed."""
    if distance.shape != success.shape or distance.ndim != 1 or not distance.size:
        raise UserError(
            f"distances of shape {distance.shape} and successes of {success.shape}: expected one a sample"
        )
    if not (distance[success] >= 0).all():
        raise UserError("a negative or NaN distance of a fallen sample: expected numbers of at least 0")
    return np.sort(np.where(success, distance, np.inf))
