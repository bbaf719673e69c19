"""Alignment at a layer's tokens: against dense Jacobians, Lemma 1, and the rate at which probes converge."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model, vit
from antiphase.models.vit import initialise
from antiphase.sensitivity import align, amplification, attention_layers, attention_maps, cotangent_gram, exact_gram
from antiphase.sensitivity.alignment import direction_grams, loss_grams, random_directions, token_grams
from antiphase.streams import key, sample_keys


def layer(dim, heads, seed, bias=True):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = DifferentialAttention(dim, heads, qkv_bias=bias).double()
        for parameter in module.parameters():
            parameter.data.normal_(0, dim**-0.5 * 1.7)
    return module.requires_grad_(False).eval()


def branches(module, x):
    (attention,) = attention_layers(module, x)
    return attention.positive, attention.negative


LAM = torch.tensor([0.8, 0.7], dtype=torch.float64)


def probed(pair, keys):
    """Return the inner products by cotangents; λ plays no part in them but in ``moved``."""
    return cotangent_gram(*pair, LAM[: pair[0].to_q.shape[0]], keys)


def tokens(batch, count, dim, seed=0):
    return torch.randn(batch, count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(module, x):
    """Return J1 and J2 by autograd: (batch, heads, N·N, N·D)."""
    matrices = []
    for sample in x:
        for name in ("positive", "negative"):
            jacobian = torch.autograd.functional.jacobian(
                lambda t, name=name: getattr(module.maps(t[None]), name)[0], sample
            )
            matrices.append(jacobian.flatten(3).flatten(1, 2))
    both = torch.stack(matrices).unflatten(0, (len(x), 2))
    return both[:, 0], both[:, 1]


def keys(batch, probes, seed=0):
    base = sample_keys(key(seed, "probe"), torch.arange(batch * probes))
    return base.view(batch, probes)


@settings(max_examples=12)
@given(
    shape=st.sampled_from([(1, 2, 2, 2), (2, 3, 6, 2), (1, 5, 12, 4), (3, 7, 10, 2), (1, 11, 14, 2)]),
    seed=st.integers(0, 10**6),
    bias=st.booleans(),
)
def test_the_closed_form_equals_the_dense_jacobian(shape, seed, bias):
    batch, count, dim, heads = shape
    module, x = layer(dim, heads, seed, bias), tokens(batch, count, dim, seed)
    one, two = dense(module, x)
    gram = exact_gram(*branches(module, x))
    for mine, jacobians in ((gram.first, (one, one)), (gram.second, (two, two)), (gram.cross, (one, two))):
        assert_close(mine, (jacobians[0] * jacobians[1]).sum((-2, -1)), rtol=1e-10, atol=1e-10)


def test_the_closed_form_keeps_its_digits_where_maps_are_peaked():
    module, x = layer(12, 4, 3), tokens(2, 7, 12)
    module.qkv.weight.data[:24] *= 6.0  # rows near one-hot: what is left of them are small differences
    wide = exact_gram(*branches(module, x))
    assert branches(module, x)[0].attention.amax(-1).mean() > 0.98
    narrow = exact_gram(*branches(module.float(), x.float()))
    assert narrow.first.min() >= 0
    small = wide.first.max() * 1e-7  # float32's own tokens and weights leave no more
    for name in ("first", "second", "cross"):
        assert_close(getattr(narrow, name), getattr(wide, name), rtol=0.02, atol=float(small))


def test_products_with_vectors_equal_the_dense_jacobian():
    module, x = layer(12, 4, 3), tokens(2, 5, 12)
    v = torch.randn(2, 2, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    t = tokens(2, 5, 12, seed=2)
    for branch, jacobian in zip(branches(module, x), dense(module, x), strict=True):
        backward = torch.einsum("bho,bhoi->bhi", v.flatten(2), jacobian).view(2, 2, 5, 12)
        forward = torch.einsum("bi,bhoi->bho", t.flatten(1), jacobian).view(2, 2, 5, 5)
        assert_close(branch.vjp(v), backward, rtol=1e-10, atol=1e-12)
        assert_close(branch.jvp(t), forward, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.37, 0.8, 2.0])
def test_lemma_1_and_theorem_1_hold_exactly(lam):
    module, x = layer(10, 2, 5), tokens(3, 7, 10)
    one, two = dense(module, x)
    measured = (one - lam * two).square().sum((-2, -1))
    gram = exact_gram(*branches(module, x))
    assert_close(gram.difference(lam), measured, rtol=1e-10, atol=1e-10)
    alignment = align(gram, probes=False)
    predicted = gram.first.sqrt().numpy() * amplification(lam, alignment.rho.numpy(), alignment.cosine.numpy())
    assert_close(torch.from_numpy(predicted), measured.sqrt(), rtol=1e-10, atol=1e-10)


def test_lemma_1_holds_for_each_probe():
    module, x = layer(10, 2, 5), tokens(3, 7, 10)
    positive, negative = branches(module, x)
    gram = probed((positive, negative), keys(3, 2))
    v = torch.stack([_probe(k, positive) for k in keys(3, 2).unbind(1)])
    for probe in range(2):
        difference = positive.vjp(v[probe]) - 0.8 * negative.vjp(v[probe])
        assert_close(gram.difference(0.8)[..., probe], difference.square().sum((-2, -1)), rtol=1e-10, atol=1e-10)
    assert_close(gram.difference(LAM[:1, None]), gram.moved, rtol=1e-10, atol=1e-10)


def _probe(streams, branch):
    from antiphase.streams import normal

    shape = branch.attention.shape
    return normal(streams, shape[1] * shape[2] * shape[3]).double().view(shape)


@pytest.mark.thorough
def test_probes_converge_to_the_exact_value_as_one_over_the_root_of_k():
    module, x = layer(6, 2, 7), tokens(1, 5, 6)
    pair = branches(module, x)
    exact = align(exact_gram(*pair), probes=False).cosine.item()
    errors = {}
    for probes in (16, 64, 256):
        gaps = [align(probed(pair, keys(1, probes, seed)), probes=True).cosine.item() - exact for seed in range(60)]
        errors[probes] = torch.tensor(gaps).square().mean().sqrt().item()
    assert errors[256] < 0.05
    assert 1.4 < errors[16] / errors[64] < 2.9  # 2, give or take the error of 60 draws
    assert 1.4 < errors[64] / errors[256] < 2.9


@pytest.mark.thorough
def test_intervals_hold_the_exact_value_as_often_as_they_say():
    module, x = layer(6, 2, 7), tokens(1, 5, 6)
    pair = branches(module, x)
    exact = align(exact_gram(*pair), probes=False).cosine.item()
    hits = 0
    for seed in range(300):
        interval = align(probed(pair, keys(1, 32, seed)), probes=True)
        hits += interval.low.item() <= exact <= interval.high.item()
    assert 0.90 <= hits / 300 <= 0.99


def test_a_batch_changes_nothing():
    module, x = layer(12, 4, 3), tokens(5, 7, 12)
    whole = exact_gram(*branches(module, x)).cross
    alone = torch.cat([exact_gram(*branches(module, sample[None])).cross for sample in x])
    assert_close(whole, alone, rtol=1e-12, atol=1e-12)


def test_the_eager_and_the_fused_backend_are_asked_alike():
    module, x = layer(12, 4, 3), tokens(2, 5, 12)
    eager = exact_gram(*branches(module, x)).cross
    module.backend = "sdpa"
    assert_close(exact_gram(*branches(module, x)).cross, eager, rtol=0, atol=0)


def test_one_probe_has_no_interval():
    module, x = layer(6, 2, 7), tokens(1, 5, 6)
    with pytest.raises(UserError, match="probes 1: expected at least 2"):
        align(probed(branches(module, x), keys(1, 1)), probes=True)


SHAPE = {"image_size": 6, "patch_size": 3, "in_channels": 1, "dim": 20, "depth": 2, "num_heads": 4, "num_classes": 3}


def make(kind):
    model = kind(**SHAPE)
    initialise(model, 3)
    for parameter in model.parameters():
        parameter.data *= 2.0
    return model.double().eval().requires_grad_(False)


def images(batch=2):
    return torch.rand(batch, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def pixel_keys(batch, probes, seed=0):
    return sample_keys(key(seed, "probe"), torch.arange(batch * probes)).view(batch, probes)


def pixel_jacobians(model, x):
    """Return by layer (J1, J2) by the pixels: (batch, heads, outputs, inputs), each by autograd."""
    matrices = {}
    for name in attention_maps(model, x):
        sides = []
        for side in ("positive", "negative"):
            rows = [
                torch.autograd.functional.jacobian(
                    lambda t, name=name, side=side: getattr(attention_maps(model, t[None], graph=True)[name], side)[0],
                    sample,
                )
                .flatten(3)
                .flatten(1, 2)
                for sample in x
            ]
            sides.append(torch.stack(rows))
        matrices[name] = tuple(sides)
    return matrices


@pytest.fixture(scope="module")
def model():
    return make(diffvit)


@pytest.fixture(scope="module")
def jacobians(model):
    return pixel_jacobians(model, images())


def basis_directions(x):
    """Yield the unit directions of the pixels, over which the sum of `direction_grams` is exact."""
    for pixel in range(x[0].numel()):
        unit = torch.zeros_like(x).flatten(1)
        unit[:, pixel] = 1.0
        yield unit.view(1, *x.shape)


def inner(one, two):
    return (one * two).sum((-2, -1))


def test_all_directions_together_are_the_frobenius_inner_products(model, jacobians):
    totals = {}
    for directions in basis_directions(images()):
        for layer, gram in direction_grams(model, images(), directions):
            parts = torch.stack([gram.first, gram.second, gram.cross])[..., 0]
            totals[layer.name] = totals.get(layer.name, 0.0) + parts
    for name, (one, two) in jacobians.items():
        expected = torch.stack([inner(one, one), inner(two, two), inner(one, two)])
        assert_close(totals[name], expected, rtol=1e-10, atol=1e-12)


def test_each_direction_is_the_product_with_the_jacobian(model, jacobians):
    u = random_directions(images(), pixel_keys(2, 3))
    for layer, gram in direction_grams(model, images(), u):
        one, two = (torch.einsum("bhoi,kbi->bhok", j, u.flatten(2)) for j in jacobians[layer.name])
        assert_close(gram.cross, (one * two).sum(2), rtol=1e-10, atol=1e-12)
        moved = one - layer.weight[:, None, None] * two
        assert_close(gram.moved, moved.square().sum(2), rtol=1e-10, atol=1e-12)
        assert_close(gram.difference(layer.weight[:, None]), gram.moved, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_directions_at_the_pixels_converge_at_their_rate(model, jacobians):
    name, (one, two) = next(iter(jacobians.items()))
    exact = (inner(one, two) / (inner(one, one) * inner(two, two)).sqrt())[0, 0]

    def error(count, seeds):
        gaps = []
        for seed in range(seeds):
            drawn = pixel_keys(2, count, seed)
            grams = direction_grams(model, images(), random_directions(images(), drawn))
            gram = {layer.name: gram for layer, gram in grams}[name]
            gaps.append(align(gram, probes=True).cosine[0, 0] - exact)
        return torch.stack(gaps).square().mean().sqrt()

    few, many = error(8, 20), error(32, 20)
    assert many < 0.15
    assert 1.2 < few / many < 3.4  # 2, give or take the error of 20 draws


def test_the_loss_is_differentiated_through_each_map():
    model, x = make(diffvit), images()
    grams = list(loss_grams(model, x, lambda logits: logits.square().sum()))
    assert [layer.name for layer, _ in grams] == list(attention_maps(model, x))
    # the slope of the loss along A1's scores alone, by finite differences: tokens that only A1 sees move
    for index, (layer, gram) in enumerate(grams):
        block = model.blocks[index]
        one, two = _parts(model, block, x)
        assert_close(gram.first, inner(one, one), rtol=1e-9, atol=1e-12)
        assert_close(gram.cross, inner(one, two), rtol=1e-9, atol=1e-12)
        whole = one - layer.weight[:, None, None] * two
        assert_close(gram.difference(layer.weight), whole.square().sum((-2, -1)), rtol=1e-9, atol=1e-12)


def _parts(model, block, x):
    """Return J1ᵀv and J2ᵀv by autograd, v the loss's gradient by A1 − λ·A2, each head alone."""
    attn, kept = block.attn, {}

    def patched(tokens, mask=None):
        t = tokens.detach().requires_grad_()
        v = attn.parts(attn.qkv(t))[-1]
        maps = attn.maps(t)
        combined = maps.combined.detach().requires_grad_()
        kept.update(t=t, maps=maps, combined=combined)
        return attn.finish(combined @ v.detach())

    original, attn.forward = attn.forward, patched
    try:
        model(x).square().sum().backward()
    finally:
        attn.forward = original
    v = kept["combined"].grad
    sides = []
    for side in (kept["maps"].positive, kept["maps"].negative):
        heads = [
            torch.autograd.grad((side * v)[:, h].sum(), kept["t"], retain_graph=True)[0] for h in range(v.shape[1])
        ]
        sides.append(torch.stack(heads, 1))
    return sides


