"""Which of the differences that are shown together are decided: one rule for titles, tables, consoles and cards.

A difference is decided if its 95 % interval excludes 0, its two-sided p-value is below 5 % after Holm's correction for
all differences shown together (the ε of one attack, the numbers of an evaluation), and it is not a mean over fewer than
``LEAST_SEEDS`` training seeds. Interval and test of paired rates are Newcombe's and the exact McNemar test, which may
disagree where few images tell two models apart; then nothing is decided.

Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6:65–70
(1979).
"""

from collections.abc import Sequence

from scipy import stats

from antiphase.statistics.intervals import Estimate, is_interval
from antiphase.statistics.seeds_by_images import LEVEL

LEAST_SEEDS = 8
"""Training seeds that a verdict about an architecture takes."""


def decide(
    differences: Sequence[Estimate], p_values: Sequence[float | None] | None = None, seeds: int = 1
) -> list[int]:
    """Return for each difference 1 or −1 if it is decided to be above or below 0, and 0 if it is not decided.

    Args:
        differences: shown together, each with a 95 % interval.
        p_values: of the hypotheses that they are 0; None where the p-value is that of the interval.
        seeds: number of training seeds that each is a mean over; with 1 the intervals are over the images.

    >>> one = Estimate(-0.2, -0.399, -0.001, 200)  # p = 0.049
    >>> decide([one]), decide([one, one])
    ([-1], [0, 0])
    >>> decide([Estimate(0.208, 0.014, 0.406, 24)], [0.0625]), decide([Estimate(0.3, 0.1, 0.5, 3)], seeds=3)
    ([0], [0])
    """
    if 1 < seeds < LEAST_SEEDS:
        return [0] * len(differences)
    given = p_values or [None] * len(differences)
    found = [
        interval_p(one, (seeds if seeds > 1 else one.n) - 1) if p is None else p
        for one, p in zip(differences, given, strict=True)
    ]
    return [
        ((one.low > 0) - (one.high < 0)) * (rejected and is_interval(one.low, one.high))
        for one, rejected in zip(differences, holm(found, LEVEL), strict=True)
    ]


def interval_p(estimate: Estimate, degrees: float) -> float:
    """Return the two-sided p-value of "the true value is 0" that belongs to a 95 % interval m ± t·s.

    Args:
        estimate: with an interval that may be cut off, but not on the side of 0.
        degrees: of freedom of Student's t; too few make p too large, so that too little is decided.

    >>> round(interval_p(Estimate(2.0, 0.0, 4.0, 8), 7), 3), interval_p(Estimate(0.1, -0.2, 0.4, 1), 0)
    (0.05, 1.0)
    """
    half = estimate.value - estimate.low if estimate.value > 0 else estimate.high - estimate.value
    if degrees < 1 or not half > 0:
        return 1.0
    t = abs(estimate.value) / half * stats.t.ppf(0.975, degrees)
    return float(2 * stats.t.sf(t, degrees))


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Return which hypotheses Holm's procedure rejects at a level.

    >>> holm([0.02, 0.001, 0.012], 0.025), holm([0.02, 0.001, 0.013], 0.025)
    ([True, True, True], [False, True, False])
    """
    found = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        if not p_values[place] <= level / (len(p_values) - rank):
            break
        found[place] = True
    return found
