"""Threshold-free measures of how well a map localises an object mask, with one value per image."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score

from antiphase.errors import UserError


def pointing_game(
    maps: Float[np.ndarray, "images rows columns"], masks: Sequence[Bool[np.ndarray, "height width"]]
) -> Bool[np.ndarray, " images"]:
    """Return whether the largest value of each map, enlarged to the size of its mask, lies in the mask.

    Ties go to the first pixel, row by row. There is no margin around the mask (the authors allow 15 pixels).

    Source: J. Zhang et al., *Top-down Neural Attention by Excitation Backprop*, ECCV 2016, Section 4.1.

    Args:
        maps: finite values of any sign.
        masks: True on the object, one per image, of any size; a map covers its whole mask.

    Raises:
        UserError: The numbers of masks and maps differ, or a mask is empty.
        ValueError: A map is not finite.
    """
    return np.array([mask.ravel()[values.argmax()] for values, mask in _pairs(maps, masks)], bool)


def mask_average_precision(
    maps: Float[np.ndarray, "images rows columns"], masks: Sequence[Bool[np.ndarray, "height width"]]
) -> Float[np.ndarray, " images"]:
    """Return the average precision of each map's values as scores for the pixels of the object, in (0, 1].

    AP = Σ_n (R_n − R_{n−1})·P_n over the values in descending order, with P_n and R_n the precision and recall of the
    pixels with at least the n-th value. A constant map has the object's share of the image.

    Source: H. Chefer, S. Gur, L. Wolf, *Transformer Interpretability Beyond Attention Visualization*, CVPR 2021,
    Section 4 (segmentation), which reports its mean.

    See :func:`pointing_game` for arguments and errors.
    """
    found = [average_precision_score(mask.ravel(), values) for values, mask in _pairs(maps, masks)]
    return np.array(found, float)


def enlarge(values: Float[np.ndarray, "rows columns"], height: int, width: int) -> np.ndarray:
    """Resize a map bilinearly, aligned at cell centres, with border values extended outwards.

    >>> enlarge(np.array([[0.0, 1.0]]), 1, 4).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    """
    grid = torch.from_numpy(np.array(values, np.float64))[None, None]
    return F.interpolate(grid, (height, width), mode="bilinear", align_corners=False)[0, 0].numpy()


def _pairs(
    maps: np.ndarray, masks: Sequence[np.ndarray]
) -> Iterator[tuple[Float[np.ndarray, " pixels"], Bool[np.ndarray, "height width"]]]:
    """Yield the values of each map at its mask's pixels, and the mask."""
    if len(maps) != len(masks):
        raise UserError(f"{len(masks)} masks for {len(maps)} maps: expected one each")
    for place, (values, mask) in enumerate(zip(maps, masks, strict=True)):
        if not mask.any():
            raise UserError(f"mask {place} is empty: expected at least one pixel on the object")
        if not np.isfinite(values).all():
            raise ValueError(f"map {place}: expected finite values")
        yield enlarge(values, *mask.shape).ravel(), mask
