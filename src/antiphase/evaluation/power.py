"""Power of a test over crossed seeds and images: what can be decided, and with how many seeds."""

from collections.abc import Callable
from typing import Any

from scipy import optimize, stats

from antiphase.evaluation.crossed import Spread

POWER = 0.8
"""Probability with which a difference is to be found."""
LEVEL = 0.05
"""Two-sided level of every test."""
MOST_SEEDS = 1000
_LARGE = 30.0  # noncentrality beyond which a test always rejects; scipy's tail is inaccurate there


def power_of(difference: float, spread: Spread, level: float = LEVEL / 2) -> float:
    """Return the probability that a true difference is found off 0 on its side, at a one-sided level.

    P(T > t₁₋ₗ) for T noncentral t with |difference|/s and the degrees of freedom of the spread. The default level l is
    that of the 95 % interval.

    Source: J. Cohen, "Statistical Power Analysis for the Behavioral Sciences" (1988), section 2.

    >>> spread = Spread(16, 1000, 1.0, 0.0, 0.0)
    >>> round(power_of(3.0, spread), 2), round(power_of(0.0, spread), 3)
    (0.8, 0.025)
    """
    if not spread.error:
        return 1.0 if difference else 0.0
    shift = abs(difference) / spread.error
    return 1.0 if shift > _LARGE else float(stats.nct.sf(_critical(spread, level), spread.degrees, shift))


def smallest_difference(spread: Spread) -> float:
    """Return the smallest true difference that is found with a probability of ``POWER``."""
    if not spread.error:
        return 0.0
    end = (_critical(spread) + 5.0) * spread.error  # even a power of .999 needs less
    while power_of(end, spread) < POWER:
        end *= 2
    found: Any = optimize.brentq(lambda size: power_of(float(size), spread) - POWER, 0.0, end)
    return float(found)


def power_within(difference: float, margin: float, spread: Spread) -> float:
    """Return the probability that the whole 95 % interval lies within ±margin, for a true difference.

    P(|m̂| < margin − t₀.₉₇₅·s), m̂ normal around the difference.
    """
    if not spread.error:
        return float(abs(difference) < margin)
    room = margin / spread.error - _critical(spread)
    shift = difference / spread.error
    return max(0.0, float(stats.norm.cdf(room - shift) - stats.norm.cdf(-room - shift)))


def seeds_until(enough: Callable[[int], bool], least: int = 2) -> int | None:
    """Return the smallest number of seeds, at least ``least``, that is enough; None if ``MOST_SEEDS`` are not.

    Args:
        enough: condition on a number of seeds, which holds for every larger number as well.
        least: the smallest number to consider.

    >>> seeds_until(lambda seeds: seeds >= 20), seeds_until(lambda seeds: False), seeds_until(lambda seeds: True, 8)
    (20, None, 8)
    """
    if not enough(MOST_SEEDS):
        return None
    low, high = least - 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _critical(spread: Spread, level: float = LEVEL / 2) -> float:
    return float(stats.t.ppf(1 - level, spread.degrees))
