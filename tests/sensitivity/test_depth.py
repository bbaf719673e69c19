"""The way of a perturbation: against hand-made blocks, and laws that hold in every model."""

import pytest
import timm
import torch
from timm.layers import Attention
from torch import nn
from torch.testing import assert_close

from antiphase.errors import UserError
from antiphase.models import diffclip, diffvit, vit
from antiphase.sensitivity import attention_layers
from antiphase.sensitivity.depth import blocks, crossover, propagate, stage_norms


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(kind, depth=3):
    sizes = {"image_size": 6, "patch_size": 3, "in_channels": 1, "dim": 20, "num_heads": 4, "num_classes": 3}
    return kind(**sizes, depth=depth).double().eval().requires_grad_(False)


def images(batch=2):
    return rand(batch, 1, 6, 6)


def test_the_path_follows_the_blocks_by_hand():
    model, x = make(diffvit), images()
    moved = x + 0.01 * rand(2, 1, 6, 6, seed=1)
    path = propagate(model, x, moved)
    a, b = model.tokens(x), model.tokens(moved)
    expected = [(moved - x).flatten(1).norm(dim=1), (b - a).flatten(1).norm(dim=1)]
    for block in model.blocks:
        a, b = block(a), block(b)
        expected.append((b - a).flatten(1).norm(dim=1))
    assert_close(path.length, torch.stack(expected, 1), rtol=1e-12, atol=1e-14)
    assert_close(path.gain.prod(1) * path.length[:, 0], path.length[:, -1], rtol=1e-12, atol=1e-14)
    assert path.names == ("embedding", "blocks.0", "blocks.1", "blocks.2")


def test_linear_blocks_have_the_norms_of_their_matrices():
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.matrix = Attention(5, 1).double(), nn.Linear(5, 5).double()

        def forward(self, x):
            return self.matrix(x) + 0.0 * self.attn(x)

    model = nn.Sequential(nn.Linear(7, 5).double(), Linear(), Linear()).eval().requires_grad_(False)
    x = rand(2, 3, 7)
    norms = stage_norms(model, x, steps=1000)
    expected = torch.stack(
        [torch.linalg.matrix_norm(m.weight, 2) for m in (model[0], model[1].matrix, model[2].matrix)]
    )
    assert_close(norms, expected.expand(2, 3), rtol=1e-5, atol=0)
    _, _, right = torch.linalg.svd(model[0].weight)
    steepest = torch.zeros_like(x)
    steepest[:, 0] = right[0]
    path = propagate(model, x, x + 1e-3 * steepest)
    assert_close(path.gain[:, 0] / norms[:, 0], torch.ones(2).double(), rtol=1e-5, atol=0)  # α = 1 along that direction


@pytest.mark.parametrize("kind", [vit, diffvit])
def test_small_perturbations_stay_below_the_product_bound(kind):
    model, x = make(kind), images(3)
    norms = stage_norms(model, x, steps=100)
    for seed in range(5):
        path = propagate(model, x, x + 1e-6 * (rand(3, 1, 6, 6, seed=seed) - 0.5))
        alpha = path.gain / norms
        assert alpha.max() < 1 + 1e-3  # 1 part in 1000 for what power iteration leaves
        assert (path.length[:, -1] <= norms.prod(1) * path.length[:, 0] * (1 + 1e-3)).all()


def cancellation(path):
    return path.moved / (path.positive.square() + path.negative.square()).sqrt()


def test_cancellation_lies_between_full_and_none():
    x = images()
    path = propagate(make(diffvit), x, x + 0.01 * rand(2, 1, 6, 6, seed=1))
    assert (path.moved <= path.positive + path.negative + 1e-12).all()
    assert (cancellation(path) <= 2**0.5 + 1e-12).all()
    standard = propagate(make(vit), x, x + 0.01 * rand(2, 1, 6, 6, seed=1))
    assert standard.negative.abs().max() == 0
    assert_close(cancellation(standard), torch.ones_like(standard.moved))


def test_maps_that_are_equal_cancel():
    model = make(diffvit, 1)
    attn = model.blocks[0].attn
    width, heads = attn.width, attn.num_diff_heads
    for part in range(2):  # queries, keys
        rows = attn.qkv.weight.data[part * 20 : (part + 1) * 20].view(heads, 2, width, 20)
        rows[:, 1] = rows[:, 0]
        bias = attn.qkv.bias.data[part * 20 : (part + 1) * 20].view(heads, 2, width)
        bias[:, 1] = bias[:, 0]
    lam = float(attn.lam())
    path = propagate(model, images(), images() + 0.01)
    assert_close(cancellation(path), torch.full((2, 1), abs(1 - lam) / (1 + lam**2) ** 0.5).double(), rtol=1e-6, atol=0)


def test_blocks_of_other_libraries():
    model = timm.create_model("vit_wee_patch16_reg1_gap_256", num_classes=7, img_size=64, depth=2).eval()
    assert [block.name for block in blocks(model, torch.rand(1, 3, 64, 64))] == ["blocks.0", "blocks.1"]
    from transformers import ViTConfig, ViTModel

    other = ViTModel(
        ViTConfig(
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=20,
            image_size=14,
            patch_size=7,
        )
    ).eval()
    assert len({block.name for block in blocks(other, torch.rand(1, 3, 14, 14))}) == 2


def test_crossover():
    assert crossover({1: (0.1, 0.2), 2: (-0.2, -0.1), 4: (-0.2, -0.1)}) == 2
    assert crossover({1: (0.1, 0.2), 2: (-0.2, -0.1), 4: (-0.1, 0.1)}) is None  # not from there on
    assert crossover({1: (-0.2, -0.1), 2: (-0.2, -0.1)}) is None  # nothing was crossed
    assert crossover({1: (0.1, 0.2), 4: (0.1, 0.2)}) is None


def test_an_image_that_does_not_move_has_no_path():
    with pytest.raises(UserError, match="an image equals its clean image"):
        propagate(make(vit), images(), images())


@pytest.mark.parametrize("variant", ["v1", "v2", "gated", "grouped", "dint"])
def test_what_moves_is_the_change_of_the_map_in_every_variant(variant):
    sizes = {"image_size": 6, "patch_size": 3, "in_channels": 1, "dim": 20, "num_heads": 4, "num_classes": 3}
    model = diffvit(**sizes, depth=2, variant=variant).double().eval().requires_grad_(False)
    x = images()
    moved = x + 0.01 * rand(2, 1, 6, 6, seed=1)
    path = propagate(model, x, moved)
    clean, other = ([one.maps.combined for one in attention_layers(model, batch)] for batch in (x, moved))
    expected = [(b - a).flatten(1).norm(dim=1) for a, b in zip(clean, other, strict=True)]
    assert_close(path.moved, torch.stack(expected, 1), rtol=1e-9, atol=0)


def test_of_a_clip_the_image_tower_is_followed():
    model = diffclip("small").eval().requires_grad_(False)
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    path = propagate(model, x, x * 0.99)
    assert path.names == ("embedding", *(f"visual.blocks.{index}" for index in range(4)))
    assert (stage_norms(model, x, steps=2) > 0).all()
