"""Margins, their gradients and the gradients' parts, against closed forms and a layer taken apart by hand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.attention.maps import combine
from antiphase.data import load_data
from antiphase.models import diffvit, load_model
from antiphase.sensitivity.interventions import MarginGradients, margins_of, right_angle


@pytest.fixture(scope="module")
def images():
    return load_data("specimen-fashion-mnist", limit=4).images(range(4)).double()


def test_a_linear_model_has_a_closed_form():
    stream = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    images = torch.rand(6, 3, 2, 2, generator=stream)
    found = MarginGradients(model)(images)
    weight, bias = model[1].weight.detach().double(), model[1].bias.detach().double()
    logits = images.double().flatten(1) @ weight.T + bias
    order = logits.argsort(1, descending=True)
    apart = weight[order[:, 0]] - weight[order[:, 1]]
    assert_close(found.prediction, order[:, 0])
    assert_close(found.margin, logits.gather(1, order)[:, 0] - logits.gather(1, order)[:, 1])
    assert_close(found.norm1, apart.abs().sum(1))
    assert_close(found.norm2, apart.square().sum(1).sqrt())
    assert found.right1 is None
    assert_close(margins_of(logits).margin, found.margin)
    # the first-order distance is where the linear model changes its mind
    step = found.margin / found.norm1
    moved = images.double().flatten(1) - 1.001 * step[:, None] * apart.sign()
    changed = moved @ weight.T + bias
    assert (changed.gather(1, order[:, 1:2]) > changed.gather(1, order[:, :1])).all()


def _by_hand(model, image):
    """Return what passes A1, A2 and neither, from the cotangent of the combined map."""
    block = model.blocks[0]
    x = image.clone().requires_grad_()
    tokens = model.tokens(x)
    maps = block.attn.maps(block.norm1(tokens))
    values = block.attn.parts(block.attn.qkv(block.norm1(tokens)))[2]
    combined = combine(maps.positive, maps.negative, maps.lam)
    within = tokens + block.attn.finish(combined @ values)
    top = model.head(model.norm((within + block.mlp(block.norm2(within)))[:, 0])).topk(2, -1).values
    margin = (top[:, 0] - top[:, 1]).sum()
    (cotangent,) = torch.autograd.grad(margin, combined, retain_graph=True)
    kept = {"retain_graph": True}
    (first,) = torch.autograd.grad(maps.positive, x, cotangent, **kept)
    (second,) = torch.autograd.grad(maps.negative, x, -maps.lam * cotangent, **kept)
    (whole,) = torch.autograd.grad(margin, x)
    return margin.detach(), first.flatten(), second.flatten(), whole.flatten()


def test_the_parts_are_those_of_the_layer_taken_apart(images):
    model = load_model("specimen:diffvit-0").double()
    found = MarginGradients(model)(images)
    for at, image in enumerate(images.split(1)):
        margin, first, second, whole = _by_hand(model, image)
        assert_close(found.margin[at], margin)
        assert_close(found.norm1[at], whole.abs().sum())
        assert_close(found.positive[at], first.norm())
        assert_close(found.negative[at], second.norm())
        assert_close(found.inner[at], first @ second)
        one, two = right_angle(first[None], second[None])
        assert_close(found.right1[at], (whole - first - second + one[0] + two[0]).abs().sum())
    assert (found.right1 - found.norm1).abs().min() > 1e-3


def test_the_model_given_stays_as_it_is_and_two_layers_have_no_parts(images):
    model = diffvit(28, depth=2)
    found = MarginGradients(model)(images)
    assert next(model.parameters()).dtype == torch.float32
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert found.inner is None
    assert found.norm1 is not None


def test_a_right_angle_keeps_lengths_and_plane():
    stream = torch.Generator().manual_seed(1)
    first, second = (torch.randn(50, 7, dtype=torch.float64, generator=stream) * size for size in (2.0, 0.1))
    one, two = right_angle(first, second)
    assert_close(one.norm(dim=1), first.norm(dim=1))
    assert_close(two.norm(dim=1), second.norm(dim=1))
    assert_close((one * two).sum(1), torch.zeros(50, dtype=torch.float64), rtol=0, atol=1e-12)
    # both are turned by the same angle
    turned = [(a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1) for a, b in ((first, one), (second, two))]
    assert_close(*turned)
    for new in (one, two):  # within the plane of both
        plane = torch.stack([first, second], -1)
        left = new - (plane @ torch.linalg.lstsq(plane, new[..., None]).solution).squeeze(-1)
        assert left.abs().max() < 1e-12
    again = right_angle(one, two)
    assert_close(again[0], one)


def test_vectors_without_an_angle_stay():
    first, zero = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)
    for one, two in ((first, zero), (zero, first), (first, 3 * first), (first, -first)):
        turned = right_angle(one, two)
        assert torch.equal(turned[0], one)
        assert torch.equal(turned[1], two)
