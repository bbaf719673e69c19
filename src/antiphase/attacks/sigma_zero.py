"""σ-zero: an attack that changes as few values of an image as it can."""

import math
from dataclasses import dataclass
from typing import Unpack

import torch

from antiphase.arguments import Count, NonNegative, Positive, validated
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions
from antiphase.attacks.objectives import margin
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat, per_row, row_norm

_DECAYS = (0.9, 0.999)  # of Adam's moments
_LAST_STEP = 0.1  # at the end, in units of the first
_ADAPT = 0.01  # τ changes by this share of the step size


@validated
def sigma_zero(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat("l0", math.inf),  # noqa: B008 (frozen)
    *,
    steps: Count = 100,
    step_size: Positive = 1.0,
    sigma: Positive = 1e-3,
    threshold: NonNegative = 0.3,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Minimise max(−margin(x + δ), 0) + mean(δ² / (δ² + σ)), a smooth count of changed values, and drop small changes.

    Adam takes the gradient, divided by its largest entry, with a step size that falls to a tenth along half a cosine.
    Then changes below τ become 0; τ rises by 1 % of the step size where the image is adversarial, and falls elsewhere.
    Changes are in units of the pixel range. It takes ``steps + 1`` forward and backward passes, and one forward pass
    to confirm; it searches in float32.

    Source: A. E. Cinà et al., *σ-zero: Gradient-based Optimization of ℓ0-norm Adversarial Examples*, ICLR 2025,
    Algorithm 1; the defaults are the authors', but for their 1,000 steps.

    Args:
        threat: norm l0, ε (a number of values) and bounds; an infinite ε minimises the number.
        steps: gradient steps, at least 1.
        step_size: of the first step, in units of the pixel range, above 0.
        sigma: σ; the smaller, the closer to a count, above 0.
        threshold: τ at first, in units of the pixel range, at least 0.
        **run: see :class:`~antiphase.attacks.engine.search.RunOptions`; ``early_stop`` defaults to False for ε = ∞.
    """
    threat.require("σ-zero", "l0", finite=False)
    run.setdefault("early_stop", math.isfinite(threat.eps))
    run["precision"] = "float32"
    return run_search(model, images, labels, threat, _SigmaZero(threat, steps, step_size, sigma, threshold), run)


@dataclass
class _SigmaZero:
    """σ-zero; a row holds the iterate ``x``, Adam's moments and the ``threshold`` τ; ``loss`` is −norm."""

    threat: Threat
    steps: int
    step_size: float
    sigma: float
    threshold: float
    name, targets, restarts = "sigma-zero", None, 1

    def start(self, rows: Rows) -> None:
        rows["x"] = rows["clean"].clone()
        rows["mean"], rows["square"] = torch.zeros_like(rows["x"]), torch.zeros_like(rows["x"])
        rows.fill(self.threshold, "threshold")

    def step(self, rows: Rows, oracle: Oracle) -> None:
        x, clean, t, (low, high) = rows["x"], rows["clean"], rows["t"], self.threat.bounds
        (value,), logits, (gradient,) = oracle.gradients(rows, x, [lambda logits: margin(logits, rows["label"])])
        adversarial = logits.argmax(1) != rows["label"]
        rows.keep_nearest(x, adversarial, self.threat)
        rows["done"] = t == self.steps
        delta = (x - clean) / (high - low)
        count = 2.0 * self.sigma * delta / (delta.square() + self.sigma).square() / clean[0].numel()
        gradient = count - torch.where(per_row(value > 0, x), 0.0, gradient) * (high - low)
        gradient = gradient / per_row(row_norm(gradient, "linf").clamp_min(1e-12), x)
        for name, decay, new in zip(("mean", "square"), _DECAYS, (gradient, gradient.square()), strict=True):
            rows[name] = decay * rows[name] + (1.0 - decay) * new
        mean, square = (1.0 - torch.tensor(decay, dtype=torch.float64) ** (t + 1) for decay in _DECAYS)
        fall = 0.5 + 0.5 * torch.cos(math.pi * t.double() / self.steps)
        rate = self.step_size * (_LAST_STEP + (1.0 - _LAST_STEP) * fall)
        scale = per_row((rate * square.sqrt() / mean).to(x.dtype), x)
        moved = delta - scale * rows["mean"] / (rows["square"].sqrt() + 1e-8)
        change = _ADAPT * rate.to(x.dtype)
        rows["threshold"] = (rows["threshold"] + torch.where(adversarial, change, -change)).clamp(0.0, 1.0)
        moved = (clean + moved * (high - low)).clamp(low, high)
        rows["x"] = torch.where((moved - clean).abs() < per_row(rows["threshold"], x) * (high - low), clean, moved)
        rows["t"] = t + 1


SIGMA_ZERO = AttackSpec(sigma_zero, "σ-zero", nearest=True)
