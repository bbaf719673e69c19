"""FAB: the projection against solvers, closed forms on linear models, verdicts that know no batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from torch import nn
from torch.testing import assert_close

from antiphase.attacks import Threat
from antiphase.attacks.catalogue import find_attack
from antiphase.attacks.fab import fab, step_onto_plane
from antiphase.attacks.threat import row_norm
from antiphase.errors import UserError

SHAPE = (3, 7, 5)
NORMS = ["linf", "l2"]
UNLIMITED = {norm: Threat(norm, math.inf) for norm in NORMS}


def _images(count, low=0.35, high=0.65, seed=0):
    return low + (high - low) * torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def _linear(classes, seed=1):
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), classes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model[1].weight.normal_(0, 0.3, generator=generator)
        model[1].bias.normal_(0, 0.1, generator=generator)
    return model


def _network(classes=13, seed=2):
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 17), nn.Tanh(), nn.Linear(17, classes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model


def _least(model, images, norm):
    """Return the least norm that changes a linear model's prediction, within the bounds."""
    weight, logits = model[1].weight.detach(), model(images).detach()
    label = logits.argmax(1)
    lengths = torch.full_like(logits, torch.inf)
    for other in range(logits.shape[1]):
        value = logits[:, other] - logits.gather(1, label[:, None])[:, 0]
        slope = (weight[other] - weight[label]).view_as(images)
        step = step_onto_plane(images, value.double(), slope, norm, (0.0, 1.0))
        on_plane = (value + (slope * step).flatten(1).sum(1)).abs() < 1e-4
        usable = on_plane & (label != other)
        lengths[usable, other] = row_norm(step, norm)[usable]
    return lengths.amin(1)


def _plane(seed, size=11):
    generator = np.random.default_rng(seed)
    gradient = generator.normal(size=size) * (generator.random(size) < 0.8)
    return generator.random(size), gradient, generator.normal() * 2


def _solve(x, value, gradient, norm):
    """Return the length of the shortest step onto the plane, by a general solver; None where there is none."""
    size = len(x)
    if norm == "linf":
        bounded = [(-xi, 1 - xi) for xi in x]
        pairs = np.block([[np.eye(size), -np.ones((size, 1))], [-np.eye(size), -np.ones((size, 1))]])
        answer = linprog(
            np.r_[np.zeros(size), 1.0],
            A_ub=pairs,
            b_ub=np.zeros(2 * size),
            A_eq=np.r_[gradient, 0.0][None],
            b_eq=[-value],
            bounds=[*bounded, (0, None)],
        )
        return answer.fun if answer.success else None
    answer = minimize(
        lambda d: d @ d,
        np.zeros(size),
        jac=lambda d: 2 * d,
        method="SLSQP",
        tol=1e-14,
        bounds=list(zip(-x, 1 - x, strict=True)),
        options={"maxiter": 500},
        constraints={"type": "eq", "fun": lambda d: value + gradient @ d, "jac": lambda d: gradient},
    )
    return math.sqrt(answer.fun) if answer.success else None


@given(seed=st.integers(0, 10**6), norm=st.sampled_from(NORMS))
def test_the_step_is_the_shortest_onto_the_plane_within_the_bounds(seed, norm):
    x, gradient, value = _plane(seed)
    point, slope = torch.from_numpy(x)[None], torch.from_numpy(gradient)[None]
    step = step_onto_plane(point, torch.tensor([value], dtype=torch.float64), slope, norm, (0.0, 1.0))
    assert ((point + step >= -1e-12) & (point + step <= 1 + 1e-12)).all()
    reached = abs(float(value + (slope * step).sum()))
    room = np.where(-np.sign(value) * gradient > 0, 1 - x, x)
    if np.abs(gradient) @ room < abs(value):  # out of reach: as near as can be
        assert reached == pytest.approx(abs(value) - np.abs(gradient) @ room)
        return
    assert reached < 1e-9
    best = _solve(x, value, gradient, norm)
    if best is not None:  # SLSQP gives up on some
        assert float(row_norm(step, norm)) == pytest.approx(best, rel=1e-5, abs=1e-7)


def test_no_slope_no_step():
    x = _images(2)
    step = step_onto_plane(x, torch.ones(2).double(), torch.zeros_like(x), "l2", (0.0, 1.0))
    assert torch.equal(step, torch.zeros_like(x))


