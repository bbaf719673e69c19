"""One vision transformer with attention as a slot: ViT and DiffViT of any size, and how their weights start."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from pydantic import BaseModel, Field, PositiveFloat, ValidationError
from torch import Tensor, nn

from antiphase.arguments import Count, Positive, Seed, at_least, validated
from antiphase.errors import UserError, invalid, one_line
from antiphase.models import preprocessing, transformer
from antiphase.models.transformer import Activation, AttentionFactory, Block, Size, TowerConfig
from antiphase.streams import generator

InitialWeights = Literal["uniform", "normal"]
Kept = Int64[Tensor, "batch kept"] | None  # indices of the patches that the blocks see; None: all
_SIZES = "image_size patch_size in_channels dim depth num_classes mlp_ratio norm_eps mean std activation pre_norm"
PRESETS: dict[int, dict[str, int]] = {int(side): sizes for side, sizes in transformer.PRESETS_OF["vit"].items()}


class PatchEmbed(nn.Module):
    """Split the image into square patches and project each to a token by one matrix product (dev/models.md)."""

    def __init__(self, in_channels: int, patch_size: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch_size, patch_size)

    def forward(self, images: preprocessing.Images) -> Float[Tensor, "batch patches dim"]:
        size = self.proj.kernel_size[0]
        squares = images.unflatten(3, (-1, size)).unflatten(2, (-1, size)).permute(0, 2, 4, 1, 3, 5)
        return F.linear(squares.flatten(3).flatten(1, 2), self.proj.weight.flatten(1), self.proj.bias)


class VisionTransformer(nn.Module):
    """A classifier of images in [0, 1]: patches, class token, learned positions, blocks, linear head.

    Source: A. Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021. Parameter names and shapes are those of
    timm's ``VisionTransformer``, so its state dicts load as they are. ``attention(layer_index)`` is that of a layer,
    from ``(batch, tokens, dim)`` to the same shape; ``num_classes=0`` leaves the head out; images are normalised by
    ``mean`` and ``std``, 0.5 by default; with ``pre_norm`` a layer norm precedes the blocks, as in CLIP.
    """

    pos_embed: Tensor

    @validated
    def __init__(
        self,
        attention: AttentionFactory,
        *,
        image_size: Count,
        patch_size: int,
        in_channels: Count,
        dim: Count,
        depth: Count,
        num_classes: Annotated[int, at_least(0)],
        mlp_ratio: Positive = 4.0,
        norm_eps: Positive = 1e-6,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        activation: Activation = "gelu",
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size % patch_size:
            raise UserError(f"patch_size {patch_size} does not divide image_size {image_size}")
        self.image_shape = (in_channels, image_size, image_size)
        self.num_classes = num_classes
        self.config: BaseModel | None = None  # what the factories built it from
        mean, std = ([0.5] * in_channels if values is None else values for values in (mean, std))
        if len(mean) != in_channels:
            raise UserError(f"mean {tuple(mean)}: expected one number for each of {in_channels} channels")
        self.normalize = preprocessing.Normalize(mean, std)
        self.patch_embed = PatchEmbed(in_channels, patch_size, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (image_size // patch_size) ** 2, dim))
        self.norm_pre = nn.LayerNorm(dim, eps=norm_eps) if pre_norm else None
        self.checkpointing = False  # computes each block again in the backward pass: slower, smaller
        self.blocks = nn.ModuleList(
            Block(dim, attention(layer), mlp_ratio, transformer.ACTIVATIONS[activation](), norm_eps)
            for layer in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def tokens(self, images: preprocessing.Images) -> Float[Tensor, "batch tokens dim"]:
        """Return the embedded tokens that enter the first block, the class token first."""
        if images.ndim != 4 or images.shape[1:] != self.image_shape:
            raise UserError(f"images of shape {tuple(images.shape)}: this model takes (batch, *{self.image_shape})")
        patches = self.patch_embed(self.normalize(images))
        x = torch.cat([self.cls_token.expand(len(images), -1, -1).to(patches.dtype), patches], 1) + self.pos_embed
        return x if self.norm_pre is None else self.norm_pre(x)

    def features(self, images: preprocessing.Images, keep: Kept = None) -> Float[Tensor, "batch dim"]:
        """Return the class token after the last norm; blocks see the patches ``keep`` (Li et al., FLIP, CVPR 2023)."""
        x = self.tokens(images)
        if keep is not None:
            kept = x[:, 1:].gather(1, keep[:, :, None].expand(-1, -1, x.shape[-1]))
            x = torch.cat([x[:, :1], kept], 1)
        device = x.device.type
        # no sum mixes two types (dev/low-precision.md)
        if torch.is_autocast_enabled(device) and not self.training:
            x = x.to(torch.get_autocast_dtype(device))
        x = transformer.first_token(self.blocks, x, checkpointing=self.checkpointing)
        return self.norm(x.to(self.norm.weight.dtype))

    def forward(self, images: preprocessing.Images, keep: Kept = None) -> Float[Tensor, "batch classes"]:
        """Return the logits of images in [0, 1]; ``keep`` as in :meth:`features`."""
        features = self.features(images, keep)
        # bf16 would round logits to steps of 1/64 to 1/16, wider than most of what an attack changes at once
        with torch.autocast(features.device.type, enabled=False):
            return self.head(features)


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
    activation: Activation = "gelu"
    pre_norm: bool = False


@validated
def vit(image_size: Count = 28, *, seed: Seed = 0, **sizes: Any) -> VisionTransformer:
    """Build a ViT with standard attention; sizes that are not given come from the image size's preset.

    Presets are for ``image_size`` 8, 28, 32, 64 and 224 pixels; ``sizes`` are ``patch_size, in_channels, dim, depth,
    num_heads, num_classes`` and the other fields of :class:`VitConfig`.
    """
    return build(configure("softmax", image_size, sizes), seed)


@validated
def diffvit(image_size: Count = 28, *, seed: Seed = 0, **sizes: Any) -> VisionTransformer:
    """Build a DiffViT: the same class as :func:`vit` with differential attention in the slot.

    ``sizes`` also take ``variant`` (``"v1"``, ``"v2"``, ``"grouped"``, ``"gated"`` or ``"dint"``), ``lambda_init``
    (0.8), ``lambda_schedule`` (``"constant"`` or ``"depth"``), and ``parameterisation``, ``head_norm``, ``rescale``,
    ``bias``, ``lambda_max``, ``temperature``, ``ratio``, ``kv_heads`` and ``output_gate`` of
    :class:`~antiphase.attention.DifferentialAttention`.

    >>> diffvit(28, variant="v2").blocks[0].attn.num_diff_heads
    6
    """
    return build(configure("differential", image_size, sizes), seed)


def configure(attention: str, image_size: int, sizes: dict[str, Any]) -> VitConfig:
    """Return a validated configuration; sizes that are not given come from the image size's preset."""
    if "attention" in sizes:
        raise UserError(f"attention {sizes['attention']!r}: not an option here; call vit or diffvit")
    sizes = dict(sizes)
    attention = transformer.attention_named(attention, sizes.pop("variant", None))
    values = {"attention": attention, "image_size": image_size, **PRESETS.get(image_size, {}), **sizes}
    try:
        return VitConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{invalid(error)} (presets exist for image sizes {', '.join(map(str, PRESETS))})") from None


