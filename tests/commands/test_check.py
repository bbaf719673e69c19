"""``antiphase check``: each mistake in differential attention is named, and right modules get no complaint."""

import json
from pathlib import Path

import pytest
import torch
from timm.layers.diff_attention import DiffAttention
from torch import nn

import antiphase as ap
from antiphase.errors import UserError
from tests.commands.attention_mistakes import DIM, V1, V2, Einsum, Grouped, Softmax, WithoutNorm
from tests.sensitivity import attention_variants as variants

HERE = Path(__file__).parent
MISTAKES = {
    "counted from 1": ("λ_init", "0.3555, counted from 1"),
    "λ_init forgotten": ("λ_init", "lambda_init is 0.2, but λ is 0 with its learned parameters at 0"),
    "λ of zeros": ("λ", "gradient is 0"),
    "λ is a buffer": ("λ", "q1, k1, q2, k2 are buffers"),
    "λ in a list": ("λ", "depends on no parameter"),
    "λ frozen": ("λ", "requires_grad is False"),
    "λ detached": ("λ", "no gradient reaches q1, k1, q2, k2"),
    "scale of the whole width": ("scale", "multiplied by 0.2041; expected 1/√6 = 0.4082"),
    "scale of both branches": ("scale", "multiplied by 0.2887"),
    "scale is 1/d": ("scale", "multiplied by 0.1667"),
    "no scale": ("scale", "multiplied by 1;"),
    "factor before the norm": ("norm", "removes the factor 1 − λ_init = 0.8"),
    "factor is λ_init": ("factor", "multiplied by 0.2; expected 1 − λ_init = 0.8"),
    "no factor": ("factor", "multiplied by 1; expected 1 − λ_init = 0.8"),
}


SIZES = {"image_size": 8, "patch_size": 2, "in_channels": 3, "dim": DIM, "num_classes": 3}


def off(result):
    return [(one.about, one.text) for layer in result.layers for one in layer.findings if one.state == "off"]


def drawn(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_v1_is_the_only_complaint(mistake):
    about, text = MISTAKES[mistake]
    result = ap.check(drawn(lambda: V1(mistake=mistake)), layer=0)
    ((where, complaint),) = off(result)
    assert (where, text in complaint, result.off) == (about, True, True), complaint
    assert result.layers[0].variant == "V1"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("mistake", "about", "text"),
    [
        ("halves", "pairing", "V2 by halves"),
        ("norm", "norm", "removes the size of the difference"),
        ("λ detached", "λ", "no gradient reaches lam.weight"),
        ("scale", "scale", "multiplied by 0.2041; expected 1/√12"),
    ],
)
def test_a_mistake_in_v2_is_the_only_complaint(mistake, about, text, fused):
    ((where, complaint),) = off(ap.check(drawn(lambda: V2(mistake, fused))))
    assert (where, text in complaint) == (about, True), complaint


