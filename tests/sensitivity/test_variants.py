"""J_DA = J1 − λ·J2 − A2 ⊗ ∇λ and the theorems for every variant, against autograd and finite differences."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention
from antiphase.models import diffvit
from antiphase.sensitivity import (
    align,
    amplification,
    attention_layers,
    direction_grams,
    gradient_terms,
    loss_grams,
    random_directions,
    token_grams,
)

DIM, HEADS, TOKENS = 12, 2, 5
VARIANTS = {
    "v2": {"variant": "v2"},
    "v2, keys shared": {"variant": "v2", "kv_heads": 1},
    "grouped": {"variant": "grouped"},
    "gated": {"variant": "gated", "output_gate": True},
    "dint": {"variant": "dint"},
    "v1, λ of tokens": {"parameterisation": "gate"},
}
OF_TOKENS = ("v2", "v2, keys shared", "gated", "v1, λ of tokens")


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Net(nn.Module):
    def __init__(self, **fields):
        super().__init__()
        self.embed, self.attn = nn.Linear(3, DIM), DifferentialAttention(DIM, HEADS, **fields)

    def forward(self, x):
        return self.attn(self.embed(x).tanh()).mean(1)


@pytest.fixture(params=VARIANTS)
def case(request):
    net = Net(**VARIANTS[request.param]).double().eval().requires_grad_(False)
    for seed, parameter in enumerate(net.parameters()):
        parameter.copy_(rand(*parameter.shape, seed=seed) * 0.6)
    return request.param, net, rand(2, TOKENS, 3, seed=50)


def combined(net, tokens):
    return net.attn.maps(tokens).combined


def test_the_combined_maps_move_as_the_layers_branches_say(case):
    name, net, x = case
    (layer,) = attention_layers(net, x)
    t, v = rand(*layer.tokens.shape, seed=3), rand(*combined(net, layer.tokens).shape, seed=4)
    weight = layer.weight if layer.weight.ndim == 2 else layer.weight.expand(len(x), -1)
    moved = layer.positive.jvp(t) - weight[..., None, None] * layer.subtracted.jvp(t)
    expected = torch.func.jvp(lambda tokens: combined(net, tokens), (layer.tokens,), (t,))[1]
    assert_close(moved, expected, rtol=1e-9, atol=1e-11)
    step = 1e-6
    ahead, behind = (combined(net, layer.tokens + sign * step * t) for sign in (1, -1))
    assert_close(moved, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)
    pulled = layer.positive.vjp(v) - weight[..., None, None] * layer.subtracted.vjp(v)
    leaf = layer.tokens.clone().requires_grad_()
    for head in range(layer.heads):
        (slope,) = torch.autograd.grad((combined(net, leaf) * v)[:, head].sum(), leaf)
        assert_close(pulled[:, head], slope, rtol=1e-9, atol=1e-11)
    assert (layer.term is not None) == (name in OF_TOKENS)


def test_lemma_1_and_theorem_1_hold_at_tokens_pixels_and_along_the_loss(case):
    _, net, x = case
    keys = torch.arange(2 * 4).view(2, 4)
    grams = [gram for _, gram, _ in token_grams(net, x, keys)]
    layer = next(iter(attention_layers(net, x)))
    grams += [gram for _, gram in direction_grams(net, x, random_directions(x, keys))]
    grams += [gram for _, gram in loss_grams(net, x, lambda out: out.square().sum())]
    for gram in grams:
        lam = layer.weight if gram.first.ndim == 2 else layer.weight[..., None]
        if gram.moved is None:  # a closed form
            continue
        assert_close(gram.difference(lam), gram.moved, rtol=1e-9, atol=1e-12)
        rho, cosine = (gram.second / gram.first).sqrt(), gram.cross / (gram.first * gram.second).sqrt()
        ratio = amplification(lam.numpy(), rho.numpy(), cosine.clamp(-1, 1).numpy())
        assert_close(torch.as_tensor(ratio), (gram.moved / gram.first).sqrt(), rtol=1e-9, atol=1e-12)
        assert align(gram, probes=gram.first.ndim == 3).cosine.abs().max() <= 1


def test_token_grams_estimate_the_frobenius_norm_of_the_whole_jacobian(case):
    """Sums over a full basis of cotangents are exact; each estimate is unbiased for them."""
    _, net, x = case
    x = x[:1]
    (layer,) = attention_layers(net, x)

    def jacobian(head):
        return torch.func.jacrev(lambda tokens: combined(net, tokens)[0, head])(layer.tokens)

    exact = torch.stack([jacobian(head).square().sum() for head in range(layer.heads)])
    keys = torch.arange(100)[None]
    ((layer, gram, probes),) = token_grams(net, x, keys)
    lam = layer.weight if probes == 0 else layer.weight[..., None]
    estimates = gram.difference(lam)
    if probes == 0:
        assert_close(estimates[0], exact, rtol=1e-9, atol=0)
    else:
        error = estimates[0].std(-1) / probes**0.5
        assert ((estimates[0].mean(-1) - exact).abs() < 4 * error).all()


def test_the_three_terms_add_up_and_the_third_is_that_of_lambda(case):
    name, net, x = case
    u = random_directions(x, torch.arange(2 * 3).view(2, 3))
    ((_, terms),) = gradient_terms(net, x, u)
    for probe, direction in enumerate(u):
        (layer,) = attention_layers(net, x, tangent=direction)
        maps = net.attn.maps(layer.tokens)
        whole = torch.func.jvp(lambda t: combined(net, t), (layer.tokens,), (layer.tangent,))[1]
        total = terms.first + terms.second + terms.third
        assert_close(total[..., probe], whole.square().flatten(2).sum(-1))
        if name in OF_TOKENS:
            moved = torch.func.jvp(lambda t: net.attn.maps(t).lam, (layer.tokens,), (layer.tangent,))[1]
            third = -moved[..., None] * maps.negative
            assert_close(terms.third[..., probe], (third * whole).flatten(2).sum(-1))
    assert ((terms.share.abs() > 1e-4) == (name in OF_TOKENS)).all()


def test_where_lambda_is_the_same_everywhere_nothing_is_left_of_the_third_term():
    net = Net(variant="v2").double().eval().requires_grad_(False)
    net.attn.lam.gate.weight.zero_()
    x = rand(2, TOKENS, 3)
    ((_, terms),) = gradient_terms(net, x, random_directions(x, torch.arange(6).view(2, 3)))
    assert_close(terms.third, torch.zeros_like(terms.third))


@pytest.mark.parametrize("variant", ["v2", "grouped", "gated", "dint"])
def test_a_whole_model_of_each_variant_can_be_measured(variant):
    model = diffvit(8, variant=variant, depth=2, dim=16).eval()
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    keys = torch.arange(2 * 4).view(2, 4)
    assert len(list(token_grams(model, images, keys))) == 2
    assert len(list(direction_grams(model, images, random_directions(images, keys)))) == 2
