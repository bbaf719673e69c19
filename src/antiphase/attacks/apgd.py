"""Auto-PGD: projected gradient ascent with an adaptive step size."""

from dataclasses import dataclass
from typing import Any, Unpack

import torch

from antiphase.arguments import Count, Probability, Share, validated
from antiphase.attacks import objectives
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine.checks import Targets
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions, expected
from antiphase.attacks.objectives import Objective, TargetedObjective
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Flags, Threat, per_row, project, random_point, row_norm, steepest

_SHORT = {"cross_entropy": "ce", "probability_margin": "pm"}
# of the l1 search: radius in units of ε, and the share of the steps after which it holds
_PHASES = ((3.0, 0.0), (2.0, 0.3), (1.0, 0.6))
_SPARSE = 1.5  # the next steps change 1 / 1.5 of the pixels that the best change has
_SLOWER, _SLOWEST = 1.5, 10.0  # a step size is divided by the first, at most to ε by the second


@validated
def apgd(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    steps: Count = 100,
    objective: str | Objective | TargetedObjective | None = None,
    targets: Targets = None,
    restarts: Count = 1,
    rho: Probability = 0.75,
    momentum: Share = 0.75,
    eot: Count = 1,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Maximise the loss by projected gradient ascent with momentum and a step size that is halved when progress stalls.

    From a random x₀ with η₀ = 2ε: z = Π(x_t + η·d_t) and
    x_{t+1} = Π(x_t + a·(z − x_t) + (1 − a)·(x_t − x_{t−1})),
    with d_t the sign of the gradient (linf) or the normalised gradient (l2), and a = 1 in the first step.
    At each of the :func:`checkpoints`, η is halved and the search restarts from its best iterate if the loss rose
    in fewer than a share ρ of the steps since the last checkpoint, or if neither η nor the highest loss has changed
    since then. The search stops at the first iterate that changes the prediction. It takes at most ``steps + 1``
    forward passes, and one more to confirm a success.

    In l1, without ρ and momentum: x ← Π(x + η·s/‖s‖₁) with s the signs of the k largest entries of the gradient, η = ε
    at first. Every 4 % of the steps k becomes 1/1.5 of the number of pixels changed in the best iterate. If it fell by
    5 %, η returns to ε and the search to the best iterate; else η is divided by 1.5. The first 30 % of the steps search
    in the ball of 3ε, the next in that of 2ε; only what is found within ε counts. (F. Croce, M. Hein, *Mind the Box:
    l1-APGD for Sparse Adversarial Attacks on Image Classifiers*, ICML 2021, Algorithm 1 and Section 3.2; the official
    code counts 4 % of the steps of a phase, which broke as many images of a ViT and a DiffViT.)

    The default is APGD-CE; ``objective="dlr"`` gives APGD-DLR, ``targets=9`` gives APGD-T.

    Source: F. Croce, M. Hein, *Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse
    Parameter-free Attacks*, ICML 2020, Algorithm 1; the defaults are AutoAttack's.

    Args:
        steps: gradient steps, at least 1.
        objective: loss to maximise: ``"cross_entropy"`` (default), ``"dlr"`` (default with ``targets``), ``"margin"``,
            ``"probability_margin"``, or a callable of (logits, labels), with ``targets`` of (logits, labels, targets),
            that returns one number per sample.
        targets: number of target classes, tried in the order of their clean logits; None attacks untargeted.
            ``"malt"``: the 9 of the 100 most likely other classes i with the smallest (z_y − z_i) / ‖∇(z_y − z_i)‖₂ at
            the clean image, in this order (O. Melamed et al., *MALT Powers Up Adversarial Attacks*, NeurIPS 2024).
        restarts: random restarts per sample (and target class), at least 1.
        rho: ρ, in (0, 1).
        momentum: a, in (0, 1]; 1 means no momentum.
        eot: as in :func:`pgd`.
    """
    threat.require("APGD", "linf", "l2", "l1")
    loss = objective or ("dlr" if targets else "cross_entropy")
    search: Any = _Apgd(threat, steps, loss, targets, restarts, rho, momentum)
    if threat.norm == "l1":
        search = _ApgdL1(threat, steps, loss, targets, restarts, search.name, search.loss)
    return run_search(model, images, labels, threat, search, expected(run, eot))


def checkpoints(steps: int) -> list[int]:
    """Return the steps after which APGD adapts its step size.

    w_j = ⌈p_j·steps⌉ with p₁ = 0.22 and p_{j+1} = p_j + max(p_j − p_{j−1} − 0.03, 0.06).
    """
    after: list[int] = []
    share, interval = 22, 22  # in hundredths, where the ceiling is exact
    while share <= 100:
        after.append(-(-share * steps // 100))
        interval = max(interval - 3, 6)
        share += interval
    return sorted(set(after))


@dataclass
class _Apgd:
    """APGD.

    State of a row: the iterate ``x`` and the one before; the iterate of highest loss, from which the search restarts
    when η is halved (``peak``); how often the loss ``rises`` since the last checkpoint, and whether η was halved there.
    """

    threat: Threat
    steps: int
    objective: str | Objective | TargetedObjective
    targets: Targets
    restarts: int
    rho: float
    momentum: float

    def __post_init__(self) -> None:
        self.loss = objectives.resolve(self.objective, bool(self.targets))
        short = _SHORT.get(self.objective, self.objective) if isinstance(self.objective, str) else "custom"
        kind = "apgd-malt" if self.targets == "malt" else "apgd-t"
        self.name = f"{kind}-{short}".removesuffix("-dlr") if self.targets else f"apgd-{short}"
        after = checkpoints(self.steps)
        self.interval = torch.zeros(self.steps + 1, dtype=torch.int64)  # steps before a checkpoint; else 0
        self.interval[after] = torch.tensor(after).diff(prepend=torch.tensor([0]))

    def start(self, rows: Rows) -> None:
        x = random_point(rows["clean"], rows["eps"], self.threat.norm, self.threat.bounds, rows["key"])
        for name in ("x", "previous", "peak"):
            rows[name] = x.clone()
        rows["peak_gradient"] = torch.zeros_like(x)
        rows.fill(-torch.inf, "start_loss", "last_loss", "peak_loss", "checkpoint_loss")
        rows["step_size"] = 2.0 * rows["eps"]
        rows["rises"], rows["halved"] = torch.zeros_like(rows["t"]), torch.zeros_like(rows["found"])

    def step(self, rows: Rows, oracle: Oracle) -> None:
        losses = [lambda logits: self.loss(logits, rows["label"], rows["target"])]
        (loss,), logits, (gradient,) = oracle.gradients(rows, rows["x"], losses)
        rows.put(rows["t"] == 0, start_loss=loss)
        rows.keep_best(rows["x"], loss, logits.argmax(1) != rows["label"])
        rows["done"] = rows["t"] == self.steps

        rows["rises"] = rows["rises"] + ((loss > rows["last_loss"]) & (rows["t"] > 0))
        rows["last_loss"] = loss
        rows.put(loss > rows["peak_loss"], peak=rows["x"], peak_gradient=gradient, peak_loss=loss)
        interval = self.interval.to(rows["t"].device)[rows["t"].clamp(max=self.steps)]
        checkpoint = interval > 0
        few_rises = rows["rises"] < self.rho * interval
        stuck = ~rows["halved"] & (rows["peak_loss"] == rows["checkpoint_loss"])
        halve = checkpoint & (few_rises | stuck)
        rows.put(checkpoint, halved=halve, checkpoint_loss=rows["peak_loss"], rises=torch.zeros_like(rows["rises"]))
        rows["step_size"] = torch.where(halve, 0.5 * rows["step_size"], rows["step_size"])
        rows.put(halve, x=rows["peak"])
        gradient = torch.where(per_row(halve, gradient), rows["peak_gradient"], gradient)
        x, clean, eps, threat = rows["x"], rows["clean"], rows["eps"], self.threat
        stride = per_row(rows["step_size"], x) * steepest(gradient, threat.norm)
        ahead = project(x + stride, clean, eps, threat.norm, threat.bounds)
        a = per_row(torch.where(rows["t"] > 0, self.momentum, 1.0).to(x.dtype), x)
        mixed = x + a * (ahead - x) + (1.0 - a) * (x - rows["previous"])
        rows["x"], rows["previous"] = project(mixed, clean, eps, threat.norm, threat.bounds), x
        rows["t"] = rows["t"] + 1


@dataclass
class _ApgdL1:
    """APGD in l1, in which a step changes few pixels; see :func:`apgd`."""

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
        rows["x"] = random_point(rows["clean"], _PHASES[0][0] * rows["eps"], "l1", self.threat.bounds, rows["key"])
        rows["peak"], rows["peak_gradient"] = rows["x"].clone(), torch.zeros_like(rows["x"])
        rows.fill(-torch.inf, "start_loss", "peak_loss")
        rows.fill(0.0, "changed", "share", "step_size", "radius")  # set as a phase begins
        rows["begin"] = torch.zeros_like(rows["t"])

    def _begin(self, rows: Rows, begins: Flags, factor: float) -> None:
        """Go on from the best iterate, within another radius, in the rows where a phase begins."""
        clean = rows["clean"]
        rows.put(begins, radius=factor * rows["eps"])
        x = project(rows["peak"], clean, rows["radius"], "l1", self.threat.bounds)
        changed = row_norm(x - clean, "l0")
        new = {"x": x, "peak": x, "step_size": rows["radius"], "changed": changed, "begin": rows["t"]}
        new["share"] = changed / clean[0].numel() / _SPARSE
        new["peak_loss"] = torch.full_like(changed, -torch.inf)
        rows.put(begins, **new)

    def step(self, rows: Rows, oracle: Oracle) -> None:
        t, clean = rows["t"], rows["clean"]
        for (factor, _), begin in zip(_PHASES, self.begins, strict=True):
            if bool((t == begin).any()):
                self._begin(rows, t == begin, factor)
        x = rows["x"]
        losses = [lambda logits: self.loss(logits, rows["label"], rows["target"])]
        (loss,), logits, (gradient,) = oracle.gradients(rows, x, losses)
        counts = t >= self.begins[-1]
        rows.put(t == 0, start_loss=loss)  # later phases begin at an iterate that has risen already
        rows.keep_best(x, torch.where(counts, loss, -torch.inf), counts & (logits.argmax(1) != rows["label"]))
        rows["done"] = t == self.steps
        rows.put(loss > rows["peak_loss"], peak=x, peak_gradient=gradient, peak_loss=loss)
        check = (t > rows["begin"]) & ((t - rows["begin"]) % self.interval == 0)
        changed = row_norm(rows["peak"] - clean, "l0")
        sparser = check & (changed < 0.95 * rows["changed"])
        slower = torch.maximum(rows["step_size"] / _SLOWER, rows["radius"] / _SLOWEST)
        rows["step_size"] = torch.where(sparser, rows["radius"], torch.where(check, slower, rows["step_size"]))
        rows.put(check, changed=changed, share=changed / clean[0].numel() / _SPARSE)
        rows.put(sparser, x=rows["peak"])
        gradient = torch.where(per_row(sparser, x), rows["peak_gradient"], gradient)
        ranks = gradient.flatten(1).abs().sort(dim=1).values
        first = ((1.0 - rows["share"]) * ranks.shape[1]).long().clamp(0, ranks.shape[1] - 1)
        signs = gradient.sign() * (gradient.abs() >= per_row(ranks.gather(1, first[:, None]).flatten(), x))
        moved = rows["x"] + per_row(rows["step_size"] / row_norm(signs, "l1").clamp_min(1.0), x) * signs
        rows["x"] = project(moved, clean, rows["radius"], "l1", self.threat.bounds)
        rows["t"] = t + 1


APGD_CE, APGD_DLR, APGD_T = (
    AttackSpec(apgd, label, extra, unset=lambda given: {"objective": "dlr" if given["targets"] else "cross_entropy"})
    for label, extra in (("APGD-CE", {}), ("APGD-DLR", {"objective": "dlr"}), ("APGD-T", {"targets": 9}))
)