ours = ap.attention.DifferentialAttention
RIGHT = {
    "V1": ("V1", lambda: V1(depth=0)),
    "V1, papers' formula": ("V1", WithoutNorm),
    "V1, einsum": ("V1", Einsum),
    "V1, ours": ("V1", lambda: ours(DIM, 4)),
    "V1, ours, λ of tokens": ("V1", lambda: ours(DIM, 4, parameterisation="gate")),
    "V1, timm's": ("V1", lambda: DiffAttention(DIM, num_heads=2, depth=0)),
    "V1, timm's with qk_norm": (
        "V1",
        lambda: DiffAttention(DIM, num_heads=2, qk_norm=True, norm_layer=nn.LayerNorm, depth=0),
    ),
    "V2": ("V2", V2),
    "V2, fused": ("V2", lambda: V2(fused=True)),
    "V2, halves of one key head": ("V2", lambda: V2("halves", kv_heads=1)),
    "V2, ours": ("V2", lambda: ours(DIM, 4, variant="v2", kv_heads=2)),
    "grouped 3:1": ("grouped", lambda: Grouped(3)),
    "grouped 4:1, fused": ("grouped", lambda: variants.Grouped(4, fused=True)),
    "grouped, ours": ("grouped", lambda: ours(DIM, 4, variant="grouped")),
    "gated with an output gate": ("gated", variants.GatedGroups),
    "gated, ours": ("gated", lambda: ours(DIM, 4, variant="gated", output_gate=True)),
    "DINT": ("DINT", variants.Dint),
    "DINT, ours": ("DINT", lambda: ours(DIM, 4, variant="dint")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_module_gets_no_complaint(name):
    variant, make = RIGHT[name]
    (layer,) = ap.check(drawn(make), layer=0).layers
    assert (layer.attention, layer.variant) == ("differential", variant)
    assert {one.state for one in layer.findings} <= {"right", "unknown"}, layer.findings
    assert next(one.state for one in layer.findings if one.about == "scale") == "right"


def test_what_is_no_differential_attention_is_said_to_be_so():
    (layer,) = ap.check(drawn(Softmax)).layers
    assert (layer.attention, layer.variant, layer.findings[0].state) == ("softmax", None, "off")
    result = ap.check(drawn(variants.GatedByChannel))
    assert (result.layers[0].attention, result.off, off(result)) == ("unknown", True, [])


def test_a_converted_model_whose_lambda_is_still_0_is_not_said_to_be_standard_for_sure():
    new = ap.convert(ap.models.vit(8, dim=12, num_heads=2, depth=1, patch_size=4), "diffvit")
    (finding,) = ap.check(new).layers[0].findings
    assert finding.text == "standard attention: no map is subtracted, or its λ is 0"


def test_a_module_without_maps_is_said_to_have_none():
    (finding,) = ap.check(nn.Linear(DIM, DIM)).layers[0].findings
    assert finding.text == "not recognised: it computes no softmax maps"


@pytest.mark.parametrize("log", [False, True])
def test_a_scale_that_cannot_be_told_is_unknown(log):
    class Learned(WithoutNorm):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(0.4))

        def scaled(self, q):
            return q * (self.temperature.exp() if log else self.temperature)

    (layer,) = ap.check(drawn(Learned)).layers
    assert next(one.state for one in layer.findings if one.about == "scale") == "unknown"


def test_a_scale_is_told_behind_casts_and_rotary_positions():
    class Rotary(WithoutNorm):
        def scaled(self, q):
            angle = torch.arange(q.shape[-2])[:, None] * torch.tensor([1.0, 0.1, 0.01])
            cos, sin = (part.type_as(q).repeat(1, 2) for part in (angle.cos(), angle.sin().to(q)))
            one, two = q.chunk(2, -1)
            return torch.nan_to_num(q * cos + torch.cat([-two, one], -1) * sin) * q.shape[-1] ** -0.5

    (layer,) = ap.check(drawn(Rotary)).layers
    assert next(one.state for one in layer.findings if one.about == "scale") == "right"


@pytest.mark.parametrize("function", [torch.abs, torch.relu, torch.square, lambda one: one.relu() / one.relu().sum()])
def test_a_function_of_the_difference_is_said_to_be_one(function):
    class Changed(V1):
        def forward(self, x):
            q, k, v = (tokens.unflatten(-1, (2, -1)).transpose(1, 2) for tokens in (self.q(x), self.k(x), self.v(x)))
            one, two = ((q.chunk(2, -1)[branch] @ k.chunk(2, -1)[branch].mT).softmax(-1) for branch in (0, 1))
            return self.o((function(one - 0.4 * two) @ v).transpose(1, 2).flatten(2))

    (layer,) = ap.check(drawn(Changed)).layers
    ((about, text),) = off(ap.check(drawn(Changed)))
    assert (layer.attention, layer.variant, about) == ("differential", None, "difference")
    assert text.startswith("values are weighted by a function of A1 − λ·A2")


def test_heads_in_a_list_are_no_layers():
    class Heads(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.heads = nn.ModuleList(V1(depth=layer) for _ in range(2))

        def forward(self, x):
            return sum(head(x) for head in self.heads)

    model = drawn(lambda: ap.models.VisionTransformer(Heads, **SIZES, depth=2))
    layers = ap.check(model).layers
    assert [layer.name for layer in layers] == [f"blocks.{i}.attn.heads.{head}" for i in (0, 1) for head in (0, 1)]
    assert all(one.state == "right" for layer in layers for one in layer.findings)


def test_layers_of_a_model_are_counted_and_the_caller_s_module_stays_as_it_is():
    def model(shift):
        return ap.models.VisionTransformer(lambda layer: V1(depth=layer + shift), **SIZES, depth=2).train()

    right, wrong = drawn(lambda: model(0)), drawn(lambda: model(1))
    before = {name: one.clone() for name, one in right.state_dict().items()}
    assert not ap.check(right).off
    assert right.training
    assert all(torch.equal(one, before[name]) for name, one in right.state_dict().items())
    assert [where for where, _ in off(ap.check(wrong))] == ["λ_init", "λ_init"]
    halves = drawn(lambda: ap.models.VisionTransformer(lambda _: V2("halves"), **SIZES, depth=1))
    assert [where for where, _ in off(ap.check(halves))] == ["pairing"]


def test_the_command_line_and_its_exit_codes(run_cli, tmp_path):
    spec = f"python:{HERE / 'attention_mistakes.py'}:V1"
    code, out, err = run_cli("check", f"{spec}?depth=0", "--json")
    assert code == 0, err
    answer = json.loads(out)
    (layer,) = answer["layers"]
    assert (answer["off"], layer["attention"], layer["variant"]) == (False, "differential", "V1")
    assert {one["about"]: one["state"] for one in layer["findings"]} == dict.fromkeys(
        ("pairing", "scale", "λ", "λ_init", "norm", "factor"), "right"
    )
    code, out, _ = run_cli("check", f"{spec}?depth=2,mistake=counted from 1")
    assert (code, "counted from 1" in out) == (1, True)
    for words in (
        (f"{spec}?width=3",),
        (f"python:{tmp_path / 'none.py'}:V1",),
        (spec, "--dim", "5"),
        ("specimen:diffvit-99",),
    ):
        code, out, err = run_cli("check", *words)
        assert (code, out, err.strip().count("\n")) == (2, "", 0), err
    with pytest.raises(UserError, match="does not run on tokens"):
        ap.check(nn.Conv2d(3, 4, 3))


class OfItsBlock(nn.Module):
    """V1 with a λ that its block owns."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = WithLambda(), nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x + self.inner(x, self.scale)


class WithLambda(variants.Projected):
    def forward(self, x, lam):
        one, two, v = self.pairs(x)
        return self.wo(variants.merge((one - lam * two) @ v))


class OfBlocks(nn.Module):
    image_shape = (1, 8, 8)

    def __init__(self):
        super().__init__()
        self.patches, self.block = nn.Conv2d(1, variants.DIM, 2, 2), OfItsBlock()

    def forward(self, images):
        return self.block(self.patches(images).flatten(2).mT).mean(1)


def test_whether_a_lambda_from_outside_the_module_is_learned_is_unknown():
    (layer,) = ap.check(drawn(OfBlocks)).layers
    (finding,) = [one for one in layer.findings if one.about == "λ"]
    assert (layer.attention, finding.state) == ("differential", "unknown"), finding


@pytest.mark.parametrize("parts", [(1.0, 1.0), (0.5, 0.5)])
def test_the_scale_of_a_sum_of_scores_is_unknown(parts):
    class Summed(variants.Projected):
        def forward(self, x):
            q, k, v = self.parts(x)
            scores = q @ k.mT * q.shape[-1] ** -0.5
            maps = (parts[0] * scores + parts[1] * (q @ k.mT * q.shape[-1] ** -0.5)).softmax(-1)
            return self.wo(variants.merge((maps[:, ::2] - self.lam[:, None, None] * maps[:, 1::2]) @ v))

    (finding,) = [one for one in ap.check(drawn(Summed)).layers[0].findings if one.about == "scale"]
    assert finding.state == "unknown", finding


def test_a_module_that_keeps_a_tensor_with_its_graph_is_refused_in_one_line():
    module = drawn(lambda: V1(depth=0))
    module.last = module(torch.randn(2, 5, DIM))
    with pytest.raises(UserError, match="V1: cannot be copied: it stores a tensor with its graph"):
        ap.check(module)


def test_a_lambda_that_is_a_sum_of_parameters_is_not_held_against_its_attribute():
    class Sum(variants.Projected):
        def __init__(self):
            super().__init__()
            self.lambda_init, self.lam = 0.8, None
            self.a, self.b = (nn.Parameter(torch.tensor(0.4)) for _ in range(2))

        def forward(self, x):
            one, two, v = self.pairs(x)
            return self.wo(variants.merge((one - (self.a + self.b) * two) @ v))

    assert "λ_init" not in [about for about, _ in off(ap.check(drawn(Sum)))]
