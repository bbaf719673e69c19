"""ASR as a function of ε, from the minimal adversarial distance of each sample.

For attacks that minimise the norm (CW, FAB): robustness paper, Figure 3(c).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from antiphase.arguments import Probability, Share, validated
from antiphase.errors import UserError

Distances = Float[np.ndarray, " samples"]  # minimal adversarial distances, in units of the norm
Successes = Bool[np.ndarray, " samples"]


@dataclass(frozen=True)
class NormAt:
    """The smallest ε at which the ASR of ``n`` samples reaches a level, with its bootstrap interval from low to high.

    It is infinite if too few samples were broken.
    """

    level: float
    eps: float
    low: float
    high: float
    n: int


@validated
def eps_at(
    distance: Distances,
    success: Successes,
    levels: Sequence[Share] = (0.5, 0.95, 1.0),
    confidence: Probability = 0.95,
) -> list[NormAt]:
    """Return the ε at which the ASR reaches each level.

    It is the k-th smallest distance, k = ⌈level·n⌉. In a bootstrap resample the k-th smallest is at most the j-th of
    the original with probability I_{j/n}(k, n − k + 1) (the regularised incomplete beta function), so the percentile
    interval is computed exactly, without resampling. At level 1 the interval cannot exceed the largest distance
    observed, so it says little about other images.

    Source: B. Efron, *Bootstrap Methods: Another Look at the Jackknife*, 1979, Section 3 (the median).

    >>> broken = np.array([True] * 9 + [False])
    >>> [row.eps for row in eps_at(np.arange(1.0, 11.0), broken, levels=(0.5, 0.9, 1.0))]
    [5.0, 9.0, inf]
    """
    if distance.shape != success.shape or not distance.size:
        shapes = f"distances of shape {distance.shape} and successes of {success.shape}"
        raise UserError(f"{shapes}: expected one per sample")
    if not (distance[success] >= 0).all():
        raise UserError("negative or NaN distance of a broken sample: expected numbers of at least 0")
    ordered, n, rows = np.sort(np.where(success, distance, np.inf)), len(distance), []
    for level in levels:
        k = math.ceil(level * n - 1e-9)  # 0.07 · 100 is just above 7
        tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
        ranks = np.ceil(n * stats.beta.ppf(tails, k, n - k + 1)).astype(int)
        eps, low, high = (float(ordered[min(max(rank, 1), n) - 1]) for rank in (k, *ranks))
        rows.append(NormAt(level, eps, low, high, n))
    return rows
