"""The two attention modules: their layout, their maps, their laws, and what they refuse."""

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention import AttentionMaps, DifferentialAttention, SoftmaxAttention
from antiphase.errors import UserError
from antiphase.registry import LAMBDAS
from tests.reference import attention as reference

DIM, HEADS, TOKENS = 30, 6, 7  # the twin's six heads of width 5 are three differential ones


@pytest.fixture(params=["eager", "sdpa"])
def backend(request):
    return request.param


@pytest.fixture(params=["vector", "scalar", "fixed"])
def parameterisation(request):
    return request.param


def _weights(module):
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("head_norm", [False, True])
@pytest.mark.parametrize("rescale", [False, True])
def test_forward_equals_the_slow_twin(tokens, redraw, backend, parameterisation, head_norm, rescale):
    module = redraw(
        DifferentialAttention(
            DIM,
            HEADS,
            lambda_init=0.6,
            parameterisation=parameterisation,
            head_norm=head_norm,
            rescale=rescale,
            backend=backend,
        ).double()
    )
    x = tokens(2, TOKENS, DIM)
    expected = reference.differential_layer(
        x, _weights(module), module.lam().detach(), num_heads=HEADS, scale=0.4 if rescale else 1.0
    )
    assert_close(module(x), expected, rtol=0, atol=1e-12)


def test_maps_are_those_of_the_standard_twin_taken_in_pairs(tokens, redraw):
    ours = redraw(DifferentialAttention(DIM, HEADS).double())
    twin = SoftmaxAttention(DIM, HEADS).double()
    twin.load_state_dict({name: w for name, w in _weights(ours).items() if name.startswith(("qkv", "proj"))})
    x = tokens(2, TOKENS, DIM)
    maps, pairs = ours.maps(x), twin.maps(x).positive
    assert pairs.shape == (2, HEADS, TOKENS, TOKENS)
    assert_close(maps.positive, pairs[:, 0::2])
    assert_close(maps.negative, pairs[:, 1::2])
    assert_close(maps.lam, ours.lam())


