"""One worked example of each estimate and test."""

import math

import numpy as np
import pytest

from antiphase.statistics import intervals
from antiphase.statistics.decisions import decide, holm, interval_p
from antiphase.statistics.intervals import Estimate
from antiphase.statistics.seeds_by_images import Spread, crossed_mean, power_of, seeds_until


def test_holm_stops_at_the_first_p_that_is_too_large():
    assert holm([0.02, 0.001, 0.012], 0.025) == [True, True, True]
    assert holm([0.02, 0.001, 0.013], 0.025) == [False, True, False]


def test_p_of_an_interval_that_ends_at_0_is_5_percent():
    assert interval_p(Estimate(2.0, 0.0, 4.0, 8), 7) == pytest.approx(0.05)
    assert interval_p(Estimate(0.1, -0.2, 0.4, 1), 0) == 1.0


def test_differences_shown_together_are_decided_together():
    one = Estimate(-0.2, -0.399, -0.001, 200)  # p = 0.049
    assert decide([one]) == [-1]
    assert decide([one, one]) == [0, 0]
    assert decide([Estimate(0.208, 0.014, 0.406, 24)], [0.0625]) == [0]
    assert decide([Estimate(0.3, 0.1, 0.5, 3)], seeds=3) == [0]


def test_values_of_statistics_average_to_them():
    scores, truth = np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True])
    assert intervals.auc_values(scores, truth).mean() == 0.875
    assert intervals.ratio_values(np.array([1.0, 0, 0]), np.array([1.0, 1, 0])).mean() == 0.5
    values = intervals.linearised(np.array([[1.0], [2.0], [6.0]]), lambda means: means[..., 0])
    np.testing.assert_allclose(values, [1, 2, 6])


def test_mean_over_groups_gives_every_group_equal_weight():
    values, groups = np.array([1.0, 1.0, 0.0, 1.0]), np.array([0, 0, 0, 5])
    assert intervals.mean_over_groups(values, groups).value == (2 / 3 + 1) / 2


def test_jackknife_of_a_mean_is_the_mean():
    assert intervals.jackknife(np.array([[1.0], [2.0], [3.0]]), lambda means: means[..., 0]).value == 2.0


def test_intervals_stay_within_the_range_of_the_value():
    size = intervals.as_size(Estimate(18.0, -4.8, 40.8, 3))
    assert (round(size.low, 1), round(size.high, 1)) == (5.1, 63.9)
    share = intervals.as_share(Estimate(0.93, 0.81, 1.05, 3))
    assert (round(share.low, 3), round(share.high, 3)) == (0.678, 0.988)


def test_wilson_interval_of_no_success():
    assert intervals.proportion(0, 10).high == pytest.approx(1.96**2 / (10 + 1.96**2), abs=1e-4)


def test_interval_has_two_ends_apart():
    ends = ((0.1, 0.4), (0.0, 0.0), (-math.inf, math.inf))
    assert [intervals.is_interval(*pair) for pair in ends] == [True, False, False]


def test_seeds_until_counts_from_the_least():
    assert seeds_until(lambda seeds: seeds >= 20) == 20
    assert seeds_until(lambda seeds: False) is None
    assert seeds_until(lambda seeds: True, 8) == 8


def test_power_at_3_standard_errors_and_at_0():
    spread = Spread(16, 1000, 1.0, 0.0, 0.0)
    assert round(power_of(3.0, spread), 2) == 0.8
    assert round(power_of(0.0, spread), 3) == 0.025


def test_crossed_mean_is_the_grand_mean():
    assert crossed_mean(np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])).value == 0.625
