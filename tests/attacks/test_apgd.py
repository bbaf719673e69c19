"""APGD: closed forms on linear models, its slow twin, and verdicts that know nothing of the batch."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.attacks import Threat, objectives
from antiphase.attacks.apgd import apgd, checkpoints
from antiphase.attacks.threat import random_point
from antiphase.errors import UserError
from antiphase.streams import key, sample_keys
from tests.attacks import toys
from tests.reference import apgd as reference

SHAPE = (3, 7, 5)
NORMS = ["linf", "l2"]


def _images(count, seed=0):
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed)) * 0.3 + 0.35


def _linear(classes, seed=1):
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), classes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model[1].weight.normal_(0, 0.3, generator=generator)
        model[1].bias.normal_(0, 0.1, generator=generator)
    return model


def _network(classes=5, seed=2):
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 13), nn.Tanh(), nn.Linear(13, classes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model


def _least(model, images, norm):
    """Return the least norm that changes a linear model's prediction, where no pixel meets its bound."""
    weight, logits = model[1].weight, model(images)
    label = logits.argmax(1)
    gap = logits.gather(1, label[:, None]) - logits
    slope = (weight[label][:, None] - weight).norm(p=1 if norm == "linf" else 2, dim=2)
    return (gap / slope).scatter(1, label[:, None], torch.inf).amin(1).detach()


def test_checkpoints_of_the_paper():
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    for steps in (1, 2, 5, 37, 1000):
        after = checkpoints(steps)
        assert after == sorted(set(after))
        assert after[0] == math.ceil(0.22 * steps)
        assert after[-1] <= steps


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("classes", "options"),
    [(2, {}), (2, {"objective": "margin"}), (7, {"targets": 6}), (7, {"targets": 6, "objective": "margin"})],
)
def test_linear_models_fall_just_above_the_least_perturbation(norm, classes, options):
    model, images = _linear(classes), _images(3)
    for image, least in zip(images, _least(model, images, norm), strict=True):
        for factor, falls in ((0.99, False), (1.005, True)):
            threat = Threat(norm, factor * float(least))
            assert bool(apgd(model, image[None], None, threat, steps=20, **options).success) == falls


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("objective", ["cross_entropy", "dlr"])
@pytest.mark.parametrize("steps", [1, 37])
def test_agrees_with_the_slow_twin(norm, objective, steps):
    model, images = _network().double(), _images(3).double()
    eps = {"linf": 0.005, "l2": 0.05}[norm]  # where DLR is far from its poles
    result = apgd(model, images, None, Threat(norm, eps), steps=steps, objective=objective, early_stop=False, seed=3)
    loss = {"cross_entropy": objectives.cross_entropy, "dlr": objectives.dlr}[objective]
    name = {"cross_entropy": "apgd-ce", "dlr": "apgd-dlr"}[objective]
    starts = random_point(
        images, torch.full((3,), eps, dtype=torch.float64), norm, (0, 1), sample_keys(key(3, name, 0), torch.arange(3))
    )
    for index in range(3):
        label = result.label[index : index + 1]
        values, best = reference.apgd(
            lambda x, label=label: loss(model(x[None]), label)[0], images[index], starts[index], eps, norm, steps
        )
        value = loss(model(result.adversarial[index : index + 1]), label).item()
        assert value == pytest.approx(max(values), rel=1e-9)
        assert_close(result.adversarial[index], best, rtol=0, atol=1e-7)


@pytest.mark.parametrize("norm", NORMS)
def test_without_early_stop_the_highest_loss_is_kept(norm):
    model, images = _network(), _images(23)
    threat = Threat(norm, {"linf": 0.02, "l2": 0.2}[norm])
    first = apgd(model, images, None, threat, steps=23)
    best = apgd(model, images, None, threat, steps=23, early_stop=False)
    assert torch.equal(first.success, best.success)
    loss = objectives.cross_entropy
    won = best.success
    assert (loss(model(best.adversarial), best.label)[won] >= loss(model(first.adversarial), first.label)[won]).all()
    assert (best.backwards == 24).all()
    assert first.backwards[won].double().mean() < 12


def test_defaults_and_names():
    model, images = _network(), _images(2)
    threat = Threat(eps=1e-4)
    assert apgd(model, images, None, threat, steps=1).attack == "apgd-ce"
    assert apgd(model, images, None, threat, steps=1, objective="dlr").attack == "apgd-dlr"
    targeted = apgd(model, images, None, threat, steps=1, targets=3)
    assert (targeted.attack, targeted.settings["objective"]) == ("apgd-t", "dlr")
    assert (targeted.backwards == 3 * 2).all()
    custom = apgd(model, images, None, threat, steps=1, objective=lambda z, y: -z.gather(1, y[:, None])[:, 0])
    assert (custom.attack, custom.settings["objective"]) == ("apgd-custom", "custom")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps 0"),
        ({"targets": 0}, "targets 0"),
        ({"rho": 1.0}, "rho 1.0"),
        ({"momentum": 0.0}, "momentum 0.0"),
        ({"objective": "hinge"}, "objective 'hinge'"),
        ({"threat": Threat(eps=math.inf)}, "needs a finite ε; use FAB"),
    ],
)
def test_bad_parameters(options, message):
    options = {"threat": Threat(), **options}
    with pytest.raises(UserError, match=message):
        apgd(_network(), _images(2), None, **options)


@pytest.mark.parametrize(("kinds", "targets"), [(objectives._TARGETED, None), (objectives._TARGETED, 2)])
def test_every_objective_of_the_catalogue_has_a_name_of_its_own(kinds, targets):
    model, images = toys.network(), toys.images(2)
    results = [apgd(model, images, None, Threat(eps=0.01), steps=1, objective=kind, targets=targets) for kind in kinds]
    assert len({result.attack for result in results}) == len(kinds)
