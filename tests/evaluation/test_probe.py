"""The linear probe against scikit-learn, by the laws of its optimum, and its search against a slow transcription."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from antiphase.errors import UserError
from antiphase.evaluation.probe import (
    COSTS,
    MOST_FITS,
    Probe,
    accuracy,
    fit_probe,
    hold_out,
    probe_loss,
    search,
    train_probe,
)


def samples(n, dim, classes, *, seed=0, spread=1.0, dtype=torch.float64):
    """Overlapping clouds; every class occurs, the first ones more often."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=draw) ** 2 * classes).long()
    labels[:classes] = torch.arange(classes)
    centres = torch.randn(classes, dim, generator=draw, dtype=torch.float64)
    noise = torch.randn(n, dim, generator=draw, dtype=torch.float64)
    return (centres[labels] + spread * noise + 0.3).to(dtype), labels


def loss_of(probe, features, labels, objective):
    weight, bias = probe.weight.double(), probe.bias.double()
    return float(probe_loss(features.double(), labels, weight, bias, probe.cost, objective))


def sklearn_fit(features, labels, cost):
    """Return scikit-learn's optimum of the squared objective."""
    regression = LogisticRegression(C=cost / len(labels), tol=1e-10, max_iter=20_000)
    regression.fit(features.double().numpy(), labels.numpy())
    return Probe(torch.from_numpy(regression.coef_), torch.from_numpy(regression.intercept_), cost)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "dim", "classes"), [(61, 7, 3), (197, 23, 5), (53, 71, 11)])
@pytest.mark.parametrize("cost", [1e-2, 1.0, 1e2, 1e4])
def test_the_squared_objective_has_scikit_learn_s_optimum(n, dim, classes, cost, dtype):
    features, labels = samples(n, dim, classes, dtype=dtype, spread=2.0)
    probe = fit_probe(features, labels, classes, cost, objective="squared")
    optimum = sklearn_fit(features, labels, cost)
    assert probe.weight.dtype == dtype
    assert probe.weight.shape == (classes, dim)
    best = loss_of(optimum, features, labels, "squared")
    assert loss_of(probe, features, labels, "squared") == pytest.approx(best, abs=1e-4)
    assert best < math.log(classes)  # of zero weights


@pytest.mark.parametrize("cost", [3.0, 1e2, 1e3])
def test_the_norm_s_optimum_is_that_of_a_square_at_another_cost(cost):
    # W/(2C‖W‖) = W/C' where C' = 2C‖W‖
    features, labels = samples(197, 23, 5, spread=2.0)
    probe = fit_probe(features, labels, 5, cost)
    optimum = sklearn_fit(features, labels, 2 * cost * float(probe.weight.norm()))
    best = loss_of(Probe(optimum.weight, optimum.bias, cost), features, labels, "norm")
    assert loss_of(probe, features, labels, "norm") == pytest.approx(best, abs=1e-6)
    torch.testing.assert_close(probe.weight, optimum.weight, rtol=1e-2, atol=1e-2)
    assert abs(float(probe.weight.norm()) - 1) > 0.1  # where both penalties would agree


@pytest.mark.parametrize("objective", ["norm", "squared"])
@pytest.mark.parametrize("cost", [1e-2, 1.0, 1e2])
def test_gradients_against_finite_differences_and_in_closed_form(objective, cost):
    features, labels = samples(13, 7, 3)
    draw = torch.Generator().manual_seed(2)
    weight = torch.randn(3, 7, generator=draw, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, generator=draw, dtype=torch.float64, requires_grad=True)

    def loss(weight, bias):
        return probe_loss(features, labels, weight, bias, cost, objective)

    assert torch.autograd.gradcheck(loss, (weight, bias))
    gradients = torch.autograd.grad(loss(weight, bias), (weight, bias))
    with torch.no_grad():
        pull = ((features @ weight.T + bias).softmax(1) - torch.eye(3)[labels].double()) / 13
        of_penalty = weight / (2 * weight.norm()) if objective == "norm" else weight
        torch.testing.assert_close(gradients[0], pull.T @ features + of_penalty / cost)
        torch.testing.assert_close(gradients[1], pull.sum(0))


