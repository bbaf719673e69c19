"""L1 and L0: the projection by bisection, minima of linear models in closed form, and what knows which norm."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from antiphase.attacks import Threat, apgd, autoattack, carlini_wagner, fab, fgsm, fmn, noise, pgd, sigma_zero, square
from antiphase.attacks.fab import step_onto_plane
from antiphase.attacks.threat import project, row_norm
from antiphase.errors import UserError
from tests.attacks import toys

SHAPE = (3, 7, 5)
GENERATOR = torch.Generator().manual_seed(3)


def projected_by_bisection(delta, room, eps):
    """Return clip(|δ| − τ, 0, room) for the τ at which the sum is ε, pixel by pixel and halving by halving."""
    sums = [min(abs(value), most) for value, most in zip(delta, room, strict=True)]
    if sum(sums) <= eps:
        return [math.copysign(one, value) for one, value in zip(sums, delta, strict=True)]
    low, high, tau = 0.0, max(map(abs, delta)), 0.0
    for _ in range(60):
        tau = (low + high) / 2
        total = sum(min(max(abs(v) - tau, 0.0), most) for v, most in zip(delta, room, strict=True))
        low, high = (tau, high) if total > eps else (low, tau)
    clipped = (min(max(abs(v) - tau, 0.0), most) for v, most in zip(delta, room, strict=True))
    return [math.copysign(one, value) for one, value in zip(clipped, delta, strict=True)]


def test_l1_projection_is_the_nearest_point_of_ball_and_bounds():
    clean = torch.rand(11, 3, 4, 2, generator=GENERATOR, dtype=torch.float64).round(decimals=1)
    x = clean + torch.randn(clean.shape, generator=GENERATOR, dtype=torch.float64)
    eps = torch.rand(11, generator=GENERATOR, dtype=torch.float64) * 12
    result = project(x, clean, eps, "l1", (0.0, 1.0))
    delta = x - clean
    room = torch.where(delta > 0, 1 - clean, clean)
    expected = [
        projected_by_bisection(d.tolist(), r.tolist(), float(e) * (1 - 1e-5))
        for d, r, e in zip(delta.flatten(1), room.flatten(1), eps, strict=True)
    ]
    assert_close((result - clean).flatten(1), torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)
    assert_close(project(result, clean, eps, "l1", (0.0, 1.0)), result, atol=1e-9, rtol=0)
    for row in range(11):
        alone = project(x[row : row + 1], clean[row : row + 1], eps[row : row + 1], "l1", (0.0, 1.0))
        assert torch.equal(alone[0], result[row])


def test_l0_projection_keeps_the_largest_changes():
    clean, x = torch.zeros(1, 1, 1, 5), torch.tensor([[[[0.1, 0.5, 0.3, 0.0, 0.5]]]])
    kept = project(x, clean, torch.tensor([3.0]), "l0", (0.0, 1.0))
    assert kept.flatten().tolist() == pytest.approx([0.0, 0.5, 0.3, 0.0, 0.5])
    assert row_norm(kept, "l0").item() == 3


def test_l1_step_onto_the_plane_is_the_cheapest_within_the_bounds():
    x = torch.tensor([[0.5, 0.5, 0.9, 0.2]])
    gradient = torch.tensor([[1.0, -3.0, -4.0, 2.0]])
    # against the sign of 1.0: the third pixel has 0.1 of room and gains 0.4, the second the rest
    step = step_onto_plane(x, torch.tensor([1.0], dtype=torch.float64), gradient, "l1", (0.0, 1.0))
    assert_close(step, torch.tensor([[0.0, 0.2, 0.1, 0.0]]))
    unreachable = step_onto_plane(x, torch.tensor([9.0], dtype=torch.float64), gradient, "l1", (0.0, 1.0))
    assert_close(unreachable, torch.tensor([[-0.5, 0.5, 0.1, -0.2]]))


def least_l0(model, images):
    """Return how many values have to change at least: for each class those that move its margin most, to a bound."""
    logits = model(images).detach().double()
    counts = []
    for image, row in zip(images.flatten(1).double(), logits, strict=True):
        label = int(row.argmax())
        needed = []
        for other in range(len(row)):
            if other != label:
                slope = (model.weight[other] - model.weight[label]).detach().double()
                gains = torch.where(slope > 0, slope * (1 - image), -slope * image).sort(descending=True).values
                needed.append(int((gains.cumsum(0) <= row[label] - row[other]).sum()) + 1)
        counts.append(min(needed))
    return torch.tensor(counts)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_fmn_meets_the_minima_of_a_linear_model(norm):
    model, images = toys.Linear(2, scale=2.0).requires_grad_(False), toys.images(31)
    model.bias -= model(images).mean(0)
    threat = Threat(norm, math.inf)
    result = fmn(model, images, None, threat, steps=150)
    assert result.success.all()
    minima = least_l0(model, images).double() if norm == "l0" else toys.least(model, images, norm)
    inside = minima < 0.3 if norm == "l1" else minima > 0  # one pixel has that much room
    ratio = (result.distance.double() / minima)[inside]
    assert len(ratio) > 20
    assert (ratio > 0.9999).all()
    assert (ratio == 1).double().mean() > 0.9 if norm == "l0" else ratio.max() < 1.02


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_fmn_breaks_images_whose_pixels_are_at_their_bounds(norm):
    model, images = toys.Linear(2, scale=2.0).requires_grad_(False), toys.images(31)
    images = torch.where(images < 0.5, 0.0, 1.0)  # half of the pixels cannot move as the gradient says
    model.bias -= model(images).mean(0)
    result = fmn(model, images, None, Threat(norm, math.inf), steps=50)
    assert result.success.all()
    if norm != "l0":
        nearest = fab(model, images, None, Threat(norm, math.inf), steps=50)
        assert (result.distance / nearest.distance).max() < 1.03


def test_sigma_zero_meets_the_minima_of_a_linear_model():
    model, images = toys.Linear(2, scale=2.0).requires_grad_(False), toys.images(31)
    model.bias -= model(images).mean(0)
    result = sigma_zero(model, images, None, Threat("l0", math.inf), steps=300)
    assert result.success.all()
    ratio = result.distance.double() / least_l0(model, images)
    assert (ratio >= 1).all()
    assert (ratio == 1).double().mean() > 0.9
    order = torch.arange(31).flip(0)
    again = sigma_zero(model, images[order], None, Threat("l0", math.inf), steps=300, ids=order, batch_size=5)
    assert torch.equal(again.adversarial[order], result.adversarial)


@pytest.mark.parametrize("targets", [None, 2])
def test_l1_fab_meets_the_minima_of_a_linear_model(targets):
    model, images = toys.Linear(4, scale=2.0), toys.images(31)
    result = fab(model, images, None, Threat("l1", math.inf), steps=30, targets=targets)
    ratio = result.distance.double() / toys.least(model, images, "l1")
    assert (ratio > 0.9999).all()
    assert ratio.median() < 1.01


L1 = {
    "apgd": lambda *a, **k: apgd(*a, steps=30, restarts=2, **k),
    "apgd-t": lambda *a, **k: apgd(*a, steps=30, targets=3, **k),
    "square": lambda *a, **k: square(*a, queries=200, **k),
    "autoattack": lambda *a, **k: autoattack(*a, steps=20, queries=20, targets=3, **k),
    "fmn": lambda *a, **k: fmn(*a, steps=40, **k),
}


@pytest.mark.parametrize("name", L1)
def test_l1_attacks_break_what_can_be_broken_and_nothing_else(name):
    model, images = toys.Linear(4, scale=2.0).requires_grad_(False), toys.images(23)
    model.bias -= model(images).mean(0)
    minima = toys.least(model, images, "l1")
    threat = Threat("l1", float(minima.median()))
    order = torch.arange(23).flip(0)
    result = L1[name](model, images, None, threat)
    assert not (result.success & (minima > threat.eps * 1.0001)).any()
    reach = 0.4 if name == "square" else 0.9
    assert result.success[minima < reach * threat.eps].all()
    assert ((result.adversarial - images).flatten(1).abs().sum(1) <= threat.eps + 1e-6).all() or name == "fmn"
    again = L1[name](model, images[order], None, threat, ids=order, batch_size=5)
    assert torch.equal(again.success[order], result.success)
    assert torch.equal(again.adversarial[order], result.adversarial)


@pytest.mark.parametrize(
    ("attack", "norm", "message"),
    [
        (pgd, "l1", "norm 'l1': PGD knows linf and l2; fmn knows all norms"),
        (fgsm, "l0", "norm 'l0': FGSM knows linf and l2"),
        (noise, "l1", "norm 'l1': noise knows linf and l2"),
        (apgd, "l0", "norm 'l0': APGD knows linf and l2 and l1"),
        (square, "l0", "norm 'l0': Square knows"),
        (fab, "l0", "norm 'l0': FAB knows"),
        (autoattack, "l0", "norm 'l0': APGD knows"),
        (sigma_zero, "l2", "norm 'l2': σ-zero knows l0"),
        (carlini_wagner, "l1", "norm 'l1': Carlini and Wagner's attack minimises l2"),
    ],
)
def test_a_norm_that_an_attack_does_not_know_is_refused(attack, norm, message):
    with pytest.raises(UserError, match=message):
        attack(toys.network(), toys.images(2), None, Threat(norm, 1.0))


def test_an_l0_budget_that_allows_no_change_is_refused():
    with pytest.raises(UserError, match=r"eps 0\.0313725: allows no change in norm 'l0'; expected a number of"):
        Threat("l0", 8 / 255)
    assert Threat("l0", 0.0).eps == 0


# a model of 8-bit pixels is the same model in other units
@pytest.mark.parametrize(
    ("attack", "norm", "settings"),
    [(fmn, "l2", {}), (fmn, "linf", {}), (fmn, "l1", {}), (carlini_wagner, "l2", {"steps": 60, "search_steps": 4})],
)
def test_attacks_do_not_depend_on_the_units_of_the_pixels(attack, norm, settings):
    model, images = toys.Linear(3), toys.images(9)
    plain = attack(model, images, None, Threat(norm, math.inf), **settings)
    levels = Threat(norm, math.inf, (0.0, 256.0))
    other = attack(lambda x: model(x / 256), 256 * images, None, levels, **settings)
    assert plain.success.all()
    assert_close(other.distance / 256, plain.distance, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("attack", [pgd, partial(apgd, objective="cross_entropy")])
def test_confident_logits_change_no_direction_in_l2(attack):
    model, images = toys.Linear(3).double(), toys.images(9).double()
    margins = model(images).detach().topk(2).values.diff().abs()[:, 0]
    images = images[margins.argmax()][None]
    eps = 1.2 * float(toys.least(model, images, "l2"))
    large = 34 / float(margins.max())  # the cross-entropy's gradient is of the order of e⁻³⁴
    for scale in (1.0, large):
        result = attack(lambda x, scale=scale: scale * model(x), images, None, Threat("l2", eps), steps=40)
        assert result.success.all()


def test_at_eps_0_no_gradient_is_called_misleading():
    assert not pgd(toys.Linear(3), toys.images(9), None, Threat("linf", 0.0)).warnings
