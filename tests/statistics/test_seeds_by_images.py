"""Means over seeds and images: closed forms, coverage, what one seed says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from antiphase.statistics.seeds_by_images import crossed_mean


def test_with_one_seed_it_is_students_t_over_the_samples():
    values = np.random.default_rng(0).normal(size=(1, 13))
    estimate = crossed_mean(values)
    low, high = stats.t.interval(0.95, 12, values.mean(), stats.sem(values[0]))
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == pytest.approx((values.mean(), low, high, 13))


def test_with_seeds_that_differ_by_a_constant_it_is_students_t_over_the_seeds():
    values = np.array([[0.1], [0.4], [0.9]]) + np.zeros((1, 100_000))
    values += np.random.default_rng(0).normal(size=(1, 100_000)) * 1e-6  # samples with next to no spread
    estimate = crossed_mean(values)
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values.mean(1)))
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-3)


@pytest.mark.parametrize(
    ("seeds", "samples", "spreads"),
    [(3, 60, (0.3, 1.0, 1.0)), (3, 60, (0.0, 1.0, 0.5)), (5, 40, (1.0, 0.2, 1.0)), (4, 200, (0.1, 1.0, 0.0))],
)
def test_its_interval_covers_the_truth_as_often_as_it_says(seeds, samples, spreads):
    generator = np.random.default_rng(1)
    covered, rounds = 0, 500
    for _ in range(rounds):
        by_seed = generator.normal(size=(seeds, 1)) * spreads[0]
        by_sample = generator.normal(size=(1, samples)) * spreads[1]
        estimate = crossed_mean(by_seed + by_sample + generator.normal(size=(seeds, samples)) * spreads[2])
        covered += estimate.low <= 0.0 <= estimate.high
    assert 0.93 <= covered / rounds <= 0.995


def _counted_alike(values, groups):
    """The values of docs/concepts/intervals.md: their mean is that of the groups' means."""
    means = np.array([values[..., groups == g].mean() for g in np.unique(groups)])
    n, sizes = len(groups), np.bincount(groups)[groups]
    stretch = np.sqrt(sizes / (sizes - 1)) * n / (len(means) * sizes)
    return means.mean() + stretch * (values - np.stack([means[g] for g in groups], -1))


def test_with_one_seed_and_two_groups_it_is_welchs():
    draw = np.random.default_rng(2)
    one, two = draw.normal(1, 3, size=3), draw.normal(size=60)
    groups = np.repeat([0, 1], [3, 60])
    values = _counted_alike(np.concatenate([one, two]), groups)
    even = values.mean() + (values - values.mean()) * np.sqrt(62 / 63)  # crossed_mean divides by n − 1
    estimate = crossed_mean(even[None], groups)
    expected = stats.ttest_ind(one, -two, equal_var=False).confidence_interval()
    assert (2 * estimate.low, 2 * estimate.high) == pytest.approx((expected.low, expected.high))
    assert estimate.spread.degrees < 3 < crossed_mean(even[None]).spread.degrees


def test_its_interval_covers_the_truth_where_a_group_is_small():
    draw = np.random.default_rng(3)
    groups, rounds = np.repeat([0, 1, 2], [3, 60, 60]), 1000
    covered = np.zeros(2)
    for _ in range(rounds):
        values = draw.normal(size=(1, 123)) * np.array([3, 1, 1])[groups] + draw.normal(size=(8, 123)) * 0.3
        values = _counted_alike(values, groups)
        estimates = crossed_mean(values, groups), crossed_mean(values)
        covered += [one.low <= 0 <= one.high for one in estimates]
    by_group, as_one = covered / rounds
    assert as_one < 0.87
    assert by_group > 0.91


def test_hits_that_all_agree_are_not_certain():
    estimate = crossed_mean(np.zeros((3, 100)))
    assert estimate.value == 0
    assert 0.005 < estimate.high < 0.05


@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 10**6))
def test_it_is_odd_and_does_not_know_orders(seeds, samples, draw):
    generator = np.random.default_rng(draw)
    values = generator.integers(-1, 2, size=(seeds, samples)).astype(float)
    estimate = crossed_mean(values)
    mirrored = crossed_mean(-values)
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low))
    shuffled = crossed_mean(values[generator.permutation(seeds)][:, generator.permutation(samples)])
    assert (shuffled.low, shuffled.high) == pytest.approx((estimate.low, estimate.high))


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 0)), np.array([[np.nan, 1.0]])])
def test_nothing_and_nan_are_refused(values):
    with pytest.raises(ValueError, match="expected at least one of each"):
        crossed_mean(values)


def test_one_sample_has_no_interval():
    assert crossed_mean(np.ones((3, 1))).high == np.inf


def test_only_hits_that_are_all_equal_get_one_more_on_either_side():
    equal = np.full((3, 5), 0.8)
    number = crossed_mean(equal, hits=False)
    assert number.low == number.value == number.high
    assert crossed_mean(equal).low < 0.8 < crossed_mean(equal).high
    by_seed = np.repeat([[0.2], [0.4], [0.6]], 5, axis=1)
    half = stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3)  # Student's t over the seeds alone
    assert crossed_mean(by_seed, hits=False).high - 0.4 == pytest.approx(half)
