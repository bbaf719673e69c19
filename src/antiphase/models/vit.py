"""One vision transformer; what attends is a slot."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from pydantic import BaseModel
from torch import Tensor, nn

from antiphase.models.normalize import Normalize
from antiphase.streams import generator

AttentionFactory = Callable[[int], nn.Module]


class Mlp(nn.Module):
    """Linear, GELU, linear; timm's parameter names."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the transformed tokens."""
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm1(x)), then x + mlp(norm2(x))."""

    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens after the block."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    """Split the image into square patches and project each to a token."""

    def __init__(self, in_channels: int, patch_size: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch_size, patch_size)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch patches dim"]:
        """Return one token a patch, row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """A classifier of images in [0, 1]: patches, class token, learned positions, blocks, linear head.

    Source: A. Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021. Parameter names and shapes
    are those of timm's ``VisionTransformer`` (class-token pooling), so its state dicts load as they are.

    Args:
        attention: ``attention(layer_index)`` gives the attention module of a layer, which maps
            ``(batch, tokens, dim)`` to the same shape.
        image_size: height and width of the images in pixels.
        patch_size: side of a patch; divides ``image_size``.
        in_channels: channels of the images.
        dim: width of the tokens.
        depth: number of blocks.
        num_classes: number of logits.
        mlp_ratio: hidden width of the MLP over ``dim``.
        mean: subtracted from the images, one number a channel (0.5 where not given).
        std: what they are divided by after that, one number a channel (0.5 where not given).

    Raises:
        ValueError: if the patches do not tile the image, or ``mean`` and ``std`` are not one a channel.
    """

    pos_embed: Tensor

    def __init__(
        self,
        attention: AttentionFactory,
        *,
        image_size: int,
        patch_size: int,
        in_channels: int,
        dim: int,
        depth: int,
        num_classes: int,
        mlp_ratio: float = 4.0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size % patch_size:
            raise ValueError(f"patch_size {patch_size} does not divide image_size {image_size}")
        self.image_shape = (in_channels, image_size, image_size)
        self.num_classes = num_classes
        self.config: BaseModel | None = None  # what the factories built it from
        mean, std = mean or [0.5] * in_channels, std or [0.5] * in_channels
        if len(mean) != in_channels:
            raise ValueError(f"mean {tuple(mean)}: expected one number for each of {in_channels} channels")
        self.normalize = Normalize(mean, std)
        self.patch_embed = PatchEmbed(in_channels, patch_size, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (image_size // patch_size) ** 2, dim))
        self.blocks = nn.ModuleList(Block(dim, attention(layer), mlp_ratio) for layer in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)

    def tokens(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the embedded tokens that enter the first block, the class token first.

        Raises:
            ValueError: if the images have another shape than the model's.
        """
        if images.ndim != 4 or images.shape[1:] != self.image_shape:
            raise ValueError(
                f"images of shape {tuple(images.shape)}: this model takes (batch, *{self.image_shape})"
            )
        patches = self.patch_embed(self.normalize(images))
        cls = self.cls_token.expand(len(images), -1, -1)
        return torch.cat([cls.to(patches.dtype), patches], 1) + self.pos_embed

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of images in [0, 1]."""
        x = self.tokens(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def initialise(model: nn.Module, seed: int) -> None:
    """Draw a vision transformer's weights anew.

    Matrices of the blocks and the patch projection are uniform within ±1/√fan_in (PyTorch's default, which
    the released DiffCLIP keeps and timm keeps for the patches), positions and head N(0, 0.02) cut at two
    standard deviations, biases 0, norms 1, λ vectors N(0, 0.1), λ scalars 0. The rule is the same for
    standard and differential attention, and each parameter has a stream of its own, so the two twins of a
    seed start from equal projections. How large the patches start matters to robustness: see dev/LOG.md.

    Args:
        model: a model with this package's parameter names.
        seed: any integer.
    """
    for name, parameter in model.named_parameters():
        stream = generator(seed, "initialise", name)
        with torch.no_grad():
            if "lam" in name.split("."):
                scalar = name.endswith((".a", ".b"))
                parameter.zero_() if scalar else parameter.normal_(0.0, 0.1, generator=stream)
            elif parameter.ndim == 1:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            elif name.startswith(("blocks.", "patch_embed.")):
                bound = parameter[0].numel() ** -0.5
                parameter.uniform_(-bound, bound, generator=stream)
            else:
                std = 1e-6 if name == "cls_token" else 0.02
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std, generator=stream)
