"""Pixel normalisation inside the model, so that every ε is in units of the [0, 1] pixel range."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.errors import UserError


class Normalize(nn.Module):
    """Normalise images per channel: (x − mean) / std.

    Args:
        mean: one number per channel, in units of the [0, 1] pixel range.
        std: one positive number per channel, in the same units.
        bgr: whether the normalised channels are returned in reverse order, for a model of blue, green and red.

    Raises:
        UserError: if the lengths differ or a standard deviation is not positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], bgr: bool = False) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise UserError(
                f"mean {tuple(mean)} and std {tuple(std)}: expected one of each per channel, std above 0"
            )
        self.bgr = bgr
        # not in the state dict: checkpoints keep timm's names, and the recipe stores these values
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        normalised = (images - self.mean) / self.std
        return normalised.flip(-3) if self.bgr else normalised

    def extra_repr(self) -> str:
        """Tell the order of the channels, which is part of a model's fingerprint."""
        return "bgr" if self.bgr else ""


class Normalized(nn.Module):
    """Wrap a classifier of normalised images as a classifier of images in [0, 1].

    Args:
        model: maps normalised images to logits.
        mean: mean of each channel, in units of the [0, 1] pixel range.
        std: standard deviation of each channel, in the same units.
        bgr: whether the model takes blue, green and red.
    """

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], bgr: bool = False
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std, bgr)
        self.model = model

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.model(self.normalize(images))
