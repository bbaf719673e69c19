"""Bounds and the slack on ε."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from antiphase.attacks import Threat, fab, pgd, run_foreign
from antiphase.errors import UserError
from tests.attacks import toys


@pytest.mark.parametrize(
    "bounds",
    [
        (-math.inf, math.inf),
        (0.0, math.inf),
        (None, None),
        (1.0, 0.0),
        (math.nan, 1.0),
        "01",
        (0.5, 0.5),
        (0, 1, 2),
        1.0,
        (torch.zeros(2), 1.0),
        ("0", "1"),
    ],
)
def test_threat_rejects_bounds(bounds):
    with pytest.raises(UserError, match=r"^bounds .*: expected .smallest, largest., two finite numbers"):
        Threat("linf", 0.05, bounds)


def test_fab_breaks_as_many_with_wide_bounds():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).eval()
    images = torch.rand(64, 3, 4, 4)
    broken = [
        int(fab(net, images, None, Threat("linf", 0.05, (-reach, reach)), steps=10).success.sum())
        for reach in (10, 1e3, 1e5)
    ]
    assert max(broken) - min(broken) <= 2
    assert 15 < min(broken) < 30


@pytest.mark.parametrize(
    ("bounds", "pixel", "slack"), [((0, 1), 1.0, 1e-6), ((-1e5, 1e5), 0.5, 1e-6), ((0, 255), 200.0, 2e-4)]
)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_slack_is_by_the_magnitude_of_the_image(bounds, pixel, slack, norm):
    threat = Threat(norm, 0.0, bounds)
    clean = torch.full((2, 1, 1, 1), pixel, dtype=torch.float64)
    moved = clean - slack * torch.tensor([0.9, 1.1], dtype=torch.float64).view(2, 1, 1, 1)
    assert threat.allows(moved, clean).tolist() == [True, False]


@pytest.mark.parametrize("bounds", [(-0.2, 0.3), (0.1, 0.9), (-0.1, 0.7), (0.3, 0.6)])
def test_float32_images_reach_the_bounds(bounds):
    images = (toys.images(5) * 4 - 1).clamp(*bounds)
    assert not (images == toys.images(5)).all()
    result = pgd(toys.network(), images, None, Threat("linf", 0.1, bounds), steps=2)
    assert result.adversarial.amin() >= torch.tensor(bounds[0])
    assert result.adversarial.amax() <= torch.tensor(bounds[1])


def test_images_beyond_the_bounds_by_rounding_are_clipped_and_others_refused():
    images = toys.images(3)
    images[0, 0, 0, 0] = 1.0 + 5e-7
    result = pgd(toys.network(), images, None, Threat(eps=0.01), steps=1)
    assert result.adversarial.amax() <= 1
    images[0, 0, 0, 0] = 1.0 + 2e-6
    with pytest.raises(UserError, match=r"values from 0\.35\d* to 1\.00000\d+: expected 0 to 1"):
        pgd(toys.network(), images, None, Threat(eps=0.01), steps=1)


@pytest.mark.parametrize("excess", [1e-4, 0.01, 3.0])
def test_foreign_images_that_leave_the_bounds_are_clipped_and_said(excess):
    model, images = toys.network(), toys.images(31)

    def attack(model, x, y):
        return torch.where(x > 0.5, x + (1.0 - x) + excess, x)

    result = run_foreign(attack, model, images, None, Threat("linf", 0.6))
    assert torch.equal(result.adversarial, torch.where(images > 0.5, 1.0, images))
    assert torch.equal(result.prediction, model(result.adversarial).argmax(1))
    assert torch.equal(result.success, result.prediction != result.label)
    assert result.success.any()
    (warning,) = result.warnings
    assert f"left the bounds by up to {excess:.3g}" in warning
    assert "clipped" in warning


@pytest.mark.parametrize("excess", [0.0, 1e-7])
def test_foreign_images_at_the_bounds_raise_no_warning(excess):
    result = run_foreign(
        lambda model, x, y: torch.ones_like(x) + excess, toys.network(), toys.images(5), None, Threat("linf", 0.7)
    )
    assert result.warnings == ()


def test_eps_is_a_float_whatever_number_it_was():
    model, images = toys.Linear(4), toys.images(3)
    one, two = (pgd(model, images, None, Threat(eps=eps), steps=2) for eps in (Fraction(8, 255), 8 / 255))
    assert type(one.threat.eps) is float
    assert torch.equal(one.adversarial, two.adversarial)
