"""The theorems as functions: what they say of vectors whose lengths and angle are known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphase.errors import UserError
from antiphase.sensitivity.theory import (
    amplification,
    critical_cosine,
    estimated_radius,
    margins,
    printed_radius_ratio,
    radius_ratio,
    relative_sensitivity,
)

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
    ("compute", "message"),
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
def test_numbers_out_of_range_are_refused(compute, message):
    with pytest.raises(UserError, match=message):
        compute()


def test_a_negative_lambda_adds_the_second_map():
    assert amplification(-0.5, 1.0, 1.0) == pytest.approx(1.5)


def test_what_was_not_measured_stays_unknown():
    assert math.isnan(amplification(0.8, math.nan, 0.0))
    assert amplification(0.8, 1.0, 1.0 + 1e-9) == pytest.approx(0.2)  # a cosine that was measured, rounded


def linear(classes, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, 11, generator=generator, dtype=torch.float64)
    bias = torch.randn(classes, generator=generator, dtype=torch.float64)
    return weight, bias, torch.randn(7, 11, generator=generator, dtype=torch.float64)


def distance_to_the_boundary(weight, bias, x):
    """Of each row, to the nearest hyperplane where the predicted class ties with another."""
    logits = x @ weight.T + bias
    nearest = []
    for z in logits:
        y = int(z.argmax())
        others = [j for j in range(len(z)) if j != y]
        nearest.append(min(float((z[y] - z[j]) / (weight[y] - weight[j]).norm()) for j in others))
    return torch.tensor(nearest, dtype=torch.float64), logits


def test_margins_by_hand():
    logits = torch.tensor([[1.0, 4.0, 2.5], [1.0, 4.0, 2.5], [3.0, 3.0, 0.0]])
    assert margins(logits, torch.tensor([1, 2, 0])).tolist() == [1.5, -1.5, 0.0]


@given(seed=st.integers(0, 99))
def test_estimated_radius_of_two_opposite_rows_is_exact(seed):
    weight, _, x = linear(1, seed)
    weight = torch.cat([weight, -weight])
    exact, logits = distance_to_the_boundary(weight, torch.zeros(2), x)
    lipschitz = float(torch.linalg.matrix_norm(weight, 2))
    radius = estimated_radius(margins(logits, logits.argmax(1)), lipschitz, of="logits")
    torch.testing.assert_close(radius, exact)


@given(seed=st.integers(0, 99), classes=st.integers(2, 5))
def test_estimated_radius_with_the_exact_constant_ends_before_the_boundary(seed, classes):
    weight, bias, x = linear(classes, seed)
    exact, logits = distance_to_the_boundary(weight, bias, x)
    margin = margins(logits, logits.argmax(1))
    lipschitz = float(torch.linalg.matrix_norm(weight, 2))
    assert (estimated_radius(margin, lipschitz, of="logits") <= exact * (1 + 1e-9)).all()


def test_estimated_radius_of_the_margins_constant_is_exact():
    weight, bias, x = linear(2, 3)
    exact, logits = distance_to_the_boundary(weight, bias, x)
    margin = margins(logits, logits.argmax(1))
    steepest = torch.full((7,), float((weight[0] - weight[1]).norm()), dtype=torch.float64)
    torch.testing.assert_close(estimated_radius(margin, steepest, of="margin"), exact)


def test_estimated_radius_is_zero_for_wrong_predictions_and_infinite_for_no_slope():
    margin = torch.tensor([-3.0, 0.0, 2.0])
    assert estimated_radius(margin, 2.0, of="logits").tolist() == pytest.approx([0, 0, 1 / math.sqrt(2)])
    assert estimated_radius(margin, 0.0, of="margin").tolist() == [0, 0, math.inf]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: estimated_radius(torch.ones(2), -1.0, of="logits"), "lipschitz -1"),
        (lambda: estimated_radius(torch.ones(2), torch.tensor([1, math.nan]), of="logits"), "lipschitz"),
        (lambda: estimated_radius(torch.ones(2), 1.0, of="loss"), "'loss'"),
        (lambda: margins(torch.ones(2, 3), torch.tensor([0, 3])), "0 to 2"),
        (lambda: margins(torch.ones(2, 3), torch.tensor([0])), "labels of shape .* one per sample"),
        (lambda: margins(torch.ones(2, 1), torch.tensor([0, 0])), "at least 2 classes"),
    ],
)
def test_margins_and_radii_refuse_what_cannot_be_used(call, named):
    with pytest.raises(UserError, match=named):
        call()


@given(margin_ratio=positive, rho=positive, cosine=cosines)
def test_radius_ratio_without_a_second_map_is_that_of_the_margins(margin_ratio, rho, cosine):
    assert radius_ratio(margin_ratio, 1.0, 0.0, rho, cosine) == pytest.approx(margin_ratio)


@given(margin_ratio=positive, gamma=positive, lam=positive, rho=positive)
def test_radius_ratio_in_antiphase_is_that_of_the_papers_text(margin_ratio, gamma, lam, rho):
    expected = margin_ratio / (gamma * (1 + lam * rho))
    assert radius_ratio(margin_ratio, gamma, lam, rho, -1.0) == pytest.approx(expected)


@given(gamma=positive, lam=positive, rho=positive, cosine=cosines)
def test_radius_ratio_compares_two_linear_margins(gamma, lam, rho, cosine):
    base = np.array([1 / gamma, 0.0])
    first, second = np.array([1.0, 0.0]), rho * np.array([cosine, math.sqrt(1 - cosine**2)])
    slope = float(np.linalg.norm(first - lam * second))
    if slope > 1e-3:
        one = estimated_radius(torch.tensor([3.0]).double(), slope, of="margin")
        other = estimated_radius(torch.tensor([2.0]).double(), float(np.linalg.norm(base)), of="margin")
        assert radius_ratio(1.5, gamma, lam, rho, cosine) == pytest.approx(float(one / other), rel=1e-6)


@given(margin_ratio=positive, gamma=positive, lam=positive, rho=positive)
def test_printed_radius_ratio_in_antiphase_contradicts_the_papers_text(margin_ratio, gamma, lam, rho):
    expected = margin_ratio / (gamma * math.sqrt(1 + (lam * rho) ** 2) + 2 * lam * rho)
    assert printed_radius_ratio(margin_ratio, gamma, lam, rho, -1.0) == pytest.approx(expected)


def test_printed_radius_ratio_may_be_negative():
    assert printed_radius_ratio(1.0, 0.5, 1.0, 1.0, 1.0) == pytest.approx(1 / (0.5 * math.sqrt(2) - 2))
    with pytest.raises(UserError, match="gamma 0"):
        printed_radius_ratio(1.0, 0.0, 1.0, 1.0, 0.0)


def test_radius_ratio_is_infinite_where_the_gradient_vanishes():
    assert radius_ratio(0.5, 1.0, 0.5, 2.0, 1.0) == math.inf
    assert radius_ratio(0.0, 1.0, 0.5, 2.0, 1.0) == 0.0
    assert radius_ratio(np.array([1.0, 2.0]), 2.0, 0.0, 1.0, 0.0).tolist() == [0.5, 1.0]


def test_what_is_not_known_stays_unknown():
    nan = math.nan
    assert math.isnan(critical_cosine(1.0, nan, 1.0))
    assert math.isnan(critical_cosine(nan, 0.0, 1.0))
    assert critical_cosine(0.5, 0.0, 1.0) == -math.inf
    with pytest.raises(UserError, match="rho -1: expected a number at least 0"):
        printed_radius_ratio(1.0, 1.0, 0.8, -1.0, 0.5)
    with pytest.raises(UserError, match="cosine 5: expected a number between -1 and 1"):
        printed_radius_ratio(1.0, 1.0, 0.8, 1.0, 5.0)
