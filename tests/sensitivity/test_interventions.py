"""Interventions on trained differential attention: what they leave alone, and what they change."""

import copy

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention.lambdas import FixedLambda
from antiphase.attention.modes import outputs_only
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import load_model
from antiphase.sensitivity.interventions import (
    mean_negatives,
    replace_negative,
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
    found = copy.deepcopy(model)
    change(found, *arguments)
    return found


def _logits(model, x, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model(x)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("searching", [False, True])
def test_lambda_times_1_keeps_every_bit(model, images, autocast, searching):
    same = _changed(model, scale_lambda, 1.0)
    found = []
    for each in (model, same):
        x = images.clone().requires_grad_(searching)
        if not searching:
            found.append([_logits(each, x, autocast)])
            continue
        with outputs_only():
            logits = _logits(each, x, autocast)
        found.append([logits.detach(), *torch.autograd.grad(logits[:, 3].sum(), x)])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_lambda_times_a_factor_is_that_lambda(model, images):
    expected = copy.deepcopy(model)
    for block in expected.blocks:
        block.attn.lam = FixedLambda(0.25 * float(block.attn.lam()))
    found = _changed(model, scale_lambda, 0.25)(images)
    assert_close(found, expected(images), rtol=0, atol=1e-5)
    assert (found - model(images)).abs().max() > 0.1


def test_a_map_averaged_over_one_image_changes_nothing_there(model, images):
    for x in images.split(1):
        own = mean_negatives(model, [x])
        assert_close(_changed(model, replace_negative, own)(x), model(x), rtol=0, atol=1e-4)
    of_another = _changed(model, replace_negative, mean_negatives(model, [images[1:2]]))
    assert (of_another(images[:1]) - model(images[:1])).abs().max() > 0.1


def test_the_mean_map_is_the_mean_over_images_whatever_the_batches(model, images):
    one = mean_negatives(model, images.split(2))
    tokens = model.blocks[0].norm1(model.tokens(images))
    by_hand = torch.stack([model.blocks[0].attn.maps(each[None]).negative[0] for each in tokens]).mean(0)
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
    own = [each.double() for each in mean_negatives(model, [x])]
    expected = _gradient(_changed(model, replace_negative, own), x)
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
