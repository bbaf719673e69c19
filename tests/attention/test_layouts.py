"""Weights in other projects' layouts: what their code computes, ours does; there and back."""

import pytest
import torch
from timm.layers.diff_attention import DiffAttention
from torch.testing import assert_close
from transformers.models.diffllama import modeling_diffllama as llama

from antiphase.attention import DifferentialAttention, from_layout, to_layout
from antiphase.errors import UserError
from tests.reference import variants as reference

DIM, HEADS, TOKENS = 24, 4, 5


def microsoft_v2(kv_heads, seed=0):
    """Return a state dict with the names and shapes of multihead_flashdiffv2.py."""
    draw, width = torch.Generator().manual_seed(seed), DIM // HEADS
    rows = {
        "q_proj": 2 * DIM,
        "k_proj": kv_heads * width,
        "v_proj": kv_heads * width,
        "o_proj": DIM,
        "lambda_proj": HEADS,
    }
    return {
        f"{name}.weight": torch.randn(count, DIM, generator=draw, dtype=torch.float64) * 0.4
        for name, count in rows.items()
    }


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_microsofts_v2_there_and_back(kv_heads, tokens):
    state = microsoft_v2(kv_heads)
    module = DifferentialAttention(DIM, HEADS, variant="v2", kv_heads=kv_heads).double()
    module.load_state_dict(from_layout(state, "microsoft-v2", module))
    x = tokens(2, TOKENS, DIM)
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    short = {name.partition(".")[0].removesuffix("_proj"): one for name, one in state.items()}
    expected = reference.v2(x, short | {"lam": short["lambda"]}, HEADS, kv_heads, causal)
    assert_close(module(x, causal), expected, rtol=0, atol=1e-12)
    again = to_layout(module, "microsoft-v2")
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_diff_llamas_layer_there_and_back(kv_heads, redraw, tokens):
    config = llama.DiffLlamaConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=kv_heads, attn_implementation="eager"
    )
    layer = redraw(llama.DiffLlamaAttention(config, 1).double())
    module = DifferentialAttention(DIM, HEADS, lambda_init=layer.lambda_init, bias=False).double()
    module.load_state_dict(from_layout(layer.state_dict(), "diffllama", module))
    x = tokens(2, TOKENS, DIM)
    still = torch.ones(1, TOKENS, DIM // HEADS).double(), torch.zeros(1, TOKENS, DIM // HEADS).double()
    mask = torch.full((TOKENS, TOKENS), -torch.inf).double().triu(1)[None, None]
    expected, _ = layer(x, still, mask)
    assert_close(module(x, mask), expected, rtol=0, atol=1e-6)  # theirs has a norm in float32
    again = to_layout(module, "diffllama", kv_heads=kv_heads)
    assert all(torch.equal(again[name], one) for name, one in layer.state_dict().items())


@pytest.mark.parametrize("dual", [False, True])
def test_timms_layer_there_and_back(dual, redraw, tokens):
    layer = redraw(DiffAttention(DIM, HEADS // 2, qkv_bias=True, depth=3, dual_lambda=dual).double())
    kind = "scalar" if dual else "vector"
    module = DifferentialAttention(DIM, HEADS, lambda_init=layer.lambda_init, parameterisation=kind).double()
    module.load_state_dict(from_layout(layer.state_dict(), "timm", module))
    x = tokens(2, TOKENS, DIM)
    assert_close(module(x), layer(x), rtol=0, atol=1e-6)
    again = to_layout(module, "timm")
    assert all(torch.equal(again[name], one) for name, one in layer.state_dict().items())


def test_microsofts_v1_has_its_names(redraw):
    module = redraw(DifferentialAttention(DIM, HEADS, bias=False))
    state = to_layout(module, "microsoft")
    assert state.keys() == {
        *(f"{name}_proj.weight" for name in ("q", "k", "v", "out")),
        *(f"lambda_{name}" for name in ("q1", "k1", "q2", "k2")),
        "subln.weight",
    }
    again = from_layout(state, "microsoft", module)
    assert all(torch.equal(again[name], one) for name, one in module.state_dict().items())


def test_what_does_not_fit_is_refused():
    module, state = DifferentialAttention(DIM, HEADS, variant="v2").double(), microsoft_v2(4)
    with pytest.raises(UserError, match="layout 'llama': expected one of microsoft-v2, microsoft, diffllama, timm"):
        from_layout(state, "llama", module)
    with pytest.raises(UserError, match=r"'lambda_proj\.weight' is missing"):
        from_layout({name: one for name, one in state.items() if "lambda" not in name}, "microsoft-v2", module)
    with pytest.raises(UserError, match="extra: not in this v2"):
        from_layout(state | {"extra": torch.ones(1)}, "microsoft-v2", module)
    with pytest.raises(UserError, match=r"k_proj.weight of shape \(12, 24\) does not fit this v2"):
        from_layout(microsoft_v2(2), "microsoft-v2", module)
    changed = DifferentialAttention(DIM, HEADS, bias=False)
    changed.norm.weight.data.fill_(2.0)
    with pytest.raises(UserError, match=r"cannot hold norm\.weight"):
        to_layout(changed, "diffllama")
    with pytest.raises(UserError, match=r"cannot hold qkv\.weight, of which it shares"):
        to_layout(DifferentialAttention(DIM, HEADS, bias=False), "diffllama", kv_heads=2)
    for wrong in (0, 5, 3 * HEADS):
        with pytest.raises(UserError, match=f"layout diffllama: {wrong} heads of keys: expected a divisor of"):
            to_layout(DifferentialAttention(DIM, HEADS, bias=False), "diffllama", kv_heads=wrong)
    with pytest.raises(UserError, match="layout diffllama: holds no v2; expected a layer of variant v1"):
        to_layout(module, "diffllama")
    with pytest.raises(UserError, match=r"parameter 'q_proj\.weight' is missing"):
        from_layout({}, "diffllama", DifferentialAttention(DIM, HEADS, bias=False))
    for fields in ({"temperature": 2.0}, {"lambda_max": 0.9}):
        with pytest.raises(UserError, match=r"layout timm: cannot hold temperature .*, lambda_max"):
            to_layout(DifferentialAttention(DIM, HEADS, **fields), "timm")
