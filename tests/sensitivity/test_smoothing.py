"""Randomised smoothing: against its slow twin, against linear models, and what may not change its counts."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from antiphase import streams
from antiphase.errors import UserError
from antiphase.sensitivity.smoothing import ABSTAIN, Smoothing, certified_radius, lower_bound, smooth
from tests.attacks.toys import Linear, images, network
from tests.reference import smoothing as reference

SHAPE = (3, 7, 5)
QUICK = {"sigma": 0.3, "select": 13, "samples": 101, "alpha": 0.01}


def draws_of(seed, id):
    """The i-th noise image of a sample, from the stream that its key names."""

    def draw(name, i):
        key = streams.sample_keys(streams.key(seed, "smoothing", name), torch.tensor([id]))
        return streams.normal(key, 105, i * 105).view(SHAPE)

    return draw


@pytest.mark.parametrize("sigma", [0.1, 0.6])
def test_every_image_is_what_cohen_s_procedure_makes_of_it(sigma):
    model, x, ids = network(), images(7, SHAPE), torch.tensor([5, 0, 31, 2, 11, 3, 99])
    result = smooth(model, x, **QUICK | {"sigma": sigma}, seed=4, ids=ids)
    slow = [
        reference.certify(model, image, draws_of(4, id), sigma, 13, 101, 0.01)
        for image, id in zip(x, ids.tolist(), strict=True)
    ]
    verdicts = zip(result.prediction, result.radius, result.top, result.count, strict=True)
    for (prediction, radius, top, count), expected in zip(verdicts, slow, strict=True):
        assert (int(prediction), int(top), int(count)) == (expected[0], *expected[2:])
        assert float(radius) == pytest.approx(expected[1], abs=1e-9)


def test_neither_batches_nor_neighbours_nor_order_change_anything():
    model, x, ids = network(), images(6, SHAPE), torch.arange(10, 16)
    whole = smooth(model, x, **QUICK, ids=ids)
    assert len(set(whole.count.tolist())) > 3  # else nothing could differ
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    for size in (1, 17, 114, 1000):
        other = smooth(model, x[order], **QUICK, ids=ids[order], batch_size=size)
        for name in ("prediction", "radius", "top", "count"):
            assert torch.equal(getattr(other, name), getattr(whole, name)[order]), (size, name)
    alone = smooth(model, x[3:4], **QUICK, ids=ids[3:4])
    assert (int(alone.top[0]), int(alone.count[0])) == (int(whole.top[3]), int(whole.count[3]))


def test_ids_and_seed_key_the_noise():
    model, x = network(), images(6, SHAPE)
    counts = smooth(model, x, **QUICK).count
    assert not torch.equal(counts, smooth(model, x, **QUICK, seed=1).count)
    assert not torch.equal(counts, smooth(model, x, **QUICK, ids=torch.arange(6) + 100).count)


def test_more_samples_go_on_where_fewer_ended_whatever_selects():
    seen = []

    def model(noisy):
        seen.append(noisy)
        return noisy.flatten(1)[:, :2]

    x = images(1, SHAPE)
    smooth(model, x, sigma=0.3, select=5, samples=16, batch_size=16, alpha=0.01)
    few, seen[:] = torch.cat(seen)[5:21], []
    smooth(model, x, sigma=0.3, select=8, samples=40, batch_size=16, alpha=0.01)
    assert torch.equal(torch.cat(seen)[8:24], few)


def test_the_noise_is_gaussian_of_sigma_and_not_clamped():
    seen = []

    def model(noisy):
        seen.append(noisy)
        return noisy.flatten(1)[:, :2]

    x = images(2, SHAPE)
    smooth(model, x, sigma=0.5, select=8, samples=120, batch_size=128)
    noise = torch.cat([seen[0] - x[0], seen[1] - x[1]]) / 0.5
    n = noise.numel()
    assert seen[0].min() < 0
    assert seen[0].max() > 1
    assert abs(float(noise.mean())) < 4 / math.sqrt(n)
    assert abs(float(noise.square().mean()) - 1) < 4 * math.sqrt(2 / n)
    assert abs(float(noise.pow(4).mean()) - 3) < 4 * math.sqrt(96 / n)
    pairs = noise.flatten(1)
    assert abs(float((pairs[:128] * pairs[128:]).mean())) < 4 / math.sqrt(n / 2)  # between images
    assert abs(float((pairs[1:] * pairs[:-1]).mean())) < 4 / math.sqrt(n)  # between draws


class HalfSpaces(nn.Module):
    """Two classes divided by w·x + b = 0, as logits ±(w·x + b)."""

    def __init__(self, scale=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(8)
        self.weight = nn.Parameter(scale * torch.randn(105, generator=generator))
        self.bias = nn.Parameter(-0.5 * self.weight.detach().sum())

    def forward(self, x):
        height = (x.flatten(1) * self.weight).sum(1) + self.bias
        return torch.stack([height, -height], 1)


def test_on_a_linear_model_the_radius_approaches_the_distance_from_below():
    """The smoothed model is the model itself: its class has probability Φ(distance/σ), its radius is exact."""
    model, sigma = HalfSpaces(), 0.25
    direction = (model.weight / model.weight.norm()).detach()
    distances = torch.tensor([0.05, 0.2, 0.4, -0.1, -0.3])
    x = (0.5 + distances[:, None] * direction).view(-1, *SHAPE)
    gaps = []
    for samples in (100, 1000, 10_000):
        result = smooth(model, x, sigma=sigma, samples=samples, batch_size=512)
        assert (result.radius <= distances.abs() + 1e-6).all()
        decided = result.prediction != ABSTAIN
        assert torch.equal(result.prediction[decided], (distances < 0).long()[decided])
        gaps.append(float((distances.abs() - result.radius).mean()))
    assert gaps[0] > 1.5 * gaps[1] > 2 * gaps[2]
    assert gaps[2] < 0.02
    expected = [NormalDist().cdf(abs(d) / sigma) for d in distances.tolist()]
    for count, p in zip(result.count.tolist(), expected, strict=True):
        assert abs(count - 10_000 * p) < 4 * math.sqrt(10_000 * p * (1 - p))


def test_the_certified_ball_is_too_large_no_oftener_than_alpha():
    """At α = .3, so that it happens: 200 images at one distance, each with noise of its own."""
    model, distance = HalfSpaces(), 0.15
    direction = (model.weight / model.weight.norm()).detach()
    x = (0.5 + distance * direction).view(1, *SHAPE).expand(200, -1, -1, -1)
    result = smooth(model, x, sigma=0.25, select=9, samples=60, alpha=0.3, batch_size=512)
    wrong = float((result.radius > distance).float().mean())
    assert 0.1 < wrong < 0.3 + 3 * math.sqrt(0.3 * 0.7 / 200)


def test_on_the_boundary_it_abstains():
    model = HalfSpaces()
    x = torch.full((5, *SHAPE), 0.5)
    result = smooth(model, x, sigma=0.25, samples=400)
    assert result.prediction.tolist() == [ABSTAIN] * 5
    assert result.radius.tolist() == [0.0] * 5
    assert set(result.top.tolist()) <= {0, 1}
    assert ((result.count > 140) & (result.count < 260)).all()


def test_a_model_that_says_one_thing_reaches_the_largest_radius():
    result = smooth(lambda x: torch.ones(len(x), 3).cumsum(1), images(2, SHAPE), sigma=0.5, samples=50)
    assert result.prediction.tolist() == [2, 2]
    assert result.radius.tolist() == [float(certified_radius(50, 50, 0.5, 0.001))] * 2
    assert result.radius[0] == result.smoothing.reach


def test_images_are_reported_as_they_finish():
    told = []
    model, x = network(), images(3, SHAPE)
    result = smooth(model, x, **QUICK, batch_size=50, on_finished=lambda row, verdict: told.append((row, verdict)))
    assert [row for row, _ in told] == [0, 1, 2]
    for name in ("prediction", "radius", "top", "count"):
        assert [verdict[name] for _, verdict in told] == getattr(result, name).tolist()


def test_the_model_is_smoothed_in_evaluation_mode_and_in_the_precision_asked_for():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(105, 3)).train()
    first, second = (smooth(model, images(2, SHAPE), **QUICK) for _ in range(2))
    assert torch.equal(first.count, second.count)
    assert model.training
    seen = []
    model.register_forward_hook(lambda _, __, logits: seen.append(logits.dtype))
    smooth(model, images(1, SHAPE), **QUICK, precision="bf16")
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"sigma": 0.0}, "sigma 0"),
        ({"sigma": -1.0}, "sigma -1"),
        ({"sigma": math.nan}, "sigma nan"),
        ({"alpha": 0.0}, "alpha 0"),
        ({"alpha": 1.0}, "alpha 1"),
        ({"samples": 0}, "samples 0"),
        ({"select": 0}, "select 0"),
        ({"samples": 9, "alpha": 0.001}, "at least 10"),
        ({"precision": "int4"}, "int4"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"ids": torch.arange(3)}, "ids of shape .* one per sample"),
    ],
)
def test_margins_and_radii_refuse_what_cannot_be_used(given, named):
    with pytest.raises(UserError, match=named):
        smooth(Linear(3), images(2, SHAPE), **QUICK | given)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (lambda x: x * 255, "images of shape .*: expected .* values in"),
        (lambda x: x - 1, "images of shape .*: expected .* values in"),
        (lambda x: (x * 255).byte(), "images of shape .* and torch.uint8"),
        (lambda x: x[:0], "images of shape .*with at least one element"),
        (lambda x: x * math.nan, "images of shape .*: expected .* values in"),
        (lambda x: x.numpy(), "images of type ndarray"),
    ],
)
def test_smooth_rejects_images_out_of_range(changed, named):
    with pytest.raises(UserError, match=named):
        smooth(Linear(3), changed(images(2, SHAPE)), **QUICK)


def test_smooth_rejects_duplicate_ids():
    with pytest.raises(UserError, match=r"ids .*without duplicates"):
        smooth(Linear(3), images(2, SHAPE), **QUICK, ids=torch.zeros(2, dtype=torch.int64))


def test_ten_samples_can_certify_at_the_default_alpha():
    assert Smoothing(0.25, samples=10).reach > 0


def test_a_model_without_finite_logits_is_refused():
    with pytest.raises(UserError, match="NaN"):
        smooth(lambda x: x.flatten(1)[:, :2] * math.nan, images(1, SHAPE), **QUICK)


@given(samples=st.integers(1, 120), share=st.floats(0, 1), alpha=st.floats(1e-4, 0.4))
def test_lower_bound_is_where_the_binomial_tail_is_alpha(samples, share, alpha):
    count = round(share * samples)
    expected = reference.lower_bound(count, samples, alpha)
    assert float(lower_bound(count, samples, alpha)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("p", [0.3, 0.6, 0.9])
def test_lower_bound_is_too_high_at_most_as_often_as_alpha(p):
    """Exactly: the probability of all counts whose bound lies above p."""
    samples, alpha = 97, 0.05
    counts = np.arange(samples + 1)
    above = counts[lower_bound(counts, samples, alpha) > p]
    wrong = reference.binomial_tail(int(above.min()), samples, p)
    assert 0.25 * alpha < wrong <= alpha  # and it is not needlessly low


@given(sigma=st.floats(0.05, 20), samples=st.integers(20, 500), alpha=st.floats(1e-3, 0.1))
def test_certified_radius_rises_with_the_count_and_scales_with_sigma(sigma, samples, alpha):
    radius = certified_radius(np.arange(samples + 1), samples, sigma, alpha)
    certified = ~np.isnan(radius)
    assert not certified[samples // 2]
    assert certified[-1] == (alpha ** (1 / samples) >= 0.5)
    assert (np.diff(certified.astype(int)) >= 0).all()
    assert (np.diff(radius[certified]) > 0).all()
    unit = certified_radius(np.arange(samples + 1), samples, 1.0, alpha)
    np.testing.assert_allclose(radius, sigma * unit)


def test_certified_radius_where_all_agree_is_that_of_the_paper():
    """Section 3.2.2 of Cohen et al.: with n = 100,000 and α = .001 the radius cannot pass about 4σ."""
    expected = 0.25 * NormalDist().inv_cdf(0.001 ** (1 / 100_000))
    assert float(certified_radius(100_000, 100_000, 0.25, 0.001)) == pytest.approx(expected, rel=1e-6)
    assert 3.7 < expected / 0.25 < 4
