"""From pixels to the model's own units, inside the model, so that every ε is in units of the [0, 1] pixel."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Normalize(nn.Module):
    """(x − mean) / std for each channel.

    Args:
        mean: one number a channel, in units of the [0, 1] pixel.
        std: one positive number a channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(
                f"mean {tuple(mean)} and std {tuple(std)}: expected one of each a channel, std above 0"
            )
        # not in the state dict: a checkpoint keeps timm's names, and the recipe beside it holds these
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Return the normalised images."""
        return (images - self.mean) / self.std


class Normalized(nn.Module):
    """A foreign model that takes normalised images, as a classifier of images in [0, 1].

    Args:
        model: from normalised images to logits.
        mean: one number a channel.
        std: one number a channel.
    """

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.model = model

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits."""
        return self.model(self.normalize(images))
