"""Projected gradient descent, its special case of one step (FGSM), and PGD within a square of the image."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from antiphase.arguments import Count, NonNegative, Positive, validated
from antiphase.attacks import catalogue, objectives
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions, expected
from antiphase.attacks.objectives import Objective
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat, per_row, project, random_point, row_norm, steepest
from antiphase.errors import UserError
from antiphase.streams import sample_keys, uniform

StepSchedule = Literal["constant", "linear", "cosine"]
_SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": torch.ones_like,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + torch.cos(math.pi * progress)),
}


@validated
def pgd(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    steps: Count = 20,
    step_size: Positive | None = None,
    schedule: StepSchedule = "constant",
    restarts: Count = 1,
    random_start: bool = True,
    momentum: NonNegative = 0.0,
    objective: str | Objective = "cross_entropy",
    eot: Count = 1,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Maximise the loss by projected gradient ascent.

    x₀ is drawn uniformly from the ε-ball and clipped to the bounds; x_{t+1} = Π(x_t + α_t·d_t), with d_t the sign of
    the gradient (linf) or the normalised gradient (l2), and Π the projection onto the ε-ball and the bounds. The search
    stops at the first iterate that changes the prediction; otherwise the iterate of highest loss is kept. A restart
    takes at most ``steps + 1`` forward passes, and one more to confirm a success.

    Source: A. Madry et al., *Towards Deep Learning Models Resistant to Adversarial Attacks*, ICLR 2018;
    sensitivity paper, Appendix C.2.1, which gives neither step size nor number of steps: α = ε/4 and 20 are our choice.

    Args:
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to move away from; None for the clean predictions.
        threat: norm, finite ε and bounds.
        steps: gradient steps, at least 1.
        step_size: α₀ in units of the norm, above 0; ε/4 by default.
        schedule: α_t over the steps: ``"constant"``, or decreasing to 0 (``"linear"``, ``"cosine"``).
        restarts: random restarts per sample, at least 1.
        random_start: draw x₀ at random; otherwise start at the clean image.
        momentum: μ, at least 0; with μ > 0, d_t uses g_t = μ·g_{t−1} + ∇loss/‖∇loss‖₁ in place of the gradient
            (Y. Dong et al., *Boosting Adversarial Attacks with Momentum*, CVPR 2018, Algorithm 1).
        objective: loss to maximise: ``"cross_entropy"``, ``"margin"``, ``"dlr"``, ``"probability_margin"``,
            ``"cosine"`` or a callable of (logits, labels) that returns one number per sample.
        eot: for a randomised model, forward passes whose mean logits are attacked (expectation over transformation).
        **run: seed, batch size and others, see :class:`~antiphase.attacks.engine.search.RunOptions`.
    """
    threat.require("PGD", "linf", "l2")
    if restarts > 1 and not random_start:
        raise UserError(f"restarts {restarts} without a random start: expected 1, since all would be equal")
    alpha = threat.eps / 4 if step_size is None else step_size
    search = PgdSearch(threat, steps, alpha, schedule, restarts, random_start, momentum, objective)
    return run_search(model, images, labels, threat, search, expected(run, eot))


