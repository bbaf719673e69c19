"""Carlini and Wagner's attack: the minimal L2 perturbation by Adam, in unbounded coordinates."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from antiphase.arguments import Count, NonNegative, Positive, validated
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions
from antiphase.attacks.objectives import margin
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Flags, Numbers, Threat, per_row, row_norm
from antiphase.errors import UserError

# Scale of clean pixels in tanh space. Adam moves all coordinates of w by similar amounts, and tanh is flat near ±1: at
# the usual 0.999999, black and white pixels hardly move.
_ROOM = 0.9
_BETAS = (0.9, 0.999)
_TINY = 1e-8
_CHECKS = 10  # checks of progress per run of Adam
_LEAST_PROGRESS = 1e-4  # required ratio of the loss between checks
_LARGEST_CONST = 1e10
_STRIDE = 0.1  # first step of a run that starts at an example, relative to the example's distance


@validated
def carlini_wagner(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat("l2", math.inf),  # noqa: B008 (frozen)
    *,
    steps: Count = 1000,
    search_steps: Count = 9,
    targets: Count | None = None,
    learning_rate: Positive = 0.01,
    initial_const: Positive = 1e-3,
    confidence: NonNegative = 0.0,
    abort_early: bool = True,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Minimise ‖δ‖₂² + c·max(κ − margin(x + δ), 0) by Adam, for several c.

    The margin is the largest other logit (with ``targets``, the target's logit) minus the label's logit; for minimal
    perturbations try several targets (the paper's best case). With m and h the centre and half the width of the bounds,
    w₀ = atanh(0.9·(x − m)/h) and δ(w) = h·(tanh w − tanh w₀), clipped to the bounds; Adam starts at w₀, where δ = 0. c
    is found by bisection over ``search_steps`` runs of Adam, multiplied by 10 until a run succeeds. The result is the
    nearest iterate with a margin of at least κ, and the attack succeeds if it is within ε. Each target takes at most
    ``steps · search_steps`` forward and backward passes, and one forward pass to confirm.

    A run ends early if its lowest loss since the last check (ten per run) is not below 0.9999 times the lowest before.
    The search differs from the authors' code in that

    - 0.9 in w₀ (theirs: 0.999999) lets pixels at their bounds move;
    - a run starts at the w of the nearest example so far, with a first step of at most a tenth of its distance, or at
      the end of the last run if there is none;
    - c counts as sufficient only if an adversarial iterate since the last check has a loss below that of the clean
      image: Adam's first steps cross a near boundary at any c.

    Source: N. Carlini, D. Wagner, *Towards Evaluating the Robustness of Neural Networks*, IEEE S&P 2017,
    Sections V and VI.A; learning rate, first c and search steps are those of the authors' code.

    Args:
        threat: norm l2, ε and bounds; an infinite ε minimises the perturbation.
        steps: steps of Adam for each c, at least 1.
        search_steps: number of values of c, at least 1.
        targets: number of target classes, tried in the order of their clean logits; None: the largest other logit.
        learning_rate: learning rate of Adam in units of w, above 0.
        initial_const: first value of c, above 0.
        confidence: κ in units of the logits, at least 0.
        abort_early: end runs that make no progress.
        **run: see :class:`~antiphase.attacks.engine.search.RunOptions`; ``early_stop`` defaults to False for ε = ∞.
    """
    if threat.norm != "l2":
        raise UserError(f"norm {threat.norm!r}: Carlini and Wagner's attack minimises l2; for linf use FAB")
    run.setdefault("early_stop", math.isfinite(threat.eps))
    run["precision"] = "float32"  # the rounding of others moves the boundary (dev/low-precision.md)
    search = _CarliniWagner(threat, steps, search_steps, targets, learning_rate, initial_const, confidence, abort_early)
    return run_search(model, images, labels, threat, search, run)


