"""The kind of attention by what the modules do, and what is left out or refused."""

import copy
import warnings

import pytest
import torch
import transformers
from timm.layers import Attention, AttentionPoolLatent
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.testing import assert_close

from antiphase.errors import UserError
from antiphase.sensitivity import (
    Branch,
    Layer,
    attention_layers,
    attention_maps,
    branch_changes,
    loss_grams,
    register,
    token_grams,
)
from antiphase.sensitivity.maps import attention_of, map_function
from tests.sensitivity import attention_variants as variants
from tests.sensitivity.own_attention import DIM, FusedHalves
from tests.sensitivity.test_detection import TOKENS, rand, wild

HOW = "; if it is attention, give its class an adapter"


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.before, self.attn, self.behind = nn.LayerNorm(DIM), attention, nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 20), nn.GELU(), nn.Linear(20, DIM))

    def forward(self, x):
        out = self.attn(self.before(x))
        x = x + (out[0] if isinstance(out, tuple) else out)
        return x + self.mlp(self.behind(x))


class Net(nn.Module):
    """Some blocks, with a pooling head or a mean over the tokens."""

    def __init__(self, *attention, pool=None):
        super().__init__()
        self.embed, self.head = nn.Linear(5, DIM), nn.Linear(DIM, 4)
        self.blocks, self.pool = nn.ModuleList(map(Block, attention)), pool

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1) if self.pool is None else self.pool(x))


class Pool(nn.Module):
    """torch's attention from a learned query to all tokens."""

    def __init__(self):
        super().__init__()
        self.probe, self.attention = nn.Parameter(torch.ones(1, 1, DIM)), nn.MultiheadAttention(DIM, 2)

    def forward(self, x):
        x = x.transpose(0, 1)
        return self.attention(self.probe.expand(1, x.shape[1], -1), x, x)[0][0]


