"""Every variant against a plain form from its equations: values, gradients and that of λ; layouts; what is refused."""

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.errors import UserError
from antiphase.files import read_json_lines
from antiphase.models import build, diffclip, diffvit, load_model, vit
from antiphase.models.vit import configure
from antiphase.registry import VARIANTS
from tests.reference import variants as reference

DIM, HEADS, TOKENS = 24, 4, 7


def weights_of(module):
    """Return the matrices of a module, by the names of the reference."""
    to_q, to_k, to_v = module.layout.rows
    names = {"q": module.qkv.weight[:to_q], "k": module.qkv.weight[to_q : to_q + to_k], "o": module.proj.weight}
    names["v"] = module.qkv.weight[to_q + to_k :]
    assert len(names["v"]) == to_v
    if module.qkv.bias is not None:
        parts = module.qkv.bias.split([to_q, to_k, to_v])
        names |= dict(zip(("q_bias", "k_bias", "v_bias"), parts, strict=True)) | {"o_bias": module.proj.bias}
    if module.norm is not None:
        names["norm"] = module.norm.weight
    if module.gate is not None:
        names["gate"] = module.gate.weight
    if hasattr(module.lam, "gate"):
        names["lam"] = module.lam.gate.weight
    return names


def v2(module, x, mask):
    return reference.v2(x, weights_of(module), HEADS, module.layout.keys, mask)


def grouped(module, x, mask):
    ratio = HEADS // module.layout.noise
    gated = hasattr(module.lam, "gate")
    lam = torch.sigmoid(x @ module.lam.gate.weight.T) if gated else module.lam()
    sizes = {"h": HEADS, "ratio": ratio, "h_kv": module.layout.keys}
    return reference.grouped(x, weights_of(module), **sizes, lam=lam, scale=module.scale, mask=mask)


def dint(module, x, mask):
    return reference.dint(x, weights_of(module), HEADS, module.lam(), mask)


CASES = {
    "v2": ({"variant": "v2"}, v2),
    "v2, 2 heads of keys": ({"variant": "v2", "kv_heads": 2}, v2),
    "v2, 1 head of keys": ({"variant": "v2", "kv_heads": 1}, v2),
    "grouped 1:1": ({"variant": "grouped", "ratio": 1}, grouped),
    "grouped 2:1": ({"variant": "grouped", "ratio": 2}, grouped),
    "grouped 4:1": ({"variant": "grouped"}, grouped),
    "grouped 4:1, 2 heads of keys": ({"variant": "grouped", "kv_heads": 2}, grouped),
    "grouped 1:1, 2 heads of keys": ({"variant": "grouped", "ratio": 1, "kv_heads": 2}, grouped),
    "gated 2:1": ({"variant": "gated", "ratio": 2}, grouped),
    "gated 4:1, gated output": ({"variant": "gated", "output_gate": True}, grouped),
    "dint": ({"variant": "dint"}, dint),
}


@pytest.fixture(params=CASES)
def case(request, redraw, tokens):
    fields, plain = CASES[request.param]
    return (
        redraw(DifferentialAttention(DIM, HEADS, lambda_init=0.6, **fields).double()),
        plain,
        tokens(2, TOKENS, DIM).requires_grad_(),
    )


