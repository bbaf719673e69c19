import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from antiphase.statistics.intervals import (
    Estimate,
    as_difference,
    as_share,
    as_size,
    jackknife,
    mean_over_seeds,
    paired_difference,
    proportion,
)

Z = 1.959963984540054


def outcomes(both: int, only_first: int, only_second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    cells = [(True, True), (True, False), (False, True), (False, False)]
    pairs = np.repeat(np.array(cells), [both, only_first, only_second, neither], axis=0)
    return pairs[:, 0], pairs[:, 1]


tables = st.tuples(*[st.integers(0, 40)] * 4).filter(lambda table: sum(table) > 0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_solve_the_score_equation_and_hold_the_estimate(case):
    successes, n = case
    estimate = proportion(successes, n)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.n == n
    for bound in (estimate.low, estimate.high):
        assert n * (estimate.value - bound) ** 2 == pytest.approx(Z**2 * bound * (1 - bound), abs=1e-9)


def test_wilson_interval_mirrors_and_narrows():
    assert proportion(3, 17).low == pytest.approx(1 - proportion(14, 17).high)
    widths = [proportion(k, n).high - proportion(k, n).low for k, n in ((3, 10), (30, 100), (300, 1000))]
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_no_proportion_without_samples_or_outside_them(successes, n):
    with pytest.raises(ValueError, match="proportion"):
        proportion(successes, n)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Fagerland, Lydersen and Laake, Statistical Analysis of
        # Contingency Tables (2017), chapter 8, Bentur et al. and Cavo et al.
        ((1, 1, 7, 12), -0.507, -0.026),
        ((59, 6, 16, 80), -0.1186, -0.0046),
    ],
)
def test_published_paired_intervals(table, low, high):
    estimate = paired_difference(*outcomes(*table))
    digits = 4 if len(str(low).lstrip("-")) == 6 else 3
    assert (round(estimate.low, digits), round(estimate.high, digits)) == (low, high)


@given(tables)
def test_paired_interval_holds_the_difference_stays_inside_and_changes_sign_with_the_order(table):
    first, second = outcomes(*table)
    estimate, swapped = paired_difference(first, second), paired_difference(second, first)
    assert estimate.value == pytest.approx(first.mean() - second.mean(), abs=1e-12)
    assert -1 - 1e-9 <= estimate.low <= estimate.value <= estimate.high <= 1 + 1e-9
    assert (swapped.value, swapped.low, swapped.high) == pytest.approx((-estimate.value, -estimate.high, -estimate.low))


def test_pairing_narrows_the_interval_of_agreeing_outcomes():
    paired = paired_difference(*outcomes(45, 5, 0, 50))
    unpaired = paired_difference(*outcomes(23, 27, 22, 28))  # the same margins, uncorrelated
    assert paired.value == pytest.approx(unpaired.value)
    assert paired.high - paired.low < 0.6 * (unpaired.high - unpaired.low)


def test_exact_coverage_of_the_paired_interval_over_a_grid():
    """Every outcome of n pairs is enumerated, so the coverage is exact up to rounding."""
    n = 13
    counts = np.array([c for c in itertools.product(range(n + 1), repeat=4) if sum(c) == n])
    estimates = [paired_difference(*outcomes(*row)) for row in counts]
    low, high = np.array([e.low for e in estimates]), np.array([e.high for e in estimates])
    coverages = []
    for one, two, correlation in itertools.product((0.1, 0.3, 0.5, 0.8), (0.1, 0.4, 0.6), (0.0, 0.3, 0.6)):
        spread = math.sqrt(one * (1 - one) * two * (1 - two))
        both = one * two + correlation * spread
        cells = np.array([both, one - both, two - both, 1 - one - two + both])
        if cells.min() < 0:
            continue  # no two outcomes with these margins correlate that strongly
        weights = stats.multinomial(n, cells).pmf(counts)
        assert weights.sum() == pytest.approx(1)
        difference = one - two
        coverages.append(weights[(low <= difference + 1e-12) & (difference - 1e-12 <= high)].sum())
    assert len(coverages) > 20
    assert min(coverages) > 0.925
    assert 0.95 < np.mean(coverages) < 0.98


def test_mean_over_seeds_against_scipy_and_by_hand():
    values = [0.35, 0.31, 0.36]
    estimate = mean_over_seeds(values)
    reference = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (estimate.low, estimate.high) == pytest.approx((reference.low, reference.high))
    assert (estimate.value, estimate.n) == (pytest.approx(0.34), 3)
    assert mean_over_seeds([0.2, 0.2]).high == pytest.approx(0.2)
    assert mean_over_seeds([0.0, 2.0]).high == pytest.approx(1 + 12.706204736)  # t(1, .975)·√2/√2


def test_one_seed_has_no_spread():
    with pytest.raises(ValueError, match="at least 2"):
        mean_over_seeds([0.5])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_the_jackknife_of_a_mean_is_students_interval(values):
    estimate = jackknife(np.array(values)[:, None], lambda means: means[..., 0])
    student = mean_over_seeds(values)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
        (student.value, student.low, student.high), rel=1e-6, abs=1e-6
    )
    assert estimate.n == student.n