class AttentionPooling(nn.Module):
    """Written by hand: a learned query, and a class name that says attention."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Parameter(torch.ones(DIM)), nn.Linear(DIM, 2 * DIM)

    def forward(self, x):
        k, v = self.kv(x).chunk(2, -1)
        return ((k @ self.q).softmax(-1)[:, None] @ v)[:, 0]


class Two(nn.Module):
    """Standard or differential attention by two softmax calls or one, by a flag."""

    def __init__(self, differential):
        super().__init__()
        self.differential, self.lam = differential, nn.Parameter(torch.tensor(0.5))
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if not self.differential:
            maps = variants.maps_of(q, k)
        else:
            (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
            maps = variants.maps_of(q1, k1) - self.lam * variants.maps_of(q2, k2)
        return self.out((maps @ v).transpose(1, 2).flatten(2))


def made(*attention, pool=None, dtype=torch.float64):
    net = wild(Net(*attention, pool=pool))
    for name, parameter in net.named_parameters():
        if name.endswith("lam"):
            parameter.data = parameter.data.abs() + 0.2
    return net.to(dtype), rand(2, TOKENS, 5, dtype=dtype)


V1 = ("", "in place", "einsum", "addcmul", "four products", "four fused calls", "λ below zero", "maps computed twice")
STANDARD = (
    "",
    "fused",
    "fused, by name",
    "two softmaxes",
    "gated",
    "a softmax over experts",
    "a softmax as wide as there are tokens",
    "softmax weights of the heads",
    "a norm by hand",
    "residual minus",
)
DIFFERENTIAL = {
    **{f"V1 {how}": (lambda how=how: variants.V1(how)) for how in V1},
    "grouped 1:1": lambda: variants.Grouped(1),
    "grouped 3:1": lambda: variants.Grouped(3),
    "grouped 3:1, one group": lambda: variants.Grouped(3, groups=1),
    "grouped 4:1, fused": lambda: variants.Grouped(4, fused=True),
    "gated output": variants.OutputGated,
    "DINT": variants.Dint,
}
SOFTMAX = {
    **{f"standard {how}": (lambda how=how: variants.Standard(how)) for how in STANDARD},
    "one head of keys and values": lambda: variants.Standard(queries=6, keys=1),
    "grouped queries, fused": lambda: variants.Standard("fused", queries=6, keys=2),
}
OF_OTHERS = "its output is subtracted from that of other attention"
OF_TOKENS = {  # and λ of each query, from the module's tokens
    "V2": (variants.V2, lambda module, x: module.to_lam(x).sigmoid()),
    "V2, fused": (lambda: variants.V2("fused"), lambda module, x: module.to_lam(x).sigmoid()),
    "V2, grouped queries": (lambda: variants.V2("fused", keys=1), lambda module, x: module.to_lam(x).sigmoid()),
    "gated groups": (variants.GatedGroups, lambda module, x: module.to_lam(x).sigmoid()),
    "gates of both maps": (variants.Gated, lambda module, x: 1 / module.gate(x).sigmoid() - 1),
}
UNKNOWN = {
    **{
        f"gates of channels, {how}": (
            lambda how=how: variants.GatedByChannel(how),
            "several of its maps weigh the same values",
        )
        for how in ("sum", "alpha", "of no token")
    },
    "V2, a sum": (lambda: variants.V2("sum"), "several of its maps weigh the same values"),
    "gates of channels": (variants.GatedByChannel, "what it subtracts is not a weighted map of the same values"),
    "talking heads": (variants.TalkingHeads, "computes softmax maps"),
    "two modules of torch": (
        lambda: variants.SubtractsModules(lambda: nn.MultiheadAttention(DIM, 2, batch_first=True)),
        OF_OTHERS,
    ),
    "two modules of timm": (lambda: variants.SubtractsModules(lambda: Attention(DIM, 2)), OF_OTHERS),
    "two modules by hand": (lambda: variants.SubtractsModules(variants.Standard), OF_OTHERS),
    **{
        f"two modules, {how}": (lambda how=how: variants.SubtractsModules(variants.Standard, how), OF_OTHERS)
        for how in ("sum", "sum of channels", "projections")
    },
    "σ": (variants.Sigmoid, "no known attention module"),
    "without a map": (variants.LinearAttention, "has no adapter"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", DIFFERENTIAL)
def test_differential_attention_is_labelled_with_its_lambda(name, dtype):
    net, x = made(DIFFERENTIAL[name](), dtype=dtype)
    module = net.blocks[0].attn
    lam = -module.lam if "below" in name else module.lam
    maps = attention_maps(net, x)["blocks.0.attn"]
    assert attention_of(net, x) == ("differential", (pytest.approx(float(lam.mean()), rel=1e-4),))
    expected = lam.flatten().repeat_interleave(maps.lam.shape[0] // lam.numel())
    assert_close(maps.lam, expected.detach(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", SOFTMAX)
def test_standard_attention_is_labelled_softmax(name):
    net, x = made(SOFTMAX[name]())
    assert attention_of(net, x) == ("softmax", ())
    assert list(attention_maps(net, x)) == ["blocks.0.attn"]


def test_a_subclass_that_does_not_work_like_its_class_is_examined():
    net, x = made(variants.OverriddenTimm())
    assert attention_of(net, x) == ("differential", (pytest.approx(0.5, rel=1e-4),))
    expected = attention_maps(net, x)["blocks.0.attn"].combined.detach()
    assert_close(map_function(net, "blocks.0.attn")(x).detach(), expected.flatten(1) * expected.shape[1] ** -0.5)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_recognised_is_unknown_and_refused_with_the_reason(name):
    build, reason = UNKNOWN[name]
    net, x = made(build())
    assert attention_of(net, x) == ("unknown", ())
    with pytest.raises(UserError, match=reason) as caught:
        attention_maps(net, x)
    assert "\n" not in str(caught.value)


class OfTwoLists(nn.Module):
    """x + A(x) − λ·B(x), with A and B of lists of their own, or one function of torch twice."""

    def __init__(self, how="minus"):
        super().__init__()
        self.lam, self.how = nn.Parameter(torch.tensor(0.6)), how
        self.signal, self.noise = (nn.ModuleList([nn.MultiheadAttention(DIM, 2)]) for _ in range(2))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x):
        x, parts = x.transpose(0, 1), (self.signal[0], self.noise[0])
        if self.how == "functional":
            how = (None, None, False, 0.0)
            call = torch.nn.functional.multi_head_attention_forward
            weights = ((p.in_proj_weight, p.in_proj_bias, *how, p.out_proj.weight, p.out_proj.bias) for p in parts)
            one, two = (call(x, x, x, DIM, 2, *some, training=False)[0] for some in weights)
        else:
            other = self.norm(x) if self.how == "normed" else x
            one = parts[0](x, x, x)[0]
            with torch.set_grad_enabled(self.how != "no_grad"):
                two = parts[self.how != "twice"](*3 * [x.flip(-1) if self.how == "twice" else other])[0]
            two = two.detach() if self.how == "detached" else two
        if self.how in ("minus", "functional"):
            return (x + one - self.lam * two).transpose(0, 1)
        return (x + torch.addcmul(one, self.lam, two, value=-1)).transpose(0, 1)


@pytest.mark.parametrize("how", ["minus", "functional", "addcmul", "normed", "twice", "no_grad", "detached"])
def test_attention_that_is_subtracted_across_lists_or_within_torch_is_unknown(how):
    net, x = made(OfTwoLists(how), variants.Standard())
    assert attention_of(net, x)[0] == "unknown"


class OfReturnedMaps(nn.Module):
    """(A1 − λ·A2)·V of the maps that modules of torch return; with λ None, they are returned and not used."""

    def __init__(self, lam):
        super().__init__()
        self.one, self.two = (nn.MultiheadAttention(DIM, 2, batch_first=True) for _ in range(2))
        self.lam, self.value = lam, nn.Linear(DIM, DIM)

    def forward(self, x):
        (one, a1), (two, a2) = (part(x, x, x, average_attn_weights=False) for part in (self.one, self.two))
        if self.lam is None:
            return one + two, a1
        value = self.value(x).unflatten(-1, (2, -1)).transpose(1, 2)
        return ((a1 - self.lam * a2) @ value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("lam", "kind"), [(0.5, "unknown"), (None, "softmax")])
def test_attention_made_of_maps_that_modules_return_is_unknown(lam, kind):
    net, x = made(OfReturnedMaps(lam))
    assert attention_of(net, x) == (kind, ())
    if lam:
        with pytest.raises(UserError, match="or its maps are used"):
            attention_maps(net, x)


class ChannelAttention(nn.Module):
    """Factors of channels, squeezed and excited: no attention to tokens."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        return x * self.linear(x.mean((2, 3))).sigmoid()[:, :, None, None]


