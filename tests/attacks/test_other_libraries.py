"""Foreign attacks under our verdicts: those that cheat, what they cost, and real ones against closed forms."""

import importlib
import math
import random
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from antiphase.attacks import Threat, pgd
from antiphase.attacks.other_libraries import run_foreign
from antiphase.errors import UserError
from tests import needs
from tests.attacks import toys

EPS = 0.04


@pytest.fixture(scope="module")
def foolbox():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("foolbox")


@pytest.fixture(scope="module")
def torchattacks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("torchattacks")  # what takes it is marked needs.torchattacks


def _sign_step(model, images, labels, eps=EPS):
    """One step of the sign of the gradient: on two linear classes the strongest attack there is."""
    images = images.requires_grad_(True)
    logits = model(images)
    loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
    return images + eps * torch.autograd.grad(loss, images)[0].sign()


def _linear(count=31):
    """Return a model, images, the ε at which half of them fall, and which are clear cases."""
    model, images = toys.Linear(2), toys.images(count)
    least = toys.least(model, images, "linf")
    eps = float(least.median()) * 1.0001
    return model, images, eps, least < eps


def test_verdicts_are_those_of_the_closed_form_and_of_our_pgd():
    model, images, eps, falls = _linear()
    threat = Threat("linf", eps)
    result = run_foreign(lambda *given: _sign_step(*given, eps=eps), model, images, None, threat)
    ours = pgd(model, images, None, threat, steps=30)
    assert torch.equal(result.success, falls)
    assert torch.equal(result.success, ours.success)
    assert result.asr == pytest.approx(0.5, abs=0.05)
    assert torch.equal(result.prediction != result.label, result.success)
    assert result.warnings == ()


# success by the attack's own word
@pytest.mark.parametrize(
    ("cheat", "warning"),
    [
        (lambda model, x, y: _sign_step(model, x, y, eps=0.3), r"31 of 31 .* left ε = 0.04"),
        (lambda model, x, y: x * math.nan, "31 of 31 .* held NaN or infinite pixels"),
        (lambda model, x, y: x / 0, "31 of 31 .* held NaN or infinite pixels"),
        (lambda model, x, y: x.clone(), None),
    ],
)
def test_cheats_get_no_success(cheat, warning):
    model, images = toys.network(), toys.images(31)
    result = run_foreign(cheat, model, images, None, Threat("linf", EPS))
    assert not result.success.any()
    assert result.adversarial.isfinite().all()
    assert len(result.warnings) == (warning is not None)
    assert all(re.search(warning, line) for line in result.warnings)


# one sample's NaN that fails its neighbours
def test_a_cheat_costs_only_its_own_sample():
    model, images, eps, falls = _linear()

    def spoiled(*given):
        adversarial = _sign_step(*given, eps=eps).detach()
        adversarial[::3] = math.nan
        return adversarial

    result = run_foreign(spoiled, model, images, None, Threat("linf", eps))
    falls[::3] = False
    assert torch.equal(result.success, falls)
    assert torch.equal(result.adversarial[::3], images[::3])


# an attack that writes into what it is given
def test_the_clean_images_are_safe():
    model, images = toys.network(), toys.images(5)
    before = images.clone()
    result = run_foreign(
        lambda model, x, y: x.detach().add_(0.2).clamp_(0, 1), model, images, None, Threat("linf", EPS)
    )
    assert torch.equal(images, before)
    assert (result.distance > 0.19).all()
    assert not result.success.any()


def test_wrong_samples_are_successes_at_no_cost_and_not_attacked():
    model, images = toys.network(), toys.images(11)
    wrong = torch.arange(11) % 2 == 1
    labels = (model(images).argmax(1) + wrong) % 5
    seen = []

    def record(model, x, y):
        seen.append((x, y))
        return _sign_step(model, x, y)

    result = run_foreign(record, model, images, labels, Threat("linf", EPS))
    ((x, y),) = seen
    assert torch.equal(x.detach(), images[~wrong])
    assert torch.equal(y, labels[~wrong])
    assert result.success[wrong].all()
    assert (result.forwards[wrong] == 1).all()
    assert (result.backwards[wrong] == 0).all()


# passes of the clean image and of the confirmation left out, or rows counted as calls
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_passes_are_counted(batch_size):
    def attack(model, x, y):
        with torch.no_grad():
            model(x)
        for row in x:
            model(row[None])
        x = x.requires_grad_(True)
        logits = model(x)
        for _ in range(3):
            logits.sum().backward(retain_graph=True)
        return x

    result = run_foreign(attack, toys.network(), toys.images(11), None, Threat(), batch_size=batch_size)
    assert (result.forwards == 3 + 2).all()
    assert (result.backwards == 3).all()


def test_a_batch_shares_what_only_some_of_it_cost():
    def first_only(model, x, y):
        for _ in range(7):
            model(x[:1])
        return x

    result = run_foreign(first_only, toys.network(), toys.images(3), None, Threat())
    assert (result.forwards == math.ceil(7 / 3) + 2).all()


def _numpy_state():
    return str(np.random.get_state())  # noqa: NPY002


