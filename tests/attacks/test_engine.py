"""What every attack gets from the engine, whatever it is given; test_contract.py tries every attack."""

import numpy as np
import pytest
import torch

from antiphase.attacks import Threat, apgd, carlini_wagner, fab, pgd, square
from antiphase.errors import UserError
from tests.attacks import toys


@pytest.fixture(scope="module")
def victim():
    return toys.network(), toys.images(37)


def test_budgets_are_in_the_pixels_units_whatever_these_are(victim):
    model, images = victim
    small = pgd(model, images, None, Threat(eps=3.3 / 255), steps=5)
    large = pgd(lambda x: model(x / 255), images * 255, None, Threat(eps=3.3, bounds=(0, 255)), steps=5)
    assert 0 < small.asr < 1
    assert large.asr == pytest.approx(small.asr, abs=2 / len(images))


def test_images_that_want_a_gradient_leave_no_graph_behind(victim):
    model, images = victim
    result = pgd(model, images.clone().requires_grad_(), None, Threat(), steps=2)
    assert not result.adversarial.requires_grad
    assert not result.distance.requires_grad


def test_a_model_that_works_in_place_does_not_reach_the_images():
    model, images = toys.network(), toys.images(32)
    before = images.clone()
    result = square(lambda x: model(x.sub_(0.1)), images, None, Threat(eps=0.01), queries=3)
    assert torch.equal(images, before)
    assert not any("randomised" in warning for warning in result.warnings)


def test_gradients_inside_inference_mode_are_refused_by_name(victim):
    model, images = victim
    with torch.inference_mode(), pytest.raises(UserError, match="inference_mode"):
        pgd(model, images, None, Threat(), steps=2)


@pytest.mark.parametrize(
    ("attempt", "named"),
    [
        (lambda model, images: pgd(model, images, None, steps=2.5), "steps 2.5"),
        (lambda model, images: apgd(model, images, None, targets=0), "targets 0"),
        (lambda model, images: pgd(model, images, None, batch_size="8"), "batch_size '8'"),
        (lambda model, images: Threat(eps="8/255"), "eps '8/255'"),
        (lambda model, images: Threat(eps=8), "eps 8: expected at most 1.*pass 8/255"),
        (lambda model, images: Threat("l2", 1e308), "at most 1e\\+06"),
        (lambda model, images: fab(lambda x: model(x)[:, :0], images, None), r"returned \(16, 0\)"),
        (lambda model, images: pgd(model, images, None, restarts=None), "restarts None"),
        (lambda model, images: pgd(model, images, None, objective=lambda z, y: z.mean()), "one number per sample"),
        (lambda model, images: square(model, images, None, objective=lambda z, y: 1.0), "returned float"),
    ],
)
def test_what_cannot_be_is_one_line(victim, attempt, named):
    with pytest.raises(UserError, match=named) as error:
        attempt(*victim)
    assert "\n" not in str(error.value)


def test_eps_is_in_the_units_of_the_pixel():
    assert Threat(eps=8, bounds=(0, 255)).eps == 8
    assert Threat(eps=1).eps == 1
    assert Threat(eps=float("inf")).eps == float("inf")
    assert Threat("l2", 8).eps == 8


def test_a_batch_larger_than_any_number_of_images_is_one_batch(victim):
    model, images = victim
    one, other = (pgd(model, images, None, Threat(), steps=2, batch_size=size) for size in (37, 10**20))
    assert torch.equal(one.adversarial, other.adversarial)


def test_alone_in_its_batch_means_alone_in_every_pass():
    model, images, threat = toys.network(), toys.images(24), Threat(eps=0.02)

    def company(x):
        return model(0.5 * x + 0.5 * x.mean(0, keepdim=True))

    together = pgd(company, images, None, threat, steps=6, batch_size=1)
    for sample in range(24):
        alone = pgd(company, images[sample : sample + 1], None, threat, steps=6, ids=torch.tensor([sample]))
        assert bool(alone.success) == bool(together.success[sample])


def test_verdicts_come_while_others_still_wait():
    model, images = toys.network(), toys.images(24)
    forwards = 0

    def counting(x):
        nonlocal forwards
        forwards += len(x)
        return model(x)

    told = []
    pgd(
        counting,
        images,
        None,
        Threat(eps=1e-6),
        steps=3,
        restarts=5,
        batch_size=16,
        on_finished=lambda positions, arrays: told.extend([forwards] * len(positions)),
    )
    assert len(told) == 24
    assert told[15] < 0.8 * forwards  # the first sixteen before the others are through


def test_numpys_integers_seed_as_pythons_do(victim):
    model, images = victim
    one, two = (pgd(model, images, None, Threat(), steps=1, seed=seed) for seed in (3, np.int64(3)))
    assert torch.equal(one.adversarial, two.adversarial)


@pytest.mark.parametrize(("attack", "budget"), [(pgd, {"steps": 2, "restarts": 3}), (apgd, {"steps": 6, "targets": 3})])
def test_low_precision_loses_no_success(attack, budget, monkeypatch):
    model, images, threat = toys.Coarse(), toys.images(200), Threat(eps=3.3 / 255)
    exact = attack(model, images, None, threat, **budget)
    assert 0.2 < exact.asr < 0.8
    result = attack(model, images, None, threat, precision="bf16", **budget)
    assert not (exact.success & ~result.success).any()
    monkeypatch.setattr("antiphase.attacks.engine.run._ROUNDINGS", -torch.inf)  # nothing is near enough
    once = attack(model, images, None, threat, precision="bf16", **budget)
    assert (exact.success & ~once.success).any()
    assert (result.forwards >= once.forwards).all()


@pytest.mark.long
@pytest.mark.parametrize("early_stop", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("attack", "budget"),
    [
        (apgd, {"steps": 4, "targets": 3}),
        (fab, {"steps": 17, "targets": 2}),
        pytest.param(fab, {"steps": 20, "targets": 2}, marks=pytest.mark.thorough),
    ],
)
def test_what_goes_on_in_float32_does_not_depend_on_the_batch(attack, budget, early_stop):
    model, images, threat = toys.Coarse(), toys.images(60), Threat(eps=3.3 / 255)

    def run(size, order):
        result = attack(
            model,
            images[order],
            None,
            threat,
            precision="bf16",
            batch_size=size,
            ids=order,
            early_stop=early_stop,
            **budget,
        )
        back = order.argsort()
        names = ("success", "prediction", "adversarial", "distance", "forwards", "backwards")
        return [getattr(result, name)[back] for name in names]

    whole = run(60, torch.arange(60))
    for size in (1, 7, 17):
        for array, expected in zip(run(size, torch.arange(60).flip(0)), whole, strict=True):
            assert torch.equal(array, expected)


@pytest.mark.parametrize(
    ("attack", "norm", "budget"),
    [
        (fab, "linf", {"steps": 40}),
        (fab, "l2", {"steps": 40, "targets": 2}),
        (carlini_wagner, "l2", {"steps": 60, "search_steps": 4}),
    ],
)
def test_low_precision_lengthens_no_perturbation(attack, norm, budget):
    model, images, threat = toys.Coarse(32), toys.images(40), Threat(norm, float("inf"))
    coarse, exact = (attack(model, images, None, threat, precision=p, **budget) for p in ("bf16", "float32"))
    assert (coarse.success == exact.success).all()
    assert (coarse.distance <= 1.02 * exact.distance).all()
