"""Threshold-free measures of how well a map localises an object mask."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score

from antiphase.errors import UserError


def localise(values: Float[np.ndarray, "rows columns"], mask: Bool[np.ndarray, "height width"]) -> tuple[bool, float]:
    """Return pointing game and average precision of a map, enlarged to the size of its mask.

    The *pointing game* is whether the largest value (of equal ones, the first) lies in the mask, without the authors'
    margin of 15 pixels. *Average precision*, in (0, 1], is that of the values as scores for the object's pixels.

    Sources: J. Zhang et al., *Top-down Neural Attention by Excitation Backprop*, ECCV 2016, Section 4.1; H. Chefer, S.
    Gur, L. Wolf, *Transformer Interpretability Beyond Attention Visualization*, CVPR 2021, Section 4.
    """
    if not mask.any():
        raise UserError("empty mask: expected at least one pixel on the object")
    if not np.isfinite(values).all():
        raise ValueError("map: expected finite values")
    pixels = enlarge(values, *mask.shape).ravel()
    return bool(mask.ravel()[pixels.argmax()]), float(average_precision_score(mask.ravel(), pixels))


def enlarge(values: Float[np.ndarray, "rows columns"], height: int, width: int) -> np.ndarray:
    """Resize a map bilinearly, aligned at cell centres, with border values extended outwards."""
    grid = torch.from_numpy(np.array(values, np.float64))[None, None]
    return F.interpolate(grid, (height, width), mode="bilinear", align_corners=False)[0, 0].numpy()
