"""The ε at which a share of the samples falls: counted by hand, and the bootstrap against drawing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.attacks.result import eps_at
from antiphase.errors import UserError

SAMPLES = st.lists(st.tuples(st.floats(0, 10), st.booleans()), min_size=1, max_size=40)


def test_counted_by_hand():
    distance = np.array([3.0, 1.0, 0.0, 2.0, 7.0])
    fallen = np.array([True, True, True, True, False])
    norms = {row.level: row.eps for row in eps_at(distance, fallen, levels=(0.2, 0.5, 0.8, 0.95, 1.0))}
    assert norms == {0.2: 0.0, 0.5: 2.0, 0.8: 3.0, 0.95: np.inf, 1.0: np.inf}


@given(SAMPLES, st.floats(0.01, 1.0))
def test_eps_is_the_least_that_reaches_the_level(samples, level):
    distance, fallen = (np.array(column) for column in zip(*samples, strict=True))
    (row,) = eps_at(distance, fallen, levels=(level,))
    asr = [(eps, np.mean(fallen & (distance <= eps))) for eps in sorted(distance[fallen])]
    assert row.eps == next((eps for eps, share in asr if share >= level - 1e-9), np.inf)
    assert row.low <= row.eps <= row.high
    assert row.n == len(samples)


@pytest.mark.parametrize("level", [0.5, 0.9, 1.0])
def test_the_interval_is_the_bootstraps(level):
    generator = np.random.default_rng(0)
    distance, fallen = generator.gamma(2.0, size=61), generator.random(61) < 0.97
    far = np.sort(np.where(fallen, distance, np.inf))
    resamples = np.sort(far[generator.integers(61, size=(40_000, 61))], axis=1)
    drawn = resamples[:, int(np.ceil(level * 61)) - 1]
    (row,) = eps_at(distance, fallen, levels=(level,), confidence=0.9)
    # the interval's ends are samples; those drawn must be the same or their neighbours
    for end, tail in ((row.low, 0.05), (row.high, 0.95)):
        rank = np.searchsorted(far, end)
        drawn_rank = np.searchsorted(far, np.quantile(drawn, tail, method="inverted_cdf"))
        assert abs(rank - drawn_rank) <= 1


def test_a_success_without_search_counts_at_zero():
    (row,) = eps_at(np.zeros(4), np.ones(4, dtype=bool), levels=(1.0,))
    assert (row.eps, row.low, row.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("distance", "fallen", "options", "named"),
    [
        (np.ones(0), np.ones(0, dtype=bool), {}, "one per sample"),
        (np.ones(3), np.ones(2, dtype=bool), {}, r"\(3,\)"),
        (np.array([np.nan]), np.array([True]), {}, "NaN"),
        (np.array([-1.0]), np.array([True]), {}, "negative"),
        (np.ones(3), np.ones(3, dtype=bool), {"levels": (0.0,)}, "levels"),
        (np.ones(3), np.ones(3, dtype=bool), {"confidence": 1.0}, "confidence"),
    ],
)
def test_bad_input(distance, fallen, options, named):
    with pytest.raises(UserError, match=named):
        eps_at(distance, fallen, **options)
