"""Signs that an attack's numbers say less than they seem to: gradient masking and friends.

Source: N. Carlini et al., *On Evaluating Adversarial Robustness*, 2019, Sections 3 and 4; F. Croce, M. Hein,
*Reliable Evaluation of Adversarial Robustness …*, ICML 2020, Section 2.
"""

import torch
from torch import Tensor

from antiphase.attacks.engine.oracle import QUANTUM, Oracle

_RELATIVE = 1e-3  # of the largest logit: what rounding may change
_SHARE = 0.5  # of searches: more is not chance
_FLAT = 0.05  # of gradients: who is masked stands, and is asked about again and again
_BLACK_BOX_GAIN = 0.01  # of all samples


def inspect_model(oracle: Oracle, images: Tensor) -> list[str]:
    """Return what is doubtful about a model's answers, whatever the attack.

    It is asked three times about the first 16 images at most: twice alike, and once in other company.

    Args:
        oracle: of the model.
        images: clean images.
    """
    some = images[:QUANTUM].to(oracle.device)
    first, second = oracle.verdict(some), oracle.verdict(some)
    scale = _RELATIVE * float(first.abs().amax().clamp_min(1e-6))
    if float((first - second).abs().amax()) > scale:
        if oracle.passes > 1:  # its expected logits are attacked already
            return []
        return [
            "the model is randomised: the same images gave different logits, and a verdict is luck; attack "
            'the expected logits (passes=20, autoattack version="rand") or fix the randomness'
        ]
    warnings = []
    alone = oracle.verdict(some[:1])
    inverted = some.amin() + some.amax() - some
    company = oracle.verdict(torch.cat([some[:1], inverted[1 - QUANTUM :]]))[:1]
    if float((alone - first[:1]).abs().amax()) > scale or float((company - first[:1]).abs().amax()) > scale:
        warnings.append(
            "the model's logits of an image depend on the other images of its batch: verdicts depend on the batch "
            "too; put layers that look at the batch (BatchNorm) in evaluation mode, or attack with batch_size=1"
        )
    total = first.sum(1)
    if bool(((first >= 0).all(1) & ((total - 1.0).abs() < 1e-4)).all()):
        warnings.append(
            "the model returns probabilities, not logits: cross-entropy of them saturates and hides gradients; "
            "leave out the model's last softmax"
        )
    return warnings


def inspect_search(oracle: Oracle, failed: int, stuck: int) -> list[str]:
    """Return what is doubtful about the gradients that a search was given.

    Args:
        oracle: that counted them.
        failed: searches that found nothing.
        stuck: those of them whose loss never rose above its start.
    """
    warnings, seen = [], oracle.seen
    if seen["broken"]:
        warnings.append(
            f"{seen['broken']} of {seen['asked']} gradients held NaN or infinity and counted as zero: look for a "
            "division by zero, a logarithm or root of zero, or an overflow in the model"
        )
    if seen["flat"] > _FLAT * seen["asked"]:
        warnings.append(
            f"{seen['flat']} of {seen['asked']} gradients were zero: the model masks them (quantised input, argmax, "
            "saturated softmax), so a high robust accuracy says nothing; attack with square, or through a smooth "
            "stand-in for what masks"
        )
    if failed and stuck > _SHARE * failed and seen["flat"] <= _SHARE * seen["asked"]:
        warnings.append(
            f"the loss never rose in {stuck} of {failed} searches that failed: the gradients mislead; try more "
            "steps of a smaller size, objective='dlr' or 'margin', or square"
        )
    return warnings


def black_box_wins(white_box: int, black_box: int, samples: int) -> list[str]:
    """Return a warning where a search without gradients succeeds where those with gradients failed.

    Args:
        white_box: samples that fell to attacks by gradient.
        black_box: samples that fell to Square after those had failed.
        samples: all.
    """
    if black_box <= max(1, _BLACK_BOX_GAIN * samples):
        return []
    return [
        f"Square, which sees no gradient, felled {black_box} samples that stood after the attacks by gradient "
        f"({white_box} of {samples}): gradients are masked; look for steps that do not differentiate"
    ]


def falling_asr(eps: list[float], asr: list[float]) -> list[str]:
    """Return a warning for each larger budget at which fewer samples fell.

    Args:
        eps: budgets, ascending.
        asr: attack success rate at each.
    """
    return [
        f"ASR falls from {low:.3f} at ε = {small:.5g} to {high:.3f} at ε = {large:.5g}: a larger ball holds the "
        "smaller one, so the search failed; use nested budgets, more steps or restarts"
        for small, large, low, high in zip(eps, eps[1:], asr, asr[1:], strict=False)
        if high < low
    ]
