"""Interventions on trained differential attention: what they leave alone, and what they change."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.attention.lambdas import FixedLambda
from antiphase.attention.maps import combine
from antiphase.attention.modes import outputs_only
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model
from antiphase.sensitivity.interventions import (
    MarginGradients,
    margins_of,
    mean_negatives,
    replace_negative,
    right_angle,
    scale_lambda,
    stop_gradient,
    uniform_like,
)


@pytest.fixture(scope="module")
def images():
    return load_data("specimen-fashion-mnist", limit=5).images(range(5))


@pytest.fixture
def model():
    return load_model("specimen:diffvit-0").requires_grad_(False)


def _changed(model, change, *arguments):
    clone = copy.deepcopy(model)
    change(clone, *arguments)
    return clone


def _logits(model, x, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model(x)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("searching", [False, True])
def test_lambda_times_1_keeps_every_bit(model, images, autocast, searching):
    same = _changed(model, scale_lambda, 1.0)
    outputs = []
    for net in (model, same):
        x = images.clone().requires_grad_(searching)
        if not searching:
            outputs.append([_logits(net, x, autocast)])
            continue
        with outputs_only():
            logits = _logits(net, x, autocast)
        outputs.append([logits.detach(), *torch.autograd.grad(logits[:, 3].sum(), x)])
    assert all(torch.equal(one, two) for one, two in zip(*outputs, strict=True))


def test_lambda_times_a_factor_is_that_lambda(model, images):
    expected = copy.deepcopy(model)
    for block in expected.blocks:
        block.attn.lam = FixedLambda(0.25 * float(block.attn.lam()))
    logits = _changed(model, scale_lambda, 0.25)(images)
    assert_close(logits, expected(images), rtol=0, atol=1e-5)
    assert (logits - model(images)).abs().max() > 0.1


def test_a_map_averaged_over_one_image_changes_nothing_there(model, images):
    for x in images.split(1):
        means = mean_negatives(model, [x])
        assert_close(_changed(model, replace_negative, means)(x), model(x), rtol=0, atol=1e-4)
    of_another = _changed(model, replace_negative, mean_negatives(model, [images[1:2]]))
    assert (of_another(images[:1]) - model(images[:1])).abs().max() > 0.1


def test_the_mean_map_is_the_mean_over_images_whatever_the_batches(model, images):
    one = mean_negatives(model, images.split(2))
    tokens = model.blocks[0].norm1(model.tokens(images))
    by_hand = torch.stack([model.blocks[0].attn.maps(sample[None]).negative[0] for sample in tokens]).mean(0)
    assert_close(one[0], by_hand)
    assert_close(mean_negatives(model, [images]), one)
    assert_close(uniform_like(one)[0].sum(-1), torch.ones(one[0].shape[:-1]))
    assert uniform_like(one)[0].unique().numel() == 1


def test_uniform_attention_subtracts_the_mean_value(model, images):
    attention = model.blocks[0].attn
    tokens = model.blocks[0].norm1(model.tokens(images))
    values = attention.parts(attention.qkv(tokens))[2]
    heads = attention.maps(tokens).positive @ values - attention.lam() * values.mean(-2, keepdim=True)
    changed = _changed(model, replace_negative, uniform_like(mean_negatives(model, [images])))
    assert_close(changed.blocks[0].attn(tokens), attention.finish(heads), rtol=0, atol=1e-5)


def test_a_stopped_gradient_leaves_the_verdict_to_the_last_bit(model, images):
    for branches in (["negative"], ["positive"], ["negative", "positive"]):
        changed = _changed(model, stop_gradient, branches)
        with torch.no_grad():
            assert torch.equal(changed(images), model(images))
        assert torch.equal(changed(images), model(images))  # nothing asks for a gradient here either
        with_gradient = changed(images.clone().requires_grad_())
        assert_close(with_gradient.detach(), model(images), rtol=0, atol=1e-4)


def _gradient(model, x):
    x = x.double().clone().requires_grad_()
    return torch.autograd.grad(model(x)[:, 3].sum(), x)[0]


def test_the_gradient_is_that_of_a_model_whose_a2_is_a_constant(model, images):
    model = model.double()
    x = images[:1].double()
    means = [mean.double() for mean in mean_negatives(model, [x])]
    expected = _gradient(_changed(model, replace_negative, means), x)
    assert_close(_gradient(_changed(model, stop_gradient, ["negative"]), x), expected, rtol=0, atol=1e-5)
    assert (_gradient(model, x) - expected).abs().max() > 1e-3


def test_the_gradient_is_the_sum_of_what_passes_each_map(model, images):
    model = model.double()
    whole = _gradient(model, images)
    first, second, both = (
        _gradient(_changed(model, stop_gradient, branches), images)
        for branches in (["positive"], ["negative"], ["positive", "negative"])
    )
    assert_close(first + second - both, whole, rtol=0, atol=1e-12)  # one layer, linear in both maps


def test_what_cannot_be_intervened_on_is_refused(model, images):
    vit = load_model("specimen:vit-0")
    for attempt in (
        lambda: scale_lambda(vit, 0.5),
        lambda: stop_gradient(vit, ["negative"]),
        lambda: mean_negatives(vit, [images]),
        lambda: replace_negative(vit, []),
    ):
        with pytest.raises(UserError, match="expected a model with differential attention"):
            attempt()
    scale_lambda(model, 0.5)  # may be followed by another intervention
    stop_gradient(model, ["negative"])
    with pytest.raises(UserError, match="not intervened on yet"):
        stop_gradient(model, ["positive"])
    with pytest.raises(UserError, match="factor nan of λ: expected a finite number"):
        scale_lambda(model, float("nan"))
    with pytest.raises(UserError, match="expected positive, negative or both"):
        stop_gradient(model, ["A2"])  # type: ignore[list-item]
    with pytest.raises(UserError, match="no images to average A2 over"):
        mean_negatives(load_model("specimen:diffvit-0"), [])


@pytest.fixture(scope="module")
def doubles():
    return load_data("specimen-fashion-mnist", limit=4).images(range(4)).double()


def test_a_linear_model_has_a_closed_form():
    stream = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    doubles = torch.rand(6, 3, 2, 2, generator=stream)
    gradients = MarginGradients(model)(doubles)
    weight, bias = model[1].weight.detach().double(), model[1].bias.detach().double()
    logits = doubles.double().flatten(1) @ weight.T + bias
    order = logits.argsort(1, descending=True)
    apart = weight[order[:, 0]] - weight[order[:, 1]]
    assert_close(gradients.prediction, order[:, 0])
    assert_close(gradients.margin, logits.gather(1, order)[:, 0] - logits.gather(1, order)[:, 1])
    assert_close(gradients.norm1, apart.abs().sum(1))
    assert_close(gradients.norm2, apart.square().sum(1).sqrt())
    assert gradients.right1 is None
    assert_close(margins_of(logits).margin, gradients.margin)
    # the first-order distance is where the linear model changes its mind
    step = gradients.margin / gradients.norm1
    moved = doubles.double().flatten(1) - 1.001 * step[:, None] * apart.sign()
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


def test_the_parts_are_those_of_the_layer_taken_apart(doubles):
    model = load_model("specimen:diffvit-0").double()
    gradients = MarginGradients(model)(doubles)
    for row, image in enumerate(doubles.split(1)):
        margin, first, second, whole = _by_hand(model, image)
        assert_close(gradients.margin[row], margin)
        assert_close(gradients.norm1[row], whole.abs().sum())
        assert_close(gradients.positive[row], first.norm())
        assert_close(gradients.negative[row], second.norm())
        assert_close(gradients.inner[row], first @ second)
        one, two = right_angle(first[None], second[None])
        assert_close(gradients.right1[row], (whole - first - second + one[0] + two[0]).abs().sum())
    assert (gradients.right1 - gradients.norm1).abs().min() > 1e-3


def test_the_model_given_stays_as_it_is_and_two_layers_have_no_parts(doubles):
    model = diffvit(28, depth=2)
    gradients = MarginGradients(model)(doubles)
    assert next(model.parameters()).dtype == torch.float32
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert gradients.inner is None
    assert gradients.norm1 is not None


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


@pytest.mark.parametrize(
    "fields", [{"variant": name} for name in ("v2", "grouped", "dint")] + [{"variant": "gated", "output_gate": True}]
)
def test_a_map_that_takes_its_own_place_keeps_the_logits_of_every_variant(fields):
    model = diffvit(8, depth=2, **fields).eval().requires_grad_(False)
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    same = _changed(model, replace_negative, mean_negatives(model, [image]))
    assert_close(same(image), model(image))
    stopped, x = _changed(model, stop_gradient, ["negative"]), image.clone().requires_grad_()
    assert_close(stopped(x), model(image))
    (cut,), (whole,) = (torch.autograd.grad(one(x).square().sum(), x) for one in (stopped, model))
    assert (cut - whole).abs().max() > 1e-6