@pytest.mark.parametrize("exact", [True, False])
def test_grams_do_not_change_with_the_batch_or_the_names(model, exact):
    x, drawn = images(3), pixel_keys(3, 2)
    whole = [gram.cross for _, gram, _ in token_grams(model, x, drawn, exact=exact)]
    order = [2, 0, 1]
    turned = [gram.cross for _, gram, _ in token_grams(model, x[order], drawn[order], exact=exact)]
    renamed = torch.nn.Sequential(model).eval()
    names = [(layer.name, gram.cross) for layer, gram, _ in token_grams(renamed, x, drawn, exact=exact)]
    for index, (name, cross) in enumerate(names):
        assert name == f"0.blocks.{index}.attn"
        assert_close(turned[index], whole[index][order], rtol=1e-10, atol=1e-14)
        assert_close(cross, whole[index], rtol=0, atol=0)
    alone = [[g.cross for _, g, _ in token_grams(model, x[i : i + 1], drawn[i : i + 1], exact=exact)] for i in range(3)]
    for index, cross in enumerate(whole):
        assert_close(torch.cat([one[index] for one in alone]), cross, rtol=1e-10, atol=1e-14)


def test_a_model_whose_output_has_no_gradient_is_refused():
    model = vit(8, seed=3, dim=12, num_heads=2, num_classes=3).eval()
    model.forward = torch.no_grad()(model.forward)
    with pytest.raises(UserError, match="the model's output has no gradient: remove no_grad or detach"):
        list(loss_grams(model, torch.rand(3, 1, 8, 8), lambda logits: logits.amax(1).sum()))


