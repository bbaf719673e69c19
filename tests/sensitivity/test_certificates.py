"""Radii from margins and from votes, against linear models and sums of binomial terms."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphase.errors import UserError
from antiphase.sensitivity.smoothing import certified_radius, lower_bound
from antiphase.sensitivity.theory import estimated_radius, margins, printed_radius_ratio, radius_ratio
from tests.reference import smoothing as reference

positive = st.floats(0.05, 20)
cosines = st.floats(-1, 1)


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
def test_two_opposite_rows_make_the_radius_exact(seed):
    weight, _, x = linear(1, seed)
    weight = torch.cat([weight, -weight])
    exact, logits = distance_to_the_boundary(weight, torch.zeros(2), x)
    lipschitz = float(torch.linalg.matrix_norm(weight, 2))
    radius = estimated_radius(margins(logits, logits.argmax(1)), lipschitz, of="logits")
    torch.testing.assert_close(radius, exact)


@given(seed=st.integers(0, 99), classes=st.integers(2, 5))
def test_with_the_exact_constant_no_radius_reaches_past_the_boundary(seed, classes):
    weight, bias, x = linear(classes, seed)
    exact, logits = distance_to_the_boundary(weight, bias, x)
    margin = margins(logits, logits.argmax(1))
    lipschitz = float(torch.linalg.matrix_norm(weight, 2))
    assert (estimated_radius(margin, lipschitz, of="logits") <= exact * (1 + 1e-9)).all()


def test_the_constant_of_the_margin_needs_no_root():
    weight, bias, x = linear(2, 3)
    exact, logits = distance_to_the_boundary(weight, bias, x)
    margin = margins(logits, logits.argmax(1))
    steepest = torch.full((7,), float((weight[0] - weight[1]).norm()), dtype=torch.float64)
    torch.testing.assert_close(estimated_radius(margin, steepest, of="margin"), exact)


def test_the_radius_of_a_wrong_prediction_is_zero_and_of_an_unknown_constant_infinite():
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
def test_what_cannot_be_used_is_named(call, named):
    with pytest.raises(UserError, match=named):
        call()


@given(margin_ratio=positive, rho=positive, cosine=cosines)
def test_without_a_second_map_the_ratio_is_that_of_the_margins(margin_ratio, rho, cosine):
    assert radius_ratio(margin_ratio, 1.0, 0.0, rho, cosine) == pytest.approx(margin_ratio)


@given(margin_ratio=positive, gamma=positive, lam=positive, rho=positive)
def test_in_antiphase_the_ratio_is_what_the_paper_s_text_says(margin_ratio, gamma, lam, rho):
    expected = margin_ratio / (gamma * (1 + lam * rho))
    assert radius_ratio(margin_ratio, gamma, lam, rho, -1.0) == pytest.approx(expected)


@given(gamma=positive, lam=positive, rho=positive, cosine=cosines)
def test_the_ratio_compares_the_radii_of_two_linear_margins(gamma, lam, rho, cosine):
    base = np.array([1 / gamma, 0.0])
    first, second = np.array([1.0, 0.0]), rho * np.array([cosine, math.sqrt(1 - cosine**2)])
    slope = float(np.linalg.norm(first - lam * second))
    if slope > 1e-3:
        one = estimated_radius(torch.tensor([3.0]).double(), slope, of="margin")
        other = estimated_radius(torch.tensor([2.0]).double(), float(np.linalg.norm(base)), of="margin")
        assert radius_ratio(1.5, gamma, lam, rho, cosine) == pytest.approx(float(one / other), rel=1e-6)


@given(margin_ratio=positive, gamma=positive, lam=positive, rho=positive)
def test_the_printed_ratio_contradicts_the_paper_s_text_in_antiphase(margin_ratio, gamma, lam, rho):
    expected = margin_ratio / (gamma * math.sqrt(1 + (lam * rho) ** 2) + 2 * lam * rho)
    assert printed_radius_ratio(margin_ratio, gamma, lam, rho, -1.0) == pytest.approx(expected)


def test_the_printed_ratio_may_be_negative():
    assert printed_radius_ratio(1.0, 0.5, 1.0, 1.0, 1.0) == pytest.approx(1 / (0.5 * math.sqrt(2) - 2))
    with pytest.raises(UserError, match="gamma 0"):
        printed_radius_ratio(1.0, 0.0, 1.0, 1.0, 0.0)


def test_where_the_gradient_vanishes_the_ratio_is_infinite():
    assert radius_ratio(0.5, 1.0, 0.5, 2.0, 1.0) == math.inf
    assert radius_ratio(0.0, 1.0, 0.5, 2.0, 1.0) == 0.0
    assert radius_ratio(np.array([1.0, 2.0]), 2.0, 0.0, 1.0, 0.0).tolist() == [0.5, 1.0]


@given(samples=st.integers(1, 120), share=st.floats(0, 1), alpha=st.floats(1e-4, 0.4))
def test_the_lower_bound_is_where_the_binomial_tail_is_alpha(samples, share, alpha):
    count = round(share * samples)
    expected = reference.lower_bound(count, samples, alpha)
    assert float(lower_bound(count, samples, alpha)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("p", [0.3, 0.6, 0.9])
def test_the_lower_bound_is_too_high_no_oftener_than_alpha(p):
    """Exactly: the probability of all counts whose bound lies above p."""
    samples, alpha = 97, 0.05
    counts = np.arange(samples + 1)
    above = counts[lower_bound(counts, samples, alpha) > p]
    wrong = reference.binomial_tail(int(above.min()), samples, p)
    assert 0.25 * alpha < wrong <= alpha  # and it is not needlessly low


@given(sigma=positive, samples=st.integers(20, 500), alpha=st.floats(1e-3, 0.1))
def test_the_radius_rises_with_the_count_and_scales_with_sigma(sigma, samples, alpha):
    radius = certified_radius(np.arange(samples + 1), samples, sigma, alpha)
    said = ~np.isnan(radius)
    assert not said[samples // 2]
    assert said[-1] == (alpha ** (1 / samples) >= 0.5)
    assert (np.diff(said.astype(int)) >= 0).all()
    assert (np.diff(radius[said]) > 0).all()
    unit = certified_radius(np.arange(samples + 1), samples, 1.0, alpha)
    np.testing.assert_allclose(radius, sigma * unit)


def test_the_radius_where_all_agree_is_the_paper_s():
    """Section 3.2.2 of Cohen et al.: with n = 100,000 and α = .001 the radius cannot pass about 4σ."""
    expected = 0.25 * NormalDist().inv_cdf(0.001 ** (1 / 100_000))
    assert float(certified_radius(100_000, 100_000, 0.25, 0.001)) == pytest.approx(expected, rel=1e-6)
    assert 3.7 < expected / 0.25 < 4