class ClassAttention(nn.Module):
    """Of the first token to all; returns the others as they are."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM)

    def forward(self, x):
        k, v = self.kv(x).chunk(2, -1)
        return torch.cat([(self.q(x[:, :1]) @ k.mT).softmax(-1) @ v, x[:, 1:]], 1)


class WithChannels(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.channels, self.net = ChannelAttention(), net

    def forward(self, x):
        return self.net(self.channels(x.mT[..., None])[..., 0].mT)


def test_what_is_only_called_attention_leaves_the_maps_of_the_rest():
    net, x = made(variants.V1(""))
    with pytest.warns(UserWarning, match=r"ChannelAttention is named attention, but is given no tokens"):
        assert list(attention_maps(WithChannels(net).to(x).eval(), x)) == ["net.blocks.0.attn"]
    net, x = made(variants.Standard(), ClassAttention())
    with pytest.warns(UserWarning, match=r"ClassAttention: cross-attention is not supported"):
        assert list(attention_maps(net, x)) == ["blocks.0.attn"]


class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net(variants.Standard())

    def forward(self, x):
        return self.net(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)


def test_sensitivity_of_attention_within_windows_is_refused_in_one_line():
    net, x, keys = wild(Windows()), rand(3, 2, TOKENS, 5), torch.ones(3, 2, dtype=torch.int64)
    assert list(attention_maps(net, x)) == ["net.blocks.0.attn"]
    line = "attends within 6 sets of tokens of 3 samples, such as windows or views; expected one set for each sample"
    for measure in (
        lambda: list(token_grams(net, x, keys)),
        lambda: list(loss_grams(net, x, lambda logits: logits.sum())),
        lambda: list(branch_changes(net, x, x + 0.1)),
    ):
        with pytest.raises(UserError, match=line):
            measure()


def test_a_model_that_fails_in_any_way_is_one_line():
    class Refusing(nn.Module):
        def forward(self, x):
            return {}[x.shape]

    with pytest.raises(UserError, match=r"Refusing failed on the inputs .* expected a tensor"):
        attention_maps(Refusing().eval(), rand(2, TOKENS, 5))


def test_lambda_of_a_buffer_or_attribute_may_change():
    net, x = made(variants.V1(""))
    module = net.blocks[0].attn
    like = module.lam.detach()
    del module.lam
    module.register_buffer("lam", like.clone())
    for lam in (0.5, 0.9, 0.7):
        if lam == 0.7:
            del module.lam
            module.lam = like  # no buffer
        module.lam[:] = lam
        assert attention_of(net, x) == ("differential", (pytest.approx(float(lam), rel=1e-4),))
        maps = attention_maps(net, x)["blocks.0.attn"].combined.detach()
        assert_close(map_function(net, "blocks.0.attn")(x).detach(), maps.flatten(1) * maps.shape[1] ** -0.5)


class Unnamed(nn.Module):
    """Maps with the heads last, without torch's softmax and without names that tell."""

    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        one, two = (part.unflatten(-1, (2, -1)) for part in self.inward(x).chunk(2, -1))
        powers = torch.einsum("bihd,bjhd->bijh", one, one).exp()
        return self.outward(torch.einsum("bijh,bjhd->bihd", powers / powers.sum(2, keepdim=True), two).flatten(2))


