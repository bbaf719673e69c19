"""FAB: the fast adaptive boundary attack, which minimises the norm of the perturbation."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Unpack

import torch
from jaxtyping import Float64
from torch import Tensor

from antiphase.arguments import Count, Must, Probability, at_least, validated
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine.oracle import Classifier, Loss, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions
from antiphase.attacks.objectives import margin
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import DUAL, Bounds, Norm, Points, Threat, per_row, random_point, row_norm
from antiphase.errors import UserError

Values = Float64[Tensor, " batch"]

MOST_CLASSES = 100  # untargeted FAB takes one backward pass per other class at every step
# Rounding moves the decision boundary, so a search in bf16 takes its last steps in float32, from the nearest example
# found: a fifth of all steps, at least 15 (dev/low-precision.md).
_ROUGH = 0.8
_LEAST_EXACT = 15
_FINAL_STEPS = 4
_BEYOND = 0.1  # how far behind the estimated boundary the final search looks, as a share of what is left
_RESTART_SCALE = {"linf": 0.3, "l2": 1.0, "l1": 5.0}  # of random starts for an infinite ε: FAB's default


@validated
def fab(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    steps: Count = 100,
    targets: Count | None = None,
    restarts: Count = 1,
    alpha_max: Annotated[float, Must("in [0, 1]", lambda number: 0 <= number <= 1)] = 0.1,
    eta: Annotated[float, at_least(1)] = 1.05,
    beta: Probability = 0.9,
    final_search: bool = True,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Project repeatedly onto the linearised decision boundary, with a bias towards the clean image x₀.

    At x the boundary to class s is linearised as the plane f_s + ⟨∇f_s, z − x⟩ = 0, with f_s the logit of s minus
    that of the label. If x is adversarial, its distance is recorded and x ← x₀ + β(x − x₀). With d the shortest step
    from x onto the nearest plane within the bounds, d₀ the same from x₀, and α = min(‖d‖ / (‖d‖ + ‖d₀‖), α_max):
    x ← (1 − α)(x + η·d) + α(x₀ + η·d₀), clipped to the bounds. The attack succeeds if the nearest adversarial example
    found is within ε, and returns it in any case.

    A final search moves it towards x₀, as far as it stays adversarial: four times, the margin along the segment is
    taken to be linear between the last points on either side of the boundary, and the next point lies behind its zero
    by a tenth of what is left, all in float32.

    It takes at most ``steps + 1`` forward and backward passes (without targets, one backward pass per other class), six
    forward passes for the final search, and one to confirm. (The paper linearises again after pulling x back.)

    Source: F. Croce, M. Hein, *Minimally Distorted Adversarial Examples with a Fast Adaptive Boundary
    Attack*, ICML 2020, Section 3; the defaults are AutoAttack's, whose FAB has no final search.

    Args:
        threat: norm, ε and bounds; an infinite ε minimises the perturbation.
        steps: steps, at least 1.
        targets: number of target classes, tried in the order of their clean logits (FAB-T); None steps towards the
            nearest class each time.
        restarts: starts per sample (and target class), at least 1: the first at x₀, the others at random within ε/2.
        alpha_max: largest weight of x₀, in [0, 1].
        eta: overshoot η of a step, at least 1.
        beta: β, in (0, 1).
        final_search: whether to search the segment from x₀ to the nearest adversarial example for a nearer one.
        **run: see :class:`~antiphase.attacks.engine.search.RunOptions`; ``early_stop`` defaults to False for ε = ∞.
    """
    threat.require("FAB", "linf", "l2", "l1", finite=False)
    early_stop = run.setdefault("early_stop", math.isfinite(threat.eps))
    search = _Fab(threat, steps, targets, restarts, alpha_max, eta, beta, final_search, early_stop)
    if run.get("precision") == "auto" or (run.get("precision") == "bf16" and not search.exact_from):
        run["precision"] = "float32"  # rounding moves the boundary, so bf16 may find fewer examples
    return run_search(model, images, labels, threat, search, run)


