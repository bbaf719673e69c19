"""Tests of differences, and which of those that are shown together are decided.

A difference is decided if its 95 % interval excludes 0, its two-sided p-value is below 5 % after Holm's correction for
all differences shown together (the ε of one attack, the numbers of an evaluation), and it is not a mean over fewer than
``LEAST_SEEDS`` training seeds. Newcombe's interval of paired rates and the exact McNemar test may disagree where few
images tell two models apart; then nothing is decided.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from scipy import stats

from antiphase.statistics.intervals import Estimate, Outcomes, check_pairs, is_interval, student_t

LEVEL = 0.05  # two-sided level of every test
LEAST_SEEDS = 8  # training seeds that a verdict about an architecture takes


def mcnemar_exact(first: Outcomes, second: Outcomes) -> float:
    """Return the two-sided exact McNemar p-value that two paired outcomes are equally frequent."""
    check_pairs(first, second)
    only_first, discordant = int((first & ~second).sum()), int((first != second).sum())
    return float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0


def mcnemar_clustered(first: Outcomes, second: Outcomes, clusters: Int64[np.ndarray, " samples"]) -> float:
    """Return the two-sided exact p-value that two paired outcomes are equally frequent, for clustered observations.

    With d_c the difference of the two counts in cluster c, p = P(|Σ s_c·d_c| ≥ |Σ d_c|) for independent random signs
    s_c: a cluster's outcomes can be exchanged as a whole. With one observation a cluster it is the exact McNemar test.
    """
    check_pairs(first, second, clusters)
    _, place = np.unique(clusters, return_inverse=True)
    sums = np.bincount(place, first.astype(float) - second.astype(float)).round().astype(int)
    sizes = np.abs(sums[sums != 0])
    reach = int(sizes.sum())
    probability = np.zeros(2 * reach + 1)
    probability[reach] = 1.0  # of a sum of 0
    for size in sizes.tolist():
        probability = (np.roll(probability, size) + np.roll(probability, -size)) / 2
    far = np.abs(np.arange(-reach, reach + 1)) >= abs(int(sums.sum()))
    return min(float(probability[far].sum()), 1.0)


def decide(estimates: Sequence[Estimate], p_values: Sequence[float | None] | None = None, seeds: int = 1) -> list[int]:
    """Return for each of the differences shown together 1 or −1 if it is decided to be above or below 0, otherwise 0.

    ``p_values`` are of the hypotheses that they are 0; None where it is that of the interval. Each is a mean over
    ``seeds`` training seeds; with 1 the intervals are over the images.
    """
    if 1 < seeds < LEAST_SEEDS:
        return [0] * len(estimates)
    given = zip(estimates, p_values or [None] * len(estimates), strict=True)
    tested = [interval_p(one, (seeds if seeds > 1 else one.n) - 1) if p is None else p for one, p in given]
    pairs = zip(estimates, holm(tested, LEVEL), strict=True)
    return [((one.low > 0) - (one.high < 0)) * (rejected and is_interval(one.low, one.high)) for one, rejected in pairs]


def interval_p(estimate: Estimate, degrees: float) -> float:
    """Return the two-sided p of "the true value is 0" that belongs to a 95 % interval, perhaps cut off elsewhere."""
    half = estimate.value - estimate.low if estimate.value > 0 else estimate.high - estimate.value
    if degrees < 1 or not half > 0:
        return 1.0
    return float(2 * stats.t.sf(abs(estimate.value) / half * student_t(degrees), degrees))


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Return which hypotheses Holm's procedure rejects at a level.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6:65–70 (1979).
    """
    rejected = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        if not p_values[place] <= level / (len(p_values) - rank):
            break
        rejected[place] = True
    return rejected
