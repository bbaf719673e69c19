"""The theorems as functions: what they say of vectors whose lengths and angle are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.errors import UserError
from antiphase.sensitivity import amplification, critical_cosine, radius_ratio, relative_sensitivity

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


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda: critical_cosine(1.0, -0.5, 1.0), "lam -0.5: expected a number at least 0"),
        (lambda: critical_cosine(1.0, np.array([0.5, -0.25]), 1.0), "lam -0.25: expected"),
        (lambda: critical_cosine(1.0, 0.5, -1.0), "rho -1: expected a number at least 0"),
        (lambda: critical_cosine(0.0, 0.5, 1.0), "gamma 0: expected a number above 0"),
        (lambda: amplification(0.8, -1.0, 0.0), "rho -1: expected"),
        (lambda: amplification(0.8, 1.0, 1.5), "cosine 1.5: expected a number between -1 and 1"),
        (lambda: relative_sensitivity(-1.0, 0.8, 1.0, 0.0), "gamma -1: expected"),
        (lambda: relative_sensitivity(1.0, 0.8, 1.0, -2.0), "cosine -2: expected"),
        (lambda: radius_ratio(-1.0, 1.0, 0.8, 1.0, 0.0), "margin_ratio -1: expected a number at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(compute, said):
    with pytest.raises(UserError, match=said):
        compute()


def test_a_negative_lambda_adds_the_second_map():
    assert amplification(-0.5, 1.0, 1.0) == pytest.approx(1.5)


def test_what_was_not_measured_stays_unknown():
    assert math.isnan(amplification(0.8, math.nan, 0.0))
    assert amplification(0.8, 1.0, 1.0 + 1e-9) == pytest.approx(0.2)  # a cosine that was measured, rounded
