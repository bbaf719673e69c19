"""Linear models of few classes, and of one logit: every attack breaks what some vertex of the ε-cube breaks."""

from itertools import product

import pytest
import torch
from torch import nn

from antiphase.attacks import Threat, apgd, autoattack, carlini_wagner, fab, pgd, square
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.errors import UserError
from tests.attacks import toys

SHAPE, EPS = (1, 2, 3), 0.025
LINF, L2 = Threat(eps=EPS), Threat("l2", float("inf"))


class OneLogit(nn.Module):
    """Twice the difference of a linear model's two logits, or half of it: the same predictions."""

    def __init__(self):
        super().__init__()
        self.inner = toys.Linear(2, 6)

    def forward(self, x):
        logits = self.inner(x)
        return 2 * (logits[:, 1:] - logits[:, :1])


def victim(classes):
    model = (OneLogit() if classes == 1 else toys.Linear(classes, 6)).requires_grad_(False)
    linear = model.inner if classes == 1 else model
    images = toys.images(60, SHAPE)
    linear.bias -= linear(images).mean(0)  # or all images are of one class
    return model, linear, images


def breakable(linear, images, eps):
    """Try every vertex of the cube: a linear margin is largest at one of them."""
    label, broken = linear(images).argmax(1), torch.zeros(len(images), dtype=torch.bool)
    for signs in product((-1.0, 1.0), repeat=6):
        broken |= linear(images + eps * torch.tensor(signs).view(SHAPE)).argmax(1) != label
    return broken


ATTACKS = {
    "pgd": lambda *a: pgd(*a, steps=20, restarts=8),
    "apgd-ce": lambda *a: apgd(*a, steps=20, restarts=8),
    "apgd-dlr": lambda *a: apgd(*a, steps=20, restarts=8, objective="dlr"),
    "apgd-t": lambda *a: apgd(*a, steps=30, targets=9),
    "apgd-malt": lambda *a: apgd(*a, steps=30, targets="malt"),
    "fab": lambda *a: fab(*a, steps=20),
    "fab-t": lambda *a: fab(*a, steps=20, targets=9),
    "square": lambda *a: square(*a, queries=300),
}
CLIMBS = ("pgd", "apgd-ce", "apgd-dlr", "square", "rand")  # of three classes, sometimes towards the further one
for version in ("standard", "malt", "2020", "plus", "rand"):
    ATTACKS[version] = lambda *a, v=version: autoattack(*a, version=v, steps=15, queries=60)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("classes", [1, 2, 3, 4])
def test_attack_breaks_what_brute_force_breaks(classes, name):
    model, linear, images = victim(classes)
    success = ATTACKS[name](model, images, None, LINF).success
    assert not (success & ~breakable(linear, images, 1.0001 * EPS)).any()
    missed = breakable(linear, images, 0.95 * EPS) & ~success
    assert 10 <= int(success.sum()) <= 50
    assert int(missed.sum()) <= (3 if classes > 2 and name in CLIMBS else 0)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_carlini_wagner_meets_the_closed_form(classes):
    model, linear, images = victim(classes)
    result = carlini_wagner(model, images, None, L2, steps=60, search_steps=5, targets=max(1, classes - 1))
    assert torch.allclose(result.distance.double(), toys.least(linear, images, "l2"), rtol=0.1, atol=1e-3)


def test_one_logit_is_attacked_towards_a_goal_and_refused_other_labels():
    model, _, images = victim(1)
    result = pgd(model, images, None, Threat(eps=0.5), goal=1)
    assert torch.equal(model(result.adversarial)[:, 0] > 0, result.success | (result.label == 1))
    with pytest.raises(UserError, match="classes 0 to 1"):
        pgd(model, images, torch.full((60,), 2), LINF)


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_ensembles_have_no_least_number_of_classes(version):
    model, _, images = victim(2)
    autoattack_ensemble(version).check(model, images)
