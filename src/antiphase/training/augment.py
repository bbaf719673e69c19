"""Augmentations keyed by (seed, epoch, sample), so that a resumed run sees the same images."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from torch import Tensor

from antiphase.streams import key, sample_keys, uniform

_SHIFT = 4  # pixels, the usual choice for 32-pixel images


def flip_crop(
    images: Float[Tensor, "batch channels height width"], ids: Int64[Tensor, " batch"], seed: int, epoch: int
) -> Float[Tensor, "batch channels height width"]:
    """Flip each image left to right with probability ½ and shift it by up to 4 pixels, with zero padding."""
    draws = uniform(sample_keys(key(seed, "flip-crop", epoch), ids), 3)
    images = torch.where(draws[:, 0, None, None, None] < 0.5, images.flip(-1), images)
    padded = torch.nn.functional.pad(images, [_SHIFT] * 4)
    offsets = (draws[:, 1:] * (2 * _SHIFT + 1)).long()
    height, width = images.shape[-2:]
    rows = offsets[:, 0, None] + torch.arange(height)
    columns = offsets[:, 1, None] + torch.arange(width)
    batch = torch.arange(len(images))[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_crops(
    images: Sequence[UInt8[Tensor, "3 height width"]],
    keys: Int64[Tensor, " batch"],
    size: int,
    scale: tuple[float, float],
) -> UInt8[Tensor, "batch 3 size size"]:
    """Crop a random part of each image and resize it to a square, bilinearly with antialiasing.

    Like torchvision's RandomResizedCrop, with an area of ``scale`` times the image's and an aspect ratio between 3/4
    and 4/3, but pixels just outside the crop contribute to its border.
    """
    draws = uniform(keys, 2 * _TRIES + 2).double()
    crops = []
    for image, own in zip(images, draws, strict=True):
        height, width = image.shape[1:]
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        box = _crop_box(height, width, own, scale)
        square = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
        crops.append(torch.from_numpy(np.array(square)))
    return torch.stack(crops).permute(0, 3, 1, 2)


_TRIES = 10


def _crop_box(
    height: int, width: int, draws: Float[Tensor, " numbers"], scale: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a random crop."""
    log_ratio = math.log(4.0 / 3.0)
    for area_draw, ratio_draw in draws[:-2].view(-1, 2).tolist():
        area = height * width * (scale[0] + (scale[1] - scale[0]) * area_draw)
        ratio = math.exp(log_ratio * (2.0 * ratio_draw - 1.0))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = (
                int(d * n) for d, n in zip(draws[-2:].tolist(), (width - w + 1, height - h + 1), strict=True)
            )
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
