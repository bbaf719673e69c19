"""Maps of anybody's model: taken apart, each must give its module's own output; derivatives against autograd."""

import inspect
import re
import sys
from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
from timm.layers import Attention, DiffAttention, RmsNorm
from timm.models.vision_transformer import DiffParallelScalingBlock, ParallelScalingBlock
from torch import nn
from torch.testing import assert_close

from antiphase.errors import UserError
from antiphase.models import diffclip, diffvit, vit
from antiphase.models.card import attention_kind
from antiphase.sensitivity import attention_layers, attention_maps, map_function, propagate, register
from antiphase.sensitivity.attention_adapters import find_adapter
from antiphase.sensitivity.maps import record


def rand(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def wild(module, seed=0):
    """Return the module in float64 with weights large enough for maps that are not flat."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        spread = parameter.shape[-1] ** -0.5 * 1.5 if parameter.ndim > 1 else 0.4
        parameter.data = torch.randn(parameter.shape, generator=generator) * spread
    return module.double().eval().requires_grad_(False)


def diff_llama():
    from transformers import DiffLlamaConfig, DiffLlamaModel

    return wild(
        DiffLlamaModel(
            DiffLlamaConfig(
                vocab_size=31,
                hidden_size=24,
                intermediate_size=20,
                num_hidden_layers=2,
                num_attention_heads=8,
                num_key_value_heads=4,
                head_dim=6,
                attn_implementation="sdpa",
            )
        )
    )


def hugging_vit(implementation="sdpa"):
    from transformers import ViTConfig, ViTModel

    return wild(
        ViTModel(
            ViTConfig(
                hidden_size=12,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=20,
                image_size=14,
                patch_size=7,
                attn_implementation=implementation,
            )
        )
    )


def hugging_clip():
    from transformers import CLIPTextConfig, CLIPTextModel

    return wild(
        CLIPTextModel(
            CLIPTextConfig(
                vocab_size=37,
                hidden_size=12,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=20,
                max_position_embeddings=11,
            )
        )
    )


def ids(count=31):
    return {"input_ids": torch.randint(0, count, (2, 7), generator=torch.Generator().manual_seed(0))}


LAYERS = {
    "timm": lambda: (Attention(14, 2, qkv_bias=True), rand(2, 5, 14)),
    "timm norms and gate": lambda: (
        Attention(14, 2, qk_norm=True, scale_norm=True, gated=True, norm_layer=nn.LayerNorm),
        rand(2, 5, 14),
    ),
    "timm differential": lambda: (DiffAttention(12, 2, depth=3), rand(2, 5, 12)),
    "timm differential, norms": lambda: (
        DiffAttention(12, 3, qk_norm=True, scale_norm=True, dual_lambda=True, norm_layer=RmsNorm),
        rand(2, 5, 12),
    ),
    "timm parallel": lambda: (ParallelScalingBlock(14, 2, qk_norm=True), rand(2, 5, 14)),
    "timm parallel, biases": lambda: (
        ParallelScalingBlock(14, 2, qkv_bias=True, fuse_out_proj=True, init_values=0.1),
        rand(2, 5, 14),
    ),
    "timm parallel differential": lambda: (
        DiffParallelScalingBlock(12, 3, qk_norm=True, init_values=0.1, depth=3),
        rand(2, 5, 12),
    ),
    "timm parallel differential, biases": lambda: (
        DiffParallelScalingBlock(12, 3, qkv_bias=True, dual_lambda=True),
        rand(2, 5, 12),
    ),
}
MODELS = {
    "ours, standard": lambda: (
        wild(vit(image_size=6, patch_size=2, in_channels=1, dim=12, depth=2, num_heads=2, num_classes=3)),
        rand(2, 1, 6, 6).sigmoid(),
        2,
        False,
    ),
    "ours, differential": lambda: (
        wild(diffvit(image_size=6, patch_size=2, in_channels=1, dim=12, depth=2, num_heads=4, num_classes=3)),
        rand(2, 1, 6, 6).sigmoid(),
        2,
        True,
    ),
    "transformers ViT": lambda: (hugging_vit(), rand(2, 3, 14, 14), 2, False),
    "transformers CLIP text": lambda: (hugging_clip(), ids(37), 2, False),
    "transformers DiffLlama": lambda: (diff_llama(), ids(), 2, True),
    "torch encoder": lambda: (
        wild(nn.TransformerEncoder(nn.TransformerEncoderLayer(10, 2, 14), 2, enable_nested_tensor=False)),
        rand(7, 3, 10),
        2,
        False,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_found_and_rows_sum_to_one_minus_lambda(name):
    model, inputs, depth, differential = MODELS[name]()
    layers = attention_maps(model, inputs)
    assert len(layers) == depth
    for maps in layers.values():
        assert (maps.negative is not None) == differential
        rows = maps.combined.sum(-1)
        lam = 0.0 if maps.lam is None else maps.lam
        assert_close(rows, torch.ones_like(rows) - lam, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_products_with_vectors_equal_autograd(name):
    module, x = LAYERS[name]()
    _compare(wild(module), x)


@pytest.mark.parametrize("name", ["transformers DiffLlama", "transformers CLIP text", "torch encoder"])
def test_products_with_vectors_equal_autograd_inside_a_model(name):
    model, inputs, *_ = MODELS[name]()
    for call in record(model, inputs):
        _compare_call(call)


def _compare(module, x):
    (call,) = record(module, x)
    _compare_call(call)


def _compare_call(call):
    """Hold Jᵀv and J·t against autograd through the map as the adapter builds it from tokens with a graph."""
    from antiphase.sensitivity.maps import take_apart

    x = call.tokens.detach().requires_grad_()
    same = {"key": x, "value": x} if isinstance(call.module, nn.MultiheadAttention) else {}
    args = () if same else call.args
    layer = take_apart(replace(call, tokens=x, args=args, kwargs=dict(call.kwargs) | same))
    plain = take_apart(call)
    pairs = [(layer.positive, plain.positive)]
    pairs += [(layer.negative, plain.negative)] if layer.negative is not None else []
    t = rand(*plain.tokens.shape, seed=3)
    for traced, branch in pairs:
        v = rand(*branch.attention.shape, seed=4)
        (whole,) = torch.autograd.grad((traced.attention * v).sum(), x, retain_graph=True)
        grad = branch.vjp(v).sum(1)
        assert_close(grad if grad.shape == whole.shape else grad.transpose(0, 1), whole, rtol=1e-9, atol=1e-9)
        for head in range(v.shape[1]):  # each head alone
            (one,) = torch.autograd.grad((traced.attention * v)[:, head].sum(), x, retain_graph=True)
            mine = branch.vjp(v)[:, head]
            assert_close(mine if mine.shape == one.shape else mine.transpose(0, 1), one, rtol=1e-9, atol=1e-9)
        assert_close((branch.jvp(t) * v).sum(), (grad * t).sum(), rtol=1e-9, atol=1e-9)  # ⟨J·t, v⟩ = ⟨t, Jᵀv⟩


@pytest.mark.parametrize("name", ["ours, differential", "transformers ViT", "ours, standard"])
def test_tangents_equal_finite_differences(name):
    model, images, *_ = MODELS[name]()
    direction = rand(*images.shape, seed=5)
    layers = list(attention_layers(model, images, tangent=direction))
    step = 1e-6
    ahead, behind = (attention_maps(model, images + sign * step * direction) for sign in (1, -1))
    for layer in layers:
        for side in ("positive", "negative"):
            branch = getattr(layer, side)
            if branch is not None:
                slope = (getattr(ahead[layer.name], side) - getattr(behind[layer.name], side)) / (2 * step)
                assert_close(branch.jvp(layer.tangent), slope, rtol=1e-5, atol=1e-8)


def test_maps_with_a_graph_lead_back_to_the_images():
    model, images, *_ = MODELS["ours, differential"]()
    images.requires_grad_()
    last = list(attention_maps(model, images, graph=True).values())[-1]
    (gradient,) = torch.autograd.grad(last.combined.square().sum(), images)
    assert gradient.abs().sum() > 0


def test_eager_and_fused_models_give_the_same():
    eager, fused = (attention_maps(hugging_vit(kind), rand(2, 3, 14, 14)) for kind in ("eager", "sdpa"))
    for name in eager:
        assert_close(eager[name].positive, fused[name].positive, rtol=1e-6, atol=1e-6)  # theirs softmaxes in float32


@pytest.mark.parametrize("name", ["vit_dwee_patch16_reg1_gap_256", "vit_wee_patch16_reg1_gap_256"])
def test_timm_models(name):
    model = timm.create_model(name, num_classes=7, img_size=64, depth=2).eval()
    layers = attention_maps(model, torch.rand(2, 3, 64, 64))
    assert list(layers) == ["blocks.0.attn", "blocks.1.attn"]
    assert all((maps.negative is not None) == ("dwee" in name) for maps in layers.values())


def differential_models_of_timm():
    """Return the names of timm's models whose functions name differential attention or its block."""
    entries = {name: timm.model_entrypoint(name) for name in timm.list_models()}
    files = {file for file in map(sys.modules.get, {entry.__module__ for entry in entries.values()})}
    files = {file.__name__ for file in files if hasattr(file, "DiffAttention")}
    return [
        name
        for name, entry in entries.items()
        if entry.__module__ in files and re.search("DiffAttention|DiffParallel|'diff'", inspect.getsource(entry))
    ]


def test_every_differential_model_of_timm_has_two_maps_in_each_layer():
    names = differential_models_of_timm()
    assert len(names) >= 3
    for name in names:
        model = timm.create_model(name, num_classes=7, img_size=32, depth=2, embed_dim=24, num_heads=2).eval()
        layers = attention_maps(model, torch.rand(2, 3, 32, 32))
        assert [maps.negative is not None for maps in layers.values()] == [True, True], name
        assert attention_kind(model) == "differential"


@pytest.mark.parametrize("name", ["vit_dpwee_patch16_reg1_gap_256", "vit_pwee_patch16_reg1_gap_256"])
def test_timm_models_with_attention_beside_the_mlp(name):
    model = timm.create_model(name, num_classes=7, img_size=64, depth=2, init_values=1e-5).eval()
    images = torch.rand(2, 3, 64, 64)
    layers = attention_maps(model, images)
    assert list(layers) == ["blocks.0", "blocks.1"]
    assert all((maps.negative is not None) == ("dpwee" in name) for maps in layers.values())
    for layer, maps in layers.items():  # as functions of the images, they are the same
        assert_close(map_function(model, layer)(images), maps.combined.flatten(1) * maps.positive.shape[1] ** -0.5)
    path = propagate(model, images, images.flip(0))
    assert path.names == ("embedding", "blocks.0", "blocks.1")


class Scaled(nn.Module):
    """A residual block of a user's, with a layer scale."""

    def __init__(self, scale):
        super().__init__()
        self.attn, self.scale = DiffAttention(12, 2), scale

    def forward(self, x):
        return x + self.scale * self.attn(x)


class Swapped(Scaled): ...


def scaled(module, call):
    layer = find_adapter(module.attn)(module.attn, call)
    return replace(layer, finish=lambda a: call.tokens + module.scale * layer.finish(a))


def swapped(module, call):
    layer = scaled(module, call)
    return replace(layer, positive=layer.negative, negative=layer.positive)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_maps_that_are_swapped_are_refused_behind_a_small_scale_too(scale):
    register(Scaled, scaled)
    register(Swapped, swapped)
    x = rand(2, 7, 12, dtype=torch.float32)
    assert list(attention_maps(wild(nn.Sequential(Scaled(scale))).float(), x)) == ["0"]
    with pytest.raises(
        UserError, match=r"0 \(Swapped\): its maps do not reproduce its output.*give its class .*register"
    ):
        attention_maps(wild(nn.Sequential(Swapped(scale))).float(), x)


def test_a_block_of_timms_whose_maps_are_swapped_is_refused():
    class SwappedBlock(DiffParallelScalingBlock): ...

    def other(module, call):
        layer = find_adapter(DiffParallelScalingBlock(12, 2))(module, call)
        return replace(layer, positive=layer.negative, negative=layer.positive)

    register(SwappedBlock, other)
    model = wild(nn.Sequential(SwappedBlock(12, 2, init_values=1e-5))).float()
    model[0].ls.gamma.data.fill_(1e-5)
    with pytest.raises(UserError, match="its maps do not reproduce its output"):
        attention_maps(model, rand(2, 7, 12, dtype=torch.float32))


class MultiheadDiffAttn(nn.Module):
    """Laid out as Microsoft's: heads of half a width, with separate projections, positions as the second argument."""

    def __init__(self, dim, heads):
        super().__init__()
        self.num_heads, self.head_dim = heads, dim // heads // 2
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.lambda_q1 = nn.Parameter(torch.zeros(self.head_dim))

    def forward(self, x, rel_pos):
        q, k = (
            self._turned(p(x).unflatten(-1, (2 * self.num_heads, -1)).transpose(1, 2), *rel_pos)
            for p in (self.q_proj, self.k_proj)
        )
        maps = (q @ k.mT * self.scaling).softmax(-1)
        v = self.v_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return self.out_proj(((maps[:, ::2] - 0.5 * maps[:, 1::2]) @ v).transpose(1, 2).flatten(2))

    def _turned(self, x, cos, sin):
        one, two = x[..., ::2], x[..., 1::2]
        return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten(-2)


class GatedDiffAttn(MultiheadDiffAttn):
    """λ depends on the query."""

    def forward(self, x, rel_pos):
        return super().forward(x, rel_pos) * x.softmax(1).cumsum(1)


class WithPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = MultiheadDiffAttn(16, 2)

    def forward(self, x):
        angle = torch.arange(5.0, dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
        return self.attn(x, (angle.cos(), angle.sin()))


def test_a_guess_that_does_not_fit_is_found_by_what_it_does():
    model = wild(WithPositions())
    (maps,) = attention_maps(model, rand(1, 5, 16)).values()
    assert_close(maps.lam, torch.full((2,), 0.5, dtype=torch.float64), rtol=1e-6, atol=0)
    combined = maps.combined.flatten(1) * 2**-0.5
    assert_close(map_function(wild(WithPositions()), "attn")(rand(1, 5, 16)), combined)


class WithGate(WithPositions):
    def __init__(self):
        super().__init__()
        self.attn = GatedDiffAttn(16, 2)


def test_a_guess_that_fits_nothing_asks_for_an_adapter():
    model = wild(WithGate())
    message = r"attn: .*GatedDiffAttn computes softmax maps, but not as .*antiphase.sensitivity.register[^\n]*$"
    with pytest.raises(UserError, match=message):
        attention_maps(model, rand(1, 5, 16))
    with pytest.raises(UserError, match=message):
        map_function(model, "attn")(rand(1, 5, 16))


def test_an_error_of_a_users_adapter_is_left_alone():
    class Broken(HomeMadeAttention): ...

    def adapter(module, call):
        raise RuntimeError("mine")

    register(Broken, adapter)
    with pytest.raises(RuntimeError, match="mine"):
        attention_maps(wild(Holder(Broken())), rand(1, 3, 6))


@pytest.fixture(scope="module")
def open_clip_model():
    from open_clip import CLIP

    vision = {"layers": 4, "width": 16, "head_width": 8, "patch_size": 8, "image_size": 24}
    text = {"context_length": 7, "vocab_size": 31, "width": 12, "heads": 2, "layers": 4}
    return CLIP(8, vision, text).eval()


def test_open_clip(open_clip_model):
    model = open_clip_model
    text = torch.randint(1, 31, (2, 7), generator=torch.Generator().manual_seed(0))
    images = attention_maps(model, torch.rand(1, 3, 24, 24))
    words = attention_maps(model, text, call=model.encode_text)
    assert len(images) == len(words) == 4
    assert images["visual.transformer.resblocks.3.attn"].positive.shape == (1, 2, 10, 10)
    causal = words["transformer.resblocks.0.attn"].positive
    assert causal.triu(1).abs().max() == 0


def test_other_peoples_models_have_alignments(open_clip_model):
    from antiphase.sensitivity import align, direction_grams, random_directions, token_grams

    keys = torch.arange(6).view(2, 3)
    grams = list(token_grams(diff_llama(), ids(), keys))  # rotary positions: no closed form
    assert [probes for _, _, probes in grams] == [3, 3]
    assert all(align(gram, probes=True).cosine.shape == (2, 4) for _, gram, _ in grams)
    model, images = open_clip_model, torch.rand(1, 3, 24, 24)
    exact = list(token_grams(model, images, keys[:1]))
    assert [probes for _, _, probes in exact] == [0] * 4
    along = list(direction_grams(model, images, random_directions(images, keys[:1, :1])))
    assert [layer.name for layer, _ in along] == [layer.name for layer, *_ in exact]
    assert min(float(gram.first.min()) for _, gram in along) > 0


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_masks_of_multihead_attention(batch_first, padded):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(6, 2, batch_first=batch_first)

        def forward(self, x):
            causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
            padding = torch.zeros(3, 5, dtype=torch.bool)
            padding[1, 3:] = padded
            return self.attn(x, x, x, attn_mask=causal, key_padding_mask=padding)[0]

    x = rand(3, 5, 6) if batch_first else rand(5, 3, 6)
    (maps,) = attention_maps(wild(Holder()), x).values()
    assert maps.positive.triu(1).abs().max() == 0
    assert (maps.positive[1, :, :, 3:].abs().max() == 0) == padded


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention(6, 2)

    def forward(self, x):
        return self.attn(self.attn(x))


def test_a_module_that_runs_twice_is_two_layers():
    assert list(attention_maps(wild(Shared()), rand(1, 3, 6))) == ["attn", "attn@2"]


class HomeMadeAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return self.inner(x)


class Holder(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.attn, self.other = attn, Attention(6, 2)

    def forward(self, x):
        return self.other(self.attn(x))


class Backwards(Attention):
    def forward(self, x):
        return super().forward(x) + super().forward(x.flip(1))


def test_bad_input():
    with pytest.raises(UserError, match=r"attn: .*HomeMadeAttention has no adapter; give"):
        attention_maps(wild(Holder(HomeMadeAttention())), rand(1, 3, 6))
    with pytest.raises(UserError, match=r"attn: .*Backwards computes softmax maps, but not as"):
        attention_maps(wild(Holder(Backwards(6, 2))), rand(1, 3, 6))
    with pytest.raises(UserError, match=r"Linear has no known attention module; if it has .*sensitivity\.register"):
        attention_maps(nn.Linear(3, 3).eval(), torch.rand(1, 3))
    with pytest.raises(UserError, match="in training mode"):
        attention_maps(Attention(6, 2), rand(1, 3, 6))
    cross = wild(nn.MultiheadAttention(6, 2, batch_first=True))
    with pytest.raises(UserError, match="cross-attention is not supported"):
        attention_maps(cross, {"query": rand(1, 3, 6), "key": rand(1, 4, 6), "value": rand(1, 4, 6)})


def test_what_is_left_out_is_left_out():
    class LeftOutAttention(HomeMadeAttention): ...

    register(LeftOutAttention, None)
    assert list(attention_maps(wild(Holder(LeftOutAttention())), rand(1, 3, 6))) == ["other"]


def test_images_alone_run_the_image_tower_of_a_clip():
    clip = diffclip(
        vision={"image_size": 8, "patch_size": 4, "dim": 8, "depth": 1, "num_heads": 2},
        text={"dim": 8, "depth": 1, "num_heads": 2, "context_length": 8},
        embed_dim=4,
    ).eval()
    images = torch.rand(2, 3, 8, 8)
    ((name, maps),) = attention_maps(clip, images).items()
    assert name == "visual.blocks.0.attn"
    assert_close(map_function(clip, name)(images), maps.combined.flatten(1), rtol=0, atol=0)  # one head
    with pytest.raises(UserError, match="this model takes"):
        attention_maps(clip, images[:, :2])
    with pytest.raises(UserError, match=r"CLIP failed on the inputs .*'texts'.*such as model.encode_image"):
        attention_maps(clip, {"images": images})
    with pytest.raises(UserError, match=r"CLIP failed on the inputs .*'texts'"):
        attention_maps(clip, torch.zeros(2, 8, dtype=torch.int64))
    with pytest.raises(UserError, match=r"name 'blocks.9': the model has no such module that it calls once"):
        map_function(clip, "blocks.9")


class TwoSoftmaxes(nn.Module):
    def __init__(self, differential=True):
        super().__init__()
        self.qkv, self.differential = nn.Linear(16, 80), differential

    def forward(self, x):
        q, k, r, s, v = self.qkv(x).chunk(5, -1)
        a = (q @ k.mT / 4).softmax(-1)
        return (a - 0.5 * (r @ s.mT / 4).softmax(-1)) @ v if self.differential else a @ v


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.cat([((part @ k.mT) / 4).softmax(-1) @ v for part in q.split(2, 1)], 1)


class Stack(nn.Module):
    def __init__(self, *mixers):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"mixer": one}) for one in mixers)

    def forward(self, x):
        for block in self.blocks:
            x = x + block["mixer"](x)
        return x


