"""Attention that nobody registered is found by what it does, and nothing else is."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.errors import UserError
from antiphase.sensitivity import (
    align,
    attention_layers,
    attention_maps,
    direction_grams,
    loss_grams,
    map_function,
    propagate,
    random_directions,
    token_grams,
)
from antiphase.sensitivity.detection import DETECTIONS
from antiphase.sensitivity.lipschitz import power_iteration
from antiphase.sensitivity.maps import attention_of
from tests.sensitivity import not_attention as other
from tests.sensitivity import own_attention as own

TOKENS = 7


def rand(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def wild(module, seed=0):
    """Return the module in float64 with weights large enough for maps that are not flat."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        spread = parameter.shape[-1] ** -0.5 * 1.5 if parameter.ndim > 1 else 0.4
        parameter.data = torch.randn(parameter.shape, generator=generator) * spread
    return module.double().eval().requires_grad_(False)


class Net(nn.Module):
    """Tokens from images; one layer; logits."""

    def __init__(self, layer, **more):
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(5, own.DIM), layer, nn.Linear(own.DIM, 4)
        self.more = more

    def forward(self, x):
        out = self.mix(self.embed(x), **self.more)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


class TokensFirst(Net):
    """The same with tokens before the batch."""

    def forward(self, x):
        return self.head(self.mix(self.embed(x).transpose(0, 1)).mean(0))


