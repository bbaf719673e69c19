"""Augmentations whose draws are keyed by (seed, epoch, sample): a resumed run sees the same images."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.streams import key, sample_keys, uniform

_SHIFT = 4  # pixels, the usual choice for 32-pixel images


def flip_crop(
    images: Float[Tensor, "batch channels height width"], ids: Int64[Tensor, " batch"], seed: int, epoch: int
) -> Float[Tensor, "batch channels height width"]:
    """Flip each image left to right with probability ½ and shift it by up to 4 pixels, zeros moving in."""
    draws = uniform(sample_keys(key(seed, "flip-crop", epoch), ids), 3)
    images = torch.where(draws[:, 0, None, None, None] < 0.5, images.flip(-1), images)
    padded = torch.nn.functional.pad(images, [_SHIFT] * 4)
    offsets = (draws[:, 1:] * (2 * _SHIFT + 1)).long()
    height, width = images.shape[-2:]
    rows = offsets[:, 0, None] + torch.arange(height)
    columns = offsets[:, 1, None] + torch.arange(width)
    batch = torch.arange(len(images))[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
