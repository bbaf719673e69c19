"""The one vision transformer: attention as a slot, its laws, and what it refuses."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.models.vit import VisionTransformer, initialise

SIZES = {"image_size": 6, "patch_size": 2, "in_channels": 2, "dim": 12, "depth": 3, "num_classes": 5}


def _build(attention, **changes):
    model = VisionTransformer(attention, **{**SIZES, **changes})
    initialise(model, seed=0)
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # away from the small weights of the start
            parameter.add_(torch.randn(parameter.shape, generator=stream) * 0.2)
    return model.double().eval()


def _standard(layer):
    return SoftmaxAttention(12, 4)


def _differential(layer):
    return DifferentialAttention(12, 4)


@pytest.fixture(params=[_standard, _differential], ids=["standard", "differential"])
def model(request):
    return _build(request.param)


def _images(count, seed=0):
    return torch.rand(count, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_slot_is_filled_once_a_layer_with_what_the_factory_makes():
    layers = []

    class Nothing(nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

    def factory(layer):
        layers.append(layer)
        return Nothing()

    model = _build(factory)
    assert layers == [0, 1, 2]
    assert [type(block.attn) for block in model.blocks] == [Nothing] * 3
    assert model(_images(2)).shape == (2, 5)


def test_without_attention_the_class_token_sees_no_pixel(model):
    assert (model(_images(1)) - model(_images(1, seed=1))).abs().max() > 1e-3
    for block in model.blocks:
        block.attn = nn.Identity()
    assert_close(model(_images(1)), model(_images(1, seed=1)), rtol=0, atol=0)


def test_tokens_are_the_class_token_then_the_patches_row_by_row(model):
    images = _images(3)
    tokens = model.tokens(images)
    assert tokens.shape == (3, 10, 12)
    assert_close(tokens[:, 0], (model.cls_token + model.pos_embed[:, :1])[:, 0].expand(3, -1))
    weight, bias = model.patch_embed.proj.weight, model.patch_embed.proj.bias
    for place in range(9):
        top, left = 2 * (place // 3), 2 * (place % 3)
        patch = (images[:, :, top : top + 2, left : left + 2] - 0.5) / 0.5
        expected = torch.einsum("bchw,dchw->bd", patch, weight) + bias + model.pos_embed[0, 1 + place]
        assert_close(tokens[:, 1 + place], expected)


def test_samples_do_not_see_each_other_and_a_permutation_permutes(model):
    images = _images(5)
    logits = model(images)
    order = torch.tensor([4, 2, 0, 3, 1])
    assert_close(model(images[order]), logits[order], rtol=0, atol=1e-12)
    assert_close(model(images[2:3]), logits[2:3], rtol=0, atol=1e-12)


def test_moving_patches_and_positions_together_changes_nothing(model):
    images = _images(2)
    logits = model(images)
    order = torch.tensor([3, 8, 1, 0, 6, 5, 7, 2, 4])
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2).reshape(2, 2, 9, 2, 2)[:, :, order]
    moved = patches.reshape(2, 2, 3, 3, 2, 2).transpose(3, 4).reshape(2, 2, 6, 6)
    with torch.no_grad():
        model.pos_embed[:, 1:] = model.pos_embed[:, 1:][:, order]
    assert_close(model(moved), logits, rtol=0, atol=1e-12)


def test_gradients_reach_the_images_and_every_parameter(model):
    images = _images(3).requires_grad_()
    model(images).square().sum().backward()
    assert (images.grad != 0).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_normalisation_is_one_half_where_none_is_given_and_is_no_part_of_the_state(model):
    assert_close(model.normalize(_images(1)), 2 * _images(1) - 1)
    assert not [name for name in model.state_dict() if "mean" in name or "std" in name]


@pytest.mark.parametrize("shape", [(2, 6, 6), (1, 3, 6, 6), (1, 2, 6, 8), (1, 2, 8, 8), (1, 2, 36)])
def test_images_of_another_shape_are_refused(model, shape):
    with pytest.raises(ValueError, match=r"images of shape .*: this model takes \(batch, \*\(2, 6, 6\)\)"):
        model(torch.rand(shape, dtype=torch.float64))


@pytest.mark.parametrize("patch_size", [-2, 0, 4, 5])
def test_patches_that_do_not_tile_the_image_are_refused(patch_size):
    with pytest.raises(ValueError, match=f"patch_size {patch_size} does not divide image_size 6"):
        _build(_standard, patch_size=patch_size)


@pytest.mark.parametrize("changes", [{"mean": (0.5,), "std": (0.5,)}, {"mean": [0.1, 0.2, 0.3]}], ids=str)
def test_a_mean_that_does_not_match_the_channels_is_refused(changes):
    with pytest.raises(ValueError, match="expected one number for each of 2 channels"):
        _build(_standard, **changes)


def test_autocast_does_not_round_the_logits():
    model = _build(_differential).float()
    images = torch.rand(16, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits, features = model(images), model.features(images)
    assert logits.dtype == features.dtype == torch.float32
    assert (logits != logits.bfloat16()).float().mean() > 0.9
    with torch.no_grad():
        assert torch.equal(logits, model.head(features))


@pytest.mark.parametrize("training", [False, True])
def test_under_autocast_only_training_keeps_the_residual_stream_in_float32(training):
    model = _build(_differential).float().train(training)
    images = _images(16).float().requires_grad_()
    exact = model(images)
    entered = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: entered.append(args[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(images)
    assert entered == [torch.float32 if training else torch.bfloat16] * 3
    (slope,), (rounded,) = (torch.autograd.grad(out.sum(), images) for out in (exact, logits))
    assert rounded.dtype == torch.float32
    for one, other in ((exact, logits), (slope, rounded)):
        assert (one - other).norm() < 0.03 * one.norm()
