"""Relevance against the formulas written out, and open_clip's against attention with leaves put into its maps."""

import math

import open_clip
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models import vit
from antiphase.models.clip import clip, diffclip
from antiphase.models.preprocessing import Preprocessing
from antiphase.models.schemes.libraries import OpenClip
from antiphase.sensitivity.relevance import METHODS, NoSecondMap, attention_map, chefer_relevance
from tests.reference import relevance as reference

TEXTS = ["a photo of mug", "lamp"]
VISION = {"image_size": 9, "patch_size": 3, "dim": 20, "depth": 3, "num_heads": 4}
TEXT = {"dim": 12, "depth": 1, "num_heads": 2, "context_length": 13}


def images(count=2, side=9, dtype=torch.float64):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(3), dtype=dtype)


def wild(model, spread=1.5):
    """Return the model in float64 with weights large enough for maps that are not flat."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "logit_scale" not in name:
            size = parameter.shape[-1] ** -0.5 * spread if parameter.ndim > 1 else 0.4
            parameter.data = torch.randn(parameter.shape, generator=generator) * size
    return model.double().eval()


def small(build=diffclip, depth=3, **fields):
    return wild(build(vision=VISION | {"depth": depth}, text=TEXT, embed_dim=7, **fields))


def slow(model, x, texts, part, start=0):
    weights = {name: value.detach() for name, value in model.visual.state_dict().items()}
    weights["image_projection"] = model.image_projection.detach()
    directions = model.encode_text(texts).detach()
    scale = float(model.logit_scale.detach().exp())
    return torch.stack(
        [
            torch.stack([reference.relevance(one, text, weights, model.config.vision, scale, part, start) for one in x])
            for text in directions
        ]
    ).unflatten(-1, (3, 3))


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize(
    ("build", "fields", "part"),
    [
        (clip, {}, "combined"),
        (clip, {}, "positive"),
        (diffclip, {}, "combined"),
        (diffclip, {"schedule": "depth"}, "combined"),
        (diffclip, {}, "positive"),
        (diffclip, {"schedule": "depth"}, "negative"),
    ],
)
def test_relevance_is_what_the_formulas_say(build, fields, part, start):
    model, x = small(build, **fields), images()
    relevance = chefer_relevance(model, x, TEXTS, part, start)
    expected = slow(model, x, TEXTS, part, start)
    assert expected.max() > 1e-3
    assert_close(relevance, expected, rtol=1e-10, atol=1e-12)


def test_relevance_is_not_negative_and_differs_between_texts():
    relevance = chefer_relevance(small(), images(5), TEXTS)
    assert relevance.shape == (2, 5, 3, 3)
    assert relevance.min() >= 0
    assert not torch.allclose(relevance[0], relevance[1], rtol=0.01)


def test_the_company_of_an_image_or_a_text_does_not_matter():
    model, x = small(), images(5)
    together = chefer_relevance(model, x, TEXTS)
    alone = torch.cat([chefer_relevance(model, one[None], TEXTS) for one in x], 1)
    assert_close(together, alone, rtol=1e-10, atol=1e-13)
    assert_close(together[1:], chefer_relevance(model, x, TEXTS[1:]), rtol=1e-10, atol=1e-13)


def test_one_layer_alone_is_linear_in_the_scale_of_the_logit_and_several_are_not():
    model, x = small(), images()
    last, all_layers = (chefer_relevance(model, x, TEXTS, start=start) for start in (-1, 0))
    with torch.no_grad():
        model.logit_scale += math.log(50)
    assert_close(chefer_relevance(model, x, TEXTS, start=-1), 50 * last)
    assert not torch.allclose(chefer_relevance(model, x, TEXTS), 50 * all_layers, rtol=0.01)


def test_one_layer_gives_its_own_map_times_its_gradient():
    model, x = small(clip, depth=1), images()
    block = model.visual.blocks[0]
    tokens = block.norm1(model.visual.tokens(x)).detach()
    a = block.attn.maps(tokens).positive.detach().requires_grad_()
    values = block.attn.qkv(tokens).chunk(3, -1)[2].unflatten(-1, (4, 5)).transpose(1, 2)
    y = model.visual.tokens(x) + block.attn.proj((a @ values).transpose(1, 2).flatten(2))
    embeddings = model.visual.norm((y + block.mlp(block.norm2(y)))[:, 0]) @ model.image_projection
    logits = model.logit_scale.exp() * nn.functional.cosine_similarity(embeddings, model.encode_text(["lamp"]))
    (slope,) = torch.autograd.grad(logits.sum(), a)
    cam = (slope * a).clamp_min(0).mean(1)
    assert_close(chefer_relevance(model, x, ["lamp"])[0], cam[:, 0, 1:].unflatten(-1, (3, 3)).detach())


def test_frozen_weights_give_the_same_and_nobody_s_gradient_is_left_behind():
    model, x = small(), images()
    relevance = chefer_relevance(model, x, TEXTS)
    assert not relevance.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.grad is None
    assert not x.requires_grad
    with torch.no_grad():
        assert torch.equal(chefer_relevance(model.requires_grad_(False), x, TEXTS), relevance)


def test_raw_attention_is_the_class_token_s_row():
    model, x = small(), images()
    maps = {part: attention_map(model, x, part, 1) for part in ("combined", "positive", "negative")}
    lam = model.visual.blocks[1].attn.lam()
    assert_close(maps["combined"], maps["positive"] - lam * maps["negative"])
    raw = []
    hook = model.visual.blocks[1].attn.register_forward_hook(lambda module, args, _: raw.append(module.maps(args[0])))
    model.encode_image(x)
    hook.remove()
    assert_close(maps["positive"].flatten(1), raw[0].positive.mean(1)[:, 0, 1:])
    assert_close(attention_map(model, x, "combined", -2), maps["combined"])
    assert not torch.allclose(attention_map(model, x, "combined"), maps["combined"])


def test_methods_are_the_functions():
    model, x = small(), images()
    results = {name: method.maps(model, x, TEXTS, 0) for name, method in METHODS.items()}
    assert {maps.shape for maps in results.values()} == {(2, 2, 3, 3)}
    for name, part in (("relevance", "combined"), ("relevance-negative", "negative")):
        assert_close(results[name], chefer_relevance(model, x, TEXTS, part))
    assert_close(results["relevance-last"], chefer_relevance(model, x, TEXTS, start=-1))
    assert_close(results["attention"][1], attention_map(model, x, "combined", 0))
    for name, method in METHODS.items():
        assert method.asks == (not torch.equal(results[name][0], results[name][1]))


class LeafyAttention(nn.Module):
    """``nn.MultiheadAttention`` in plain products, with a leaf of zeros added to its maps."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x, *_, **__):
        q, k, v = nn.functional.linear(x, self.attention.in_proj_weight, self.attention.in_proj_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.attention.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
        a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        self.leaf = torch.zeros_like(a, requires_grad=True)
        self.map = a + self.leaf
        return self.attention.out_proj((self.map @ v).transpose(1, 2).flatten(2)), None


def foreign(**vision):
    """A small model of open_clip behind the package's wrapper."""
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 24, "head_width": 8, "patch_size": 4, "image_size": 12} | vision
    text = {"context_length": 11, "width": 16, "heads": 2, "layers": 1}
    model = open_clip.CLIP(13, sizes, text, quick_gelu=True)
    tokenizer = open_clip.SimpleTokenizer(context_length=11)
    return wild(OpenClip(model, tokenizer, Preprocessing(Square(12), (0.48, 0.46, 0.41), (0.27, 0.26, 0.28))), 1.0)