def test_the_norm_pulls_nowhere_at_zero():
    features, labels = samples(13, 7, 3)
    weight = torch.zeros(3, 7, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(probe_loss(features, labels, weight, bias, 1e-6), weight)
    pull = (torch.full((13, 3), 1 / 3) - torch.eye(3)[labels]).double() / 13
    torch.testing.assert_close(gradient, pull.T @ features)


def test_the_norm_leaves_no_weight_exactly_where_it_outweighs_the_cross_entropy():
    features, labels = samples(97, 7, 3, spread=2.0)
    shares = labels.bincount().double() / 97
    pull = (shares - torch.eye(3)[labels]) / 97
    bound = 1 / (2 * float((pull.T @ features).norm()))  # at W = 0 and the best bias, log shares
    entropy = float(-(shares * shares.log()).sum())
    at_zero = (1 / 3 - torch.eye(3, dtype=torch.float64)[labels]) / 97
    steep, level = float((at_zero.T @ features).norm()), float(at_zero.sum(0).norm())
    stays = steep / (2 * (steep**2 + level**2))
    assert stays < 0.8 * bound
    for cost in (1e-6, 0.5 * stays, 0.99 * stays):
        probe = fit_probe(features, labels, 3, cost)
        assert not probe.weight.any() | probe.bias.any()
    for cost in (1.01 * stays, 0.9 * bound):
        probe = fit_probe(features, labels, 3, cost)
        assert probe.weight.norm() < 1e-5
        assert loss_of(probe, features, labels, "norm") == pytest.approx(entropy, abs=1e-4)
    for cost in (1.1 * bound, 2 * bound):
        probe = fit_probe(features, labels, 3, cost)
        assert probe.weight.norm() > 1e-2
        assert loss_of(probe, features, labels, "norm") < entropy - 1e-3
    assert fit_probe(features, labels, 3, 0.9 * bound, objective="squared").weight.norm() > 1e-2


@pytest.mark.parametrize("objective", ["norm", "squared"])
def test_the_order_of_the_samples_leaves_the_loss(objective):
    features, labels = samples(197, 23, 5, spread=2.0)
    order = torch.randperm(197, generator=torch.Generator().manual_seed(1))
    one = fit_probe(features, labels, 5, 10.0, objective=objective)
    two = fit_probe(features[order], labels[order], 5, 10.0, objective=objective)
    assert loss_of(one, features, labels, objective) == pytest.approx(
        loss_of(two, features, labels, objective), abs=1e-6
    )


def test_the_same_twice_and_less_with_fewer_steps():
    features, labels = samples(97, 23, 5, dtype=torch.float32, spread=2.0)
    one, two = fit_probe(features, labels, 5, 1e2), fit_probe(features, labels, 5, 1e2)
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(one.bias, two.bias)
    assert not one.weight.requires_grad
    early = fit_probe(features, labels, 5, 1e2, max_iter=3)
    assert loss_of(early, features, labels, "norm") > loss_of(one, features, labels, "norm")


def test_classes_that_can_be_told_apart_are():
    features, labels = samples(197, 23, 5, spread=1e-2)
    probe = train_probe(features, labels, None, 5)
    assert accuracy(probe.scores(features).argmax(1), labels) == 1.0
    torch.testing.assert_close(probe.scores(features), features @ probe.weight.T + probe.bias)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"features": torch.tensor([[1.0], [math.nan]])}, "features of shape .* without NaN or infinite values"),
        ({"features": torch.tensor([[1.0], [math.inf]])}, "features of shape .* without NaN or infinite values"),
        ({"features": torch.ones(3, 1)}, r"labels of shape \(2,\) .*: expected one per sample, \(3,\), as in features"),
        ({"labels": torch.tensor([0, 2])}, "labels 0 to 2: expected 0 to 1"),
        ({"labels": torch.tensor([-1, 1])}, "labels -1 to 1: expected 0 to 1"),
        ({"cost": 0.0}, "cost 0.0: expected a number above 0"),
        ({"objective": "x"}, "objective 'x': expected 'norm' or 'squared'"),
        ({"max_iter": 0}, "max_iter 0: expected an integer of at least 1"),
        ({"num_classes": 2.0}, "num_classes 2.0: expected an integer"),
        ({"labels": torch.tensor([0.0, 1.0])}, "labels of shape .* and torch.float32: expected .* int64"),
    ],
)
def test_what_cannot_be_fitted_is_named(bad, message):
    good = {"features": torch.ones(2, 1), "labels": torch.tensor([0, 1]), "num_classes": 2, "cost": 1.0}
    fit_probe(**good)
    with pytest.raises(UserError, match=message):
        fit_probe(**good | bad)


def test_accuracies_by_hand():
    labels = torch.tensor([0, 0, 0, 0, 3, 3, 1])
    predictions = torch.tensor([0, 0, 0, 2, 3, 1, 2])
    assert accuracy(predictions, labels) == 4 / 7
    assert accuracy(predictions, labels, mean_per_class=True) == pytest.approx((3 / 4 + 1 / 2 + 0) / 3)


