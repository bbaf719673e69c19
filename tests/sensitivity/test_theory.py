"""The theorems as functions: what they say of vectors whose lengths and angle are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.sensitivity import amplification, critical_cosine, relative_sensitivity

positive = st.floats(0.05, 20)
cosines = st.floats(-1, 1)


@given(lam=positive, rho=positive, cosine=cosines)
def test_amplification_is_the_length_of_the_difference(lam, rho, cosine):
    one = np.array([1.0, 0.0])
    two = rho * np.array([cosine, math.sqrt(1 - cosine**2)])
    assert amplification(lam, rho, cosine) == pytest.approx(np.linalg.norm(one - lam * two), abs=1e-6)


@given(lam=positive, rho=positive)
def test_extremes(lam, rho):
    assert amplification(lam, rho, -1.0) == pytest.approx(1 + lam * rho)
    assert amplification(lam, rho, 1.0) == pytest.approx(abs(1 - lam * rho), abs=1e-6)


@given(gamma=positive, lam=positive, rho=positive, cosine=cosines)
def test_the_critical_cosine_divides_more_from_less_sensitive(gamma, lam, rho, cosine):
    critical = critical_cosine(gamma, lam, rho)
    ratio = relative_sensitivity(gamma, lam, rho, cosine)
    if abs(cosine - critical) > 1e-6 and abs(ratio - 1) > 1e-9:
        assert (ratio > 1) == (cosine < critical)


@pytest.mark.parametrize(("gamma", "sign"), [(2.0, 1), (0.5, -1), (1.0, -1)])
def test_without_a_second_map_the_angle_plays_no_part(gamma, sign):
    assert critical_cosine(gamma, 0.0, 1.0) == sign * math.inf
    assert (relative_sensitivity(gamma, 0.0, 1.0, 0.3) > 1) == (sign > 0)


def test_arrays():
    lam = np.array([0.2, 0.8])
    assert amplification(lam, 1.0, -1.0) == pytest.approx(1 + lam)
    assert critical_cosine(1.0, lam, np.array([1.0, 0.5])).shape == (2,)
