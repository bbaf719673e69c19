"""Noise: drawn as its kind says, within the budget, and blind to the model."""

import math

import pytest
import torch

from antiphase.attacks import Threat
from antiphase.attacks.noise import noise
from antiphase.errors import UserError
from tests.attacks.toys import Linear, images, least, network


def unmoved(x):
    return torch.tensor([1.0, 0.0]) + 0.0 * x.flatten(1)[:, :2]


def test_distribution_under_linf():
    eps, x = 0.1, images(300)
    delta = (noise(unmoved, x, None, Threat("linf", eps)).adversarial - x).flatten() / eps
    assert delta.abs().max() <= 1 + 1e-5
    assert delta.mean().abs() < 0.02
    assert float(delta.square().mean()) == pytest.approx(1 / 3, abs=0.02)


def test_length_under_l2():
    eps, x = 0.3, images(50)
    result = noise(unmoved, x, None, Threat("l2", eps))
    assert (result.distance <= eps + 1e-6).all()
    assert (result.distance > 0.9 * eps).all()  # the radius is ε·u^(1/D)
    assert (result.distance < eps).any()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_below_the_least_perturbation_nothing_falls_and_far_above_draws_find_it(norm):
    model, x = Linear(2), images(60)
    certified = Threat(norm, 0.99 * float(least(model, x, norm).min()))
    assert not noise(model, x, None, certified, draws=5).success.any()
    large = Threat(norm, {"linf": 1.0, "l2": 4.0}[norm])
    once, often = (noise(model, x, None, large, draws=n) for n in (1, 30))
    assert (often.success | ~once.success).all()
    assert often.asr > once.asr


def test_the_draw_of_greatest_margin_is_kept():
    model, x = network(), images(6, seed=1)
    few, many = (noise(model, x, None, Threat("linf", 0.02), draws=n, early_stop=False) for n in (2, 12))

    def lead(result):
        with torch.no_grad():
            logits = model(result.adversarial)
        label_logits = logits.gather(1, result.label[:, None])[:, 0]
        return logits.scatter(1, result.label[:, None], -torch.inf).amax(1) - label_logits

    assert (lead(many) >= lead(few)).all()
    assert (lead(many) > lead(few)).any()
    assert not many.backwards.any()


def test_verdicts_know_neither_batch_nor_order():
    model, x = network(), images(17, seed=2)
    runs = [noise(model, x, None, Threat("l2", 2.0), draws=4, batch_size=n) for n in (1, 7, 64)]
    order = torch.randperm(17, generator=torch.Generator().manual_seed(0))
    shuffled = noise(model, x[order], None, Threat("l2", 2.0), draws=4, ids=order)
    for run in runs[1:]:
        assert torch.equal(run.adversarial, runs[0].adversarial)
        assert torch.equal(run.success, runs[0].success)
    assert torch.equal(shuffled.adversarial, runs[0].adversarial[order])


@pytest.mark.parametrize(
    ("threat", "options", "named"), [(Threat(), {"draws": 0}, "draws 0"), (Threat("l2", math.inf), {}, "eps inf")]
)
def test_bad_input(threat, options, named):
    with pytest.raises(UserError, match=named):
        noise(network(), images(2), None, threat, **options)
