"""Local Lipschitz constants: linear maps with closed forms, dense Jacobians, and which estimate bounds which."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention
from antiphase.data.image_sets import specimens
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model, vit
from antiphase.sensitivity.lipschitz import (
    exact_norm,
    gradient_ascent,
    local_maximum,
    power_iteration,
    uniform_sampling,
    unit,
)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(matrix):
    return lambda x: x.flatten(1) @ matrix.mT + 0.3


def mlp(inputs, outputs, seed=0):
    one, two = gaussian(19, inputs, seed=seed) * 1.5, gaussian(outputs, 19, seed=seed + 1)
    return lambda x: torch.tanh(x.flatten(1) @ one.mT) @ two.mT


def attention(seed=0):
    """One differential layer on 5 tokens of 6 numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = DifferentialAttention(6, 2).double()
        for parameter in module.parameters():
            parameter.data.normal_(0, 0.7)
    return module.requires_grad_(False), gaussian(3, 5, 6, seed=seed)


def tiny(make):
    model = make(8, seed=3, dim=12, num_heads=2, num_classes=3).double().eval().requires_grad_(False)
    return model, gaussian(3, 1, 8, 8).sigmoid()


def specimen():
    model = load_model("specimen:diffvit-0").requires_grad_(False)
    return model, specimens().pixels[:3].float() / 255


def twin(f, sample):
    """The Jacobian of one sample, the slow way."""
    jacobian = torch.autograd.functional.jacobian(lambda t: f(t[None])[0], sample)
    return jacobian.reshape(-1, sample.numel())


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_function_without_a_gradient_that_changes_is_refused(without):
    with pytest.raises(UserError, match="f changes with x and has no gradient"):
        power_iteration(without()(mlp(11, 7)), gaussian(3, 11))
    assert (power_iteration(lambda x: torch.ones(len(x), 2), gaussian(3, 11)).value == 0).all()  # a constant