@dataclass
class _CarliniWagner:
    """The state of a row: ``w``, Adam's moments and ``rate``, tanh w₀ (``origin``), the search for c (``const``, …).

    Besides: the lowest loss since the last check and before it (``previous``), and whether c was ``enough``.
    """

    threat: Threat
    steps: int
    search_steps: int
    targets: int | None
    learning_rate: float
    initial_const: float
    confidence: float
    abort_early: bool
    name, restarts = "carlini-wagner", 1

    def __post_init__(self) -> None:
        low, high = self.threat.bounds
        self.middle, self.half = 0.5 * (low + high), 0.5 * (high - low)
        self.interval = math.ceil(self.steps / _CHECKS)
        clock = torch.arange(1, self.steps + 1, dtype=torch.float64)
        self.corrections = [1.0 - beta**clock for beta in _BETAS]

    def start(self, rows: Rows) -> None:
        clean = rows["clean"]
        w = torch.atanh(_ROOM * (clean.double() - self.middle) / self.half).to(clean.dtype)
        rows["w"], rows["best_w"], rows["origin"] = w, w.clone(), _tanh(w)
        rows.fill(self.initial_const * (2.0 * self.half) ** 2, "const")  # of a distance in units of the pixel range
        rows.fill(self.learning_rate, "rate")
        rows.fill(0.0, "lower")
        rows.fill(torch.inf, "upper", "clean_hinge")
        rows["trial"] = torch.zeros_like(rows["t"])
        self._start_run(rows, torch.ones_like(rows["found"]))

    def step(self, rows: Rows, oracle: Oracle) -> None:
        clean, tanh = rows["clean"], _tanh(rows["w"])
        x = (clean + self.half * (tanh - rows["origin"])).clamp(*self.threat.bounds)
        target = rows["target"] if self.targets else None
        (value,), logits, (slope,) = oracle.gradients(rows, x, [partial(margin, labels=rows["label"], targets=target)])
        hinge = (self.confidence - value).clamp_min(0.0)
        rows.put((rows["trial"] == 0) & (rows["t"] == 0), clean_hinge=hinge)
        over = margin(logits, rows["label"]) >= self.confidence  # any wrong class counts, not only the target
        adversarial = (logits.argmax(1) != rows["label"]) & over
        distance, nearer = rows.keep_nearest(x, adversarial, self.threat)
        rows.put(nearer, best_w=rows["w"])
        ended = self._judge(rows, distance.square(), hinge, adversarial)
        pull = per_row(rows["const"] * (value <= self.confidence), x) * slope
        gradient = (2.0 * (x - clean) - pull) * self.half * (1.0 - tanh * tanh)
        low, high = self.threat.bounds
        outward = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
        self._move(rows, gradient * ~outward)
        self._search(rows, ended)
        rows["done"] = rows["trial"] == self.search_steps

    def _judge(self, rows: Rows, square: Numbers, hinge: Numbers, adversarial: Flags) -> Flags:
        """Record the loss and whether c is sufficient; return the rows whose run has ended."""
        enough = adversarial & (square <= rows["const"] * rows["clean_hinge"])
        rows["enough"] = rows["enough"] | enough
        rows["lowest"] = torch.minimum(rows["lowest"], square + rows["const"] * hinge)
        check = (rows["t"] > 0) & (rows["t"] % self.interval == 0)
        stalled = check & (rows["lowest"] > (1.0 - _LEAST_PROGRESS) * rows["previous"])
        ended = (rows["t"] == self.steps - 1) | (stalled & self.abort_early)
        rows.put(check & ~ended, previous=rows["lowest"], lowest=torch.full_like(square, torch.inf), enough=enough)
        return ended

    def _move(self, rows: Rows, gradient: Tensor) -> None:
        first, second = _BETAS
        rows["first_moment"] = first * rows["first_moment"] + (1.0 - first) * gradient
        rows["second_moment"] = second * rows["second_moment"] + (1.0 - second) * gradient * gradient
        both = (correction.to(gradient.device)[rows["t"]].to(gradient.dtype) for correction in self.corrections)
        of_first, of_second = (per_row(correction, gradient) for correction in both)
        length = (rows["second_moment"] / of_second).sqrt() + _TINY
        rows["w"] = rows["w"] - per_row(rows["rate"], gradient) * (rows["first_moment"] / of_first) / length
        rows["t"] = rows["t"] + 1

    def _search(self, rows: Rows, ended: Flags) -> None:
        """Set the next c of the rows whose run has ended."""
        const = rows["const"]
        rows.put(ended & rows["enough"], upper=const)
        rows.put(ended & ~rows["enough"], lower=const)
        larger = (10.0 * const).clamp(max=_LARGEST_CONST)
        rows.put(ended, const=torch.where(rows["upper"].isinf(), larger, 0.5 * (rows["lower"] + rows["upper"])))
        again = ended & rows["loss"].isfinite()
        rows.put(again, w=rows["best_w"])
        unit = self.half * row_norm(1.0 - _tanh(rows["w"]).square(), "l2")
        rows.put(again, rate=(_STRIDE * -rows["loss"] / unit).clamp(max=self.learning_rate))
        rows["trial"] = rows["trial"] + ended
        self._start_run(rows, ended)

    def _start_run(self, rows: Rows, which: Flags) -> None:
        none, endless = torch.zeros_like(rows["w"]), torch.full_like(rows["eps"], torch.inf)
        fresh = {"first_moment": none, "second_moment": none, "lowest": endless, "previous": endless}
        fresh |= {"t": torch.zeros_like(rows["label"]), "enough": torch.zeros_like(rows["found"])}
        for name, values in fresh.items():
            rows.setdefault(name, values)
        rows.put(which, **fresh)


def _tanh(w: Tensor) -> Tensor:
    """Return tanh w, computed in float64: torch's last bit may depend on the position in the tensor."""
    return torch.tanh(w.double()).to(w.dtype)


CARLINI_WAGNER = AttackSpec(carlini_wagner, "Carlini–Wagner", nearest=True)
