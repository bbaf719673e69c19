"""Checks for gradient masking and other signs that attack results are unreliable.

Source: N. Carlini et al., *On Evaluating Adversarial Robustness*, 2019, Sections 3 and 4; F. Croce, M. Hein,
*Reliable Evaluation of Adversarial Robustness …*, ICML 2020, Section 2.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from antiphase.attacks.engine.oracle import QUANTUM, Oracle

_RELATIVE = 1e-3  # tolerated rounding error, relative to the largest logit
_SHARE = 0.5  # share of failed searches above which to warn
_FLAT = 0.05  # share of gradients; masked samples stay robust and dominate the count
_BLACK_BOX_GAIN = 0.01  # share of all samples


def inspect_model(oracle: Oracle, images: Tensor, context: Tensor | None = None) -> list[str]:
    """Return warnings about a model's logits that concern every attack.

    The model is run on at most 16 images: twice on the same batch, then on the first of them alone and among others.
    Sets ``oracle.alike``.

    Args:
        oracle: oracle of the model.
        images: clean images.
        context: what the model is given with each image, if anything.
    """
    some = images[:QUANTUM].to(oracle.device)
    asked = None if context is None else context[:QUANTUM].to(oracle.device)
    oracle.alike = True
    first, second = oracle.verdict(some, asked), oracle.verdict(some, asked)
    scale = _RELATIVE * float(first.abs().amax().clamp_min(1e-6))
    if float((first - second).abs().amax()) > scale:
        oracle.alike = False
        if oracle.passes > 1:  # its mean logits are attacked already
            return []
        return [
            "the model is randomised: the same images gave different logits, so results are not reproducible; attack "
            'the mean logits (passes=20, autoattack version="rand") or remove the randomness'
        ]
    warnings = []
    alone = oracle.verdict(some[:1], None if asked is None else asked[:1])
    inverted = some.amin() + some.amax() - some
    others = None if asked is None else torch.cat([asked[:1], asked[1 - QUANTUM :]])
    company = oracle.verdict(torch.cat([some[:1], inverted[1 - QUANTUM :]]), others)[:1]
    if float((alone - first[:1]).abs().amax()) > scale or float((company - first[:1]).abs().amax()) > scale:
        oracle.alike = False
        warnings.append(
            "the logits of an image depend on the other images in its batch, and so do the results; put "
            "layers such as BatchNorm in evaluation mode, or attack with batch_size=1"
        )
    total = first.sum(1)
    if bool(((first >= 0).all(1) & ((total - 1.0).abs() < 1e-4)).all()):
        warnings.append(
            "the model returns probabilities, not logits: the cross-entropy saturates and masks gradients; "
            "remove the final softmax of the model"
        )
    return warnings


def inspect_search(oracle: Oracle, failed: int, stuck: int) -> list[str]:
    """Return warnings about the gradients of a search.

    Args:
        oracle: oracle that counted the gradients.
        failed: number of searches that failed.
        stuck: number of those whose loss never rose above its initial value.
    """
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
    """Return a warning if a black-box attack breaks samples that gradient-based attacks failed to break.

    Args:
        broken: number of samples broken by any attack.
        black_box: number of samples broken by each attack without gradients, after the others had failed.
        samples: number of all samples.
    """
    blind = sum(black_box.values())
    if blind <= max(1, _BLACK_BOX_GAIN * samples):
        return []
    return [
        f"{' and '.join(black_box)}, without gradients, broke {blind} samples that the gradient-based attacks failed "
        f"to break (they broke {broken - blind} of {samples}): gradients are masked; look for operations that are not "
        "differentiable"
    ]


def falling_asr(eps: list[float], asr: list[float]) -> list[str]:
    """Return a warning for each ε at which fewer samples were broken than at the one before.

    Args:
        eps: ε in ascending order.
        asr: attack success rate at each.
    """
    return [
        f"ASR falls from {low:.3f} at ε = {small:.5g} to {high:.3f} at ε = {large:.5g}, though the larger ε allows "
        "every smaller perturbation; use nested budgets, more steps or restarts"
        for small, large, low, high in zip(eps, eps[1:], asr, asr[1:], strict=False)
        if high < low
    ]