@pytest.mark.parametrize("targets", [None, 4])
@pytest.mark.parametrize("eps", [1.2, math.inf])
@pytest.mark.parametrize(("low", "high", "most"), [(0.35, 0.65, 1.0005), (0.0, 1.0, 1.01)])
@pytest.mark.parametrize("norm", NORMS)
def test_linear_models_at_the_least_perturbation(norm, low, high, most, eps, targets):
    model, images = _linear(5), _images(23, low, high)
    if high == 1.0:
        images = (4 * images - 1.5).clamp(0, 1)  # most pixels at a bound, where the step is no straight line
    least = _least(model, images, norm)
    threat = Threat(norm, eps * float(least.max()))
    result = fab(model, images, None, threat, steps=30, targets=targets)
    assert result.success.all()
    ratio = result.distance / least
    assert (ratio > 1 - 1e-4).all()
    assert (ratio < most).all()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_final_search_only_shortens_and_is_another_attack_to_the_store(norm, precision):
    model, images = _network(), _images(41)
    long = fab(model, images, None, UNLIMITED[norm], steps=19, final_search=False, precision=precision)
    short = fab(model, images, None, UNLIMITED[norm], steps=19, precision=precision)
    assert short.success.all()
    assert (short.distance <= long.distance).all()
    assert (short.distance < 0.999 * long.distance).any()
    assert (short.forwards - long.forwards).float().mean() == pytest.approx(6, abs=0.5)
    assert torch.equal(short.backwards, long.backwards)
    assert long.settings == short.settings | {"final_search": False}
    for name in ("fab", "fab-t"):
        assert find_attack(name).stages[0].settings["final_search"] is True
        assert find_attack(name, final_search=False).stages[0].settings["final_search"] is False


@pytest.mark.parametrize("norm", NORMS)
def test_targeted_on_linear_models(norm):
    model, images = _linear(5), _images(3)
    for image, least in zip(images, _least(model, images, norm), strict=True):
        for factor, falls in ((0.999, False), (1.001, True)):
            threat = Threat(norm, factor * float(least))
            assert bool(fab(model, image[None], None, threat, targets=4, steps=30).success) == falls


@pytest.mark.parametrize("norm", NORMS)
def test_a_budget_only_selects_among_the_least_perturbations(norm):
    model, images = _network(), _images(41)
    free = fab(model, images, None, UNLIMITED[norm], steps=19)
    eps = float(free.distance.median())
    result = fab(model, images, None, Threat(norm, eps), steps=19)
    assert torch.equal(result.success, free.distance <= eps + 1e-6)
    failed = ~result.success
    assert torch.equal(result.distance[failed], free.distance[failed])
    assert (result.prediction != result.label).all()  # also where it was found beyond the budget


def test_distances_shrink_with_more_steps_and_cost_what_they_say():
    model, images = _network(), _images(11)
    few = fab(model, images, None, UNLIMITED["l2"], steps=3)
    many = fab(model, images, None, UNLIMITED["l2"], steps=30)
    assert (many.distance <= few.distance).all()
    assert (few.backwards == 12 * 4).all()
    targeted = fab(model, images, None, Threat("l2", 1e-6), steps=3, targets=2)
    assert (targeted.backwards == 2 * 4).all()


def test_restarts_begin_elsewhere():
    model, images = _network(), _images(11)
    once = fab(model, images, None, Threat("l2", 1e-3), steps=5)
    twice = fab(model, images, None, Threat("l2", 1e-3), steps=5, restarts=2, seed=4)
    assert (twice.backwards == 2 * once.backwards).all()
    assert (twice.distance <= once.distance).all()


def test_names():
    model, images = _network(), _images(2)
    assert fab(model, images, None, steps=1).attack == "fab"
    assert fab(model, images, None, steps=1, targets=2).attack == "fab-t"


def test_many_classes_need_targets():
    model, images = _linear(101), _images(2)
    with pytest.raises(UserError, match=r"untargeted FAB on 101 classes .* use FAB-T, targets=9"):
        fab(model, images, None, Threat(eps=0.1))
    assert len(fab(model, images, None, Threat(eps=0.1), targets=9, steps=2)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps 0"),
        ({"targets": 0}, "targets 0"),
        ({"eta": 0.9}, "eta 0.9"),
        ({"beta": 1.0}, "beta 1.0"),
        ({"alpha_max": 1.5}, "alpha_max 1.5"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(UserError, match=message):
        fab(_network(), _images(2), None, **options)


def test_an_image_that_cannot_fall_stays_clean():
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 3))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    images = _images(2)
    result = fab(model, images, None, UNLIMITED["l2"], steps=2)
    assert not result.success.any()
    assert_close(result.adversarial, images, rtol=0, atol=0)
