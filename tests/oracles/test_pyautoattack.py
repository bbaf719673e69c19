"""APGD and FAB against pyautoattack: success rates at equal steps on a small network trained on digits."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from antiphase.attacks import Threat
from antiphase.attacks.apgd import apgd
from antiphase.attacks.fab import fab

autopgd = pytest.importorskip("pyautoattack.autopgd_base")
fab_pt = pytest.importorskip("pyautoattack.fab_pt")

pytestmark = pytest.mark.filterwarnings("ignore:.*zero gradient")  # theirs, of one digit

STEPS, COUNT = 25, 61
OURS = {
    "apgd-ce": lambda *given: apgd(*given, steps=STEPS),
    "apgd-dlr": lambda *given: apgd(*given, steps=STEPS, objective="dlr"),
    "apgd-t": lambda *given: apgd(*given, steps=STEPS, targets=9),
    "fab": lambda *given: fab(*given, steps=STEPS),
    "fab-t": lambda *given: fab(*given, steps=STEPS, targets=9),
}


def _theirs(name, model, norm, eps):
    options = {"norm": {"linf": "Linf", "l2": "L2"}[norm], "eps": eps, "n_iter": STEPS, "device": "cpu"}
    if name == "apgd-t":
        return autopgd.APGDAttack_targeted(model, n_target_classes=9, **options)
    if name.startswith("apgd"):
        return autopgd.APGDAttack(model, loss=name.removeprefix("apgd-"), **options)
    return fab_pt.FABAttack_PT(model, targeted=name == "fab-t", n_target_classes=9, **options)


@pytest.fixture(scope="module")
def trained():
    """A network with one hidden layer, and the digits on which it is attacked."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 1 / math.sqrt(parameter.shape[-1]), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[COUNT:]), labels[COUNT:]).backward()
        optimizer.step()
    return model, images[:COUNT]


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.06), ("linf", 0.1), ("l2", 0.4)])
@pytest.mark.parametrize("name", OURS)
def test_success_rates_agree(trained, name, norm, eps):
    model, images = trained
    label = model(images).argmax(1)
    result = OURS[name](model, images, None, Threat(norm, eps))
    with torch.random.fork_rng():  # theirs seeds the global generator
        theirs = _theirs(name, model, norm, eps).perturb(images.clone(), label.clone())
    fallen = (model(theirs).argmax(1) != label) & Threat(norm, eps).allows(theirs, images, eps + 1e-5)
    assert 0.1 < fallen.double().mean() < 0.9
    assert abs(int(result.success.sum()) - int(fallen.sum())) <= 1  # of 61
