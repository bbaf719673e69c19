"""Objects in an image: their names and masks, from COCO's polygons and run lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float

Region = tuple[tuple[float, ...], ...] | tuple[int, ...]
"""Polygons, each x0, y0, x1, y1, …; or run lengths."""


@final
@dataclass(frozen=True)
class ImageObjects:
    """All objects of one name in an image of ``height`` × ``width`` pixels, and the regions that make them up."""

    name: str
    regions: tuple[Region, ...]
    height: int
    width: int

    def mask(self) -> Bool[np.ndarray, "height width"]:
        """Return the union of the regions."""
        size = (self.height, self.width)
        whole = np.zeros(size, bool)
        for region in self.regions:
            if region and isinstance(region[0], tuple):
                for points in region:
                    whole |= polygon_mask(np.array(points, float).reshape(-1, 2), *size)
            else:
                whole |= run_length_mask(region, *size)  # pyright: ignore[reportArgumentType]
        return whole


def polygon_mask(
    points: Float[np.ndarray, "corners 2"], height: int, width: int
) -> Bool[np.ndarray, "height width"]:
    """Return the pixels whose centre (column + ½, row + ½) lies in a polygon of corners (x, y), by the even–odd rule.

    COCO's own tools draw a polygon on a finer grid and differ by pixels on its border.

    >>> polygon_mask(np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 1.0], [1.0, 1.0]]), 2, 4).astype(int).tolist()
    [[0, 1, 1, 0], [0, 0, 0, 0]]
    """
    x, y = points.T
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    centres = np.arange(height)[:, None] + 0.5
    crossed = (y <= centres) != (next_y <= centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = x + (centres - y) / (next_y - y) * (next_x - x)
    # an edge that a row of centres crosses changes the side of every pixel to the right of the crossing
    right = crossed[:, None, :] & (crossing[:, None, :] <= np.arange(width)[:, None] + 0.5)
    return right.sum(-1) % 2 == 1


def run_length_mask(counts: Sequence[int], height: int, width: int) -> Bool[np.ndarray, "height width"]:
    """Return the mask of COCO's uncompressed run lengths: column by column, off and on in turn, beginning with off."""
    if sum(counts) != height * width or min(counts, default=0) < 0:
        raise ValueError(f"run lengths of {sum(counts)} pixels: expected {height * width}")
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def run_lengths(mask: Bool[np.ndarray, "height width"]) -> tuple[int, ...]:
    """Return the run lengths of a mask, as for :func:`run_length_mask`."""
    flat = mask.T.ravel()
    ends = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff(np.r_[0, ends, flat.size]).tolist()
    return tuple([0, *lengths] if flat[0] else lengths)


def region_of(segmentation: Any, height: int, width: int) -> Region:
    """Return the region of an annotation of COCO: polygons, or uncompressed run lengths of the image."""
    if isinstance(segmentation, dict):
        counts = segmentation["counts"]
        if not isinstance(counts, list) or segmentation["size"] != [height, width]:
            raise ValueError(f"run lengths: expected a list of numbers for an image of {height} × {width}")
        run_length_mask(counts, height, width)
        return tuple(counts)
    if any(len(points) < 6 or len(points) % 2 for points in segmentation):
        raise ValueError("a polygon: expected at least three corners, x and y in turn")
    return tuple(tuple(map(float, points)) for points in segmentation)
