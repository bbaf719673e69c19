"""Patch PGD: the closed form of a linear model for its square, and squares that are inside and all over."""

import pytest
import torch

from antiphase.attacks import Threat, patch_pgd
from antiphase.attacks.pgd import squares
from antiphase.errors import UserError
from antiphase.streams import key, sample_keys
from tests.attacks import toys

BOUND = Threat("linf", 0.15)


def _keys(count):
    return sample_keys(key(0, "test"), torch.arange(count))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_squares_lie_inside_and_everywhere(width):
    masks = squares(width, {"clean": torch.empty(2000, 3, 7, 5), "key": _keys(2000)})
    assert masks.shape == (2000, 1, 7, 5)
    assert (masks.flatten(1).sum(1) == width**2).all()
    rows, columns = masks[:, 0].any(2), masks[:, 0].any(1)
    assert (rows.sum(1) == width).all()
    assert (columns.sum(1) == width).all()
    places, counts = torch.unique(masks.flatten(1), dim=0, return_counts=True)
    room = (7 - width + 1) * (5 - width + 1)
    assert len(places) == room
    assert (counts > 0.5 * 2000 / room).all()


@pytest.mark.parametrize("width", [3])
def test_a_linear_model_falls_exactly_where_its_closed_form_says(width):
    model, images = toys.Linear(2), toys.images(61)
    logits = model(images).detach().double()
    label = logits.argmax(1)
    weight = model.weight.detach().double()
    slope = (weight[1 - label] - weight[label]).view(-1, 3, 7, 5)
    result = patch_pgd(model, images, None, width=width, steps=20, early_stop=False)
    changed = (result.adversarial != images).any(1)
    assert (changed.flatten(1).sum(1) <= width**2).all()
    mask = _mask_around(changed, width)
    room = torch.where(slope > 0, 1 - images, images).double()
    gain = (slope.abs() * room * mask[:, None]).flatten(1).sum(1)
    gap = logits.gather(1, label[:, None]) - logits.gather(1, 1 - label[:, None])
    reached = result.success | (gain > gap[:, 0] - 1e-6)
    assert torch.equal(result.success, gain > gap[:, 0])
    assert 0 < result.asr < 1
    assert reached.sum() == result.success.sum()


def _mask_around(changed, width):
    """Return the square that the changed pixels fill: with α = 1/4 every pixel of it moves."""
    mask = torch.zeros_like(changed)
    for index, pixels in enumerate(changed):
        top, left = pixels.any(1).nonzero().min(), pixels.any(0).nonzero().min()
        assert pixels.any(1).nonzero().max() == top + width - 1
        mask[index, top : top + width, left : left + width] = True
    return mask


def test_a_restart_draws_another_square():
    model, images = toys.network(), toys.images(31)
    weak = Threat("linf", 1e-4)
    once = patch_pgd(model, images, None, weak, width=2, steps=1)
    twice = patch_pgd(model, images, None, weak, width=2, steps=1, restarts=2)
    where = [(result.adversarial != images).any(1).flatten(1) for result in (once, twice)]
    assert (where[0] != where[1]).any()


@pytest.mark.parametrize("width", [0, 6, 7])
def test_a_patch_must_fit(width):
    with pytest.raises(UserError, match=f"patch width {width}: expected at least 1 and at most the shorter side"):
        patch_pgd(toys.network(), toys.images(2), None, width=width)


@pytest.mark.parametrize(
    "changed",
    [
        {"step_size": 0},
        {"step_size": -1.0},
        {"step_size": float("inf")},
        {"width": 1.5},
        {"width": True},
        {"steps": 0},
        {"restarts": 1.0},
    ],
)
def test_patch_pgd_rejects_settings_out_of_range(changed):
    (name,) = changed
    with pytest.raises(UserError, match=f"^{name} .*: expected a"):
        patch_pgd(toys.network(), toys.images(2), None, **{"width": 2, "steps": 2, **changed})


def test_other_norms_are_refused():
    with pytest.raises(UserError, match="a patch needs 'linf'"):
        patch_pgd(toys.network(), toys.images(2), None, Threat("l2", 1.0), width=2)