def step_onto_plane(x: Points, value: Values, gradient: Points, norm: Norm, bounds: Bounds) -> Points:
    """Return the shortest step d, in ``norm``, with value + ⟨gradient, d⟩ = 0 and x + d within the bounds.

    If no such step exists, every pixel goes to its bound. Otherwise pixel i moves against sign(value)·gᵢ by min(t·vᵢ,
    rᵢ), with rᵢ its distance to the bound and vᵢ = 1 for linf, |gᵢ| for l2. Σ |gᵢ|·min(t·vᵢ, rᵢ) is concave in t, so
    Newton's iteration from 0 rises to the t at which it equals |value|. For l1, pixels go to their bound one by one, in
    the order of |gᵢ|, the largest first.
    """
    direction = -gradient.sign() * per_row(value.sign(), x).to(x.dtype)
    room = torch.where(direction > 0, bounds[1] - x, x - bounds[0]).flatten(1)
    weight = gradient.abs().flatten(1)
    speed = torch.ones_like(weight) if norm == "linf" else weight
    full, rate, magnitude = (weight * room).double(), (weight * speed).double(), value.abs()
    if norm == "l1":
        order = weight.argsort(dim=1, descending=True, stable=True)
        gains = full.gather(1, order)
        left = (magnitude[:, None] - gains.cumsum(1) + gains).clamp_min(0.0)
        share = (left / gains.clamp_min(torch.finfo(gains.dtype).tiny)).clamp(max=1.0).to(x.dtype)
        move = torch.zeros_like(room).scatter(1, order, share) * room
        return direction * move.view_as(x)
    t = torch.zeros_like(magnitude)
    largest = torch.finfo(x.dtype).max ** 0.75  # stands in for infinity, which times 0 would be NaN
    stopped = room <= 0
    while True:
        gained = (full * stopped).sum(1)
        slope = (rate * ~stopped).sum(1)
        t = torch.maximum(t, (magnitude - gained) / slope.clamp_min(torch.finfo(slope.dtype).tiny))
        t = t.clamp(max=largest)
        # t goes to x's precision before it meets the pixels: sums in float64 may differ in their last bit
        # with the size of the batch, and this rounds the difference away
        move = t.to(x.dtype)[:, None] * speed
        more = stopped | (move >= room)
        if torch.equal(more, stopped):
            return direction * torch.minimum(move, room).view_as(x)
        stopped = more