@validated
def build(config: VitConfig, seed: Seed = 0) -> VisionTransformer:
    """Build the model that a configuration describes, with weights drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):  # construction draws weights that `initialise` draws again
        model = build_vision(config)
    initialise(model, seed, config.initial_weights)
    model.config = config
    return model


def build_vision(config: VitConfig) -> VisionTransformer:
    """Build the model with whatever weights construction draws."""
    patches = (config.image_size // config.patch_size) ** 2
    transformer.check_memory(config, patches + config.patch_size**2 * config.in_channels + config.num_classes)
    try:
        return VisionTransformer(transformer.attention_slot(config), **config.model_dump(include=set(_SIZES.split())))
    except (ValueError, TypeError, RuntimeError) as error:  # the latter two for sizes beyond torch's
        raise UserError(one_line(error)) from None


def initialise(model: nn.Module, seed: int, scheme: InitialWeights = "uniform") -> None:
    """Draw a vision transformer's weights anew, each parameter from a stream of its own, so that twins start alike.

    Matrices of the blocks and patches are uniform within ±1/√fan_in (blocks N(0, 0.02) cut at two standard deviations
    if ``scheme="normal"``), positions and head N(0, 0.02) cut so, biases 0, norms 1; see dev/models.md.
    """

    def draw(name: str, parameter: Tensor, stream: torch.Generator) -> None:
        if parameter.ndim == 1:
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        elif name.startswith("patch_embed.") or (name.startswith("blocks.") and scheme == "uniform"):
            draw_uniform(parameter, parameter, stream)
        else:
            std = 1e-6 if name == "cls_token" else 0.02
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std, generator=stream)

    draw_own(model, seed, draw)


def draw_uniform(parameter: Tensor, weight: Tensor, stream: torch.Generator) -> None:
    """Draw uniformly within ±1/√fan_in of a layer's weight, as PyTorch's linear and convolutional layers do."""
    bound = weight[0].numel() ** -0.5
    parameter.uniform_(-bound, bound, generator=stream)


@torch.no_grad()
def draw_own(model: nn.Module, seed: int, draw: Callable[[str, Tensor, torch.Generator], None]) -> None:
    """Draw a model's parameters, those by ``draw`` that no module draws by ``draw_parameters(stream)``."""
    drawn: set[str] = set()
    for path, module in model.named_modules():
        if hasattr(type(module), "draw_parameters"):
            prefix = f"{path}." if path else ""
            layer: Any = module
            layer.draw_parameters(lambda name, prefix=prefix: generator(seed, "initialise", prefix + name))
            drawn |= {prefix + name for name, _ in module.named_parameters()}
    for name, parameter in model.named_parameters():
        if name in drawn:
            continue
        if "lam" in name.split("."):
            kind = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise TypeError(f"{name}: {kind} does not draw its parameters; give it draw_parameters(stream)")
        draw(name, parameter, generator(seed, "initialise", name))
