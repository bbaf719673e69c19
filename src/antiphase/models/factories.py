"""ViT and DiffViT of any size, and the sizes that go with the usual image sizes."""

from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat, SerializerFunctionWrapHandler, ValidationError, model_serializer

from antiphase.arguments import Count, Seed, validated
from antiphase.errors import UserError, invalid, one_line
from antiphase.models.towers import Size, TowerConfig, attention_slot, check_memory
from antiphase.models.vit import InitialWeights, VisionTransformer, initialise


class VitConfig(TowerConfig):
    """All that is needed to build a vision transformer again; stored next to its weights."""

    image_size: Size
    patch_size: Size
    in_channels: Size
    num_classes: Annotated[int, Field(ge=0, le=2**31 - 1)]
    norm_eps: PositiveFloat = 1e-6
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    initial_weights: InitialWeights = "uniform"

    @model_serializer(mode="wrap")
    def _leave_out_the_usual_weights(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # keeps the identity of recipes written before there was another scheme
        fields = dump(self)
        if self.initial_weights == "uniform":
            fields.pop("initial_weights", None)
        return fields


# 8: digits, 28: Fashion-MNIST, 32: CIFAR, 64: Tiny ImageNet and openmoji, 224: ImageNet (ViT-B/16).
# The robustness paper takes timm's architecture at depths 1 to 12 and names no width (Appendix C.1):
# 32 pixels get ViT-Tiny's, with patches of 4.
PRESETS: dict[int, dict[str, int]] = {
    8: {"patch_size": 2, "in_channels": 1, "dim": 64, "depth": 1, "num_heads": 4, "num_classes": 10},
    28: {"patch_size": 4, "in_channels": 1, "dim": 192, "depth": 1, "num_heads": 6, "num_classes": 10},
    32: {"patch_size": 4, "in_channels": 3, "dim": 192, "depth": 1, "num_heads": 6, "num_classes": 10},
    64: {"patch_size": 8, "in_channels": 3, "dim": 192, "depth": 4, "num_heads": 6, "num_classes": 200},
    224: {"patch_size": 16, "in_channels": 3, "dim": 768, "depth": 12, "num_heads": 12, "num_classes": 1000},
}


@validated
def build(config: VitConfig, seed: Seed = 0) -> VisionTransformer:
    """Build the model that a configuration describes, with weights drawn from ``seed``.

    Raises:
        UserError: for sizes that do not fit together.
    """
    with torch.random.fork_rng(devices=[]):  # construction draws weights that `initialise` draws again
        model = build_vision(config)
    initialise(model, seed, config.initial_weights)
    model.config = config
    return model


def build_vision(config: VitConfig) -> VisionTransformer:
    """Build the model with whatever weights construction draws.

    Raises:
        UserError: for sizes that do not fit together, or do not fit the memory.
    """
    patches = (config.image_size // config.patch_size) ** 2
    check_memory(config, patches + config.patch_size**2 * config.in_channels + config.num_classes)
    try:
        return VisionTransformer(
            attention_slot(config),
            image_size=config.image_size,
            patch_size=config.patch_size,
            in_channels=config.in_channels,
            dim=config.dim,
            depth=config.depth,
            num_classes=config.num_classes,
            mlp_ratio=config.mlp_ratio,
            norm_eps=config.norm_eps,
            mean=config.mean,
            std=config.std,
        )
    except (ValueError, TypeError, RuntimeError) as error:  # the latter two for sizes beyond torch's
        raise UserError(one_line(error)) from None


@validated
def vit(image_size: Count = 28, *, seed: Seed = 0, **sizes: Any) -> VisionTransformer:
    """Build a ViT with standard attention; sizes that are not given come from the image size's preset.

    Args:
        image_size: height and width in pixels; 8, 28, 32, 64 and 224 have presets.
        seed: of the initial weights.
        **sizes: ``patch_size, in_channels, dim, depth, num_heads, num_classes`` and the other fields of
            :class:`VitConfig`.

    Raises:
        UserError: for an unknown or missing size, or sizes that do not fit together.
    """
    return build(configure("softmax", image_size, sizes), seed)


@validated
def diffvit(image_size: Count = 28, *, seed: Seed = 0, **sizes: Any) -> VisionTransformer:
    """Build a DiffViT: the same class with differential attention in the slot.

    Args:
        image_size: height and width in pixels; 8, 28, 32, 64 and 224 have presets.
        seed: of the initial weights.
        **sizes: as in :func:`vit`; also ``lambda_init`` (0.8), ``lambda_schedule`` (``"constant"`` or
            ``"depth"``), ``parameterisation``, ``head_norm`` and ``rescale`` of
            :class:`~antiphase.attention.DifferentialAttention`.

    Raises:
        UserError: for an unknown or missing size, or sizes that do not fit together.
    """
    return build(configure("differential", image_size, sizes), seed)


def configure(attention: str, image_size: int, sizes: dict[str, Any]) -> VitConfig:
    """Return a validated configuration; sizes that are not given come from the image size's preset.

    Raises:
        UserError: naming the first field that is unknown, missing or out of range.
    """
    if "attention" in sizes:
        raise UserError(f"attention {sizes['attention']!r}: not an option here; call vit or diffvit")
    values = {"attention": attention, "image_size": image_size, **PRESETS.get(image_size, {}), **sizes}
    try:
        return VitConfig.model_validate(values)
    except ValidationError as error:
        presets = ", ".join(map(str, PRESETS))
        raise UserError(f"{invalid(error)} (presets exist for image sizes {presets})") from None