@pytest.mark.parametrize(("outputs", "inputs", "rank"), [(7, 11, 7), (11, 7, 7), (5, 7, 1), (13, 11, 3), (1, 5, 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_linear_maps_have_their_norm_everywhere(outputs, inputs, rank, batch):
    matrix = gaussian(outputs, rank) @ gaussian(rank, inputs, seed=1)
    expected = torch.linalg.svdvals(matrix)[0].expand(batch)
    f, x = linear(matrix), gaussian(batch, inputs, seed=2)
    assert_close(exact_norm(f, x).value, expected, rtol=1e-10, atol=0)
    estimate = power_iteration(f, x, steps=2000, tolerance=1e-15)
    assert_close(estimate.value, expected, rtol=1e-6, atol=0)
    for result in (estimate, exact_norm(f, x)):
        length = result.direction.norm(dim=1)
        assert_close(length, torch.ones_like(length))
        assert_close((result.direction @ matrix.mT).norm(dim=1), result.value)
    # every chord of a linear map has the slope of its direction: none beats the norm
    best = gradient_ascent(f, x, 0.1, slope=power_iteration(f, x, steps=500))
    assert (best.value <= expected * (1 + 1e-9)).all()
    assert (best.value >= expected * 0.97).all()


def test_closed_forms():
    diagonal = torch.tensor([3.0, -4.0, 1.0], dtype=torch.float64).diag()
    x = gaussian(2, 3)
    assert_close(exact_norm(linear(diagonal), x).value, torch.full((2,), 4.0).double())
    assert_close(power_iteration(linear(diagonal), x).value, torch.full((2,), 4.0).double(), rtol=1e-5, atol=0)
    row = torch.tensor([[3.0, -4.0, 1.0]], dtype=torch.float64)  # one output: the norm of the row, in one step
    estimate = power_iteration(linear(row), x, steps=1)
    assert_close(estimate.value, torch.full((2,), 26**0.5).double())


def test_uniform_samples_see_the_average_slope():
    matrix = gaussian(7, 101)  # D = 101
    matrix[0] *= 5  # far from isotropic, so that the average is far below the norm
    slopes = uniform_sampling(linear(matrix), gaussian(2, 101, seed=1), 0.03, samples=400)
    average = matrix.norm() / 101**0.5
    # the mean square is ‖J‖²_F/D; the mean is less, by Jensen's inequality
    assert ((slopes.mean < average) & (slopes.mean > 0.75 * average)).all()
    assert (slopes.largest < 0.6 * torch.linalg.svdvals(matrix)[0]).all()
    assert (slopes.mean < slopes.largest).all()
    scaled = uniform_sampling(linear(torch.eye(101).double()), gaussian(2, 101), 0.03, samples=10)
    assert_close(scaled.mean, torch.ones(2).double())  # an isometry has slope 1 every way


def test_perturbations_are_in_the_ball_and_have_the_slope():
    f, x = mlp(11, 5), gaussian(4, 11)
    for estimate in (uniform_sampling(f, x, 0.4), gradient_ascent(f, x, 0.4)):
        delta = estimate.perturbation
        assert (delta.abs().amax(1) <= 0.4 * (1 + 1e-9)).all()
        chord = (f(x + delta) - f(x)).norm(dim=1) / delta.norm(dim=1)
        value = estimate.largest if hasattr(estimate, "largest") else estimate.value
        moved = delta.abs().amax(1) > 0
        assert moved.any()
        assert_close(chord[moved], value[moved])


def test_uniform_samples_fill_the_ball():
    x = torch.zeros(500, 2).double()
    deltas = [uniform_sampling(lambda x: x, x, 0.5, samples=1, seed=s).perturbation for s in range(4)]
    delta = torch.cat(deltas)
    inner = delta.abs().amax(1) < 0.25
    assert 0.2 < inner.double().mean() < 0.3  # a quarter of the area
    assert delta.mean(0).abs().max() < 0.03


@pytest.mark.parametrize("make", [lambda: (mlp(13, 17), gaussian(3, 13)), attention], ids=["mlp", "attention"])
def test_the_exact_norm_is_that_of_the_dense_jacobian(make):
    f, x = make()
    expected = torch.stack([torch.linalg.svdvals(twin(f, sample))[0] for sample in x])
    assert_close(exact_norm(f, x).value, expected, rtol=1e-9, atol=0)


MODELS = {
    "mlp": lambda: (mlp(13, 17), gaussian(3, 13)),
    "attention": attention,
    "vit": lambda: tiny(vit),
    "diffvit": lambda: tiny(diffvit),
    "specimen": specimen,
}


@pytest.mark.parametrize("name", MODELS)
def test_power_iteration_reaches_the_singular_value(name):
    f, x = MODELS[name]()
    exact = exact_norm(f, x)
    estimate = power_iteration(f, x)
    assert (estimate.value >= 0.99 * exact.value).all()
    assert (estimate.value <= exact.value * (1 + 1e-5)).all()
    short = power_iteration(f, x, steps=1)
    assert (short.value <= estimate.value * (1 + 1e-5)).all()
    assert (short.value < 0.999 * estimate.value).any()


@pytest.mark.parametrize("name", MODELS)
def test_ascent_is_above_power_iteration_and_that_above_samples(name):
    f, x = MODELS[name]()
    sampled = uniform_sampling(f, x, 0.02, samples=4)
    power = power_iteration(f, x, steps=20)
    best = gradient_ascent(f, x, 0.02, steps=4, slope=power, sampled=sampled)
    assert (sampled.mean <= sampled.largest).all()
    assert (sampled.largest < power.value).all()
    assert (best.value >= power.value).all()
    assert (best.value >= sampled.largest).all()
    assert (best.value > power.value * 1.0001).any()  # the ascent finds more than the limit


def test_ascent_finds_the_steepest_chord_where_the_slope_at_x_is_small():
    # |f(ξ) − f(0)|/|ξ| of sin²(3ξ) is 0 as ξ → 0 and largest at tan(3ξ) = 6ξ
    grid = torch.linspace(1e-3, 1.0, 100_001, dtype=torch.float64)
    expected = (torch.sin(3 * grid).square() / grid).max()
    x = torch.zeros(5, 1, dtype=torch.float64)
    ascent = gradient_ascent(lambda t: torch.sin(3 * t).square(), x, 1.0, steps=60)
    assert_close(ascent.value, expected.expand(5), rtol=1e-4, atol=0)
    assert power_iteration(lambda t: torch.sin(3 * t).square(), x).value.max() < 1e-6


def test_ascent_looks_along_both_ways_of_a_direction():
    # 1 + 5·(r − 0.3)/r towards −r, 1 towards r; the sign of v is drawn
    x = torch.zeros(6, 1, dtype=torch.float64)
    ascent = gradient_ascent(lambda t: t - 5 * torch.relu(-t - 0.3), x, 1.0)
    assert_close(ascent.value, torch.full((6,), 4.5).double())


def test_ascent_knows_what_the_samples_saw():
    def f(t):  # flat at 0 along the second axis, steep beyond
        return torch.stack([t[:, 0], 10 * torch.relu(t[:, 1] - 0.5)], 1)

    x = torch.zeros(3, 2, dtype=torch.float64)
    sampled = uniform_sampling(f, x, 1.0, samples=64)
    assert (sampled.largest > 1.5 * power_iteration(f, x).value).all()
    assert (gradient_ascent(f, x, 1.0, sampled=sampled).value >= sampled.largest).all()


def test_the_local_maximum_looks_at_x_itself():
    slopes = local_maximum(lambda t: torch.tanh(50 * t) / 50, torch.zeros(3, 1).double(), 1.0, points=2)
    assert_close(slopes.largest, torch.ones(3).double())
    assert torch.equal(slopes.perturbation, torch.zeros(3, 1).double())
    assert (slopes.mean < 0.5).all()


def test_a_gradient_of_zero_leaves_the_choice():
    g, otherwise = torch.tensor([[0.0, 2.0], [0.0, 0.0]]), torch.tensor([[-0.6, 0.8], [-0.6, 0.8]])
    assert_close(unit(g, otherwise), torch.tensor([[0.0, 1.0], [-0.6, 0.8]]))


def test_the_local_maximum_is_at_least_the_norm_at_x_and_at_most_the_supremum():
    x = gaussian(3, 1) * 0.1
    f = lambda t: torch.sin(3 * t)  # noqa: E731
    slopes = local_maximum(f, x, 1.0, points=40)
    assert (slopes.largest >= power_iteration(f, x, steps=20).value).all()
    assert (slopes.largest <= 3.0 + 1e-9).all()
    assert (slopes.largest > 2.95).all()
    assert (slopes.mean < slopes.largest).all()
    slope = 3 * torch.cos(3 * (x + slopes.perturbation)).abs().squeeze(1)
    assert_close(slope, slopes.largest)


def estimates(f, x, ids=None):
    options = {"ids": ids, "seed": 5}
    sampled = uniform_sampling(f, x, 0.05, samples=5, **options)
    largest = local_maximum(f, x, 0.05, points=2, steps=10, **options)
    return {
        "largest": sampled.largest,
        "mean": sampled.mean,
        "local": largest.largest,
        "around": largest.mean,
        "power": power_iteration(f, x, **options).value,
        "ascent": gradient_ascent(f, x, 0.05, steps=4, sampled=sampled, **options).value,
    }


@pytest.mark.parametrize("name", ["mlp", "diffvit"])
def test_neither_company_nor_order_changes_a_sample(name):
    f, x = MODELS[name]()
    ids = torch.tensor([40, 7, 19])
    whole = estimates(f, x, ids)
    turned = estimates(f, x[[2, 0, 1]], ids[[2, 0, 1]])
    alone = estimates(f, x[1:2], ids[1:2])
    other = estimates(f, x, ids + 1)
    for key, value in whole.items():
        assert_close(turned[key], value[[2, 0, 1]], rtol=1e-9, atol=0, msg=key)
        assert_close(alone[key], value[1:2], rtol=1e-9, atol=0, msg=key)
    assert not torch.allclose(other["mean"], whole["mean"], rtol=1e-4)  # ids are what the draws hang on


def test_company_changes_a_trained_model_by_no_more_than_its_rounding():
    f, x = specimen()
    ids = torch.tensor([40, 7, 19])
    whole, alone = estimates(f, x, ids), estimates(f, x[1:2], ids[1:2])
    for key, value in whole.items():
        # in float32 the logits themselves hang on the batch, and a climb makes more of it
        assert_close(alone[key], value[1:2], rtol=1e-3 if key == "ascent" else 1e-5, atol=0, msg=key)


def test_a_sample_that_has_converged_waits_untouched():
    # the second sample needs many more steps than the first
    scale = torch.tensor([[5.0, 0.1], [1.0, 0.97]], dtype=torch.float64)
    x = torch.stack([torch.zeros(2), torch.ones(2)]).double()

    def f(t):
        return t * torch.where(t.detach().sum(1, keepdim=True) > 1, scale[1], scale[0])

    both = power_iteration(f, x, ids=torch.tensor([3, 4]), tolerance=1e-3)
    alone = power_iteration(f, x[:1], ids=torch.tensor([3]), tolerance=1e-3)
    assert torch.equal(both.value[:1], alone.value)
    assert torch.equal(both.direction[:1], alone.direction)


@pytest.mark.parametrize(
    "f",
    [lambda x: torch.ones(len(x), 3).double(), lambda x: x.flatten(1) * 0.0, lambda x: torch.sign(x) * 0 + 2],
    ids=["detached", "product", "no slope"],
)
def test_a_constant_has_slope_zero(f):
    x = gaussian(3, 5)
    slopes = {**estimates(f, x), "svd": exact_norm(f, x).value}
    for key, value in slopes.items():
        assert torch.equal(value, torch.zeros(3).double()), key
    direction = power_iteration(f, x).direction
    assert direction.isfinite().all()


def test_seeds_and_draws_differ():
    f, x = mlp(7, 5), gaussian(1, 7).expand(3, 7)
    slopes = uniform_sampling(f, x, 0.3, samples=1)
    again = uniform_sampling(f, x, 0.3, samples=1, seed=1)
    assert len(set(slopes.mean.tolist() + again.mean.tolist())) == 6  # one input, six draws
    assert torch.equal(slopes.mean, uniform_sampling(f, x, 0.3, samples=1).mean)
    more = uniform_sampling(f, x, 0.3, samples=9)
    assert (more.largest > more.mean).all()
    assert (more.largest >= slopes.largest).all()


@settings(max_examples=6)
@given(scale=st.sampled_from([1e-3, 0.1, 7.0, 1e4]), seed=st.integers(0, 1000))
def test_scaling_f_scales_every_estimate(scale, seed):
    f, x = mlp(7, 5, seed), gaussian(3, 7, seed=seed)
    plain, scaled = (estimates(g, x) for g in (f, lambda t: scale * f(t)))
    for key, value in plain.items():
        assert_close(scaled[key], scale * value, rtol=1e-6, atol=0, msg=key)


@settings(max_examples=6)
@given(seed=st.integers(0, 1000))
def test_turning_the_output_changes_nothing(seed):
    f, x = mlp(7, 5, seed), gaussian(3, 7, seed=seed)
    turn = torch.linalg.qr(gaussian(5, 5, seed=seed)).Q
    plain, turned = (estimates(g, x) for g in (f, lambda t: f(t) @ turn))
    for key, value in plain.items():
        assert_close(turned[key], value, rtol=1e-6, atol=0, msg=key)


def test_the_output_may_have_any_shape():
    matrix = gaussian(12, 7)
    x = gaussian(3, 7)
    flat = estimates(linear(matrix), x)
    folded = estimates(lambda t: linear(matrix)(t).view(-1, 2, 3, 2), x)
    for key, value in flat.items():
        assert_close(folded[key], value, rtol=1e-10, atol=0, msg=key)


def test_no_gradient_is_left_behind_and_none_need_be_on():
    model, x = tiny(diffvit)
    model.requires_grad_(True)
    with torch.no_grad():
        inside = power_iteration(model, x).value
        gradient_ascent(model, x, 0.05, steps=4)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not inside.requires_grad
    assert torch.equal(inside, power_iteration(model, x).value)


def test_bad_input_gets_one_line():
    f, x = mlp(7, 5), gaussian(3, 7)
    cases = {
        "above 0": [
            lambda eps=eps, g=g: g(f, x, eps)
            for eps in (0.0, -1.0, math.nan, math.inf)
            for g in (uniform_sampling, gradient_ascent, local_maximum)
        ],
        "too small for inputs": [lambda: uniform_sampling(f, x, 1e-30)],
        "samples 0: expected an integer of at least 1": [lambda: uniform_sampling(f, x, 0.1, samples=0)],
        "points 0": [lambda: local_maximum(f, x, 0.1, points=0)],
        "steps 0": [lambda: power_iteration(f, x, steps=0), lambda: gradient_ascent(f, x, 0.1, steps=0)],
        "ids": [lambda: power_iteration(f, x, ids=torch.arange(2))],
        "finite floats": [lambda: power_iteration(f, x * math.nan), lambda: power_iteration(f, x[:0])],
        "x of shape .* and torch.int64: expected a torch tensor of float": [
            lambda: power_iteration(f, torch.ones(3, 7, dtype=torch.int64))
        ],
        "NaN or infinite": [
            lambda g=g: g(lambda t: torch.where(t > 0, t, math.nan), x.abs())
            for g in (lambda h, y: uniform_sampling(h, y, 1e3), lambda h, y: local_maximum(h, y, 1e3))
        ],
        "one row for each sample": [
            lambda: power_iteration(lambda t: t.sum(), x),
            lambda: uniform_sampling(lambda t: t[:1], x, 0.1),
        ],
    }
    for line, calls in cases.items():
        for call in calls:
            with pytest.raises(UserError, match=line) as caught:
                call()
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("estimate", [power_iteration, exact_norm, partial(uniform_sampling, eps=0.1, samples=3)])
def test_a_module_in_training_mode_is_measured_in_evaluation_mode_and_stays_as_it_was(estimate):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    x, before = torch.rand(4, 6), copy.deepcopy(net.state_dict())
    values = [estimate(net.train(mode), x)[0] for mode in (True, True, False)]
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    net.train()
    estimate(net, x)
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
