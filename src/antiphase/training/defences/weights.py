"""Defences that act on the weights: their moving average, and training at nearby weights that raise the loss."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.training.defences import Defence

_AVERAGE = "average"
EMA = Defence(acts_on="average", below=1.0)
AWP = Defence(acts_on="weights")


def keep_average(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Keep m ← decay·m + (1 − decay)·w of every weight w after each step, in the optimizer's state.

    It is saved and loaded with that state. Source: P. Izmailov et al., *Averaging Weights Leads to Wider Optima and
    Better Generalization*, UAI 2018, with a decay in place of equal weights, as robust training uses it (S. Rebuffi et
    al., *Data Augmentation Can Improve Robustness*, NeurIPS 2021).
    """

    def follow(*_: Any) -> None:
        for weight in _weights(optimizer):
            optimizer.state[weight].setdefault(_AVERAGE, weight.detach().clone()).lerp_(weight.detach(), 1.0 - decay)

    optimizer.register_step_post_hook(follow)


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Put the averages in place of the weights, where there are any."""
    with _restored([w for w in _weights(optimizer) if _AVERAGE in optimizer.state.get(w, {})]) as weights:
        with torch.no_grad():
            for weight in weights:
                weight.copy_(optimizer.state[weight][_AVERAGE])
        yield


@contextmanager
def adversarial_weights(model: nn.Module, size: float) -> Iterator[None]:
    """Move each matrix w by size·‖w‖·g / ‖g‖, g its gradient, and back at the end; gradients are cleared in between.

    Source: D. Wu, S.-T. Xia, Y. Wang, *Adversarial Weight Perturbation Helps Robust Generalization*, NeurIPS 2020,
    equation (8), with one step.
    """
    with _restored([w for w in model.parameters() if w.ndim > 1 and w.grad is not None and w.grad.any()]) as weights:
        with torch.no_grad():
            for weight in weights:
                gradient = weight.grad
                weight.add_(gradient, alpha=float(size * weight.norm() / gradient.norm()))  # pyright: ignore
        model.zero_grad()
        yield


@contextmanager
def _restored(weights: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    before = [weight.detach().clone() for weight in weights]
    try:
        yield weights
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