def transcribed(curve):
    """Return (exponent of ten of the best cost, exponents in the order of their first visit), as the protocol reads."""
    coarse = [Fraction(e) for e in (-6, -4, -2, 0, 2, 4, 6)]
    best = next(e for e in coarse if all(curve(e) >= curve(other) for other in coarse))
    left = [best + Fraction(step, 7) for step in range(-14, 15)]
    left = [e for e in left if -6 <= e <= 6]
    visited, second = list(coarse), [best]
    while len(left) > 1:
        quarter, half = len(left) // 4, len(left) // 2
        from_the_end = -(-len(left) // 4)  # a quarter, rounded up
        tried = {25: left[quarter], 50: left[half], 75: left[-from_the_end]}
        visited += tried.values()
        second += tried.values()
        greatest = max(curve(e) for e in tried.values())
        if curve(tried[25]) == greatest:
            del left[half:]
        elif curve(tried[75]) == greatest:
            del left[:half]
        else:
            left = left[quarter:][: len(left) - quarter - from_the_end]
    final = next(e for e in second if all(curve(e) >= curve(other) for other in second))
    return final, list(dict.fromkeys(visited))


def exponent(cost):
    return Fraction(round(7 * math.log10(cost)), 7)


@given(st.lists(st.integers(0, 4), min_size=85, max_size=85) | st.permutations(range(85)))
def test_the_search_visits_what_the_transcription_visits(heights):
    costs = []

    def curve(e):
        return heights[int(7 * e) + 42] / 97

    def accuracy_at(cost):
        costs.append(cost)
        return curve(exponent(cost))

    optimum, accuracies = search(accuracy_at)
    best, visited = transcribed(curve)
    assert exponent(optimum) == best
    assert list(dict.fromkeys(map(exponent, costs))) == visited
    assert costs == list(accuracies)
    assert costs[:7] == list(COSTS)
    assert len(costs) <= MOST_FITS - 1
    assert all(accuracies[cost] == curve(exponent(cost)) for cost in costs)
    assert all(cost * (1 + 1e-6) >= 1e-6 and cost <= 1e6 for cost in costs)


@pytest.mark.parametrize("peak", range(-42, 43))
def test_the_search_climbs_a_single_peak(peak):
    cost, _ = search(lambda cost: 1 - abs(7 * math.log10(cost) - peak) / 100)
    assert 7 * math.log10(cost) == pytest.approx(peak, abs=1.01)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("mean_per_class", [False, True])
def test_probe_is_fitted_on_both_splits_at_the_cost_of_the_best_validation_accuracy(split, mean_per_class):
    features, labels = samples(127, 5, 3, spread=2.0)
    mask = torch.arange(127) >= 90 if split else hold_out(labels, 4)
    train, validation = (features[~mask], labels[~mask]), (features[mask], labels[mask])
    options, calls = {"objective": "squared", "max_iter": 20}, []

    def accuracy_at(cost):
        answers = fit_probe(*train, 3, cost, **options).scores(validation[0]).argmax(1)
        parts = [float((answers == label)[validation[1] == label].double().mean()) for label in range(3)]
        return np.mean(parts) if mean_per_class else float((answers == validation[1]).double().mean())

    cost, visited = search(accuracy_at)
    assert len(set(visited.values())) > 2
    first, second = (train, validation) if split else ((features, labels), None)
    probe = train_probe(
        *first, second, 3, seed=4, mean_per_class=mean_per_class, on_fit=lambda: calls.append(1), **options
    )
    both = (torch.cat([one, two]) for one, two in zip(train, validation, strict=True)) if split else first
    expected = fit_probe(*both, 3, cost, **options)
    assert probe.cost == cost
    assert torch.equal(probe.weight, expected.weight)
    assert torch.equal(probe.bias, expected.bias)
    assert len(calls) == len(visited) + 1 <= MOST_FITS


@given(st.lists(st.integers(0, 6), min_size=40, max_size=90), st.integers(0, 1000))
def test_a_fifth_of_each_class_is_held_out(labels, seed):
    labels = 3 * torch.tensor(labels) + 1
    mask = hold_out(labels, seed)
    for label in labels.unique():
        assert int(mask[labels == label].sum()) == int(0.2 * int((labels == label).sum()))
    assert torch.equal(mask, hold_out(labels, seed))


def test_what_is_held_out_is_drawn_uniformly_by_the_seed_alone():
    labels = torch.tensor([0, 1] * 11)
    torch.manual_seed(0)
    drawn = torch.stack([hold_out(labels, seed) for seed in range(1000)])
    torch.manual_seed(1)
    assert torch.equal(drawn[3], hold_out(labels, 3))
    assert len(drawn.unique(dim=0)) > 700  # of 55²
    assert (drawn.double().mean(0) - 2 / 11).abs().max() < 0.05


def test_nothing_to_hold_out_is_named():
    with pytest.raises(UserError, match="at most 4 samples a class: expected 5"):
        hold_out(torch.tensor([0, 0, 0, 0, 1, 2]), 0)