@pytest.mark.parametrize("batch_first", [True, False])
def test_open_clip_s_models_as_attention_with_leaves_has_it(batch_first):
    model, x = foreign(), images(2, 12)
    tower = model.model.visual.transformer
    tower.batch_first = batch_first
    for block in tower.resblocks:
        block.attn.batch_first = batch_first
    relevance = chefer_relevance(model, x, TEXTS)
    tower.batch_first = True
    for block in tower.resblocks:
        block.attn = LeafyAttention(block.attn)
    image, text = (
        nn.functional.normalize(part, dim=-1) for part in (model.encode_image(x), model.encode_text(TEXTS).detach())
    )
    (model.logit_scale.exp() * image @ text[1]).sum().backward()
    matrix = torch.eye(10, dtype=x.dtype)
    for block in tower.resblocks:
        cam = (block.attn.leaf.grad * block.attn.map).clamp_min(0).mean(1)
        matrix = matrix + cam @ matrix
    assert_close(relevance[1].flatten(1), matrix[:, 0, 1:].detach(), rtol=1e-9, atol=1e-12)


class Masked(nn.Module):
    """A CLIP whose blocks see the first patches alone."""

    def __init__(self, model, kept):
        super().__init__()
        self.model, self.kept = model, kept
        self.logit_scale, self.encode_text = model.logit_scale, model.encode_text

    def encode_image(self, x):
        return self.model.encode_image(x, keep=torch.arange(self.kept).expand(len(x), -1))


def classifier():
    return vit(9, patch_size=3, in_channels=3, dim=8, depth=1, num_heads=2, num_classes=2).double().eval()


@pytest.mark.parametrize(
    ("make", "side", "named"),
    [
        (classifier, 9, "not a dual encoder"),
        (lambda: Masked(small(), 7).eval(), 9, "8 tokens; expected one class token"),
        (lambda: foreign(pool_type="avg"), 12, "10 tokens; expected one class token"),
        (lambda: small().train(), 9, "training mode"),
    ],
)
def test_other_models_are_refused_by_name(make, side, named):
    model, x = make(), images(2, side)
    for ask in (lambda: chefer_relevance(model, x, TEXTS), lambda: attention_map(model, x)):
        with pytest.raises(UserError, match=named):
            ask()


def test_four_patches_in_a_square_are_a_square():
    assert attention_map(Masked(small(), 4).eval(), images()).shape == (2, 2, 2)


def test_mistakes_are_named():
    model, x = small(clip), images()
    for part in (lambda: chefer_relevance(model, x, TEXTS, "negative"), lambda: attention_map(model, x, "negative")):
        with pytest.raises(NoSecondMap, match="no A2"):
            part()
    for layer in (3, -4):
        with pytest.raises(UserError, match=f"layer {layer}: expected -3 to 2"):
            attention_map(model, x, "combined", layer)
        with pytest.raises(UserError, match=f"layer {layer}: expected -3 to 2"):
            chefer_relevance(model, x, TEXTS, start=layer)
    for part in ("combinde", "A2", None):
        for ask in (lambda part: attention_map(model, x, part), lambda part: chefer_relevance(model, x, TEXTS, part)):
            with pytest.raises(UserError, match=f"part {part!r}: expected 'combined', 'positive' or 'negative'"):
                ask(part)
    for texts in ([], "mug"):
        with pytest.raises(UserError, match="texts"):
            chefer_relevance(model, x, texts)