def test_a_layer_that_is_replaced_after_a_first_look_is_seen():
    model, x = Stack(TwoSoftmaxes(), TwoSoftmaxes()).eval(), torch.randn(2, 5, 16)
    assert len(attention_maps(model, x)) == 2
    model.blocks[1]["mixer"] = TwoSoftmaxes(differential=False).eval()
    assert [one.negative is None for one in attention_layers(model, x)] == [False, True]


def test_a_second_tower_is_looked_at_whatever_the_call():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Stack(TwoSoftmaxes()), Stack(TwoSoftmaxes())

        def forward(self, x):
            return self.a(x)

    model, x = Two().eval(), torch.randn(2, 5, 16)
    for call in (lambda x: model.a(x), lambda x: model.b(x), partial(model.b), model.b):
        (layer,) = attention_layers(model, x, call=call)
        assert layer.name in ("a.blocks.0.mixer", "b.blocks.0.mixer")


def test_attention_by_chunks_of_queries_is_not_passed_over():
    x = torch.randn(2, 5, 16)
    with pytest.raises(UserError, match="mixer"):
        attention_maps(Stack(Chunked()).eval(), x)
    with pytest.warns(UserWarning, match=r"blocks\.1\.mixer.*is left out"):
        assert len(attention_maps(Stack(TwoSoftmaxes(), Chunked()).eval(), x)) == 1
