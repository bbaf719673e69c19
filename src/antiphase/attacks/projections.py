"""Projection onto the ε-ball, steepest directions and random points, with one ε per row."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.attacks.engine.rows import per_row
from antiphase.attacks.threat import Norm, row_norm
from antiphase.streams import normal, uniform


def project(
    x: Float[Tensor, "batch *shape"],
    clean: Float[Tensor, "batch *shape"],
    eps: Float[Tensor, " batch"],
    norm: Norm,
    bounds: tuple[float, float],
) -> Float[Tensor, "batch *shape"]:
    """Project onto the ε-ball, then clip to the bounds.

    For linf this is the nearest point of the intersection. Clipping to bounds that contain the clean image never
    increases the norm of the change.
    """
    eps = per_row(eps, x)
    if norm == "linf":
        return torch.minimum(torch.maximum(x, clean - eps), clean + eps).clamp(*bounds)
    delta = x - clean
    length = per_row(row_norm(delta, "l2"), x)
    return (clean + delta * (eps / length.clamp_min(1e-12)).clamp(max=1.0)).clamp(*bounds)


def steepest(gradient: Float[Tensor, "batch *shape"], norm: Norm) -> Float[Tensor, "batch *shape"]:
    """Return the direction of unit norm that raises the loss fastest: the sign (linf) or g/‖g‖₂ (l2)."""
    if norm == "linf":
        return gradient.sign()
    return gradient / per_row(row_norm(gradient, "l2"), gradient).clamp_min(1e-12)


def random_point(
    clean: Float[Tensor, "batch *shape"],
    eps: Float[Tensor, " batch"],
    norm: Norm,
    bounds: tuple[float, float],
    keys: Int64[Tensor, " batch"],
) -> Float[Tensor, "batch *shape"]:
    """Return a point drawn uniformly from each row's ε-ball, clipped to the bounds.

    Args:
        clean: centres.
        eps: radii.
        norm: norm of the ball.
        bounds: smallest and largest pixel value.
        keys: one random stream per row (see :mod:`antiphase.streams`).
    """
    size = clean[0].numel()
    if norm == "linf":
        delta = 2.0 * uniform(keys, size) - 1.0
    else:
        delta = normal(keys, size)
        # in float64: the last bit of torch's powers depends on the position in the tensor
        radius = (uniform(keys, 1, offset=size).double() ** (1.0 / size)).float()
        delta = delta / row_norm(delta, "l2")[:, None] * radius
    x = clean + delta.to(clean.dtype).view_as(clean) * per_row(eps, clean)
    return project(x, clean, eps, norm, bounds)