def test_the_jackknife_of_a_ratio_by_hand():
    parts = np.array([[1.0, 2.0], [3.0, 2.0]])
    estimate = jackknife(parts, lambda means: means[..., 0] / means[..., 1])
    half = 12.706204736 * math.sqrt(0.5 * 2 * 0.5**2)  # left out in turn: 3/2 and 1/2
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((1.0, 1.0 - half, 1.0 + half))


@pytest.mark.parametrize("n", [11, 50])
def test_the_jackknife_covers_a_ratio_and_a_cosine_as_often_as_it_says(n):
    generator = np.random.default_rng(7)
    mixing = np.array([[1.0, 0.0], [0.6, 0.8]])
    statistics = {
        "ratio": (lambda m: np.sqrt(m[..., 1] / m[..., 0]), 1.0),
        "cosine": (lambda m: m[..., 2] / np.sqrt(m[..., 0] * m[..., 1]), 0.6),
    }
    hits = dict.fromkeys(statistics, 0)
    for _ in range(1000):
        one, two = np.einsum("ij,njk->ink", mixing, generator.normal(size=(n, 2, 5)))
        parts = np.stack([(one**2).sum(1), (two**2).sum(1), (one * two).sum(1)], 1)
        for name, (statistic, true) in statistics.items():
            estimate = jackknife(parts, statistic)
            hits[name] += estimate.low <= true <= estimate.high
    for name, count in hits.items():
        assert 0.925 < count / 1000 < 0.975, name  # .95, give or take 3½ standard deviations


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=1, max_size=9), st.floats(0.1, 9))
def test_the_jackknife_ignores_the_order_and_the_unit(pairs, unit):
    parts = np.array(pairs)

    def ratio(means):
        return means[..., 0] / means[..., 1]

    result = jackknife(parts, ratio)
    for other in (jackknife(parts[::-1], ratio), jackknife(parts * unit, ratio)):
        assert (other.value, other.low, other.high) == pytest.approx((result.value, result.low, result.high), abs=1e-6)


def test_the_jackknife_of_one_sample_knows_nothing_and_of_none_is_refused():
    estimate = jackknife(np.array([[2.0, 4.0]]), lambda means: means[..., 0] / means[..., 1])
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (0.5, -math.inf, math.inf, 1)
    with pytest.raises(ValueError, match="no samples"):
        jackknife(np.empty((0, 2)), lambda means: means[..., 0])


def shares(generator, k):
    """Rates of k training seeds on 300 images, most seeds near 0, and their true mean."""
    return generator.binomial(300, generator.beta(1, 30, k)) / 300, 1 / 31


def norms(generator, k):
    return generator.exponential(size=k), 1.0


@pytest.mark.parametrize(("draw", "within"), [(shares, as_share), (norms, as_size)])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_intervals_kept_within_their_range_cover_the_truth_more_often_than_cut_ones(draw, within, k):
    generator = np.random.default_rng(0)
    cut, kept, rounds, left = 0, 0, 500, 0
    for _ in range(rounds):
        values, truth = draw(generator, k)
        student = mean_over_seeds(values)
        estimate = within(student)
        assert 0 <= estimate.low <= estimate.value <= estimate.high
        if estimate != student:
            left += 1
        cut += student.low <= truth <= student.high  # cutting at the ends of the range changes nothing here
        kept += estimate.low <= truth <= estimate.high
    assert left > 0.3 * rounds
    assert cut / rounds + 0.01 < kept / rounds
    assert 0.90 <= kept / rounds <= 0.97


def test_intervals_within_the_range_stay_as_they_are():
    inside = Estimate(0.3, 0.1, 0.5, 3)
    assert as_share(inside) == as_size(inside) == as_difference(inside) == inside


def test_intervals_without_end_and_at_the_ends_of_the_range_are_cut():
    assert as_share(Estimate(0.5, -math.inf, math.inf, 1)) == Estimate(0.5, 0.0, 1.0, 1)
    assert as_share(Estimate(0.0, -0.1, 0.1, 3)) == Estimate(0.0, 0.0, 0.1, 3)
    assert as_share(Estimate(1.0, 0.9, 1.1, 3)) == Estimate(1.0, 0.9, 1.0, 3)
    assert as_size(Estimate(0.5, -math.inf, math.inf, 1)) == Estimate(0.5, 0.0, math.inf, 1)
    assert as_size(Estimate(1e-9, -1.0, 1.0, 2)).high == math.inf
    assert as_size(Estimate(0.0, -1.0, 1.0, 2)).low == 0.0
    assert as_difference(Estimate(0.5, -0.2, 1.2, 2)) == Estimate(0.5, -0.2, 1.0, 2)
    assert as_difference(Estimate(0.5, -math.inf, math.inf, 1)).high == math.inf


def test_an_estimate_beyond_what_a_difference_can_be_stays_inside_its_interval():
    estimate = as_difference(Estimate(1.2, 1.19, 1.21, 9))  # a trend along a fitted line
    assert (estimate.low, estimate.value, estimate.high) == (1.19, 1.2, 1.2)
