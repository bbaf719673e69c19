"""The search of Auto-PGD in the L1 ball, where a step changes few pixels; ``apgd`` runs it."""

from dataclasses import dataclass
from typing import Any

import torch

from antiphase.attacks.engine.checks import Targets
from antiphase.attacks.engine.oracle import Oracle
from antiphase.attacks.engine.search import Rows
from antiphase.attacks.objectives import TargetedObjective
from antiphase.attacks.threat import Flags, Threat, per_row, project, random_point, row_norm

_PHASES = (
    (3.0, 0.0),
    (2.0, 0.3),
    (1.0, 0.6),
)  # radius in units of ε, and the share of the steps after which it holds
_SPARSE = 1.5  # the next steps change 1 / 1.5 of the pixels that the best change has
_SLOWER, _SLOWEST = 1.5, 10.0  # a step size is divided by the first, at most to ε by the second


@dataclass
class ApgdL1:
    """APGD in l1: x ← Π(x + η·s/‖s‖₁) with s the signs of the k largest entries of the gradient, η = ε at first.

    Every 4 % of the steps k becomes 1/1.5 of the number of pixels changed in the best iterate. If that number fell by
    5 %, η returns to ε and the search to the best iterate; else η is divided by 1.5. The first 30 % of the steps search
    in the ball of 3ε, the next in that of 2ε; only what is found within ε counts.

    Source: F. Croce, M. Hein, *Mind the Box: l1-APGD for Sparse Adversarial Attacks on Image Classifiers*, ICML 2021,
    Algorithm 1 and Section 3.2 (multi-ε). The official code counts 4 % of the steps of a phase; on a ViT and a DiffViT
    that broke as many images.
    """

    threat: Threat
    steps: int
    objective: Any
    targets: Targets
    restarts: int
    name: str
    loss: TargetedObjective

    def __post_init__(self) -> None:
        self.begins = [int(share * self.steps + 1e-9) for _, share in _PHASES]
        self.interval = max(int(0.04 * self.steps), 1)

    def start(self, rows: Rows) -> None:
        eps = _PHASES[0][0] * rows["eps"]
        rows["x"] = random_point(rows["clean"], eps, "l1", self.threat.bounds, rows["key"])
        rows["peak"], rows["peak_gradient"] = rows["x"].clone(), torch.zeros_like(rows["x"])
        rows.fill(-torch.inf, "start_loss", "peak_loss")
        rows.fill(0.0, "changed", "share", "step_size", "radius")  # set as a phase begins
        rows["begin"] = torch.zeros_like(rows["t"])

    def _begin(self, rows: Rows, begins: Flags, factor: float) -> None:
        """Go on from the best iterate, within another radius, in the rows where a phase begins."""
        clean = rows["clean"]
        rows.put("radius", begins, factor * rows["eps"])
        x = project(rows["peak"], clean, rows["radius"], "l1", self.threat.bounds)
        changed = row_norm(x - clean, "l0")
        for name, values in {"x": x, "peak": x, "step_size": rows["radius"], "changed": changed}.items():
            rows.put(name, begins, values)
        rows.put("share", begins, changed / clean[0].numel() / _SPARSE)
        rows.put("peak_loss", begins, torch.full_like(changed, -torch.inf))
        rows.put("begin", begins, rows["t"])

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Judge the iterate, adapt how many pixels a step changes and its length, then move."""
        t, clean = rows["t"], rows["clean"]
        for (factor, _), begin in zip(_PHASES, self.begins, strict=True):
            if bool((t == begin).any()):
                self._begin(rows, t == begin, factor)
        x = rows["x"]
        (loss,), logits, (gradient,) = oracle.gradients(
            rows, x, [lambda logits: self.loss(logits, rows["label"], rows["target"])]
        )
        counts = t >= self.begins[-1]
        kept = torch.where(counts, loss, -torch.inf)
        rows.put("start_loss", t == 0, loss)  # later phases begin at an iterate that has risen already
        rows.keep_best(x, kept, counts & (logits.argmax(1) != rows["label"]))
        rows["done"] = t == self.steps
        higher = loss > rows["peak_loss"]
        for name, values in (("peak", x), ("peak_gradient", gradient), ("peak_loss", loss)):
            rows.put(name, higher, values)
        check = (t > rows["begin"]) & ((t - rows["begin"]) % self.interval == 0)
        changed = row_norm(rows["peak"] - clean, "l0")
        sparser = check & (changed < 0.95 * rows["changed"])
        slower = torch.maximum(rows["step_size"] / _SLOWER, rows["radius"] / _SLOWEST)
        rows["step_size"] = torch.where(
            sparser, rows["radius"], torch.where(check, slower, rows["step_size"])
        )
        rows.put("changed", check, changed)
        rows.put("share", check, changed / clean[0].numel() / _SPARSE)
        rows.put("x", sparser, rows["peak"])
        gradient = torch.where(per_row(sparser, x), rows["peak_gradient"], gradient)
        ranks = gradient.flatten(1).abs().sort(dim=1).values
        first = ((1.0 - rows["share"]) * ranks.shape[1]).long().clamp(0, ranks.shape[1] - 1)
        signs = gradient.sign() * (gradient.abs() >= per_row(ranks.gather(1, first[:, None]).flatten(), x))
        length = row_norm(signs, "l1").clamp_min(1.0)
        moved = rows["x"] + per_row(rows["step_size"] / length, x) * signs
        rows["x"] = project(moved, clean, rows["radius"], "l1", self.threat.bounds)
        rows["t"] = t + 1
