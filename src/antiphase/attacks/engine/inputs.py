"""What an attack is given, looked at before anything is spent on it."""

import math
from numbers import Integral

import torch
from torch import Tensor

from antiphase.attacks.threat import Threat
from antiphase.errors import UserError


def check_counts(**counts: object) -> None:
    """Say in one line which count is not one; ``targets`` and ``batch_size`` may be None.

    Raises:
        UserError: for anything but a whole number of at least 1.
    """
    for name, given in counts.items():
        optional = given is None and name in ("targets", "batch_size")
        if not optional and (not isinstance(given, Integral) or int(given) < 1):
            raise UserError(f"{name} {given!r}: expected a whole number of at least 1")


def check_inputs(images: Tensor, labels: Tensor | None, threat: Threat, ids: Tensor) -> None:
    """Say in one line what does not fit.

    Raises:
        UserError: for anything but tensors, and for shapes, types or values that are not those of
            :func:`~antiphase.attacks.engine.run.run_search`.
    """
    for name, given in (("images", images), ("labels", labels), ("ids", ids)):
        if given is not None and not isinstance(given, Tensor):
            raise UserError(f"{name} are a {type(given).__name__}: expected a torch tensor")
    if images.ndim < 2 or not len(images) or images.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"images of shape {tuple(images.shape)} and {images.dtype}: expected (samples, C, H, W) of float32 or "
            "float64"
        )
    low, high = float(images.detach().min()), float(images.detach().max())
    if not (threat.bounds[0] <= low and high <= threat.bounds[1]):  # also catches NaN
        raise UserError(
            f"images have values from {low:g} to {high:g}: expected {threat.bounds[0]:g} to {threat.bounds[1]:g}; "
            "scale them, and let the model normalise"
        )
    if labels is not None and (labels.shape != (len(images),) or labels.is_floating_point()):
        raise UserError(
            f"labels of shape {tuple(labels.shape)} and {labels.dtype}: expected one whole number a sample, "
            f"({len(images)},)"
        )
    if ids.shape != (len(images),) or ids.dtype != torch.int64:
        raise UserError(f"ids of shape {tuple(ids.shape)} and {ids.dtype}: expected one int64 a sample")
    if len(ids.unique()) < len(ids):
        raise UserError(
            "ids that stand twice: expected another one for each sample, as its random draws are by id"
        )


def check_budgets(budgets: Tensor, count: int, threat: Threat) -> None:
    """Say in one line which budget is none.

    Raises:
        UserError: for another number of them than ``count``, and below 0 or above the threat's.
    """
    if not isinstance(budgets, Tensor):
        raise UserError(f"budgets are a {type(budgets).__name__}: expected a torch tensor")
    if budgets.shape != (count,) or budgets.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"budgets of shape {tuple(budgets.shape)} and {budgets.dtype}: expected one ε a sample, ({count},), of "
            "float32 or float64"
        )
    if math.isinf(threat.eps):
        raise UserError(
            "budgets beside an infinite ε: expected a finite one, which is as large as any of them"
        )
    # float32 may round up; written so that NaN is outside
    outside = budgets[~((budgets >= 0) & (budgets.double() <= threat.eps * (1 + 1e-6)))]
    if len(outside):
        raise UserError(f"budgets {float(outside[0]):g}: expected 0 to the threat's ε, {threat.eps:g}")