@pytest.mark.parametrize("maps_per_head", [False, True])
def test_combined_maps_reproduce_the_forward_pass(tokens, redraw, backend, maps_per_head):
    kind = "scalar" if maps_per_head else "vector"
    module = redraw(
        DifferentialAttention(
            DIM, HEADS, parameterisation=kind, head_norm=False, rescale=False, backend=backend
        ).double()
    )
    x = tokens(2, TOKENS, DIM)
    maps = module.maps(x)
    assert maps.lam is not None
    assert maps.lam.shape == ((HEADS // 2,) if maps_per_head else ())
    values = module.qkv(x)[..., 2 * DIM :].view(2, TOKENS, HEADS // 2, 2 * DIM // HEADS).transpose(1, 2)
    rebuilt = module.proj((maps.combined @ values).transpose(1, 2).flatten(2))
    assert_close(module(x), rebuilt, rtol=0, atol=1e-12)
    assert_close(maps.combined.sum(-1).mean((0, 2)), (1 - maps.lam).expand(HEADS // 2))


@pytest.mark.parametrize("make", [SoftmaxAttention, DifferentialAttention])
@pytest.mark.parametrize("queries", [1, 3, TOKENS])
@pytest.mark.parametrize("bias", [True, False])
def test_the_first_tokens_alone_may_ask(tokens, redraw, backend, make, queries, bias):
    module = redraw(make(DIM, HEADS, qkv_bias=bias, backend=backend).double())
    x = tokens(2, TOKENS, DIM)
    mask = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[:, 0] = True
    assert_close(module(x, queries=queries), module(x)[:, :queries], rtol=0, atol=1e-12)
    some = module(x, mask[:queries], queries=queries)
    assert_close(some, module(x, mask)[:, :queries], rtol=0, atol=1e-12)


def test_lambda_zero_is_standard_attention_over_the_positive_map(tokens, redraw, backend):
    module = redraw(
        DifferentialAttention(
            DIM, HEADS, lambda_init=0.0, parameterisation="fixed", head_norm=False, backend=backend
        ).double()
    )
    x = tokens(2, TOKENS, DIM)
    values = module.qkv(x)[..., 2 * DIM :].view(2, TOKENS, HEADS // 2, 2 * DIM // HEADS).transpose(1, 2)
    attended = module.maps(x).positive @ values
    assert_close(module(x), module.proj(attended.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


def test_softmax_attention_equals_torchs(tokens, redraw, backend):
    module = redraw(SoftmaxAttention(DIM, HEADS, backend=backend).double())
    peer = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    weights = _weights(module)
    peer.load_state_dict(
        {
            "in_proj_weight": weights["qkv.weight"],
            "in_proj_bias": weights["qkv.bias"],
            "out_proj.weight": weights["proj.weight"],
            "out_proj.bias": weights["proj.bias"],
        }
    )
    x = tokens(2, TOKENS, DIM)
    out, maps = peer(x, x, x, average_attn_weights=False)
    assert_close(module(x), out, rtol=0, atol=1e-13)
    assert_close(module.maps(x).positive, maps, rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [SoftmaxAttention, DifferentialAttention])
def test_a_permutation_of_tokens_or_of_the_batch_permutes_the_result(tokens, redraw, backend, make):
    module = redraw(make(DIM, HEADS, backend=backend).double())
    x = tokens(3, TOKENS, DIM)
    order = torch.tensor([5, 2, 6, 0, 3, 1, 4])
    assert_close(module(x[:, order]), module(x)[:, order], rtol=0, atol=1e-13)
    assert_close(module(x[[2, 0, 1]]), module(x)[[2, 0, 1]], rtol=0, atol=1e-13)


def test_head_norm_makes_the_size_of_the_values_immaterial(tokens, redraw):
    module = redraw(DifferentialAttention(DIM, HEADS).double())
    x = tokens(2, TOKENS, DIM)
    before = module(x)
    with torch.no_grad():
        module.qkv.weight[2 * DIM :] *= 1e3
        module.qkv.bias[2 * DIM :] *= 1e3
    assert_close(module(x), before, rtol=0, atol=1e-2)
    module.norm = None
    assert (module(x) - before).abs().max() > 1.0


def test_standard_attention_has_no_negative_map(tokens):
    maps = SoftmaxAttention(DIM, HEADS).double().maps(tokens(2, TOKENS, DIM))
    assert maps.negative is None
    assert maps.lam is None
    assert maps.combined is maps.positive
    assert isinstance(maps, AttentionMaps)


@pytest.mark.parametrize(("dim", "heads"), [(8, 2), (30, 6), (44, 4)])
def test_the_twins_differ_by_lambda_and_the_norm_alone(dim, heads):
    ours, twin = DifferentialAttention(dim, heads), SoftmaxAttention(dim, heads)
    width = dim // heads
    extra = {name: p.numel() for name, p in ours.named_parameters() if name not in dict(twin.named_parameters())}
    assert extra == {"lam.q1": width, "lam.k1": width, "lam.q2": width, "lam.k2": width, "norm.weight": 2 * width}
    shapes = {name: p.shape for name, p in ours.named_parameters()}
    assert all(shapes[name] == p.shape for name, p in twin.named_parameters())


@pytest.mark.parametrize("make", [SoftmaxAttention, DifferentialAttention])
def test_projections_can_do_without_biases(make):
    module = make(DIM, HEADS, qkv_bias=False)
    assert module.qkv.bias is None
    assert module.proj.bias is not None


@pytest.mark.parametrize("heads", [-2, 0, 1, 3])
def test_head_counts_that_make_no_pairs_are_refused(heads):
    with pytest.raises(ValueError, match=f"num_heads {heads}: expected the standard twin's head count"):
        DifferentialAttention(DIM, heads)


@pytest.mark.parametrize("make", [SoftmaxAttention, DifferentialAttention])
def test_heads_that_do_not_divide_the_width_are_refused(make):
    with pytest.raises(ValueError, match="dim 30 cannot be divided among 4 heads"):
        make(30, 4)
    with pytest.raises(ValueError, match="heads"):
        make(30, 0)


def test_an_unknown_parameterisation_is_refused():
    with pytest.raises(ValueError, match=f"'matrix': expected one of {', '.join(LAMBDAS)}"):
        DifferentialAttention(DIM, HEADS, parameterisation="matrix")


@pytest.mark.parametrize("make", [SoftmaxAttention, DifferentialAttention])
def test_an_unknown_backend_is_refused(tokens, make):
    with pytest.raises(ValueError, match="backend 'flash'"):
        make(DIM, HEADS, backend="flash").double()(tokens(1, TOKENS, DIM))


@pytest.mark.parametrize("variant", ["v1", "v2", "grouped", "gated", "dint"])
def test_a_temperature_divides_the_scores_of_the_second_map_alone(tokens, redraw, variant):
    plain = redraw(DifferentialAttention(DIM, HEADS, variant=variant).double())
    warm = DifferentialAttention(DIM, HEADS, variant=variant, temperature=2.5).double()
    warm.load_state_dict(plain.state_dict())
    x = tokens(2, TOKENS, DIM)
    before, after = plain.maps(x), warm.maps(x)
    mean = before.positive.mean(2, keepdim=True) if variant == "dint" else 0.0  # of DINT's negative map
    flattened = (before.negative + mean) ** (1 / 2.5)  # softmax(s/τ) is softmax(s)^(1/τ), normalised
    assert_close(after.positive, before.positive)
    assert_close(after.negative + mean, flattened / flattened.sum(-1, keepdim=True))
    with torch.no_grad():  # the same as a smaller weight of its queries
        weight = plain.qkv.weight[: plain.layout.rows[0]].unflatten(0, (-1, plain.layout.width))
        bias = None if plain.qkv.bias is None else plain.qkv.bias[: plain.layout.rows[0]]
        second = slice(1, None, 2) if variant in ("v1", "v2", "dint") else slice(HEADS, None)
        weight[second] /= 2.5
        if bias is not None:
            bias.unflatten(0, (-1, plain.layout.width))[second] /= 2.5
    assert_close(warm(x), plain(x))
    assert_close(warm(x, queries=1), plain(x)[:, :1])


def test_lambda_is_cut_off_at_its_bound(tokens):
    module = DifferentialAttention(DIM, HEADS, lambda_init=0.3, lambda_max=0.5).double()
    with torch.no_grad():
        module.lam.q1.fill_(1.0)
        module.lam.k1.fill_(1.0)
    assert module.maps(tokens(1, TOKENS, DIM)).lam.item() == 0.5
    module(tokens(1, TOKENS, DIM)).sum().backward()
    assert module.lam.q1.grad.abs().max() == 0
    with pytest.raises(UserError, match=r"lambda_max 0\.2: expected lambda_init, 0\.3, or more"):
        DifferentialAttention(DIM, HEADS, lambda_init=0.3, lambda_max=0.2)