def test_standard_attention_has_one_norm_and_no_angle():
    model, x = make(vit), images()
    for layer, gram, probes in token_grams(model, x, pixel_keys(2, 2)):
        assert probes == 0
        assert gram.first.min() > 0
        assert gram.second.abs().max() == gram.cross.abs().max() == 0
        assert_close(gram.difference(layer.weight), gram.first, rtol=0, atol=0)


def test_lemma_1_and_theorem_1_hold_on_a_trained_model():
    model = load_model("specimen:diffvit-0").double().eval().requires_grad_(False)
    x = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u = random_directions(x, pixel_keys(1, 3))
    for layer, gram in direction_grams(model, x, u):
        lam = layer.weight[:, None]
        one, two = (layer.positive.jvp(layer.tangent), layer.negative.jvp(layer.tangent))  # of the last direction
        moved = (one - lam[..., None] * two).flatten(2).square().sum(-1)
        assert_close(gram.difference(lam)[..., -1], moved, rtol=1e-10, atol=1e-16)
        mean = gram.mean()
        alignment = align(mean, probes=False)
        predicted = amplification(layer.weight.numpy(), alignment.rho.numpy(), alignment.cosine.numpy())
        measured = (mean.difference(layer.weight) / mean.first).sqrt()
        assert_close(torch.as_tensor(predicted), measured, rtol=1e-10, atol=1e-12)  # aggregated


@pytest.mark.parametrize("count", [3, 5])
def test_the_loss_reaches_tokens_first_attention_as_any_other_whatever_the_batch(count):
    def model(batch_first):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return torch.nn.MultiheadAttention(8, 2, batch_first=batch_first).double().eval().requires_grad_(False)

    class Whole(torch.nn.Module):
        def __init__(self, batch_first):
            super().__init__()
            self.attention, self.batch_first = model(batch_first), batch_first

        def forward(self, x):
            x = x if self.batch_first else x.transpose(0, 1)
            out, _ = self.attention(x, x, x)
            return out if self.batch_first else out.transpose(0, 1)

    x = tokens(count, 5, 8)  # once as many as tokens
    one, two = (next(loss_grams(Whole(first).eval(), x, lambda y: (y**3).sum()))[1] for first in (True, False))
    assert_close(one.first, two.first, rtol=1e-9, atol=0)
    with pytest.raises(UserError, match=r"the loss has shape \(.*\): expected one number"):
        list(loss_grams(Whole(True).eval(), x, lambda y: y.sum(2)))
