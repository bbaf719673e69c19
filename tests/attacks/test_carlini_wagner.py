"""Carlini and Wagner: closed forms on linear models, extremes of pixels and logits, verdicts that know no batch."""

import itertools
import math

import pytest
import torch
from torch import nn

from antiphase.attacks import Threat
from antiphase.attacks.carlini_wagner import carlini_wagner
from antiphase.attacks.fab import fab
from antiphase.attacks.objectives import margin
from antiphase.errors import UserError
from tests.attacks import toys

FIELDS = ("success", "prediction", "adversarial", "distance", "forwards", "backwards")


class Counted(nn.Module):
    """Counts its calls."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


def _binary(count):
    return (torch.rand(count, 3, 7, 5, generator=torch.Generator().manual_seed(3)) > 0.5).float()


# a constant on the wrong side of ‖δ‖², a gradient of the wrong scale, a search for c that goes astray
@pytest.mark.parametrize("shape", [(53,), (3, 35), (3, 5, 7), (2, 3, 5, 7)])
@pytest.mark.parametrize("batch_size", [7, 64])
def test_two_linear_classes_within_one_percent_of_the_least_perturbation(shape, batch_size):
    model, images = toys.Linear(2, math.prod(shape)), toys.images(13, shape)
    result = carlini_wagner(model, images, None, steps=60, batch_size=batch_size)
    assert result.success.all()
    ratio = result.distance / toys.least(model, images, "l2")
    assert (ratio > 1 - 1e-4).all()
    assert (ratio < 1.01).all()


# the margin to a fixed class instead of the best other
@pytest.mark.parametrize("classes", [3, 11])
def test_more_classes(classes):
    model, images = toys.Linear(classes), toys.images(32)
    result = carlini_wagner(model, images, None, steps=80)
    ratio = result.distance / toys.least(model, images, "l2")
    assert (ratio > 1 - 1e-4).all()
    assert (ratio < 1.01).double().mean() > 0.9
    assert (ratio < 1.05).all()  # the class whose logit is next need not be the nearest


# the target forgotten by the loss, or a target's example forgotten for a later, farther one
@pytest.mark.parametrize("classes", [3, 11])
def test_aimed_at_every_class_within_one_percent(classes):
    model, images = toys.Linear(classes), toys.images(32)
    result = carlini_wagner(model, images, None, steps=80, targets=classes - 1)
    ratio = result.distance / toys.least(model, images, "l2")
    assert ((ratio > 1 - 1e-4) & (ratio < 1.01)).all()


# x and δ measured in other units than the bounds
def test_other_bounds():
    model, images = toys.Linear(2), 6 * toys.images(11) - 4
    result = carlini_wagner(model, images, None, Threat("l2", math.inf, (-4.0, 2.0)), steps=100)
    ratio = result.distance / toys.least(model, images, "l2")
    assert ((ratio > 1 - 1e-4) & (ratio < 1.01)).all()


# a constant such as −1e4, or 0, that stands for "no class"
@pytest.mark.parametrize("shift", [-50.0, -1e6, 1e6])
def test_shifted_logits_change_nothing(shift):
    model, images = toys.Linear(5).double(), toys.images(11).double()
    plain = carlini_wagner(model, images, None, steps=60, search_steps=5)
    shifted = carlini_wagner(toys.Shifted(model, shift), images, None, steps=60, search_steps=5)
    assert plain.success.all()
    torch.testing.assert_close(shifted.distance, plain.distance, rtol=1e-5, atol=0)
    assert torch.equal(shifted.backwards, plain.backwards)


# an infinite atanh; pixels that cannot leave their bound because tanh is flat there
def test_pixels_at_their_bounds():
    model, images = toys.Linear(2), _binary(16)
    result = carlini_wagner(model, images, None, steps=100)
    assert result.success.all()
    assert result.adversarial.min() >= 0
    assert result.adversarial.max() <= 1
    nearest = fab(model, images, None, Threat("l2", math.inf), steps=30)  # exact on two linear classes
    assert (result.distance < 1.01 * nearest.distance).all()


# the rounding of tanh and atanh taken for a change
def test_an_image_that_cannot_fall_stays_clean_to_the_bit():
    model = toys.Linear(3, scale=0.0)
    for images in (_binary(3), toys.images(3)):
        result = carlini_wagner(model, images, None, steps=7, search_steps=3)
        assert not result.success.any()
        assert torch.equal(result.adversarial, images)
    with torch.no_grad():
        model.weight[1, 0] = 1.0  # one pixel matters, so only one may move
    changed = carlini_wagner(model, _binary(3), None, steps=50).adversarial != _binary(3)
    assert (changed.flatten(1).sum(1) <= 1).all()


@pytest.mark.long
# c, Adam's clock or the early end shared by the batch; a row that waits for its neighbours
@pytest.mark.parametrize(
    ("eps", "abort_early"),
    [
        (math.inf, True),
        (0.12, False),
        pytest.param(math.inf, False, marks=pytest.mark.thorough),
        pytest.param(0.12, True, marks=pytest.mark.thorough),
    ],
)
def test_batch_size_and_order_change_nothing(eps, abort_early):
    model, images, threat = toys.network(), toys.images(67), Threat("l2", eps)
    options = {"steps": 11, "search_steps": 3, "abort_early": abort_early}
    results = [carlini_wagner(model, images, None, threat, batch_size=size, **options) for size in (1, 7, 64)]
    assert results[0].success.any()
    for other in results[1:]:
        for name in FIELDS:
            assert torch.equal(getattr(results[0], name), getattr(other, name)), name
    order = torch.randperm(67, generator=torch.Generator().manual_seed(5))
    shuffled = carlini_wagner(model, images[order], None, threat, ids=order, **options)
    for name in FIELDS:
        assert torch.equal(getattr(results[0], name)[order], getattr(shuffled, name)), name


@pytest.mark.long
# an early end that is never reached, or that gives up where Adam swings
def test_ending_runs_early_saves_passes_and_keeps_the_norms():
    model, images = toys.network(), toys.images(16)
    short = carlini_wagner(model, images, None, steps=150)
    whole = carlini_wagner(model, images, None, steps=150, abort_early=False)
    assert short.success.all()
    assert short.backwards.sum() < 0.7 * whole.backwards.sum()
    assert float(short.distance.median()) < 1.01 * float(whole.distance.median())
    assert float(short.distance.mean()) < 1.01 * float(whole.distance.mean())


# passes counted twice, or for rows that were not asked about
@pytest.mark.parametrize(("steps", "search_steps"), [(1, 1), (13, 1), (1, 5), (17, 3)])
def test_counts_are_exact(steps, search_steps):
    model, once, images = Counted(toys.network()), Counted(toys.network()), toys.images(16)
    carlini_wagner(once, images, None, steps=1, search_steps=1)  # and what the engine asks of any model
    result = carlini_wagner(model, images, None, steps=steps, search_steps=search_steps, abort_early=False)
    assert (result.backwards == steps * search_steps).all()
    assert (result.forwards == steps * search_steps + 2).all()  # the clean image and the confirmation
    assert model.calls - once.calls == steps * search_steps - 1


# ε that steers the search, or success beyond it
def test_a_budget_only_selects_among_the_least_perturbations():
    model, images = toys.network(), toys.images(41)
    free = carlini_wagner(model, images, None, steps=40, search_steps=5)
    threat = Threat("l2", float(free.distance.median()))
    patient = carlini_wagner(model, images, None, threat, steps=40, search_steps=5, early_stop=False)
    hasty = carlini_wagner(model, images, None, threat, steps=40, search_steps=5)
    within = free.distance <= threat.eps + 1e-6
    for result in (patient, hasty):
        assert torch.equal(result.success, within)
    assert torch.equal(patient.distance, free.distance)  # also the nearest beyond the budget
    assert hasty.backwards.sum() < patient.backwards.sum()


def test_a_search_step_more_never_hurts():
    model, images = toys.network(), toys.images(23)
    distances = []
    for search_steps in (3, 4, 7, 13):
        result = carlini_wagner(model, images, None, steps=25, search_steps=search_steps)
        distances.append(torch.where(result.success, result.distance, torch.inf))
    for fewer, more in itertools.pairwise(distances):
        assert (more <= fewer).all()


# κ with the wrong sign or in the wrong place
def test_confidence():
    model, images = toys.network(), toys.images(11)
    plain = carlini_wagner(model, images, None, steps=50)
    sure = carlini_wagner(model, images, None, steps=50, confidence=0.5)
    assert sure.success.all()
    lead = margin(model(sure.adversarial), sure.label)
    assert (lead >= 0.5 - 1e-5).all()
    assert (lead < 0.6).all()
    assert (sure.distance > plain.distance).all()


def test_already_wrong_samples_cost_nothing():
    model, images = toys.network(), toys.images(11)
    labels = (model(images).argmax(1) + (torch.arange(11) % 2)) % 5
    result = carlini_wagner(model, images, labels, steps=20, search_steps=3)
    wrong = torch.arange(11) % 2 == 1
    assert result.success[wrong].all()
    assert (result.distance[wrong] == 0).all()
    assert (result.backwards[wrong] == 0).all()
    assert (result.backwards[~wrong] > 0).all()


# 10·c without end, whose infinity times a hinge of 0 is NaN
def test_many_search_steps_stay_finite():
    model, images = toys.Linear(3, scale=1e-6), toys.images(3)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    result = carlini_wagner(model, images, None, steps=2, search_steps=50)
    assert not result.success.any()
    assert torch.equal(result.adversarial, images)


def test_record():
    result = carlini_wagner(toys.network(), toys.images(2), None, steps=3, search_steps=2)
    assert result.attack == "carlini-wagner"
    assert result.threat == Threat("l2", math.inf)
    assert result.settings == {
        "steps": 3,
        "search_steps": 2,
        "targets": None,
        "learning_rate": 0.01,
        "initial_const": 1e-3,
        "confidence": 0.0,
        "abort_early": True,
        "seed": 0,
        "early_stop": False,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threat": Threat("linf", 0.1)}, "norm 'linf': Carlini and Wagner's attack minimises l2"),
        ({"steps": 0}, "steps 0"),
        ({"search_steps": 0}, "search_steps 0"),
        ({"targets": 0}, "targets 0"),
        ({"learning_rate": 0.0}, "learning_rate 0.0"),
        ({"initial_const": -1.0}, "initial_const -1.0"),
        ({"initial_const": math.nan}, "initial_const nan"),
        ({"confidence": -0.1}, "confidence -0.1"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(UserError, match=message):
        carlini_wagner(toys.network(), toys.images(2), None, **options)
