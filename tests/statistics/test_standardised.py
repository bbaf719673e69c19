"""Standardisation on made-up data whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from antiphase.statistics.intervals import standardised
from antiphase.statistics.seeds_by_images import crossed_mean

SEEDS, IMAGES = 8, 400
EPS = 1.0


def _margins(rng, shift, seeds=SEEDS, images=IMAGES):
    """Log-normal margins: an image's own level, a seed's level, the rest."""
    image, seed = rng.normal(size=images), rng.normal(0.0, 0.1, (seeds, 1))
    return np.exp(shift + 0.9 * image + seed + rng.normal(0.0, 0.4, (seeds, images)))


def _rate(margin, steepness):
    """Probability that an image of this margin is broken at ε by a model of this steepness."""
    return stats.norm.cdf(np.log(steepness * EPS / margin) / 0.5)


def _difference(rng, shift, steepness, strata=20):
    """Return the difference of two models with other margins and steepness: raw, standardised, what that took away."""
    margins = [_margins(rng, 0.0), _margins(rng, shift)]
    broken = [
        (rng.random(margin.shape) < _rate(margin, slope)).astype(float)
        for margin, slope in zip(margins, (1.0, steepness), strict=True)
    ]
    matched = [standardised(hits, margin, margins, strata) for hits, margin in zip(broken, margins, strict=True)]
    raw, even = broken[1] - broken[0], matched[1] - matched[0]
    return crossed_mean(raw), crossed_mean(even), crossed_mean(raw - even)


def _truth(shift, steepness):
    """Return the difference at the pooled margins, and that of each model at its own, by quadrature."""
    grid = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000) * np.sqrt(0.9**2 + 0.4**2 + 0.1**2)
    pooled = np.exp(np.concatenate([grid, grid + shift]))
    even = (_rate(pooled, steepness) - _rate(pooled, 1.0)).mean()
    return even, _rate(np.exp(grid + shift), steepness).mean() - _rate(np.exp(grid), 1.0).mean()


@pytest.mark.parametrize(("shift", "steepness"), [(-0.5, 1.4), (0.0, 1.5)])
def test_the_truth_is_recovered_and_covered(shift, steepness):
    rng = np.random.default_rng(3)
    draws = [_difference(rng, shift, steepness) for _ in range(100)]
    even, whole = _truth(shift, steepness)
    for index, truth in ((1, even), (2, whole - even)):
        estimates = [draw[index] for draw in draws]
        assert np.mean([one.value for one in estimates]) == pytest.approx(truth, abs=0.006)
        assert np.mean([one.low <= truth <= one.high for one in estimates]) > 0.91
    if shift:  # the raw difference is another one
        assert abs(np.mean([raw.value for raw, _, _ in draws]) - even) > 0.05


def test_where_only_the_margin_differs_nothing_is_left_of_a_large_difference():
    raw, matched, _ = _difference(np.random.default_rng(0), -0.8, 1.0)
    assert raw.low > 0.15
    assert abs(matched.value) < 0.02
    assert matched.low < 0 < matched.high


def test_the_mean_is_the_sum_over_strata_by_hand():
    values = np.array([[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    margins = np.array([[0.1, 0.2, 0.3, 0.4, 2.5, 3.5]])  # four below 1, two above
    population = [margins, np.array([[0.5, 1.5, 1.6, 1.7, 1.8, 1.9]])]  # 5 of 12 below the median
    median = np.median(np.stack(population))
    share = np.mean(np.stack(population) < median)
    below = values[margins < median].mean()
    above = values[margins >= median].mean()
    result = standardised(values, margins, population, strata=2)
    assert result.shape == values.shape
    assert result.mean() == pytest.approx(share * below + (1 - share) * above)


def test_the_models_own_margins_change_no_mean():
    rng = np.random.default_rng(1)
    margins = _margins(rng, 0.0)
    values = rng.random(margins.shape)
    assert standardised(values, margins, [margins]).mean() == pytest.approx(values.mean())


def test_a_stratum_without_images_takes_the_nearest_rate():
    values = np.array([[1.0, 1.0, 0.0, 0.0]])
    margins = np.array([[1.0, 2.0, 3.0, 4.0]])
    population = [np.array([[1.5, 3.5, 9.0, 10.0]])]  # half of it lies beyond
    assert standardised(values, margins, population, strata=4).mean() == pytest.approx(0.25)