def test_products_of_all_pairs_of_tokens_without_a_softmax_are_unknown():
    x = rand(2, TOKENS, DIM)
    for layer, kind in ((Unnamed(), "unknown"), (nn.Linear(DIM, DIM), "none")):
        net = wild(nn.Sequential(layer, nn.Linear(DIM, 4)))
        assert attention_of(net, x) == (kind, ())
        with pytest.raises(UserError, match="has no known attention module"):
            attention_maps(net, x)


class OfSome(variants.V1):
    """A2 attends to the first two tokens alone."""

    def forward(self, x):
        q, k, v = self.parts(x)
        one = variants.maps_of(q[:, ::2], k[:, ::2]) @ v
        two = variants.maps_of(q[:, 1::2], k[:, 1::2, :2]) @ v[:, :, :2]
        return self.wo(variants.merge(one - 0.5 * two))


def test_a_map_of_other_tokens_is_not_passed_over():
    net, x = made(OfSome(""))
    assert attention_of(net, x) == ("unknown", ())
    with pytest.raises(UserError, match="it attends to other tokens, too"):
        attention_maps(net, x)


class Flexible(Unnamed):
    """The same with torch's flexible attention."""

    def forward(self, x):
        one, two = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.inward(x).chunk(2, -1))
        return self.outward(flex_attention(one, one, two).transpose(1, 2).flatten(2))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("others", [(), (variants.Standard(),)])
def test_flexible_attention_is_unknown_beside_known_attention_too(others):
    net, x = made(*others, Flexible())
    assert attention_of(net, x) == ("unknown", ())
    error = "blocks.0.attn: .*Flexible computes softmax maps, .*flex_attention does not show its maps"
    if others:
        with pytest.warns(UserWarning, match="Flexible is left out"):
            assert list(attention_maps(net, x)) == ["blocks.0.attn"]
    else:
        with pytest.raises(UserError, match=error):
            attention_maps(net, x)


