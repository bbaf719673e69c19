"""Projected gradient descent."""

import math
from collections.abc import Callable
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from antiphase.arguments import Count, NonNegative, Positive, validated
from antiphase.attacks import objectives
from antiphase.attacks.engine.options import RunOptions
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.rows import Rows, per_row
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.objectives import Objective
from antiphase.attacks.projections import project, random_point, steepest
from antiphase.attacks.result import AttackResult
from antiphase.attacks.spec import AttackSpec
from antiphase.attacks.threat import Threat, row_norm
from antiphase.errors import UserError

StepSchedule = Literal["constant", "linear", "cosine"]
_SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": torch.ones_like,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + torch.cos(math.pi * progress)),
}


@validated
def pgd(
    model: Classifier,
    images: Float[Tensor, "samples *shape"],
    labels: Integer[Tensor, " samples"] | None,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    steps: Count = 20,
    step_size: Positive | None = None,
    schedule: StepSchedule = "constant",
    restarts: Count = 1,
    random_start: bool = True,
    momentum: NonNegative = 0.0,
    objective: str | Objective = "cross_entropy",
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Maximise the loss by projected gradient ascent.

    x₀ is drawn uniformly from the ε-ball and clipped to the bounds; x_{t+1} = Π(x_t + α_t·d_t), with d_t the sign of
    the gradient (linf) or the normalised gradient (l2), and Π the projection onto the ε-ball and the bounds. By default
    the search stops at the first iterate that is classified differently from the label; otherwise the iterate of
    highest loss is kept. A restart takes at most ``steps + 1`` forward passes, and one more to confirm a success.

    Source: A. Madry et al., *Towards Deep Learning Models Resistant to Adversarial Attacks*, ICLR 2018;
    robustness paper, Appendix C.2.1, which gives neither step size nor number of steps: α = ε/4 and 20 are our choice.

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
        objective: loss to maximise: ``"cross_entropy"``, ``"margin"``, ``"dlr"`` or a callable of (logits, labels)
            that returns one number per sample.
        **run: seed, batch size and others, see :class:`~antiphase.attacks.engine.options.Run`.

    Raises:
        UserError: A parameter or image is out of range.
    """
    if threat.eps == math.inf:
        raise UserError("eps inf: PGD needs a finite ε; use FAB to minimise the perturbation")
    if restarts > 1 and not random_start:
        raise UserError(f"restarts {restarts} without a random start: expected 1, since all would be equal")
    alpha = threat.eps / 4 if step_size is None else step_size
    search = PgdSearch(
        threat,
        objectives.resolve(objective),
        steps,
        alpha,
        schedule=schedule,
        restarts=restarts,
        random_start=random_start,
        momentum=momentum,
    )
    settings: dict[str, Any] = {
        "steps": steps,
        "step_size": alpha,
        "schedule": schedule,
        "restarts": restarts,
        "random_start": random_start,
        "momentum": momentum,
        "objective": objective if isinstance(objective, str) else "custom",
    }
    return run_search(model, images, labels, threat, search, settings, run)


class PgdSearch:
    """PGD; the state of a row holds the iterate ``x``, the number of steps (``t``) and the best iterate so far."""

    targets = 0
    decides_in_float32 = False

    def __init__(
        self,
        threat: Threat,
        objective: Objective,
        steps: int,
        step_size: float,
        *,
        schedule: StepSchedule = "constant",
        restarts: int = 1,
        random_start: bool = True,
        momentum: float = 0.0,
        name: str = "pgd",
    ) -> None:
        self.name, self.momentum = name, momentum
        self.threat, self.objective = threat, objective
        self.steps, self.restarts, self.random_start = steps, restarts, random_start
        progress = torch.arange(steps, dtype=torch.float64) / steps
        self.step_sizes = step_size * _SCHEDULES[schedule](progress)

    def start(self, rows: Rows) -> None:
        clean, threat = rows["clean"], self.threat
        rows["x"] = clean.clone()
        if self.random_start:
            rows["x"] = random_point(clean, rows["eps"], threat.norm, threat.bounds, rows["key"])
            if "mask" in rows:  # of the pixels that may change
                rows["x"] = torch.where(rows["mask"], rows["x"], clean)
        if self.momentum:
            rows["velocity"] = torch.zeros_like(clean)
        rows["t"] = torch.zeros_like(rows["label"])
        rows["best"] = rows["x"].clone()
        for name in ("loss", "start_loss"):
            rows[name] = torch.full_like(rows["eps"], -torch.inf)
        rows["found"] = torch.zeros_like(rows["label"], dtype=torch.bool)
        rows["done"] = rows["found"].clone()

    def step(self, rows: Rows, oracle: Oracle) -> None:
        (loss,), logits, (gradient,) = oracle.gradients(
            rows, rows["x"], [lambda logits: self.objective(logits, rows["label"])]
        )
        if "mask" in rows:
            gradient = gradient * rows["mask"]
        rows.put("start_loss", rows["t"] == 0, loss)
        adversarial = logits.argmax(1) != rows["label"]
        # prefer adversarial iterates, then the higher loss
        better = (adversarial & ~rows["found"]) | ((loss > rows["loss"]) & (adversarial >= rows["found"]))
        rows.put("best", better, rows["x"])
        rows.put("loss", better, loss)
        rows["found"] = rows["found"] | adversarial
        rows["done"] = rows["t"] == self.steps
        if self.momentum:
            length = row_norm(gradient, "l1").clamp_min(1e-12)
            gradient = self.momentum * rows["velocity"] + gradient / per_row(length, gradient)
            rows["velocity"] = gradient
        alpha = self.step_sizes.to(loss.device, loss.dtype)[rows["t"].clamp(max=self.steps - 1)]
        stride = per_row(alpha, gradient) * steepest(gradient, self.threat.norm)
        moved = rows["x"] + stride
        rows["x"] = project(moved, rows["clean"], rows["eps"], self.threat.norm, self.threat.bounds)
        rows["t"] = rows["t"] + 1


PGD = AttackSpec(pgd, "PGD", unset=lambda settings: {"step_size": "ε/4"})
