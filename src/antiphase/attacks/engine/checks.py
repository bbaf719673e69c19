"""Checks of an attack's inputs, and of signs that its results are unreliable, such as masked gradients.

Source: N. Carlini et al., *On Evaluating Adversarial Robustness*, 2019, Sections 3 and 4.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from antiphase.arguments import Count
from antiphase.attacks.engine.oracle import QUANTUM, Classifier, Oracle, logits_of
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

ALL_TARGETS = 9
LIKELY = 100  # classes among which MALT chooses
Targets = Count | Literal["malt"] | None
_FLOATS = (torch.float32, torch.float64)
_RELATIVE = 1e-3  # tolerated rounding error, relative to the largest logit
_ENOUGH = 4  # images whose one output may be a probability before that is said
_SHARE = 0.5  # share of failed searches above which to warn
_FLAT = 0.05  # share of gradients; masked samples stay robust and dominate the count
_BLACK_BOX_GAIN = 0.01  # share of all samples


class NoSamples(UserError):
    """There is nothing to attack; the attack's norm and settings were accepted."""


def check_targets(targets: Targets, classes: int) -> None:
    """Refuse more target classes than others; AutoAttack's 9 stands for all other classes if there are fewer."""
    if isinstance(targets, int) and targets >= classes and targets != ALL_TARGETS:
        raise UserError(f"targets {targets}: expected at most {classes - 1}, the number of other classes")


def check_inputs(images: Tensor, threat: Threat, ids: Tensor, context: Tensor | None = None) -> Tensor:
    """Check images, ids and context; return the images, clipped where rounding took them beyond the bounds."""
    count = len(images)
    if images.ndim < 2 or not count or images.dtype not in _FLOATS:
        kind = f"images of shape {tuple(images.shape)} and {images.dtype}"
        raise (UserError if count else NoSamples)(f"{kind}: expected (samples, C, H, W) of float32 or float64")
    if len(ids.unique()) < count:
        raise UserError("duplicate ids: each sample needs its own, since its random draws are keyed by id")
    if context is not None and context.shape[:1] != (count,):
        raise UserError(f"context of shape {tuple(context.shape)}: expected one row per sample, ({count}, …)")
    images = images.detach()
    low, high = float(images.min()), float(images.max())
    least, most = threat.bounds
    below, above = (threat.tolerance * max(1.0, abs(bound)) for bound in threat.bounds)
    if not (least - below <= low and high <= most + above):  # also catches NaN
        fix = f"expected {least:g} to {most:g}; scale them, and normalise inside the model"
        raise UserError(f"images have values from {low:.8g} to {high:.8g}: {fix}")
    return images if least <= low and high <= most else images.clamp(least, most)


def check_goal(
    model: Classifier, images: Tensor, labels: Tensor | None, targets: Any, options: Any
) -> tuple[Tensor, Tensor]:
    """Return the goal of each sample and the clean predictions; refuse a goal that is no class of the model."""
    others = dict(labels=labels, context=options.context, on_finished=options.on_finished, targets=targets or None)
    for name, other in others.items():
        if other is not None:
            raise UserError(f"goal and {name}: they exclude each other; expected {name}=None")
    goal, clean = torch.as_tensor(options.goal).detach().cpu(), logits_of(model, images)
    check_classes("goal", goal, clean.shape[1])
    return goal.expand(len(images)).clone(), clean.argmax(1)


