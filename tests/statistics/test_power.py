"""Power over crossed seeds and images: closed forms, and what is promised is what is seen."""

import numpy as np
import pytest
from scipy import stats

from antiphase.statistics.seeds_by_images import Spread, crossed_mean, power_of, power_within, seeds_until

SEEDS_ALONE = Spread(16, 1000, 0.25, 0.0, 0.0)


def true_spread(seeds, samples, by_seed, by_sample, rest):
    """Return the expected spread of standard deviations."""
    residual = rest**2 / (seeds * samples)
    return Spread(seeds, samples, by_seed**2 / seeds + residual, by_sample**2 / samples + residual, residual)


def drawn(generator, mean, seeds, samples, deviations):
    shapes = ((seeds, 1), (1, samples), (seeds, samples))
    return mean + sum(generator.normal(size=shape) * std for shape, std in zip(shapes, deviations, strict=True))


def within(hits, rounds, expected, off=0.0):
    """Whether a rate is the expected one, give or take 3½ binomial standard deviations and ``off``."""
    return abs(hits / rounds - expected) <= 3.5 * np.sqrt(expected * (1 - expected) / rounds) + off


def test_over_seeds_alone_it_is_the_power_of_students_test():
    tail = stats.nct.sf(stats.t.ppf(0.975, 15), 15, 1.5 / 0.5)
    assert power_of(1.5, SEEDS_ALONE) == power_of(-1.5, SEEDS_ALONE) == pytest.approx(tail)
    assert power_of(0.0, SEEDS_ALONE) == pytest.approx(0.025)
    assert power_of(1e9, SEEDS_ALONE) == 1.0
    assert power_of(0.1, Spread(3, 9, 0.0, 0.0, 0.0)) == 1.0


def test_more_seeds_shrink_their_own_part_only():
    spread = true_spread(4, 100, 0.3, 0.5, 0.7)
    assert spread.at(4) == spread
    many = spread.at(10**6)
    assert many.variance == pytest.approx(0.5**2 / 100, rel=1e-3)
    expected = true_spread(9, 100, 0.3, 0.5, 0.7)
    assert (spread.at(9).by_seed, spread.at(9).by_sample) == pytest.approx((expected.by_seed, expected.by_sample))


@pytest.mark.parametrize("deviations", [(0.06, 0.3, 0.3), (0.1, 0.05, 0.5)])
def test_the_seeds_promised_for_80_percent_give_80_percent(deviations):
    planned = true_spread(12, 200, *deviations)
    difference = 0.075
    seeds = seeds_until(lambda k: power_of(difference, planned.at(k)) >= 0.8)
    assert seeds is not None
    assert power_of(difference, planned.at(seeds - 1)) < 0.8
    generator = np.random.default_rng(0)
    rounds = 500
    hits = [crossed_mean(drawn(generator, difference, seeds, 200, deviations)).low > 0 for _ in range(rounds)]
    # Satterthwaite's degrees of freedom are themselves estimated: two points more or less
    assert within(sum(hits), rounds, power_of(difference, planned.at(seeds)), off=0.02)


def test_the_power_to_find_nothing_is_the_power_seen():
    deviations, seeds = (0.02, 0.1, 0.2), 16
    promised = power_within(0.004, 0.03, true_spread(seeds, 300, *deviations))
    assert 0.5 < promised < 0.9
    generator = np.random.default_rng(1)
    rounds = 500
    hits = 0
    for _ in range(rounds):
        estimate = crossed_mean(drawn(generator, 0.004, seeds, 300, deviations))
        hits += estimate.low >= -0.03 and estimate.high <= 0.03
    assert within(hits, rounds, promised, off=0.03)


def test_images_that_are_too_few_are_not_made_up_for_by_seeds():
    planned = true_spread(12, 20, 0.01, 0.5, 0.0)
    assert seeds_until(lambda k: power_of(0.05, planned.at(k)) >= 0.8) is None
