"""Objectives that attacks maximise: one number per sample, from logits, labels and target classes, if there are any."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.errors import UserError

Objective = Callable[[Tensor, Tensor], Tensor]  # logits, labels
TargetedObjective = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits, labels, targets
Logits = Float[Tensor, "batch classes"]
Classes = Int64[Tensor, " batch"]
Values = Float[Tensor, " batch"]

_TINY = 1e-12  # avoids 0 / 0 for equal logits


def cross_entropy(logits: Logits, labels: Classes, targets: Classes | None = None) -> Values:
    """Return −log softmax(logits)[label], or log softmax(logits)[target]."""
    if targets is None:
        return F.cross_entropy(logits, labels, reduction="none")
    return -F.cross_entropy(logits, targets, reduction="none")


def margin(logits: Logits, labels: Classes, targets: Classes | None = None) -> Values:
    """Return the largest other logit, or the target's, − the label's; positive only if the prediction has changed.

    Source: N. Carlini, D. Wagner, *Towards Evaluating the Robustness of Neural Networks*, 2017, f6.
    """
    if targets is None:
        return logits.scatter(1, labels[:, None], float("-inf")).amax(1) - _pick(logits, labels)
    return _pick(logits, targets) - _pick(logits, labels)


def dlr(logits: Logits, labels: Classes, targets: Classes | None = None) -> Values:
    """Return the difference of logits ratio, z₍ᵢ₎ being the i-th largest logit of at least 3, with targets 4.

    It is margin / (z₍₁₎ − z₍₃₎), with targets margin / (z₍₁₎ − (z₍₃₎ + z₍₄₎) / 2). It is invariant to shifting and
    scaling the logits, so it does not saturate on confident models. Its gradient is 0 if the label ranks third, when
    the prediction has already changed. With fewer classes, where these are not defined, it is the margin.

    Source: F. Croce, M. Hein, *Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse
    Parameter-free Attacks*, ICML 2020, Section 4.
    """
    count = 3 if targets is None else 4
    if logits.shape[1] < count:
        return margin(logits, labels, targets)
    top = logits.topk(count, dim=1).values
    lower = top[:, 2] if targets is None else 0.5 * (top[:, 2] + top[:, 3])
    return margin(logits, labels, targets) / (top[:, 0] - lower + _TINY)


def probability_margin(logits: Logits, labels: Classes, targets: Classes | None = None) -> Values:
    """Return the margin of the probabilities softmax(z), in float64: in float32 a confident model has no gradient.

    Source: Y. Xie et al., *Towards Million-Scale Adversarial Robustness Evaluation With Stronger Individual Attacks*,
    CVPR 2025, Section 3 (the loss of PMA).
    """
    return margin(logits.double().softmax(1), labels, targets).to(logits.dtype)


def own_prompt(logits: Logits, labels: Classes) -> Values:
    """Return −z_label: for a CLIP with logits z_k = s·cos(image, prompt k), −s·cos(image, prompt of the label).

    Unlike ``"cross_entropy"`` and ``"dlr"`` it does not depend on the other prompts.

    Source: sensitivity paper, Section 5.1 (cosine similarity as the objective against CLIP).
    """
    return -_pick(logits, labels)


_TARGETED: dict[str, Any] = {one.__name__: one for one in (cross_entropy, margin, dlr, probability_margin)}


def resolve(objective: Any, targets: Any = None) -> TargetedObjective:
    """Return an objective, by name or itself, of (logits, labels, targets); it ignores targets if there are none."""
    known = _TARGETED if targets else _TARGETED | {"cosine": own_prompt}
    if isinstance(objective, str) and objective not in known:
        raise UserError(f"objective {objective!r}: expected one of {', '.join(known)}, or a callable")
    loss: Any = known[objective] if isinstance(objective, str) else objective
    return loss if targets else lambda logits, labels, targets: loss(logits, labels)


def one_each(values: Any, logits: Logits) -> Values:
    """Check that an objective returned one number per sample, not a mean for example; return it in the logits' type."""
    if getattr(values, "shape", None) != logits.shape[:1]:
        kind = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise UserError(f"the objective returned {kind}: expected one number per sample, ({len(logits)},)")
    return values.to(logits.dtype)


def _pick(logits: Logits, classes: Classes) -> Values:
    return logits.gather(1, classes[:, None]).squeeze(1)
