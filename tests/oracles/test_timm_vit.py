"""VisionTransformer against timm's: the same logits from the same state dict, by its own names."""

import pytest
import timm
import torch
from torch.testing import assert_close

from antiphase.attention import SoftmaxAttention
from antiphase.models.vit import PRESETS, VisionTransformer, VitConfig, diffvit, vit

PLAIN = {"mean": (0.0,), "std": (1.0,)}


def _timm_vit(seed=0, **options):
    """Return timm's ViT-Tiny of the given size with every parameter drawn, the zeros and ones too."""
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **options).eval()
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.05 if parameter.ndim > 1 else 0.2, generator=stream)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    return model


def _images(count, channels, size, seed=1):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("size", "patch", "channels"), [(32, 16, 3), (28, 7, 1), (24, 8, 2)], ids=["rgb", "grey", "two"]
)
def test_timms_weights_give_timms_logits_and_input_gradients(size, patch, channels):
    peer = _timm_vit(img_size=size, patch_size=patch, in_chans=channels, depth=2, num_classes=7)
    ours = vit(
        size,
        patch_size=patch,
        in_channels=channels,
        dim=192,
        depth=2,
        num_heads=3,
        num_classes=7,
        mean=PLAIN["mean"] * channels,
        std=PLAIN["std"] * channels,
    )
    ours.load_state_dict(peer.state_dict())
    images = _images(3, channels, size).requires_grad_()
    logits, expected = ours(images), peer(images)
    assert logits.dtype == torch.float32
    assert expected.abs().max() > 0.5
    assert_close(logits, expected, rtol=0, atol=1e-5)
    weights = torch.randn(3, 7, generator=torch.Generator().manual_seed(2))
    grads = [torch.autograd.grad((out * weights).sum(), images)[0] for out in (logits, expected)]
    assert_close(*grads, rtol=0, atol=1e-5)


def test_normalisation_inside_equals_normalised_images_outside():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    peer = _timm_vit(img_size=32, depth=2, num_classes=7).double()
    ours = vit(32, patch_size=16, dim=192, depth=2, num_heads=3, num_classes=7, mean=mean, std=std).double()
    ours.load_state_dict(peer.state_dict())
    images = _images(3, 3, 32).double()
    outside = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert_close(ours(images), peer(outside), rtol=0, atol=1e-12)


def test_timms_diffvit_gives_the_same_logits_with_depth_scheduled_lambda():
    peer = _timm_vit(img_size=32, depth=3, num_classes=7, attn_layer="diff")
    ours = diffvit(
        32,
        patch_size=16,
        dim=192,
        depth=3,
        num_heads=6,
        num_classes=7,
        lambda_schedule="depth",
        mean=PLAIN["mean"] * 3,
        std=PLAIN["std"] * 3,
    )
    names = {name: name.replace("lambda_", "lam.").replace("sub_norm", "norm") for name in peer.state_dict()}
    ours.load_state_dict({names[name]: tensor for name, tensor in peer.state_dict().items()})
    images = _images(3, 3, 32)
    assert_close(ours(images), peer(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("vit_base_patch16_224", {}),
        ("vit_tiny_patch16_224", {"dim": 192, "num_heads": 3}),
        ("vit_small_patch32_224", {"dim": 384, "num_heads": 6, "patch_size": 32}),
    ],
)
def test_full_sized_models_have_timms_names_and_shapes(name, sizes):
    config = VitConfig(attention="softmax", image_size=224, **{**PRESETS[224], **sizes})
    with torch.device("meta"):
        peer = timm.create_model(name, pretrained=False)
        ours = VisionTransformer(
            lambda layer: SoftmaxAttention(config.dim, config.num_heads),
            image_size=224,
            patch_size=config.patch_size,
            in_channels=3,
            dim=config.dim,
            depth=config.depth,
            num_classes=config.num_classes,
        )
    own_shapes = {key: tensor.shape for key, tensor in ours.state_dict().items()}
    assert own_shapes == {key: tensor.shape for key, tensor in peer.state_dict().items()}