@pytest.mark.parametrize("mask", [None, torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()], ids=["", "causal"])
@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa"])
def test_values_and_gradients_are_those_of_the_equations(case, backend, mask):
    module, plain, x = case
    module.backend = backend
    out, expected = module(x, mask), plain(module, x, mask)
    assert_close(out, expected, rtol=0, atol=1e-12)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    inputs = [x, *module.parameters()]
    for one, other in zip(
        torch.autograd.grad(out, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        assert other.abs().max() > 0
        assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_float32_goes_through_the_kernels_where_there_are_some(case):
    module, plain, x = case
    module, x = module.float(), x.detach().float().requires_grad_()
    (gradient,) = torch.autograd.grad(module(x).square().sum(), x)
    (expected,) = torch.autograd.grad(plain(module, x, None).square().sum(), x)
    assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_the_first_token_alone_may_ask(case, masked):
    module, _, x = case
    mask = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[:, 0] = True
    if not masked:
        assert_close(module(x, queries=2), module(x)[:, :2], rtol=0, atol=1e-12)
    elif not module.integral:
        assert_close(module(x, mask[:2], queries=2), module(x, mask)[:, :2], rtol=0, atol=1e-12)


def test_maps_and_lambda_rebuild_the_output(case):
    module, _, x = case
    maps = module.maps(x)
    _, _, values = module.parts(module.qkv(x))
    assert_close(module.finish(maps.combined @ values, x), module(x), rtol=0, atol=1e-12)
    rows = maps.combined.sum(-1)
    lam = maps.lam if maps.lam.ndim == 3 else maps.lam.expand(len(x), module.num_diff_heads)[..., None]
    assert_close(rows, torch.ones_like(rows) if module.integral else (1 - lam).expand_as(rows))


def test_a_mask_of_each_head_is_that_of_its_maps(case):
    module, _, x = case
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    masks = causal.expand(module.num_diff_heads, -1, -1)
    assert_close(module(x, masks), module(x, causal), rtol=0, atol=1e-12)


def test_dint_sees_nothing_later_through_a_causal_mask(redraw, tokens):
    module = redraw(DifferentialAttention(DIM, HEADS, variant="dint").double())
    x = tokens(2, TOKENS, DIM)
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    short = module(x[:, :4], causal[:4, :4])
    least = torch.finfo(torch.float64).min
    shut = (torch.zeros_like(causal, dtype=torch.float64).masked_fill(~causal, one) for one in (-torch.inf, least))
    for mask in (causal, *shut):
        assert_close(module(x, mask)[:, :4], short, rtol=0, atol=1e-12)


def test_a_mask_that_is_the_same_for_all_queries_needs_no_rows(case):
    module, _, x = case
    keys = torch.tensor([True, True, False] + [True] * (TOKENS - 3))
    expected = module(x, keys.expand(TOKENS, TOKENS))
    for mask in (keys, keys[None], keys.expand(len(x), 1, 1, TOKENS)):
        assert_close(module(x, mask), expected, rtol=0, atol=1e-12)
        assert module.maps(x, mask).combined.shape[-2:] == (TOKENS, TOKENS)


def test_lambda_zero_is_the_standard_twin(tokens, redraw):
    twin = redraw(SoftmaxAttention(DIM, HEADS).double())
    module = DifferentialAttention(
        DIM, HEADS, variant="grouped", parameterisation="zero", head_norm=False, rescale=False
    ).double()
    q, k, v = twin.state_dict()["qkv.weight"].chunk(3)
    with torch.no_grad():
        module.qkv.weight.copy_(torch.cat([q, q[:6], k, k[:6], v]))
        bias = [part for part in twin.qkv.bias.chunk(3)]
        module.qkv.bias.copy_(torch.cat([bias[0], bias[0][:6], bias[1], bias[1][:6], bias[2]]))
        module.proj.load_state_dict(twin.proj.state_dict())
    x = tokens(2, TOKENS, DIM)
    assert_close(module(x), twin(x), rtol=0, atol=1e-12)


def test_parameters_are_those_of_the_sources():
    def shapes(**fields):
        return {name: tuple(one.shape) for name, one in DifferentialAttention(DIM, HEADS, **fields).named_parameters()}

    assert shapes(variant="v2") == {
        "qkv.weight": (4 * DIM, DIM),
        "lam.gate.weight": (HEADS, DIM),
        "proj.weight": (DIM, DIM),
    }
    assert shapes(variant="grouped")["qkv.weight"] == (3 * DIM + 2 * DIM // 4, DIM)
    assert "norm.weight" in shapes(variant="grouped")
    assert "gate.weight" in shapes(variant="gated", output_gate=True)
    assert shapes(variant="dint") == shapes() == shapes(variant="v1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"variant": "v3"}, "variant 'v3': expected one of v1, v2, grouped, gated, dint"),
        ({"variant": "grouped", "ratio": 3}, "ratio 3: expected a divisor of num_heads 4: 1, 2, 4"),
        ({"variant": "v2", "kv_heads": 0}, "kv_heads 0: expected a divisor of num_heads 4: 1, 2, 4"),
        ({"variant": "v2", "ratio": 2}, "ratio 2: a DiffViT V2 has one A2 for each A1; leave it out"),
        ({"kv_heads": 2}, "kv_heads 2: each map of a DiffViT has keys of its own; leave it out"),
        ({"variant": "dint", "num_heads": 3}, "num_heads 3: expected the standard twin's head count"),
        ({"variant": "v2", "num_heads": 5}, "dim 24 cannot be divided among 5 heads"),
    ],
)
def test_what_does_not_fit_is_refused(fields, words):
    with pytest.raises(UserError, match=words):
        DifferentialAttention(DIM, **{"num_heads": HEADS} | fields)


def test_every_variant_has_a_case():
    assert {fields["variant"] for fields, _ in CASES.values()} == VARIANTS.keys() - {"v1"}  # V1: test_modules.py


@pytest.mark.parametrize("fields", [{}, {"bias": True}, {"bias": False}])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_of_each_variant_is_built_again_from_its_recipe(variant, fields):
    model = diffvit(8, variant=variant, depth=2, seed=3, **fields)
    config = type(model.config).model_validate_json(model.config.model_dump_json())
    assert config == model.config
    again = build(config, 3).state_dict()
    assert all(torch.equal(again[name], one) for name, one in model.state_dict().items())
    with torch.no_grad():
        assert model(torch.rand(2, 1, 8, 8)).isfinite().all()


def test_v1_is_what_it_was():
    fields = diffvit(8).config.model_dump()
    assert diffvit(8, variant="v1").config.model_dump() == fields
    assert fields["attention"] == "differential"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_text_means_the_same_next_to_longer_ones(variant):
    model = diffclip(variant=variant, vision={"depth": 1}, text={"depth": 2}).eval()
    with torch.no_grad():
        alone = model.encode_text(["a cat"])
        together = model.encode_text(["a cat", "a dog that sleeps on a mat near the door of an old house by the sea"])
    assert_close(alone[0], together[0], rtol=1e-4, atol=1e-5)


def test_what_a_variant_has_not_is_refused():
    with pytest.raises(UserError, match=r"variant 'v2': expected none, as softmax attention subtracts no map"):
        vit(8, variant="v2")
    with pytest.raises(UserError, match="kv_heads 2: softmax attention has none; leave it out"):
        vit(8, kv_heads=2)
    with pytest.raises(UserError, match="bias False: normed attention has biases"):
        configure("normed", 8, {"bias": False})
    with pytest.raises(UserError, match=r"lambda_init 0.5, schedule constant: expected none, as λ = σ"):
        diffvit(8, variant="v2", lambda_init=0.5)
    assert diffvit(8, variant="v2", parameterisation="fixed", lambda_init=0.5).blocks[0].attn.lam() == 0.5
    with pytest.raises(UserError, match="variant 'v3': expected one of v1, v2, grouped, gated, dint"):
        diffclip(variant="v3")


def test_a_model_is_trained_by_variant_on_the_command_line(tmp_path, run_cli):
    words = ["--data", "digits", "--epochs", 1, "--limit", 32, "--patch-size", 4, "-q", "--out"]
    code, _, errors = run_cli(
        "train", "--model", "diffvit", "--variant", "grouped", "--ratio", 2, *words, tmp_path / "a"
    )
    assert (code, errors) == (0, "")
    model = load_model(str(tmp_path / "a"))
    assert (model.card.attention, model.blocks[0].attn.layout.noise) == ("differential", 2)
    code, *_ = run_cli("train", "--model", "diffvit", "--variant", "v2", *words, tmp_path / "c")
    (row,) = read_json_lines(tmp_path / "c" / "metrics.jsonl", "")
    assert (code, len(row["lambda"])) == (0, 1)
    assert 0.3 < row["lambda"][0] < 0.7
    code, _, errors = run_cli("train", "--model", "vit", "--variant", "v2", *words, tmp_path / "b")
    assert (code, errors.count("\n")) == (2, 1)
    assert not (tmp_path / "b").exists()