@validated
def fgsm(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    objective: str | Objective = "cross_entropy",
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Take one step of length ε from the clean image: x + ε·sign(∇loss) in linf, x + ε·∇loss/‖∇loss‖ in l2.

    Source: I. Goodfellow, J. Shlens, C. Szegedy, *Explaining and Harnessing Adversarial Examples*, ICLR 2015.

    Args:
        objective: loss to maximise, as in :func:`pgd`.
    """
    threat.require("FGSM", "linf", "l2")
    search = PgdSearch(threat, 1, threat.eps, random_start=False, objective=objective, name="fgsm")
    return run_search(model, images, labels, threat, search, run, settings={"objective": objective})


@dataclass
class PgdSearch:
    """PGD; the state of a row holds the iterate ``x``, and the ``mask`` of pixels that may change, if not all may."""

    threat: Threat
    steps: int
    step_size: float
    schedule: StepSchedule = "constant"
    restarts: int = 1
    random_start: bool = True
    momentum: float = 0.0
    objective: str | Objective = "cross_entropy"
    name: str = "pgd"
    mask: Callable[[Rows], Tensor] | None = None
    targets = None

    def __post_init__(self) -> None:
        self.loss = objectives.resolve(self.objective)
        progress = torch.arange(self.steps, dtype=torch.float64) / self.steps
        self.step_sizes = self.step_size * _SCHEDULES[self.schedule](progress)

    def start(self, rows: Rows) -> None:
        clean, threat = rows["clean"], self.threat
        rows["x"] = clean.clone()
        if self.random_start:
            rows["x"] = random_point(clean, rows["eps"], threat.norm, threat.bounds, rows["key"])
        if self.mask is not None:
            rows["mask"] = self.mask(rows)
            rows["x"] = torch.where(rows["mask"], rows["x"], clean)
        if self.momentum:
            rows["velocity"] = torch.zeros_like(clean)
        rows.fill(-torch.inf, "start_loss")

    def step(self, rows: Rows, oracle: Oracle) -> None:
        norm, bounds, t = self.threat.norm, self.threat.bounds, rows["t"]
        losses = [lambda logits: self.loss(logits, rows["label"], rows["target"])]
        (loss,), logits, (gradient,) = oracle.gradients(rows, rows["x"], losses)
        rows.put(t == 0, start_loss=loss)
        rows.keep_best(rows["x"], loss, logits.argmax(1) != rows["label"])
        rows["done"] = t == self.steps
        if "mask" in rows:
            gradient = gradient * rows["mask"]
        if self.momentum:
            length = row_norm(gradient, "l1").clamp_min(torch.finfo(gradient.dtype).tiny)
            gradient = self.momentum * rows["velocity"] + gradient / per_row(length, gradient)
            rows["velocity"] = gradient
        alpha = self.step_sizes.to(loss.device, loss.dtype)[t.clamp(max=self.steps - 1)]
        moved = rows["x"] + per_row(alpha, gradient) * steepest(gradient, norm)
        rows["x"] = project(moved, rows["clean"], rows["eps"], norm, bounds)
        rows["t"] = t + 1


@validated
def patch_pgd(
    model: Classifier,
    images: Float[Tensor, "samples channels height width"],
    labels: Labels,
    threat: Threat = Threat("linf", 1.0),  # noqa: B008 (frozen)
    *,
    width: int = 8,
    steps: Count = 20,
    step_size: Positive | None = None,
    restarts: Count = 1,
    objective: str | Objective = "cross_entropy",
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Perturb one square of each image by PGD with a random start.

    With m the indicator of a ``width`` × ``width`` square, drawn uniformly within the image for each sample and
    restart: x_{t+1} = Π(x_t + α·sign(m ⊙ ∇loss)), x₀ uniform in the square.

    Source: sensitivity paper, Appendix C.2.1, which sets ε = 1 (any pixel value) and varies the width; α and
    the number of steps are those of :func:`pgd`.

    Args:
        threat: norm linf, finite ε and bounds.
        width: side of the square in pixels, from 1 to the shorter side of the image.
        restarts: random restarts per sample, each with another square, at least 1.
        objective: loss to maximise, as in :func:`pgd`, whose are ``steps`` and ``step_size`` (constant) too.
    """
    if not 1 <= width <= min(images.shape[2:]):
        fix = f"expected at least 1 and at most the shorter side of images {tuple(images.shape[1:])}"
        raise UserError(f"patch width {width}: {fix}")
    if threat.norm != "linf" or threat.eps == float("inf"):
        raise UserError(f"norm {threat.norm!r}, eps {threat.eps}: a patch needs 'linf' and a finite ε")
    alpha = threat.eps / 4 if step_size is None else step_size
    settings: Any = dict(steps=steps, step_size=alpha, restarts=restarts, objective=objective)
    search = PgdSearch(threat, **settings, name=f"patch-{width}", mask=partial(squares, width))
    return run_search(model, images, labels, threat, search, run, settings={"width": width} | settings)


def squares(width: int, rows: Rows) -> Bool[Tensor, "batch 1 height width"]:
    """Return the indicator of one square per row, drawn uniformly within the image."""
    (height, breadth), keys = rows["clean"].shape[2:], rows["key"]
    # a separate stream: the random start draws from that of the row
    draw = uniform(sample_keys(keys, torch.full_like(keys, width)), 2).double()
    top, left = (draw * torch.tensor([height - width + 1, breadth - width + 1], device=keys.device)).long().unbind(1)
    down = torch.arange(height, device=keys.device)[None] - top[:, None]
    across = torch.arange(breadth, device=keys.device)[None] - left[:, None]
    inside_down, inside_across = ((far >= 0) & (far < width) for far in (down, across))
    return (inside_down[:, :, None] & inside_across[:, None, :])[:, None]


PGD = catalogue.AttackSpec(pgd, "PGD", unset=lambda settings: {"step_size": "ε/4"})
FGSM = catalogue.AttackSpec(fgsm, "FGSM")
PATCH = catalogue.AttackSpec(patch_pgd, "Patch PGD", unset=lambda settings: {"step_size": "ε/4"})
