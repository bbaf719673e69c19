"""Carlini and Wagner's attack against foolbox's and adv-lib's: norms at an equal budget on the specimens."""

import functools
import importlib
import itertools
import math
import sys
import types
import warnings

import pytest
import torch

import antiphase as ap
from antiphase.attacks import Threat
from antiphase.attacks.carlini_wagner import carlini_wagner
from tests import needs
from tests.attacks import toys


@pytest.fixture(scope="module", params=["foolbox", pytest.param("adv-lib", marks=needs.adv_lib)])
def peer(request):
    """Another library's attack: of (model, images, labels, search steps, steps)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both import old names
        return {"foolbox": _foolbox, "adv-lib": _adv_lib}[request.param]()


def _foolbox():
    foolbox = importlib.import_module("foolbox")

    def attack(model, images, labels, search_steps, steps):
        foolbox_model = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        search = foolbox.attacks.L2CarliniWagnerAttack(search_steps, steps, stepsize=0.01)
        return search(foolbox_model, images, labels, epsilons=None)[0]

    return attack


def adv_lib_attacks():
    """Return adv-lib's attacks; its plots, which it imports at once, want a package that is not installed."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "visdom", types.ModuleType("visdom"))
        return importlib.import_module("adv_lib.attacks")


def _adv_lib():
    attacks = adv_lib_attacks()

    def attack(model, images, labels, search_steps, steps):
        return attacks.carlini_wagner_l2(model, images, labels, binary_search_steps=search_steps, max_iterations=steps)

    return attack


@functools.cache
def _ours(name, count, search_steps, steps, case):
    """Return the model, images and labels of a case, and what our attack makes of them."""
    model = ap.load_model(f"specimen:{name}").eval().requires_grad_(False)
    model = toys.Shifted(model, -50.0).eval() if case == "shifted" else model
    images = ap.load_data("specimen-fashion-mnist", limit=count).images(range(count))
    images = images.round() if case == "binary" else images
    label = model(images).argmax(1)
    return model, images, label, carlini_wagner(model, images, label, steps=steps, search_steps=search_steps)


def _compare(peer, name, count, search_steps, steps, case="plain"):
    """Return our distances, the peer's, and our passes; a sample that stands is infinitely far."""
    model, images, label, ours = _ours(name, count, search_steps, steps, case)
    adversarial = peer(model, images, label, search_steps, steps).detach()
    fallen = (model(adversarial).argmax(1) != label) & Threat("l2", math.inf).allows(adversarial, images)
    distance = torch.where(fallen, (adversarial - images).flatten(1).norm(dim=1), torch.inf)
    return torch.where(ours.success, ours.distance, torch.inf), distance, ours.backwards


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("diffvit-0", "plain"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in itertools.product(("vit-0", "diffvit-0"), ("plain", "shifted", "binary"))
            if case != ("diffvit-0", "plain")
        ),
    ],
)
def test_norms_at_an_equal_budget(peer, name, case):
    norms, peer_norms, passes = _compare(peer, name, count=16, search_steps=4, steps=40, case=case)
    assert float(norms.median()) <= 1.02 * float(peer_norms.median())
    assert (passes <= 160).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit-0", "diffvit-0"])
@pytest.mark.parametrize(("search_steps", "steps"), [(5, 100), (9, 300)])
def test_norms_at_larger_budgets(peer, name, search_steps, steps):
    norms, peer_norms, _ = _compare(peer, name, count=20, search_steps=search_steps, steps=steps)
    assert float(norms.median()) <= 1.02 * float(peer_norms.median())
    assert float(norms.mean()) <= 1.02 * float(peer_norms.mean())