@dataclass
class _Fab:
    """FAB; the state of a row holds the iterate ``x``; ``loss`` is −distance."""

    threat: Threat
    steps: int
    targets: int | None
    restarts: int
    alpha_max: float
    eta: float
    beta: float
    final_search: bool
    early_stop: bool

    def __post_init__(self) -> None:
        self.exact_from = min(int(_ROUGH * self.steps), max(0, self.steps - _LEAST_EXACT))
        self.classes: int | None = None  # known once the model has been asked
        self.name = "fab-t" if self.targets else "fab"

    def start(self, rows: Rows) -> None:
        """Start at the clean image, from the first restart on at a random point near it."""
        clean, eps, threat = rows["clean"], rows["eps"], self.threat
        radius = 0.5 * eps.clamp(max=_RESTART_SCALE[threat.norm]) if math.isinf(threat.eps) else 0.5 * eps
        near = random_point(clean, radius, threat.norm, threat.bounds, rows["key"])
        rows["x"] = torch.where(per_row(rows["restart"] > 0, clean), near, clean)
        rows["exact"] = rows["found"].clone()

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Note the iterate where it has crossed the boundary, then step onto the boundary seen from it."""
        turns = rows["exact"] & (rows["t"] == self.exact_from) & rows["loss"].isfinite()
        if turns.any():  # rows whose steps in float32 begin look at their nearest example again
            rows.put(turns, x=rows["best"], best=rows["clean"])
            rows["loss"] = rows["loss"].masked_fill(turns, -torch.inf)
            rows["found"] = rows["found"] & ~turns
        x, clean = rows["x"], rows["clean"]
        values, logits, gradients = oracle.gradients(rows, x, self._differences(rows, oracle))
        adversarial = logits.argmax(1) != rows["label"]
        rows.keep_nearest(x, adversarial, self.threat)
        rows["done"] = rows["t"] == self.steps
        if self.final_search:
            self._search_segment(rows, oracle, rows["done"] | (rows["found"] & self.early_stop))
        rows.put(adversarial, x=clean + self.beta * (x - clean))
        value, gradient = _nearest(values, gradients, rows["x"] - x, self.threat.norm)
        rows["x"] = self._towards(rows, value, gradient)
        rows["t"] = rows["t"] + 1
        if oracle.precision != "float32":
            rows["exact"] = rows["t"] == self.exact_from

    def _search_segment(self, rows: Rows, oracle: Oracle, ended: Tensor) -> None:
        """Look for a nearer example between the clean image and the nearest one of the rows that have ended."""
        if not len(index := (ended & rows["loss"].isfinite()).nonzero().flatten()):
            return
        part = rows.take(index)
        clean, change, label = part["clean"], part["best"] - part["clean"], part["label"]

        def margin_at(x: Points) -> Tensor:
            return margin(oracle.verdict(x, part.get("context")), label)

        inside, outside = margin_at(clean), margin_at(part["best"])
        crossed = outside > 0  # else it is adversarial in the precision of the search only
        low, high = torch.zeros_like(inside), torch.ones_like(inside)  # where the margins are these
        for _ in range(_FINAL_STEPS):
            zero = (inside / (inside - outside)).nan_to_num(1.0).clamp(0.0, 1.0)
            place = low + (zero + _BEYOND * (1.0 - zero)) * (high - low)
            x = (clean + per_row(place, clean) * change).clamp(*self.threat.bounds)
            value = margin_at(x)
            part.keep_nearest(x, crossed & (value > 0), self.threat)
            ends = (low, inside, high, outside)
            moved = (place, value, place, value)
            keep = (value > 0, value > 0, value <= 0, value <= 0)
            low, inside, high, outside = map(torch.where, keep, ends, moved)
        part["forwards"] = part["forwards"] + (_FINAL_STEPS + 2) * oracle.passes
        for name in ("best", "loss", "found", "forwards"):
            rows[name] = rows[name].index_copy(0, index, part[name])

    def _towards(self, rows: Rows, value: Values, gradient: Points) -> Points:
        """Step onto the linearised boundary and beyond, from x and from the clean image, and mix the two."""
        x, clean, threat = rows["x"], rows["clean"], self.threat
        value_at_clean = value + _inner(gradient, clean - x)
        step = step_onto_plane(x, value, gradient, threat.norm, threat.bounds)
        clean_step = step_onto_plane(clean, value_at_clean, gradient, threat.norm, threat.bounds)
        length = row_norm(step, threat.norm).clamp_min(1e-8)
        clean_length = row_norm(clean_step, threat.norm).clamp_min(1e-8)
        alpha = per_row((length / (length + clean_length)).clamp(max=self.alpha_max), x)
        return ((1.0 - alpha) * (x + self.eta * step) + alpha * (clean + self.eta * clean_step)).clamp(*threat.bounds)

    def _differences(self, rows: Rows, oracle: Oracle) -> list[Loss]:
        """Return, as functions of the logits, the target's logit less the label's, or each other class's."""
        if self.targets:
            return [partial(margin, labels=rows["label"], targets=rows["target"])]
        first = rows.take(slice(1))
        self.classes = self.classes or oracle.logits(first["x"], first.get("context")).shape[1]
        classes = self.classes
        if classes > MOST_CLASSES:
            needs = f"untargeted FAB on {classes} classes would need {classes - 1} backward passes a step"
            raise UserError(f"{needs}: use FAB-T, targets=9")
        others = [index + (rows["label"] <= index) for index in range(classes - 1)]
        return [partial(margin, labels=rows["label"], targets=other) for other in others]


def _nearest(values: list[Tensor], gradients: list[Points], shift: Points, norm: Norm) -> tuple[Values, Points]:
    """Return each row's nearest plane as seen after a shift: its value there and its gradient."""
    moved = [value.double() + _inner(slope, shift) for value, slope in zip(values, gradients, strict=True)]
    lengths = [row_norm(slope.double().flatten(1), DUAL[norm]).clamp_min(1e-12) for slope in gradients]
    # the distance to each plane, bounds aside
    chosen = torch.stack([value.abs() / length for value, length in zip(moved, lengths, strict=True)], 1).argmin(1)
    value = torch.stack(moved, 1).gather(1, chosen[:, None]).squeeze(1)
    return value, torch.stack(gradients)[chosen, torch.arange(len(chosen), device=chosen.device)]


def _inner(a: Points, b: Points) -> Values:
    return (a.double() * b.double()).flatten(1).sum(1)


# rows made before there was a final search have other settings
FAB, FAB_T = (
    AttackSpec(fab, label, extra, nearest=True, implied=lambda given: {"final_search": given.get("final_search", True)})
    for label, extra in (("FAB", {}), ("FAB-T", {"targets": 9}))
)