# a global generator that is not seeded, or not put back
def test_global_generators_are_seeded_and_restored():
    def draw(model, x, y):
        number = random.random() + np.random.random() + float(torch.rand(()))  # noqa: NPY002
        return x + 0.001 * number

    model, images = toys.network(), toys.images(3)
    before = torch.get_rng_state(), random.getstate(), _numpy_state()
    once = run_foreign(draw, model, images, None, Threat())
    assert torch.equal(before[0], torch.get_rng_state())
    assert (random.getstate(), _numpy_state()) == before[1:]
    torch.rand(3)
    assert torch.equal(once.adversarial, run_foreign(draw, model, images, None, Threat()).adversarial)
    other = run_foreign(draw, model, images, None, Threat(), seed=1)
    assert not torch.equal(once.adversarial, other.adversarial)


def test_the_model_comes_back_as_it_was():
    model = nn.Sequential(toys.network(), nn.Dropout(0.5)).train()

    def check(network, x, y):
        assert not any(module.training for module in network.modules())
        assert not any(parameter.requires_grad for parameter in network.parameters())
        return x

    run_foreign(check, model, toys.images(3), None, Threat())
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_record():
    images, ids = toys.images(3), torch.tensor([5, 3, 11])
    result = run_foreign(_sign_step, toys.network(), images, None, Threat(), ids=ids, settings={"steps": 1})
    assert result.attack == "_sign_step"
    assert result.settings["steps"] == 1
    assert result.settings["seed"] == 0
    assert torch.equal(result.ids, ids)
    assert run_foreign(_sign_step, toys.network(), images, None, Threat(), name="mine").attack == "mine"


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (lambda model, x, y: None, "returned NoneType: expected images of shape"),
        (lambda model, x, y: x[:1], r"returned \(1, 3, 7, 5\): expected images of shape \(3, 3, 7, 5\)"),
    ],
)
def test_what_is_no_image_is_an_error(attack, message):
    with pytest.raises(UserError, match=message):
        run_foreign(attack, toys.network(), toys.images(3), None, Threat())


def by_foolbox(foolbox, attack, threat):
    """The recipe of docs/own-attack.md."""
    eps = threat.eps if math.isfinite(threat.eps) else None

    def perturb(model, images, labels):
        wrapped = foolbox.PyTorchModel(model, bounds=threat.bounds, device=images.device)
        return attack(wrapped, images, foolbox.criteria.Misclassification(labels), epsilons=eps)[1]

    return perturb


def test_foolbox(foolbox):
    model, images, eps, falls = _linear()
    attack, threat = foolbox.attacks.LinfPGD(rel_stepsize=0.25, steps=13), Threat("linf", eps * (1 + 1e-5))
    result = run_foreign(by_foolbox(foolbox, attack, threat), model, images, None, threat)
    assert torch.equal(result.success, falls)
    assert (result.backwards == 13).all()
    assert (result.forwards == 13 + 1 + 2).all()  # theirs asks once more whether it succeeded


def test_foolbox_minimises_the_norm(foolbox):
    model, images = toys.Linear(2), toys.images(7)
    least = toys.least(model, images, "l2")
    attack, threat = foolbox.attacks.L2CarliniWagnerAttack(5, 50), Threat("l2", math.inf)
    result = run_foreign(by_foolbox(foolbox, attack, threat), model, images, None, threat)
    assert result.success.all()
    assert ((result.distance / least) > 1 - 1e-4).all()
    threat = Threat("l2", 0.9 * float(least.min()))
    bounded = run_foreign(by_foolbox(foolbox, attack, threat), model, images, None, threat)
    assert not bounded.success.any()
    assert (bounded.distance <= threat.eps + 1e-6).all()  # foolbox cuts back to ε


def test_foolbox_in_other_bounds(foolbox):
    model, images = toys.Linear(2), 2 * toys.images(7) - 1
    threat = Threat("linf", 1.05 * float(toys.least(model, images, "linf").max()), (-1.0, 1.0))
    attack = by_foolbox(foolbox, foolbox.attacks.LinfFastGradientAttack(random_start=False), threat)
    assert run_foreign(attack, model, images, None, threat).success.all()


@needs.torchattacks
def test_torchattacks(torchattacks):
    model, images, eps, falls = _linear()
    threat = Threat("linf", eps * (1 + 1e-5))

    def attack(model, images, labels):
        return torchattacks.PGD(model, eps=threat.eps, alpha=eps / 4, steps=13)(images, labels)

    result = run_foreign(attack, model, images, None, threat)
    assert torch.equal(result.success, falls)
    assert (result.backwards == 13).all()
    assert (result.forwards == 13 + 2).all()


def test_foreign_verdicts_are_told_as_they_come():
    model, images = toys.network(), toys.images(11)
    told = []
    result = run_foreign(
        _sign_step,
        model,
        images,
        None,
        Threat("linf", EPS),
        batch_size=4,
        precision="float32",
        progress=False,
        on_finished=lambda positions, arrays: told.append((positions.tolist(), arrays["success"][positions].tolist())),
    )
    assert len(told) == 3
    assert {p: s for some, verdicts in told for p, s in zip(some, verdicts, strict=True)} == dict(
        enumerate(result.success.tolist())
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [({"batchsize": 3}, "option 'batchsize': expected one of name, settings"), ({"precision": "bf16"}, "float32")],
)
def test_options_that_do_nothing_are_refused(options, match):
    with pytest.raises(UserError, match=match):
        run_foreign(_sign_step, toys.network(), toys.images(3), None, Threat("linf", EPS), **options)