def test_grouped_maps_are_those_of_the_module():
    net, x = made(variants.Grouped(3, fused=True))
    module, seen = net.blocks[0].attn, []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    (maps,) = attention_maps(net, x).values()
    q, k, _ = module.parts(seen[0])
    expected = variants.maps_of(q, k).unflatten(1, (2, 4))
    assert_close(maps.positive, expected[:, :, :3].flatten(1, 2))
    assert_close(maps.negative, expected[:, :, 3:].repeat_interleave(3, 2).flatten(1, 2))


@pytest.mark.parametrize("how", ["four products", "four fused calls", "maps computed twice"])
def test_calls_with_equal_maps_are_one_map(how):
    keys, grams = torch.arange(6).view(2, 3), []
    for layout in ("", how):
        net, x = made(variants.V1(layout))
        ((layer, gram, _),) = token_grams(net, x, keys)
        assert layer.heads == variants.HEADS
        grams.append(gram)
    for field in ("first", "second", "cross"):
        assert_close(getattr(grams[1], field), getattr(grams[0], field), rtol=1e-6, atol=1e-12)


def test_a_map_that_is_subtracted_from_itself_is_refused():
    net, x = made(variants.V1(""))
    module = net.blocks[0].attn
    for layer in (module.wq, module.wk):
        for parameter in (layer.weight, layer.bias):
            heads = parameter.data.unflatten(0, (-1, 2, variants.WIDTH))
            heads[:, 1] = heads[:, 0]
    assert attention_of(net, x) == ("unknown", ())
    with pytest.raises(UserError, match="it subtracts a map from itself"):
        attention_maps(net, x)


@pytest.mark.parametrize("differential", [True, False])
def test_a_class_with_a_flag_is_labelled_by_what_it_does_in_its_own_module(differential):
    net, x = made(Two(differential), Two(differential))
    kind, lambdas = attention_of(net, x)
    assert kind == ("differential" if differential else "softmax")
    assert len(lambdas) == 2 * differential
    for _ in range(2):
        assert list(attention_maps(net, x)) == ["blocks.0.attn", "blocks.1.attn"]


def test_a_model_of_both_kinds_is_differential_with_the_lambda_of_its_differential_layers():
    net, x = made(variants.Standard(), Two(differential=True), Attention(DIM, 2))
    kind, lambdas = attention_of(net, x)
    assert (kind, len(lambdas)) == ("differential", 1)
    assert [maps.negative is None for maps in attention_maps(net, x).values()] == [True, False, True]


def test_a_layer_that_is_not_recognised_makes_a_standard_model_unknown():
    net, x = made(variants.Standard(), variants.GatedByChannel())
    assert attention_of(net, x) == ("unknown", ())
    with pytest.warns(UserWarning, match=r"blocks.1.attn: .*no.* weighted map.*GatedByChannel is left out"):
        assert list(attention_maps(net, x)) == ["blocks.0.attn"]


class Parallel(variants.SubtractsModules):
    """Both outputs are added, as in parallel blocks."""

    def forward(self, x):
        return self.one(x) + self.two(x)


def test_modules_whose_outputs_are_added_stay_standard():
    net, x = made(Parallel(lambda: Attention(DIM, 2)), Parallel(variants.Standard))
    assert attention_of(net, x) == ("softmax", ())
    assert (
        list(attention_maps(net, x))
        == list(attention_maps(net, x))
        == [f"blocks.{block}.attn.{part}" for block in (0, 1) for part in ("one", "two")]
    )