class Branches(nn.Module):
    """Two modules of standard attention with the same values, whose outputs a third subtracts."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(own.DIM, 6), nn.Linear(own.DIM, 6)

        def forward(self, x, v):
            self.seen = (self.q(x) @ self.k(x).mT).softmax(-1)
            return self.seen @ v

    def __init__(self):
        super().__init__()
        self.one, self.two, self.v = Branches.Half(), Branches.Half(), nn.Linear(own.DIM, own.DIM)

    def forward(self, x):
        v = self.v(x)
        out = self.one(x, v) - own.LAM * self.two(x, v)
        self.truth = self.one.seen[:, None], self.two.seen[:, None], own.LAM
        return out


def rotation():
    angle = torch.arange(TOKENS, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1])
    return torch.polar(torch.ones_like(angle), angle)


LAYOUTS = {
    "one projection, halves": lambda: Net(own.FusedHalves()),
    "one projection, halves, causal": lambda: Net(own.FusedHalves(causal=True)),
    "separate projections, interleaved, norm": lambda: Net(own.Interleaved()),
    "two queries and keys, learned λ": lambda: Net(own.Separate()),
    "einsum, λ of each head": lambda: Net(own.Einsum()),
    "fused kernels, outputs subtracted": lambda: Net(own.Fused()),
    "rotary positions, norms, grouped heads": lambda: Net(own.Rotary(), positions=rotation()),
    "an addition, bmm, a tuple": lambda: Net(own.SumOfWeights()),
    "a loop over heads": lambda: Net(own.Looped()),
    "a whole block": lambda: Net(own.WholeBlock()),
    "rectified, one head": lambda: Net(own.Rectified()),
    "two modules and a third": lambda: Net(Branches()),
    "two maps, then the batch": lambda: Net(own.BranchesFirst(one_axis=False)),
    "two maps and the batch in one axis": lambda: Net(own.BranchesFirst(one_axis=True)),
    "heads, then the batch": lambda: Net(own.HeadsFirst(one_axis=False)),
    "heads and the batch in one axis": lambda: Net(own.HeadsFirst(one_axis=True)),
    "standard, heads and the batch in one axis": lambda: Net(own.HeadsFirst(one_axis=True, standard=True)),
    "tokens before the batch": lambda: TokensFirst(own.TokensFirst()),
    "tokens before the batch, causal": lambda: TokensFirst(own.TokensFirst(causal=True)),
    "standard, masked": lambda: Net(own.Standard()),
}
TRAPS = {
    "a softmax gate": lambda: other.Gate(TOKENS),
    "a sum": other.Sum,
    "λ of each sample": other.LambdaOfSample,
    "scores without keys": lambda: other.Synthesizer(TOKENS),
    "scores without queries": other.KeysOnly,
    "maps of channels": lambda: other.OfChannels(TOKENS),
    "two layers in one module": other.TwoInOne,
    "a square of a map": other.Wrong,
}


def made(name, dtype=torch.float64):
    net = wild(LAYOUTS[name]()).to(dtype)
    if "positions" in net.more and dtype == torch.float32:
        net.more["positions"] = net.more["positions"].to(torch.complex64)
    return net, rand(2, TOKENS, 5, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_found_with_its_maps_and_its_lambda(name, dtype):
    net, x = made(name, dtype)
    ((layer, maps),) = attention_maps(net, x).items()
    net(x)  # the module ran on other tokens since
    one, two, lam = net.mix.truth
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-7, "atol": 1e-9}
    assert layer == "mix"
    assert_close(maps.positive, one, **close)
    assert (maps.negative is None) == (two is None)
    if two is not None:
        assert_close(maps.negative, two, **close)
        expected = torch.as_tensor(lam, dtype=dtype).expand(one.shape[1])
        assert_close(maps.lam, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_that_was_found_for_one_sample_has_the_maps_of_each_of_three(name):
    net, x = made(name)
    attention_maps(net, x[:1])
    three = torch.cat([x, rand(1, TOKENS, 5, seed=3)])
    (maps,) = attention_maps(net, three).values()
    net(three)
    one, two, _ = net.mix.truth
    assert_close(maps.positive, one, rtol=1e-7, atol=1e-9)
    if two is not None:
        assert_close(maps.negative, two, rtol=1e-7, atol=1e-9)


class Plain(nn.Module):
    """Differential attention with one head; ``change`` makes what is subtracted of A2."""

    def __init__(self, change=lambda two: own.LAM * two):
        super().__init__()
        self.q, self.k = (nn.Linear(own.DIM, 12) for _ in range(2))
        self.v, self.o = nn.Linear(own.DIM, own.DIM), nn.Linear(own.DIM, own.DIM)
        self.change = change
        self.register_buffer("cache", torch.zeros(4, TOKENS, own.DIM))

    def forward(self, x):
        one, two = ((q @ k.mT).softmax(-1) for q, k in zip(self.q(x).chunk(2, -1), self.k(x).chunk(2, -1), strict=True))
        self.cache[: len(x)] = self.v(x)
        return self.o((one - self.change(two)) @ self.cache[: len(x)])


def test_two_maps_subtracted_without_a_weight_have_a_lambda_of_1():
    net, x = wild(Net(Plain(lambda two: two))), rand(2, TOKENS, 5)
    (maps,) = attention_maps(net, x).values()
    assert_close(maps.lam, torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("hidden", [torch.detach, lambda two: two.data])
def test_a_subtraction_past_the_gradients_is_not_taken_for_standard_attention(hidden):
    def change(two):
        return own.LAM * hidden(two) - 0.1 * two.flip(1)

    with pytest.raises(UserError, match="past their gradients, as of detach"):
        attention_maps(wild(Net(Plain(change))), rand(2, TOKENS, 5))


@pytest.mark.parametrize(("name", "reason"), [("o.weight", "a projection that begins at 0"), ("lam", "λ = 0")])
def test_what_has_no_effect_at_the_start_is_the_reason(name, reason):
    net = wild(Net(Plain() if name == "o.weight" else Plain(lambda two: 0.0 * two)))
    if name == "o.weight":
        nn.init.zeros_(net.mix.o.weight)
    with pytest.raises(UserError, match=f"does not depend on .* as of {reason}"):
        attention_maps(net, rand(2, TOKENS, 5))


def test_buffers_of_the_model_stay_free_of_gradients():
    net = wild(Net(Plain()))
    net.requires_grad_(True)
    attention_maps(net, rand(2, TOKENS, 5))
    assert not net.mix.cache.requires_grad
    copy.deepcopy(net)


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_else_is_found(name, dtype):
    net = wild(Net(TRAPS[name]())).to(dtype)
    with pytest.raises(UserError, match=r"mix: .* computes softmax maps.*register") as caught:
        attention_maps(net, rand(2, TOKENS, 5, dtype=dtype))
    assert "\n" not in str(caught.value)
    assert not any(module in DETECTIONS for module in net.modules())


def test_no_lambda_of_a_sample_is_taken_for_a_constant_where_there_is_one_sample():
    net = wild(Net(other.LambdaOfSample()))
    with pytest.raises(UserError, match="computes softmax maps"):
        attention_maps(net, rand(1, TOKENS, 5))


@pytest.mark.parametrize("samples", [1, 2])
def test_a_lambda_of_each_query_is_taken_for_no_constant(samples):
    net, x = wild(Net(other.LambdaOfQuery())), rand(samples, TOKENS, 5)
    (layer,) = attention_layers(net, x)
    lam, t = layer.tokens.mean(2).sigmoid()[:, None], rand(*layer.tokens.shape, seed=5)
    assert_close(layer.lam, lam.expand_as(layer.lam), rtol=1e-5, atol=0)
    moved = lam * (1 - lam) * t.mean(2)[:, None]
    change = layer.term.jvp(t) * layer.weight[..., None, None]
    assert_close(change, moved[..., None] * layer.maps.negative, rtol=1e-4, atol=1e-8)


def test_as_many_tokens_as_channels_confuse_nothing():
    for make in (own.FusedHalves, own.SumOfWeights, own.WholeBlock, own.Fused):
        net = wild(Net(make()))
        (maps,) = attention_maps(net, rand(2, own.DIM, 5)).values()
        net(rand(2, own.DIM, 5))
        assert_close(maps.positive, net.mix.truth[0])
        assert_close(maps.lam, torch.as_tensor(net.mix.truth[2], dtype=torch.float64).expand(2), rtol=1e-4, atol=0)


def test_a_model_without_recognised_attention_says_the_same_each_time():
    net = wild(Net(other.Sum()))
    for _ in range(2):
        with pytest.raises(UserError, match=r"mix: .*Sum computes softmax maps"):
            attention_maps(net, rand(2, TOKENS, 5))


def test_an_untrained_transformer_with_small_weights_is_found():
    torch.manual_seed(0)
    net = nn.Sequential(nn.LayerNorm(12), own.FusedHalves(), nn.LayerNorm(12), own.Standard()).eval()
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    layers = attention_maps(net, rand(3, 17, 12, dtype=torch.float32))
    assert [maps.negative is None for maps in layers.values()] == [False, True]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "standard" not in name])
def test_derivatives_equal_autograd_and_finite_differences(name):
    net, x = made(name)
    (layer,) = attention_layers(net, x, tangent=rand(*x.shape, seed=3))
    v, t = rand(*layer.positive.attention.shape, seed=4), rand(*layer.tokens.shape, seed=5)
    step = 1e-6
    for branch in (layer.positive, layer.negative):
        ahead, behind = (branch.function(branch.tokens + sign * step * t) for sign in (1, -1))
        slope = (ahead - behind) / (2 * step)
        assert_close(branch.jvp(t), slope, rtol=1e-5, atol=1e-7)
        per_head = (branch.vjp(v) * t[:, None]).sum((0, 2, 3))
        assert_close(per_head, (slope * v).sum((0, 2, 3)), rtol=1e-5, atol=1e-7)
    (ahead,), (behind,) = (
        list(attention_maps(net, x + sign * step * rand(*x.shape, seed=3)).values()) for sign in (1, -1)
    )
    slope = (ahead.positive - behind.positive) / (2 * step)
    assert_close(layer.positive.jvp(layer.tangent), slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "name", ["fused kernels, outputs subtracted", "a whole block", "rotary positions, norms, grouped heads"]
)
def test_everything_that_sense_measures_works(name):
    net, x = made(name)
    keys = torch.arange(6).view(2, 3)
    ((layer, gram, probes),) = token_grams(net, x, keys)
    assert (probes, align(gram, probes=True).cosine.shape) == (3, (2, layer.heads))
    ((_, along),) = direction_grams(net, x, random_directions(x, keys))
    assert along.first.shape == (2, layer.heads, 3)
    ((_, loss),) = loss_grams(net, x, lambda logits: logits.square().sum())
    assert float(loss.first.min()) > 0
    f = map_function(net, "mix")
    assert_close(f(x), layer.maps.combined.flatten(1) * layer.heads**-0.5)
    assert float(power_iteration(f, x, steps=3, seed=0, ids=torch.arange(2)).value.min()) > 0
    assert propagate(net, x, x.flip(0)).moved.shape == (2, 1)


def test_alignment_equals_that_of_the_same_attention_with_its_parts():
    from antiphase.attention import DifferentialAttention

    ours = wild(Net(DifferentialAttention(own.DIM, own.HEADS)))

    class Rewritten(nn.Module):
        """The same computation without the parts that an adapter knows."""

        def __init__(self):
            super().__init__()
            self.inner = [ours.mix]

        def forward(self, x):
            inner = self.inner[0]
            (q1, q2), (k1, k2), v = inner.parts(inner.qkv(x))
            one, two = ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
            return inner.finish((one - inner.lam() * two) @ v)

    rewritten = Net(Rewritten()).double().eval()
    rewritten.embed, rewritten.head = ours.embed, ours.head
    x, keys = rand(2, TOKENS, 5), torch.arange(8).view(2, 4)
    (one,), (two,) = (list(token_grams(net, x, keys, exact=False)) for net in (ours, rewritten))
    for field in ("first", "second", "cross"):
        assert_close(getattr(one[1], field), getattr(two[1], field), rtol=1e-6, atol=1e-12)
    (one,), (two,) = (list(loss_grams(net, x, lambda logits: logits.square().sum())) for net in (ours, rewritten))
    for field in ("first", "second", "cross"):
        assert_close(getattr(one[1], field), getattr(two[1], field), rtol=1e-6, atol=1e-12)


def test_a_map_that_is_not_recognised_beside_attention_is_left_out_with_a_warning():
    net = wild(nn.Sequential(own.Interleaved(), other.Gate(TOKENS), other.Gate(TOKENS)))
    with pytest.warns(UserWarning, match=r"1: .*Gate computes softmax maps.*Gate is left out") as records:
        assert list(attention_maps(net, rand(2, TOKENS, 12))) == ["0"]
    assert len(records) == 1


def test_attention_without_softmax_beside_attention_is_left_out_with_a_warning():
    net = wild(nn.Sequential(own.Interleaved(), other.Sigmoid()))
    with pytest.warns(UserWarning, match=r"1: .*Sigmoid multiplies pairs of tokens .*Sigmoid is left out") as records:
        assert list(attention_maps(net, rand(2, TOKENS, 12))) == ["0"]
    assert len(records) == 1
    twice = nn.Sequential(other.Sigmoid(), other.Covariance()).eval()
    with pytest.raises(UserError, match=r"^0: .*Sigmoid multiplies pairs of tokens"):
        attention_maps(twice, rand(2, TOKENS, 12).float())
    net = other.ByKeyword().eval()
    with pytest.raises(UserError, match=r"^ByKeyword: .*ByKeyword multiplies pairs of tokens"):
        attention_maps(net, rand(2, TOKENS, 12).float(), call=lambda x: net(tokens=x))
    assert attention_of(net, rand(2, TOKENS, 12).float(), lambda x: net(tokens=x))[0] == "unknown"


def test_products_of_channels_beside_attention_are_no_attention(recwarn):
    net = wild(nn.Sequential(own.Interleaved(), other.Covariance()))
    assert list(attention_maps(net, rand(2, TOKENS, 12))) == ["0"]
    assert not recwarn.list


def test_a_lambda_that_is_trained_further_is_found_again():
    net, x = made("an addition, bmm, a tuple")
    assert_close(attention_maps(net, x)["mix"].lam, net.mix.lam.expand(2), rtol=1e-4, atol=0)
    with torch.no_grad():
        net.mix.lam.fill_(0.25)
    assert_close(attention_maps(net, x)["mix"].lam, torch.full((2,), 0.25).double(), rtol=1e-4, atol=0)
    fused = torch.optim.Adam(net.requires_grad_().parameters(), lr=0.1, fused=True)  # leaves versions as they are
    net(x).square().sum().backward()
    fused.step()
    assert_close(attention_maps(net, x)["mix"].lam, net.mix.lam.expand(2), rtol=1e-4, atol=0)


def test_a_map_function_of_a_module_that_was_not_seen_before_works():
    net, x = made("one projection, halves")
    assert map_function(net, "mix")(x).shape == (2, own.HEADS * TOKENS**2)


def test_known_attention_beside_it_keeps_its_place():
    from timm.layers import Attention

    net = wild(nn.Sequential(Attention(12, 2), own.Interleaved(), Attention(12, 3)))
    assert list(attention_maps(net, rand(2, TOKENS, 12))) == ["0", "1", "2"]
    shared = own.Interleaved()
    assert list(attention_maps(wild(nn.Sequential(shared, shared)), rand(2, TOKENS, 12))) == ["0", "0@2"]
