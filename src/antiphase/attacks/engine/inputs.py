"""Validation of the arguments of an attack."""

import math

import torch
from torch import Tensor

from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

ALL_TARGETS = 9


def check_targets(targets: int | None, classes: int) -> None:
    """Check a number of target classes; AutoAttack's 9 stands for all other classes if there are fewer.

    Raises:
        UserError: The model has fewer other classes.
    """
    if targets and targets >= classes and targets != ALL_TARGETS:
        raise UserError(f"targets {targets}: expected at most {classes - 1}, the number of other classes")


def check_inputs(
    images: Tensor, labels: Tensor | None, threat: Threat, ids: Tensor, context: Tensor | None = None
) -> Tensor:
    """Check images, labels, ids and context; return the images, clipped where rounding took them beyond the bounds.

    Raises:
        UserError: A shape, type or value is not as :func:`~antiphase.attacks.engine.run.run_search` requires.
    """
    for name, given in (("images", images), ("labels", labels), ("ids", ids), ("context", context)):
        if given is not None and not isinstance(given, Tensor):
            raise UserError(f"{name} of type {type(given).__name__}: expected a torch tensor")
    if images.ndim < 2 or not len(images) or images.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"images of shape {tuple(images.shape)} and {images.dtype}: expected (samples, C, H, W) of float32 or "
            "float64"
        )
    low, high = float(images.detach().min()), float(images.detach().max())
    least, most = (
        bound - sign * threat.tolerance * max(1.0, abs(bound))
        for bound, sign in zip(threat.bounds, (1, -1), strict=True)
    )
    if not (least <= low and high <= most):  # also catches NaN
        raise UserError(
            f"images have values from {low:.8g} to {high:.8g}: expected {threat.bounds[0]:g} to {threat.bounds[1]:g}; "
            "scale them, and normalise inside the model"
        )
    if labels is not None and (labels.shape != (len(images),) or labels.is_floating_point()):
        raise UserError(
            f"labels of shape {tuple(labels.shape)} and {labels.dtype}: expected one integer per sample, "
            f"({len(images)},)"
        )
    if ids.shape != (len(images),) or ids.dtype != torch.int64:
        raise UserError(f"ids of shape {tuple(ids.shape)} and {ids.dtype}: expected one int64 per sample")
    if len(ids.unique()) < len(ids):
        raise UserError("duplicate ids: each sample needs its own, since its random draws are keyed by id")
    if context is not None and context.shape[:1] != (len(images),):
        raise UserError(
            f"context of shape {tuple(context.shape)}: expected one row per sample, ({len(images)}, …)"
        )
    inside = threat.bounds[0] <= low and high <= threat.bounds[1]
    return images.detach() if inside else images.detach().clamp(*threat.bounds)


def check_budgets(budgets: Tensor, count: int, threat: Threat) -> None:
    """Check the ε of each sample.

    Raises:
        UserError: There are not ``count`` of them, or one is below 0 or above the threat's.
    """
    if budgets.shape != (count,) or budgets.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"budgets of shape {tuple(budgets.shape)} and {budgets.dtype}: expected one ε per sample, ({count},), of "
            "float32 or float64"
        )
    if math.isinf(threat.eps):
        raise UserError("budgets with an infinite ε: expected a finite ε, at least as large as each budget")
    # float32 may round up; written so that NaN is outside
    outside = budgets[~((budgets >= 0) & (budgets.double() <= threat.eps * (1 + 1e-6)))]
    if len(outside):
        raise UserError(
            f"budgets {float(outside[0]):g}: expected at least 0 and at most the threat's ε, {threat.eps:g}"
        )
