"""Attacks towards a class."""

import math

import pytest
import torch

from antiphase.attacks import Threat, apgd, autoattack, carlini_wagner, fab, noise, pgd, square, sweep
from antiphase.attacks.pgd import fgsm
from antiphase.errors import UserError
from tests.attacks import toys


@pytest.fixture(scope="module")
def linear():
    return toys.Linear(5), toys.images(12)


def _distance(model, images, goal):
    """Return the least linf distance at which a linear model's margin of the goal over each other class is 0."""
    logits, weight = model(images).detach().double(), model.weight.detach().double()
    gap = logits - logits[:, [goal]]
    slope = (weight[goal] - weight).abs().sum(1)
    return (gap / slope.clamp_min(1e-12))[:, [k for k in range(5) if k != goal]].amax(1)


@pytest.mark.parametrize(
    ("attack", "options"),
    [
        (pgd, {"steps": 20}),
        (apgd, {"steps": 20}),
        (fab, {"steps": 20}),
        (fgsm, {}),
        (square, {"queries": 100}),
        (noise, {}),
    ],
)
def test_success_is_the_prediction_of_the_goal(linear, attack, options):
    model, images = linear
    result = attack(model, images, None, Threat(eps=0.05), goal=3, **options)
    assert torch.equal(result.prediction, model(result.adversarial).argmax(1))
    assert torch.equal(result.success, (result.prediction == 3) & (result.distance <= 0.05 + 1e-6))
    assert torch.equal(result.label, model(images).argmax(1))
    assert not result.success[_distance(model, images, 3) > 0.051].any()
    assert result.settings["goal"] == [3] * 12


def test_pgd_reaches_the_goal_where_a_linear_model_lets_it(linear):
    model, images = linear
    goal = torch.arange(12) % 5
    reach = torch.stack([_distance(model, images, k) for k in range(5)], 1).gather(1, goal[:, None])[:, 0]
    eps = float(reach.clamp_min(0).median())
    result = pgd(model, images, None, Threat(eps=1.1 * eps), goal=goal, steps=50)
    assert result.success[reach < eps].all()
    assert result.success.any()
    assert not result.success.all()
    assert torch.equal((model(images).argmax(1) == goal), result.success & (result.distance == 0))


def test_carlini_wagner_minimises_the_distance_to_the_goal(linear):
    model, images = linear
    result = carlini_wagner(model, images, None, Threat("l2", math.inf), goal=2, steps=100, initial_const=1.0)
    assert (model(result.adversarial).argmax(1) == 2).all()
    assert result.success.all()


def test_goal_does_not_depend_on_the_batch(linear):
    model, images = linear
    goal = torch.arange(12) % 5
    whole = pgd(model, images, None, Threat(eps=0.05), goal=goal, steps=5)
    alone = pgd(model, images[7:8], None, Threat(eps=0.05), goal=goal[7:8], ids=torch.tensor([7]), steps=5)
    assert torch.equal(whole.adversarial[7:8], alone.adversarial)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m, x: pgd(m, x, None, goal=5), r"goal from 5 to 5: the model tells classes 0 to 4 apart"),
        (lambda m, x: pgd(m, x, None, goal=-1), r"goal from -1 to -1"),
        (lambda m, x: pgd(m, x, None, goal=1.5), r"goal 1\.5: expected an integer"),
        (lambda m, x: pgd(m, x, None, goal="shoe"), "goal 'shoe': expected an integer"),
        (lambda m, x: pgd(m, x, None, goal=torch.ones(12)), r"goal of shape \(12,\) and torch\.float32"),
        (lambda m, x: pgd(m, x, None, goal=torch.arange(3)), r"goal of shape \(3,\)"),
        (lambda m, x: pgd(m, x, torch.zeros(12).long(), goal=1), "goal and labels"),
        (lambda m, x: apgd(m, x, None, targets=2, goal=1), "goal and targets"),
        (lambda m, x: autoattack(m, x, None, goal=1), "goal: not for ensembles and sweeps"),
        (lambda m, x: sweep(pgd, m, x, None, Threat(), [0.1], goal=1), "goal: not for ensembles and sweeps"),
    ],
)
def test_goal_rejects(linear, call, says):
    with pytest.raises(UserError, match=says):
        call(*linear)


@pytest.mark.parametrize(
    "attack",
    [
        lambda *given: apgd(*given, targets=99),
        lambda *given: fab(*given, targets=5),
        lambda *given: apgd(*given, targets=10),
        lambda *given: autoattack(*given, targets=99),
    ],
)
def test_more_targets_than_other_classes_are_refused(linear, attack):
    with pytest.raises(UserError, match=r"targets \d+: expected at most 4, the number of other classes"):
        attack(*linear, None, Threat(eps=0.01))


def test_nine_targets_stand_for_all_other_classes(linear):
    model, images = linear
    nine, four = (apgd(model, images, None, Threat(eps=0.03), steps=3, targets=count) for count in (9, 4))
    assert torch.equal(nine.adversarial, four.adversarial)