@pytest.mark.parametrize("pool", [Pool, lambda: AttentionPoolLatent(DIM, num_heads=2), AttentionPooling])
def test_a_pooling_head_is_left_out_with_one_warning(pool):
    net, x = made(variants.Standard(), Attention(DIM, 2), pool=pool())
    assert attention_of(net, x) == ("softmax", ())
    with pytest.warns(UserWarning, match="cross-attention is not supported.*is left out") as records:
        assert list(attention_maps(net, x)) == ["blocks.0.attn", "blocks.1.attn"]
    assert len(records) == 1
    with warnings.catch_warnings(action="error"):
        assert len(attention_maps(net, x)) == 2


def test_a_pooling_head_alone_is_refused():
    net, x = made(pool=AttentionPooling())
    assert attention_of(net, x) == ("unknown", ())
    with pytest.raises(UserError, match="cross-attention is not supported"):
        attention_maps(net, x)


def test_an_adapter_that_is_registered_later_is_called_first():
    class Late(Two):
        """With an adapter."""

    def adapter(module, call):
        x, calls = call.tokens, module.__dict__.setdefault("calls", [])
        calls.append(call.name)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in module.qkv(x).chunk(3, -1))
        (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
        weights = [part.unflatten(0, (2, 2, -1)).unbind(1) for part in module.qkv.weight.chunk(3)]
        branches = [Branch(*parts) for parts in zip((q1, q2), (k1, k2), weights[0], weights[1], strict=True)]
        return Layer(
            call.name, x, *branches, module.lam, lambda a: module.out((a @ v).transpose(1, 2).flatten(2)), call.tangent
        )

    net, x = made(Late(differential=True), FusedHalves())
    before = attention_maps(net, x)
    register(Late, adapter)
    after = attention_maps(net, x)
    assert net.blocks[0].attn.calls == ["blocks.0.attn"]
    assert list(before) == list(after) == ["blocks.0.attn", "blocks.1.attn"]
    assert_close(after["blocks.0.attn"].combined, before["blocks.0.attn"].combined)


def tokens_of(net, x):
    seen = []
    handle = net.blocks[0].attn.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_lambda_of_each_query_is_found_with_its_gradient(name, dtype):
    build, truth = OF_TOKENS[name]
    net, x = made(build(), dtype=dtype)
    module, seen = net.blocks[0].attn, tokens_of(net, x)
    (layer,) = attention_layers(net, x)
    expected = truth(module, seen).mT
    close = {"rtol": 1e-6, "atol": 1e-8} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-4}
    assert_close(layer.lam, expected, **close)
    assert attention_of(net, x) == ("differential", (pytest.approx(float(expected.mean()), rel=1e-3),))
    t, v = rand(*seen.shape, seed=3, dtype=dtype), rand(*layer.maps.positive.shape, seed=4, dtype=dtype)
    change = layer.term.jvp(t) * layer.weight[..., None, None]
    moved = torch.func.jvp(lambda tokens: truth(module, tokens).mT, (seen,), (t,))[1]
    assert_close(change, moved[..., None] * layer.maps.negative, **close)
    pulled = (layer.term.vjp(v) * t[:, None]).sum((2, 3)) * layer.weight
    assert_close(pulled, (change * v).sum((2, 3)), rtol=1e-3, atol=1e-4)


def test_maps_and_lambda_of_dint_are_those_of_the_module():
    net, x = made(variants.Dint())
    one, two, _ = net.blocks[0].attn.pairs(tokens_of(net, x))
    (layer,) = attention_layers(net, x)
    assert_close(layer.maps.positive, one)
    assert_close(layer.maps.negative, two - one.mean(-2, keepdim=True))
    assert_close(layer.maps.combined.sum(-1), torch.ones_like(one[..., 0]))


def test_lambda_follows_the_tokens_and_the_weights():
    net, x = made(variants.V2())
    module = net.blocks[0].attn
    for images in (x, rand(3, TOKENS, 5, seed=9)):
        (maps,) = attention_maps(net, images).values()
        assert_close(maps.lam, module.to_lam(tokens_of(net, images)).sigmoid().mT)
    module.to_lam.weight.data *= 2
    (maps,) = attention_maps(net, x).values()
    assert_close(maps.lam, module.to_lam(tokens_of(net, x)).sigmoid().mT)