def check_classes(name: str, values: Tensor, classes: int) -> None:
    """Refuse labels or goals that are no classes of the model."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= classes:
        raise UserError(f"{name} from {low} to {high}: the model tells classes 0 to {classes - 1} apart")


def inspect_model(oracle: Oracle, images: Tensor, context: Tensor | None = None) -> list[str]:
    """Return warnings about a model's logits of at most 16 images, and set ``oracle.alike``."""
    some = [part[:QUANTUM].to(oracle.device) for part in (images, context) if part is not None]
    oracle.alike = True
    first = oracle.verdict(*some)
    scale = _RELATIVE * float(first.abs().amax().clamp_min(1e-6))
    if float((first - oracle.verdict(*some)).abs().amax()) > scale:
        oracle.alike = False
        if oracle.passes > 1:  # its mean logits are attacked already
            return []
        return [
            "the model is randomised: the same images gave different logits, so results are not reproducible; attack "
            "the mean logits of 20 passes, with eot=20 of pgd, apgd or square (--set eot=20) or with version='rand' of "
            "autoattack (--version rand), or remove the randomness"
        ]
    warnings = []
    inverted = [some[0].amin() + some[0].amax() - some[0], *some[1:]]
    company = [torch.cat([one[:1], other[1 - QUANTUM :]]) for one, other in zip(some, inverted, strict=True)]
    answers = oracle.verdict(*(part[:1] for part in some)), oracle.verdict(*company)[:1]
    if any(float((answer - first[:1]).abs().amax()) > scale for answer in answers):
        oracle.alike = False
        warnings.append(
            "the logits of an image depend on the other images in its batch, and so do the results; put "
            "layers such as BatchNorm in evaluation mode, or attack with batch_size=1"
        )
    between = bool(((first >= 0) & (first <= 1)).all())
    if first.shape[1] == 2 and not first[:, 0].any():  # one output: two_classes
        if len(first) >= _ENOUGH and between:
            why = "the model's one output, the logit of class 1, is from 0 to 1 for each image looked at"
            warnings.append(f"{why}: if it is a probability, class 1 is always predicted; remove the final sigmoid")
    elif between and bool(((first.sum(1) - 1.0).abs() < 5e-3).all()):  # rounded to half precision, too
        why = "the model returns probabilities, not logits: the cross-entropy saturates and masks gradients"
        warnings.append(f"{why}; remove the final softmax of the model")
    return warnings


def inspect_search(oracle: Oracle, failed: int, stuck: int) -> list[str]:
    """Return warnings about the gradients of searches: how many failed, and of those, with a loss that never rose."""
    warnings, seen = [], oracle.seen
    if seen["broken"]:
        warnings.append(
            f"{seen['broken']} of {seen['asked']} gradients were NaN or infinite and were set to zero: look for a "
            "division by zero, a logarithm or square root of zero, or an overflow in the model"
        )
    if seen["flat"] > _FLAT * seen["asked"]:
        warnings.append(
            f"{seen['flat']} of {seen['asked']} gradients were zero: the model masks them (quantised input, argmax, "
            "saturated softmax), so a high robust accuracy is not reliable; attack with square, or replace the "
            "masking operation with a smooth approximation"
        )
    if failed and stuck > _SHARE * failed and seen["flat"] <= _SHARE * seen["asked"]:
        warnings.append(
            f"the loss never rose in {stuck} of {failed} failed searches: the gradients are misleading; try more "
            "steps with a smaller step size, objective='dlr' or 'margin', or square"
        )
    return warnings


def black_box_wins(broken: int, black_box: Mapping[str, int], samples: int) -> list[str]:
    """Return a warning if attacks without gradients, in ``black_box``, break samples that those before them did not."""
    if (blind := sum(black_box.values())) <= max(1, _BLACK_BOX_GAIN * samples):
        return []
    return [
        f"{' and '.join(black_box)}, without gradients, broke {blind} samples that the gradient-based attacks failed "
        f"to break (they broke {broken - blind} of {samples}): gradients are masked; look for operations that are not "
        "differentiable"
    ]


def falling_asr(eps: list[float], asr: list[float]) -> list[str]:
    """Return a warning for each ε, in ascending order, at which fewer samples were broken than at the one before."""
    return [
        f"ASR falls from {low:.3f} at ε = {small:.5g} to {high:.3f} at ε = {large:.5g}, though the larger ε allows "
        "every smaller perturbation; use nested budgets, more steps or restarts"
        for small, large, low, high in zip(eps, eps[1:], asr, asr[1:], strict=False)
        if high < low
    ]
