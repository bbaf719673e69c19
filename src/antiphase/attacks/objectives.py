"""Objectives that attacks maximise: one number per sample, from logits, labels and target classes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.errors import UserError

Objective = Callable[[Tensor, Tensor], Tensor]  # logits, labels
TargetedObjective = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits, labels, targets

_TINY = 1e-12  # avoids 0 / 0 for equal logits


def cross_entropy(
    logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return −log softmax(logits)[label]."""
    return F.cross_entropy(logits, labels, reduction="none")


def margin(
    logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the largest other logit − the label's logit; positive if and only if the prediction has changed.

    Source: N. Carlini, D. Wagner, *Towards Evaluating the Robustness of Neural Networks*, 2017, f6.
    """
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return others.amax(1) - _pick(logits, labels)


def dlr(logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Return the difference of logits ratio: margin / (z₍₁₎ − z₍₃₎), z₍ᵢ₎ the i-th largest logit.

    It is invariant to shifting and scaling the logits, so it does not saturate on confident models. Its gradient is 0
    if the label ranks third, when the prediction has already changed.

    Source: F. Croce, M. Hein, *Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse
    Parameter-free Attacks*, ICML 2020, Section 4.

    Raises:
        UserError: The model has fewer than 3 classes.
    """
    _need_classes(logits, 3, "DLR")
    top = logits.topk(3, dim=1).values
    return margin(logits, labels) / (top[:, 0] - top[:, 2] + _TINY)


def own_prompt(
    logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return −z_label: for a CLIP with logits z_k = s·cos(image, prompt k), −s·cos(image, prompt of the label).

    Unlike ``"cross_entropy"`` and ``"dlr"`` it does not depend on the other prompts.

    Source: robustness paper, Section 5.1 (cosine similarity as the objective against CLIP).
    """
    return -_pick(logits, labels)


def targeted_cross_entropy(
    logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"], targets: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return log softmax(logits)[target]."""
    return -F.cross_entropy(logits, targets, reduction="none")


def targeted_margin(
    logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"], targets: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the target's logit − the label's logit; positive only if the prediction has changed."""
    return _pick(logits, targets) - _pick(logits, labels)


def targeted_dlr(
    logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"], targets: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return (z_target − z_label) / (z₍₁₎ − (z₍₃₎ + z₍₄₎) / 2), z₍ᵢ₎ the i-th largest logit.

    Source: as :func:`dlr`.

    Raises:
        UserError: The model has fewer than 4 classes.
    """
    _need_classes(logits, 4, "targeted DLR")
    top = logits.topk(4, dim=1).values
    scale = top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + _TINY
    return targeted_margin(logits, labels, targets) / scale


OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": cross_entropy,
    "margin": margin,
    "dlr": dlr,
    "cosine": own_prompt,
}
TARGETED_OBJECTIVES: dict[str, TargetedObjective] = {
    "cross_entropy": targeted_cross_entropy,
    "margin": targeted_margin,
    "dlr": targeted_dlr,
}


def resolve(objective: str | Objective) -> Objective:
    """Return an objective by name, or the callable itself.

    Raises:
        UserError: for a name that does not exist.
    """
    return OBJECTIVES[_known(objective, OBJECTIVES)] if isinstance(objective, str) else objective


def resolve_targeted(objective: str | TargetedObjective) -> TargetedObjective:
    """Return the targeted form of an objective by name, or the callable itself.

    Raises:
        UserError: for a name that does not exist.
    """
    return (
        TARGETED_OBJECTIVES[_known(objective, TARGETED_OBJECTIVES)]
        if isinstance(objective, str)
        else objective
    )


def one_each(values: Any, logits: Float[Tensor, "batch classes"]) -> Float[Tensor, " batch"]:
    """Check that an objective returned one number per sample, and return it.

    Raises:
        UserError: It returned anything else, such as a mean.
    """
    if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
        found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise UserError(f"the objective returned {found}: expected one number per sample, ({len(logits)},)")
    return values


def _known(name: str, among: Mapping[str, object]) -> str:
    if name not in among:
        raise UserError(f"objective {name!r}: expected one of {', '.join(among)}, or a callable")
    return name


def _pick(
    logits: Float[Tensor, "batch classes"], classes: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    return logits.gather(1, classes[:, None]).squeeze(1)


def _need_classes(logits: Float[Tensor, "batch classes"], least: int, name: str) -> None:
    if logits.shape[1] < least:
        raise UserError(
            f"{name} needs at least {least} classes, the model has {logits.shape[1]}: "
            "use objective='margin' or 'cross_entropy'"
        )
