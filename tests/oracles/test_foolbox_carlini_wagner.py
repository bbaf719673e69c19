"""Carlini and Wagner's attack against foolbox's: norms at an equal budget on the specimens."""

import importlib
import math
import warnings

import pytest
import torch

import antiphase as ap
from antiphase.attacks import Threat
from antiphase.attacks.carlini_wagner import carlini_wagner


@pytest.fixture(scope="module")
def foolbox():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports scipy's old names
        return importlib.import_module("foolbox")


def _compare(foolbox, name, count, search_steps, steps):
    """Return our distances, foolbox's, and our passes; a sample that stands is infinitely far."""
    model = ap.load_model(f"specimen:{name}").eval()
    images = ap.data.load_data("specimen-fashion-mnist", limit=count).images(range(count))
    ours = carlini_wagner(model, images, None, steps=steps, search_steps=search_steps)
    attack = foolbox.attacks.L2CarliniWagnerAttack(search_steps, steps, stepsize=0.01)
    asked = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    label = model(images).argmax(1)
    theirs = attack(asked, images, label, epsilons=None)[0]
    fallen = (model(theirs).argmax(1) != label) & Threat("l2", math.inf).allows(theirs, images)
    distance = torch.where(fallen, (theirs - images).flatten(1).norm(dim=1), torch.inf)
    return torch.where(ours.success, ours.distance, torch.inf), distance, ours.backwards


@pytest.mark.parametrize("name", ["vit-0", "diffvit-0"])
def test_norms_at_an_equal_budget(foolbox, name):
    ours, theirs, passes = _compare(foolbox, name, count=16, search_steps=4, steps=40)
    assert float(ours.median()) <= 1.02 * float(theirs.median())
    assert (passes <= 160).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit-0", "diffvit-0"])
@pytest.mark.parametrize(("search_steps", "steps"), [(5, 100), (9, 300)])
def test_norms_at_larger_budgets(foolbox, name, search_steps, steps):
    ours, theirs, _ = _compare(foolbox, name, count=20, search_steps=search_steps, steps=steps)
    assert float(ours.median()) <= 1.02 * float(theirs.median())
    assert float(ours.mean()) <= 1.02 * float(theirs.mean())
