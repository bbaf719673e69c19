"""Conversion of standard attention to differential attention: the same outputs, a λ that learns, refusals."""

import copy
import json

import pytest
import timm
import torch
from torch import nn
from torch.testing import assert_close

import antiphase as ap
from antiphase.errors import UserError
from antiphase.models import load_model
from antiphase.models.card import layer_lambdas
from antiphase.models.preprocessing import Normalize, Normalized
from tests.models import tiny_open_clip  # noqa: F401

EXACT = {"atol": 1e-5, "rtol": 1e-5}
TARGETS = [("diffvit", None), ("diffvit", 3), ("grouped", None), ("grouped", 2), ("gated", None), ("v2", None)]


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def shaken(model):
    """Give every parameter noise, so that zeros and ones of the initial weights hide nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def timm_vit(**options):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 6, "num_classes": 5}
    torch.manual_seed(0)
    net = shaken(timm.models.VisionTransformer(**sizes | options))
    return Normalized(net, Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))


@pytest.mark.parametrize(("to", "ratio"), TARGETS)
def test_a_vit_of_ours_keeps_its_logits(to, ratio):
    vit = shaken(ap.models.vit(8, dim=48, num_heads=6, depth=2, num_classes=3, std=(0.3,)))
    new = ap.convert(vit, to, ratio=ratio)
    x = images(3, 1, 8, 8)
    with torch.no_grad():
        assert_close(new(x), vit(x), **EXACT)
    expected = 0.5 if to in ("v2", "gated") else 0.0
    assert all((lam == expected).all() for lam in layer_lambdas(new, x))
    assert new.card.attention == "differential"


@pytest.mark.parametrize(("to", "ratio"), TARGETS)
def test_training_moves_lambda_and_tells_the_maps_apart(to, ratio):
    vit = shaken(ap.models.vit(8, dim=48, num_heads=6, num_classes=3))
    new = ap.convert(vit, to, ratio=ratio).train()
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    x, labels = images(6, 1, 8, 8), torch.arange(6) % 3
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(new(x), labels).backward()
        optimizer.step()
    before = 0.5 if to in ("v2", "gated") else 0.0
    attention = new.blocks[0].attn
    lam = layer_lambdas(new, x)[0]
    assert (lam - before).abs().min() > 0
    maps = attention.maps(new.blocks[0].norm1(new.tokens(x)))
    assert (maps.positive - maps.negative).abs().max() > 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_bias": False, "init_values": 0.3},
        {"no_embed_class": True, "pre_norm": True},
        {"act_layer": "quick_gelu", "mlp_ratio": 3.3},
        {"dynamic_img_size": True, "proj_bias": False},
    ],
)
@pytest.mark.parametrize("to", ["diffvit", "v2"])
def test_a_vit_of_timm_keeps_its_logits(options, to):
    vit = timm_vit(**options)
    new = ap.convert(vit, to)
    x = images(3, 3, 16, 16)
    with torch.no_grad():
        assert_close(new(x), vit(x), **EXACT)


def test_a_pretrained_size_by_name_is_written_loaded_and_resized_as_timm_does(tmp_path):
    spec = "timm:test_vit"
    source = load_model(spec, random_weights=True, seed=2)
    new = ap.convert(spec, "v2", out=tmp_path / "v2", random_weights=True, seed=2)
    again = load_model(str(tmp_path / "v2"))
    x = images(2, *source.card.image_shape)
    with torch.no_grad():
        assert_close(again(x), source(x), **EXACT)
    assert again.square == new.square == source.card.preprocessing.square
    assert again.card.class_names == source.card.class_names
    assert again.card.recipe["source"] == spec
    file = tmp_path / "v2" / "recipe.json"
    recipe = json.loads(file.read_text())
    for changed in ({"interpolation": "foo"}, {"size": "x"}, {"size": 0}, {"resize": -1}):
        file.write_text(json.dumps(recipe | {"square": recipe["square"] | changed}))
        with pytest.raises(UserError, match=r"recipe\.json: square: .*; convert the model again"):
            load_model(str(tmp_path / "v2"))
    file.write_text(json.dumps(recipe | {"resize": "foo"}))
    with pytest.raises(UserError, match="resize 'foo': expected squash or crop"):
        load_model(str(tmp_path / "v2"))


def test_vit_tiny_of_timm():
    source = load_model("timm:vit_tiny_patch16_224", random_weights=True)
    new = ap.convert(source, "diffvit", ratio=3)
    x = images(1, 3, 224, 224)
    with torch.no_grad():
        assert_close(new(x), source(x), **EXACT)


@pytest.mark.long
@pytest.mark.parametrize("towers", ["both", "vision", "text"])
@pytest.mark.parametrize("to", ["diffvit", "v2"])
def test_a_clip_of_open_clip_keeps_its_embeddings(tmp_path, to, towers):
    source = load_model("open_clip:tiny-vit", random_weights=True, seed=1)
    shaken(source)
    new = ap.convert(source, to, towers=towers, out=tmp_path / "clip")
    x, texts = images(3, 3, 32, 32), ["a mug", "two photos of a red house, " * 30]
    with torch.no_grad():
        assert_close(new.encode_image(x, True), source.encode_image(x, True), **EXACT)
        assert_close(new.encode_text(texts, True), source.encode_text(texts, True), **EXACT)
        assert_close(new.logit_scale, source.logit_scale)
    kinds = [config.attention for config in (new.config.vision, new.config.text)]
    assert [kind != "softmax" for kind in kinds] == [towers != "text", towers != "vision"]
    assert new.square == source.square


def test_a_clip_of_ours_keeps_its_embeddings():
    sizes = {"dim": 32, "num_heads": 4, "depth": 1}
    source = shaken(ap.models.clip(vision=sizes | {"image_size": 16, "patch_size": 8}, text=sizes))
    new = ap.convert(source, "grouped", ratio=4)
    with torch.no_grad():
        x = images(2, 3, 16, 16)
        assert_close(new.encode_image(x), source.encode_image(x), **EXACT)
        assert_close(new.encode_text(["a mug"]), source.encode_text(["a mug"]), **EXACT)


def test_a_run_is_converted_and_trained_on(run_cli, tmp_path):
    small = ["--data", "digits", "--limit", "64", "--epochs", "1", "--quiet", "--out"]
    assert run_cli("train", "--model", "vit", *small, tmp_path / "vit")[0] == 0
    assert run_cli("convert", tmp_path / "vit", "--to", "diffvit", "--out", tmp_path / "new")[0] == 0
    source, new = load_model(str(tmp_path / "vit")), load_model(str(tmp_path / "new"))
    x = images(4, *source.image_shape)
    with torch.no_grad():
        assert_close(new(x), source(x), **EXACT)
    assert new.card.class_names == source.card.class_names
    assert new.card.recipe["data"] == source.card.recipe["data"] == "digits"
    code, _, err = run_cli("train", "--model", tmp_path / "new", *small, tmp_path / "trained")
    assert code == 0, err
    assert all(abs(lam) > 0 for lam in ap.models.mean_lambdas(load_model(str(tmp_path / "trained"))))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"qk_norm": True}, "blocks.0.attn.k_norm"),
        ({"scale_attn_norm": True}, "blocks.0.attn.norm"),
        ({"scale_mlp_norm": True}, "blocks.0.mlp.norm"),
        ({"reg_tokens": 2}, "reg_token"),
        ({"global_pool": "avg"}, "global_pool is 'avg'"),
        ({"fc_norm": True}, "fc_norm"),
        ({"pos_embed": "none"}, "pos_embed is only in our"),
        ({"act_layer": "silu"}, "activation is SiLU"),
        ({"mlp_layer": timm.layers.SwiGLU}, "blocks.0.mlp is a SwiGLU"),
        ({"embed_norm_layer": nn.LayerNorm}, "patch_embed.norm"),
        ({"attn_layer": "diff"}, "blocks.0.attn is a DiffAttention"),
        ({"block_fn": timm.models.vision_transformer.ResPostBlock}, "blocks.0 is a ResPostBlock"),
    ],
)
def test_a_part_that_our_transformer_lacks_is_named(options, part):
    with pytest.raises(UserError, match=rf"cannot be converted exactly: .*{part}"):
        ap.convert(timm_vit(**options), "v2")


def test_a_model_that_computes_something_else_is_refused():
    vit = ap.models.vit(8)
    vit.blocks[0].attn.forward = lambda x, **options: 2 * x
    with pytest.raises(UserError, match="its outputs would differ by"):
        ap.convert(vit, "v2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "v1"}, "to v1: makes one head of two"),
        ({"to": "dint"}, "to dint: makes one head of two"),
        ({"to": "v3"}, "expected one of diffvit, v1"),
        ({"to": "gated", "ratio": 2}, r"λ = σ\(x·W\) is never 0"),
        ({"to": "v2", "ratio": 2}, "ratio 2"),
        ({"to": "grouped", "ratio": 5}, "ratio 5: expected a divisor"),
        ({"to": "v2", "towers": "vision"}, "has one tower"),
    ],
)
def test_a_variant_that_cannot_start_there_is_refused(options, words):
    with pytest.raises(UserError, match=words):
        ap.convert(copy.deepcopy(ap.models.vit(8)), **options)


def test_other_models_are_refused_and_nothing_is_written(run_cli, tmp_path):
    for spec, words in (
        ("specimen:diffvit-0", "attention is differential; expected standard attention"),
        ("timm:resnet10t", "ResNet cannot be converted"),
        ("timm:vit_tiny_r_s16_p8_224", "patch_embed is a HybridEmbed"),
        ("open_clip:tiny-resnet", "CLIP with a ModifiedResNet"),
    ):
        options = [] if spec.startswith("specimen") else ["--random-weights"]
        code, _, err = run_cli("convert", spec, "--to", "v2", *options, "--out", tmp_path / "new")
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
        assert not (tmp_path / "new").exists()


def test_a_clip_that_another_layout_cannot_hold_is_refused(tmp_path):
    new = ap.convert(load_model("open_clip:tiny-vit", random_weights=True, seed=1), "v2")
    with pytest.raises(UserError, match=r"the model has images by .*; expected images by gelu, .* antiphase"):
        ap.models.write_model(new, tmp_path, layout="released")


def test_outputs_that_do_not_depend_on_the_image_prove_nothing():
    vit = ap.models.vit(8)
    nn.init.zeros_(vit.head.weight)
    with pytest.raises(UserError, match="its outputs do not depend on its inputs"):
        ap.convert(vit, "v2")


def test_a_transformer_of_timm_without_blocks_is_refused():
    net = timm.create_model("vit_tiny_patch16_224", depth=0)
    with pytest.raises(UserError, match="it has no blocks with ordinary weights"):
        ap.convert(net, "v2")
