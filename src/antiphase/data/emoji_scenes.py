"""Two held-out emoji on a white square, with their masks: a substitute for photographs with several objects."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, UInt8
from scipy import ndimage
from torch import Tensor

from antiphase.data.objects import ImageObjects, run_lengths
from antiphase.data.openmoji import SIZE, concept_of, openmoji_pairs
from antiphase.data.pairs import ArrayPairs
from antiphase.streams import generator

NAME = "emoji-scenes"
_HALF = SIZE // 2


def emoji_scenes(split: str, root: Path | None = None, progress: bool = True) -> ArrayPairs:
    """Return OpenMoji's drawings in pairs, each at half its size in opposite corners of a square of 64 × 64 pixels.

    Each concept of the split occurs once, by its first emoji, next to another; the order is a fixed permutation. The
    captions are the names of the two emoji, and ``objects`` holds their masks.

    Args:
        split: ``"train"`` or ``"test"``, as of OpenMoji.
        root: data folder, where the rendered set is cached.
        progress: show a progress bar on stderr during rendering.

    Raises:
        UserError: if a package is missing, or the split does not exist.
    """
    single = openmoji_pairs(split, root, progress)
    first: dict[str, int] = {}
    for row, several in enumerate(single.captions):
        first.setdefault(concept_of(several[0]), row)
    rows = torch.tensor(list(first.values()))
    rows = rows[torch.randperm(len(rows), generator=generator(0, NAME))]
    scenes = rows[: len(rows) // 2 * 2].reshape(-1, 2).tolist()
    captions = tuple(tuple(single.captions[row][0] for row in two) for two in scenes)
    drawn = [_scene([single.pixels(row) for row in two], odd=at % 2 == 1) for at, two in enumerate(scenes)]
    masks = [
        [ImageObjects(name, (run_lengths(mask),), SIZE, SIZE) for name, mask in zip(names, own, strict=True)]
        for names, (_, own) in zip(captions, drawn, strict=True)
    ]
    return replace(
        single,
        name=NAME,
        ids=torch.arange(len(scenes)),
        captions=captions,
        labels=None,
        class_names=(),
        prompts=None,
        array=torch.stack([image for image, _ in drawn]),
        objects=tuple(map(tuple, masks)),
    )


def on_white(pixels: UInt8[Tensor, "3 height width"]) -> Bool[np.ndarray, "height width"]:
    """Return what is not white in a drawing, including its holes."""
    drawn = ndimage.binary_fill_holes((pixels < 255).any(0).numpy())
    assert drawn is not None
    return drawn


def _scene(
    two: list[UInt8[Tensor, "3 64 64"]], odd: bool
) -> tuple[UInt8[Tensor, "3 64 64"], list[Bool[np.ndarray, "64 64"]]]:
    """Return the square and the masks of the two; ``odd`` puts the first into the upper right corner."""
    image = torch.full((3, SIZE, SIZE), 255, dtype=torch.uint8)
    masks = []
    for top, drawing in zip((0, _HALF), two, strict=True):
        left = _HALF - top if odd else top
        small = F.avg_pool2d(drawing.float(), 2).round().to(torch.uint8)
        image[:, top : top + _HALF, left : left + _HALF] = small
        mask = np.zeros((SIZE, SIZE), bool)
        mask[top : top + _HALF, left : left + _HALF] = on_white(small)
        masks.append(mask)
    return image, masks
