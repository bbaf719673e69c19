"""FMN: the fast minimum-norm attack, in L0, L1, L2 and L∞."""

import math
from dataclasses import dataclass
from typing import Unpack

import torch

from antiphase.arguments import Count, Positive, Probability, validated
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions
from antiphase.attacks.objectives import margin
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import DUAL, Threat, per_row, project, row_norm

_LAST_STEP, _LAST_GAMMA = 0.01, 0.001  # at the end: the step size in units of the first, and γ


@validated
def fmn(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat("l2", math.inf),  # noqa: B008 (frozen)
    *,
    steps: Count = 100,
    step_size: Positive = 1.0,
    gamma: Probability = 0.05,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Follow the gradient within a ball whose radius shrinks where the image is adversarial and grows elsewhere.

    x ← Π(x + α·∇margin/‖∇margin‖₂), with Π the projection onto the ball of radius r and the bounds. r is (1 − γ)·r, at
    most the smallest norm found, if x is adversarial, else (1 + γ)·r; before the first adversarial image it is at
    least (1 + γ) times ‖x − x₀‖ plus the distance to the linearised boundary. The authors take that sum, which stays
    too short where the bounds take most of a step. In l0, r is whole and changes by at least 1. α and γ fall to α/100
    and 0.001 along half a cosine. It takes ``steps + 1`` forward and backward passes, and one forward pass to
    confirm; it searches in float32, since rounding moves the boundary.

    Source: M. Pintor, F. Roli, W. Brendel, B. Biggio, *Fast Minimum-norm Adversarial Attacks through Adaptive Norm
    Constraints*, NeurIPS 2021, Algorithm 1; the defaults are adv-lib's, but for its 10 steps.

    Args:
        threat: norm, ε and bounds; an infinite ε minimises the perturbation.
        steps: gradient steps, at least 1.
        step_size: α of the first step, in the Euclidean norm, above 0.
        gamma: γ of the first step, in (0, 1).
        **run: see :class:`~antiphase.attacks.engine.search.RunOptions`; ``early_stop`` defaults to False for ε = ∞.
    """
    run.setdefault("early_stop", math.isfinite(threat.eps))
    run["precision"] = "float32"
    return run_search(model, images, labels, threat, _Fmn(threat, steps, step_size, gamma), run)


@dataclass
class _Fmn:
    """FMN; the state of a row holds the iterate ``x``, the ``radius`` and whether it ``crossed``; ``loss`` is −norm."""

    threat: Threat
    steps: int
    step_size: float
    gamma: float
    name, targets, restarts = "fmn", None, 1

    def __post_init__(self) -> None:
        progress = torch.arange(self.steps + 1, dtype=torch.float64) / self.steps
        self.falling = 0.5 + 0.5 * torch.cos(math.pi * progress)

    def start(self, rows: Rows) -> None:
        rows["x"], rows["crossed"] = rows["clean"].clone(), rows["found"].clone()
        rows.fill(1.0 if self.threat.norm == "l0" else torch.inf, "radius")

    def step(self, rows: Rows, oracle: Oracle) -> None:
        x, clean, (low, high) = rows["x"], rows["clean"], self.threat.bounds
        (value,), logits, (gradient,) = oracle.gradients(rows, x, [lambda logits: margin(logits, rows["label"])])
        adversarial = logits.argmax(1) != rows["label"]
        rows["crossed"] = rows["crossed"] | adversarial
        distance, _ = rows.keep_nearest(x, adversarial, self.threat)
        rows["done"] = rows["t"] == self.steps
        falling = self.falling.to(value.device, value.dtype)[rows["t"].clamp(max=self.steps)]
        gamma = _LAST_GAMMA + (self.gamma - _LAST_GAMMA) * falling
        step_size = self.step_size * (high - low) * (_LAST_STEP + (1.0 - _LAST_STEP) * falling)
        widest = row_norm(torch.maximum(clean - low, high - clean), self.threat.norm)
        best = torch.minimum(-rows["loss"], widest)
        smaller, larger = rows["radius"] * (1.0 - gamma), rows["radius"] * (1.0 + gamma)
        if self.threat.norm == "l0":
            smaller = torch.minimum(rows["radius"] - 1.0, smaller.floor()).clamp_min(0.0)
            larger = torch.maximum(rows["radius"] + 1.0, larger.floor())
        else:
            slope = row_norm(gradient, DUAL[self.threat.norm]).clamp_min(1e-12)
            estimate = (1.0 + gamma) * (distance + value.abs() / slope)  # just behind the boundary
            # where the bounds take most of a step, the estimate alone would stay too short
            first = estimate.maximum(torch.where(rows["t"] > 0, larger, 0.0))
            larger = torch.where(rows["crossed"], larger, first)
        rows["radius"] = torch.minimum(torch.where(adversarial, torch.minimum(smaller, best), larger), widest)
        moved = x + per_row(step_size / row_norm(gradient, "l2").clamp_min(1e-12), x) * gradient
        rows["x"] = project(moved, clean, rows["radius"], self.threat.norm, self.threat.bounds)
        rows["t"] = rows["t"] + 1


FMN = AttackSpec(fmn, "FMN", nearest=True)