class Halves(nn.Module):
    """A − λ·B of two halves of what one module returns: of its channels, or of a batch that it gets twice."""

    def __init__(self, how):
        super().__init__()
        self.how, self.lam = how, nn.Parameter(torch.tensor(0.5))
        self.core, self.out = variants.Standard(), nn.Linear(DIM // 2 if how == "channels" else DIM, DIM)

    def forward(self, x):
        if self.how == "channels":
            one, two = self.core(x).chunk(2, -1)
        else:
            one, two = self.core(torch.cat([x, x.flip(-1)])).chunk(2)
        return self.out(one - self.lam * two)


@pytest.mark.parametrize("how", ["channels", "batch"])
def test_attention_whose_halves_are_subtracted_by_another_module_is_unknown(how):
    net, x = made(Halves(how))
    assert attention_of(net, x)[0] == "unknown"
    with pytest.raises(UserError, match="or a part of it"):
        attention_maps(net, x)


class Logged(variants.Projected):
    """(A1 + w·A2)·V, with a difference that is only kept, not used."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.kept = weight, None

    def forward(self, x):
        one, two, v = self.pairs(x)
        self.kept = (two - one).abs().mean()
        return self.wo(variants.merge((one + self.weight * two) @ v))


def test_a_difference_that_does_not_reach_the_output_decides_nothing():
    net, x = made(Logged(-0.5))
    assert attention_of(net, x) == ("differential", (pytest.approx(0.5, rel=1e-4),))
    net, x = made(Logged(0.5))
    assert attention_of(net, x) == ("unknown", ())


class Turned(variants.Projected):
    """−(λ·A2 − A1)·V."""

    def forward(self, x):
        one, two, v = self.pairs(x)
        return self.wo(variants.merge(-(0.25 * two - one) @ v))


def test_a_difference_that_is_turned_round_has_its_own_maps_and_lambda():
    net, x = made(Turned())
    assert attention_of(net, x) == ("differential", (pytest.approx(0.25, rel=1e-4),))
    maps, module = attention_maps(net, x)["blocks.0.attn"], net.blocks[0].attn
    one, _, _ = module.pairs(net.blocks[0].before(net.embed(x)))
    assert_close(maps.positive, one)


class HiddenMap(variants.Projected):
    """A1 − λ·A2 with A2 by exp and a sum, which is not seen as a softmax."""

    def forward(self, x):
        q, k, v = self.parts(x)
        one, two = (q[:, part::2] @ k[:, part::2].mT * q.shape[-1] ** -0.5 for part in (0, 1))
        two = two.exp() / two.exp().sum(-1, keepdim=True)
        return self.wo(variants.merge((one.softmax(-1) - 0.2 * two) @ v))


@pytest.mark.parametrize("tokens", [TOKENS, 64])
def test_a_map_that_is_not_seen_makes_it_unknown_with_many_tokens_too(tokens):
    net, _ = made(HiddenMap())
    assert attention_of(net, rand(2, tokens, 5)) == ("unknown", ())


class SampleBySample(variants.Projected):
    """Differential attention of one head in a loop over the samples."""

    def forward(self, x):
        outputs = []
        for one in x:
            q, k, v = self.wq(one), self.wk(one), self.wv(one)
            maps = [(q[:, part::2] @ k[:, part::2].mT).softmax(-1) for part in (0, 1)]
            outputs.append(self.wo((maps[0] - 0.5 * maps[1]) @ v))
        return torch.stack(outputs)


@pytest.mark.parametrize("blocks", [(SampleBySample,), (variants.Standard, SampleBySample)])
def test_attention_in_a_loop_over_samples_is_unknown(blocks):
    net, x = made(*(block() for block in blocks))
    assert attention_of(net, x) == ("unknown", ())


@pytest.mark.parametrize("way", ["hook", "patch"])
def test_a_module_of_a_library_that_is_changed_from_outside_is_not_labelled_by_its_class(way, monkeypatch):
    def subtract(module, args, output):
        (x,) = args
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in module.qkv(x.flip(-1)).chunk(3, -1))
        other = (variants.maps_of(q, k) @ v).transpose(1, 2).flatten(2)
        return output - torch.linspace(0.1, 0.9, DIM).to(x) * other

    forward, module = Attention.forward, Attention(DIM, 2)
    if way == "hook":
        module.register_forward_hook(subtract)
    else:
        monkeypatch.setattr(Attention, "forward", lambda module, x: subtract(module, (x,), forward(module, x)))
    net, x = made(module)
    assert attention_of(net, x) == ("unknown", ())


class Projections(nn.Module):
    """Projections with the usual names, and a second pair of which nothing is used while λ is 0."""

    head_dim = DIM // 2

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj, self.q2, self.k2 = (nn.Linear(DIM, DIM) for _ in range(6))

    def forward(self, x):
        parts = (f(x) for f in (self.q_proj, self.k_proj, self.q2, self.k2, self.v_proj))
        q, k, q2, k2, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        return self.o_proj(((variants.maps_of(q, k) - 0.0 * variants.maps_of(q2, k2)) @ v).transpose(1, 2).flatten(2))


def test_the_names_of_projections_do_not_tell_what_lambda_0_hides():
    net, x = made(Projections())
    assert attention_of(net, x) == ("unknown", ())
    with pytest.raises(UserError, match="as of λ = 0"):
        attention_maps(net, x)


class KeepsItsOutput(variants.Standard):
    kept = None

    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept


def test_no_graph_is_left_in_what_a_model_keeps():
    net, x = made(KeepsItsOutput(), KeepsItsOutput())
    attention_maps(net, x)
    attention_of(net, x)
    copy.deepcopy(net)


class Ordinary(nn.Module):
    """Standard attention, and something in a block or in a head that is no attention to tokens."""

    def __init__(self, what):
        super().__init__()
        self.net, self.what = Net(variants.Standard(), variants.Standard()), what
        self.probe, self.mix = nn.Linear(DIM, 1), nn.Parameter(torch.ones(DIM, DIM))
        self.last = nn.Linear(DIM, DIM)
        self.share = self.probe.weight * 2

    def forward(self, x):
        x = self.net.embed(x)
        for block in self.net.blocks:
            x = block(x)
        if self.what == "a residual of zeros that is subtracted":
            x = x - 0.0 * self.last(x)
        elif self.what == "neighbours that are merged":
            x = x[:, 1:] - x[:, :-1]
        elif self.what == "a pooling head by hand":
            x = (self.probe(x).mT.softmax(-1) @ x).expand(-1, 2, -1)
        elif self.what == "a learned mixture of channels":
            x = x @ self.mix.softmax(-1)
        return self.net.head(x.mean(1))


@pytest.mark.parametrize(
    "what",
    [
        "a residual of zeros that is subtracted",
        "neighbours that are merged",
        "a pooling head by hand",
        "a learned mixture of channels",
    ],
)
def test_what_is_next_to_standard_attention_does_not_make_it_unknown(what):
    net = wild(Ordinary(what))
    before, x = net.share.requires_grad, rand(3, TOKENS, 5)
    state = torch.get_rng_state()
    assert attention_of(net, x) == attention_of(net, x) == ("softmax", ())
    assert len(attention_maps(net, x)) == 2
    assert torch.equal(state, torch.get_rng_state())
    assert net.share.requires_grad == before


def test_hooks_of_a_library_do_not_make_its_attention_a_user_s():
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=12, num_hidden_layers=1, num_attention_heads=2
    )
    net = transformers.ViTForImageClassification(config).bfloat16().eval()
    images = torch.rand(2, 1, 8, 8).bfloat16()
    net(images, output_hidden_states=True)
    assert any(part._forward_hooks for part in net.modules())
    assert attention_of(net, {"pixel_values": images}) == ("softmax", ())
