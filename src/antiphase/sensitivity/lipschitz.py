"""Estimates of the local Lipschitz constant L(x) = sup ‖f(x + ξ) − f(x)‖₂ / ‖ξ‖₂ over 0 < ‖ξ‖∞ ≤ ε (equation 4).

A function f maps a batch (batch, …) to a batch, one sample apart from the others: all outputs of a sample are one
vector, and J(x) is its Jacobian by the sample. ξ is in an L∞ ball (sensitivity paper, Section 5.3), its length L2, and
nothing is clipped to the range of a pixel. L(x) ≥ ‖J(x)‖, the largest singular value. (The paper's Lemma 2 has it the
other way round.) All estimates but :func:`local_maximum` are lower bounds. Random draws are keyed by ``seed`` and the
samples' ``ids``, their positions by default. A UserError refuses an ε that is lost in the rounding of x.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase import modules, registry, streams
from antiphase.arguments import UNIQUE, Count, NonNegative, Positive, Seed, validated
from antiphase.attacks.engine.search import Rows
from antiphase.attacks.threat import per_row, random_point, row_norm
from antiphase.errors import UserError
from antiphase.sensitivity.layers import eager_attention

Function = Callable[[Tensor], Tensor]
Samples = Float[Tensor, "batch *shape"]
PerSample = Float[Tensor, " batch"]
Ids = Annotated[Int64[Tensor, " batch"], UNIQUE] | None
# of the greatest radius in the ball: below, the rounding of f would pass for slope, and the limit is taken instead
_LEAST_RADIUS = 1 / 16
_RADII = (1.0, 0.5, 0.25, _LEAST_RADIUS)


class OperatorNorm(NamedTuple):
    """‖J(x)‖ of each sample, or a lower bound of it: ‖J(x)·direction‖₂ for a direction of length 1."""

    value: PerSample
    direction: Samples


class Sampled(NamedTuple):
    """The largest slope to some points of the ball, its ξ, and the mean slope."""

    largest: PerSample
    mean: PerSample
    perturbation: Samples


class Ascended(NamedTuple):
    """The steepest chord found and its ξ, which is zero where no chord is steeper than the slope at x itself."""

    value: PerSample
    perturbation: Samples


class Linearisation:
    """f at x, with the products J(x)·v and J(x)ᵀ·u of each sample, on one graph that is kept for all of them.

    J(x)·v is the derivative of w ↦ J(x)ᵀ·w, a third of the cost of a forward-mode pass. Use it within eager_attention.
    """

    def __init__(self, f: Function, x: Samples) -> None:
        with torch.enable_grad():
            self.x = x.detach().clone().requires_grad_()
            self.y = _checked(f(self.x.clone()), self.x)  # which f may write to
            if not self.y.requires_grad and not torch.equal(self.y, _checked(f(torch.rand_like(self.x)), self.x)):
                raise UserError("f changes with x and has no gradient: remove no_grad or detach from its forward pass")

    @cached_property
    def _back(self) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            w = torch.zeros_like(self.y, requires_grad=True)
            return w, _gradient(self.y, self.x, w, create_graph=True)

    def vjp(self, u: Float[Tensor, "batch outputs"]) -> Samples:
        return _gradient(self.y, self.x, u)

    def jvp(self, v: Samples) -> Float[Tensor, "batch outputs"]:
        w, back = self._back
        return _gradient(back, w, v)


@contextmanager
def _evaluated(f: Function) -> Iterator[None]:
    with eager_attention(), modules.evaluating(f) if isinstance(f, nn.Module) else nullcontext():
        yield


def _gradient(y: Tensor, x: Tensor, u: Tensor, create_graph: bool = False) -> Tensor:
    if not y.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(y, x, u, True, create_graph, materialize_grads=True)[0]


def _checked(y: Tensor, x: Tensor) -> Tensor:
    if not isinstance(y, Tensor) or not y.is_floating_point() or y.shape[:1] != x.shape[:1]:
        shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise UserError(f"f returned {shape} for {len(x)} samples: expected floats, one row for each sample")
    if not y.isfinite().all():
        raise UserError("f returned NaN or infinite values: its slope there is not defined")
    return y.reshape(len(y), -1)


def _ids(x: Tensor, ids: Tensor | None, eps: float | None = None) -> Tensor:
    """Return the samples' ids: 0, 1, … where none are given; refuse inputs out of range, and ε that is lost in them."""
    if not x.is_floating_point() or x.ndim < 2 or not x.numel() or not x.isfinite().all():
        raise UserError(f"inputs {x.dtype} {tuple(x.shape)}: expected finite floats of shape (batch, ...)")
    if eps and ((x + eps == x) & (x - eps == x)).flatten(1).all(1).any():
        raise UserError(f"eps {eps}: too small for inputs in {x.dtype}, which x + ξ rounds back to")
    return torch.arange(len(x), device=x.device) if ids is None else ids.to(x.device)


def _keep(best: Rows, value: Tensor, direction: Tensor) -> None:
    best.put(value > best["value"], value=value, direction=direction)


@validated
def power_iteration(
    f: Function,
    x: Samples,
    *,
    steps: Count = 50,
    seed: Seed = 0,
    ids: Ids = None,
    tolerance: NonNegative = 1e-6,
    start: Samples | None = None,
) -> OperatorNorm:
    """Return a lower bound of ‖J(x)‖ that rises towards it: ‖Jv‖ after v ← JᵀJv / ‖JᵀJv‖, T times.

    Each of the T ``steps`` costs two backward passes; a sample stops once a step adds no more than ``tolerance`` of its
    value. ``start`` is taken in place of the first random direction where it is not zero.
    """
    ids = _ids(x, ids)
    with _evaluated(f):
        tangents = Linearisation(f, x)
        v = streams.normal(streams.sample_keys(streams.key(seed, "power", 0), ids), x[0].numel()).to(x.dtype).view_as(x)
        v = v if start is None else unit(start, v)
        v = v / per_row(_length(v), v)
        image = tangents.jvp(v)
        last = _length(image)
        best = Rows(value=last, direction=v)
        done = torch.zeros_like(last, dtype=torch.bool)
        for _ in range(steps):
            # of length 1, so that squares of small slopes do not vanish
            v = unit(tangents.vjp(unit(image, image)), v)
            image = tangents.jvp(v)
            value = _length(image)
            # a sample that is done stays as it is: how long the others take must not show in it
            _keep(best, torch.where(done, -1.0, value), v)
            done |= (value - last).abs() <= tolerance * value
            last = value
            if done.all():
                break
    return OperatorNorm(**best)


def _length(x: Tensor) -> Tensor:
    return row_norm(x, "l2")


def unit(g: Samples, otherwise: Samples) -> Samples:
    """Return g / ‖g‖₂ of each sample; ``otherwise`` where g is zero."""
    length = per_row(_length(g), g)
    return torch.where(length > 0, g / length.clamp_min(torch.finfo(g.dtype).tiny), otherwise)


@validated
def exact_norm(f: Function, x: Samples) -> OperatorNorm:
    """Return ‖J(x)‖ from the dense Jacobian, one backward pass for each output."""
    _ids(x, None)
    with _evaluated(f):
        tangents = Linearisation(f, x)
        outputs = torch.eye(tangents.y.shape[1]).to(tangents.y)
        jacobian = torch.stack([tangents.vjp(one.expand_as(tangents.y)).flatten(1) for one in outputs], 1)
    _, values, rows = torch.linalg.svd(jacobian.double(), full_matrices=False)
    return OperatorNorm(values[:, 0].to(x.dtype), rows[:, 0].to(x.dtype).view_as(x))


@validated
def uniform_sampling(
    f: Function, x: Samples, eps: Positive, *, samples: Count = 100, seed: Seed = 0, ids: Ids = None
) -> Sampled:
    """Return the largest and the mean ‖f(x + ξ) − f(x)‖ / ‖ξ‖ over K ξ drawn uniformly from the ball.

    The sensitivity paper's estimator is the largest quotient (Section 5.3; “mean” there is over layers). With D inputs
    both are near the average slope, ‖J‖_F/√D where f is nearly linear. ``samples`` is K, a forward pass each.
    """
    with _evaluated(f):
        return uniform_sampling_of_all(lambda x: [f(x)], x, eps, samples, seed, ids)[0]


def uniform_sampling_of_all(
    functions: Callable[[Tensor], Sequence[Tensor]], x: Samples, eps: float, samples: int, seed: int, ids: Tensor | None
) -> list[Sampled]:
    """Return what :func:`uniform_sampling` does for several functions that one pass computes together."""
    ids = _ids(x, ids, eps)
    with eager_attention(), torch.no_grad():
        clean = [_checked(y, x) for y in functions(x.clone())]
        totals = [torch.zeros_like(x.flatten(1)[:, 0]) for _ in clean]
        best = [Rows(value=torch.full_like(one, -1.0), direction=torch.zeros_like(x)) for one in totals]
        for draw in range(samples):
            moved = _draw_point(x, eps, seed, ids, draw)
            delta = moved - x
            for number, y in enumerate(functions(moved)):
                quotient = _chord(_checked(y, x) - clean[number], delta)
                totals[number] += quotient
                _keep(best[number], quotient, delta)
    pairs = zip(best, totals, strict=True)
    return [Sampled(kept["value"], total / samples, kept["direction"]) for kept, total in pairs]


def _draw_point(x: Tensor, eps: float, seed: int, ids: Tensor, draw: int) -> Tensor:
    keys = streams.sample_keys(streams.key(seed, "lipschitz", draw), ids)
    return random_point(x, x.new_full((len(x),), eps), "linf", (-math.inf, math.inf), keys)


def _chord(change: Tensor, delta: Tensor) -> Tensor:
    length = _length(delta)
    return torch.where(length > 0, _length(change).to(length.dtype) / length, 0.0)


@validated
def local_maximum(
    f: Function,
    x: Samples,
    eps: Positive,
    *,
    points: Count = 8,
    steps: Count = 20,
    seed: Seed = 0,
    ids: Ids = None,
    slope: OperatorNorm | None = None,
) -> Sampled:
    """Return the largest ‖J(x + ξ)‖ over ξ = 0 and ``points`` drawn uniformly from the ball, by power iteration.

    Over all points it is f's Lipschitz constant on the ball, which bounds L(x) from above; over a few it bounds
    neither. The mean is over the points drawn. Power iterations, of ``steps``, start from the direction found at x;
    ``slope`` is what :func:`power_iteration` found there. Source: T.-W. Weng et al., *Evaluating the Robustness of
    Neural Networks: An Extreme Value Theory Approach* (CLEVER), ICLR 2018, whose extreme-value fit is left out.
    """
    ids = _ids(x, ids, eps)
    centre = slope or power_iteration(f, x, steps=steps, seed=seed, ids=ids)
    total = torch.zeros_like(centre.value)
    best = Rows(value=centre.value, direction=torch.zeros_like(x))
    for draw in range(points):
        moved = _draw_point(x, eps, seed, ids, draw)
        value = power_iteration(f, moved, steps=steps, seed=seed, ids=ids, start=centre.direction).value
        total += value
        _keep(best, value, moved - x)
    return Sampled(best["value"], total / points, best["direction"])


@validated
def gradient_ascent(
    f: Function,
    x: Samples,
    eps: Positive,
    *,
    steps: Count = 20,
    seed: Seed = 0,
    ids: Ids = None,
    slope: OperatorNorm | None = None,
    sampled: Sampled | None = None,
) -> Ascended:
    """Climb log ‖f(x + ξ) − f(x)‖ − log ‖ξ‖ within the ball, and keep the steepest chord ever seen.

    ξ = r·w with ‖w‖ = 1: w moves along the gradient and back onto the sphere, log r by its own derivative; a step that
    does not rise is taken back and halved. It starts at the best of ±v at several radii, v from
    :func:`power_iteration`. The value is at least ‖J(x)·v‖, and at least the largest of :func:`uniform_sampling`. A
    step costs a forward and a backward pass; ``slope`` and ``sampled`` are what those two found, where known.
    """
    ids = _ids(x, ids, eps)
    power = slope or power_iteration(f, x, seed=seed, ids=ids)
    uniform = sampled or uniform_sampling(f, x, eps, samples=16, seed=seed, ids=ids)
    best = Rows(value=power.value, direction=torch.zeros_like(x))
    _keep(best, uniform.largest, uniform.perturbation)
    with _evaluated(f), torch.no_grad():
        clean = _checked(f(x.clone()), x)
        direct = Rows(value=torch.full_like(power.value, -1.0), direction=torch.zeros_like(x))
        for radius in _RADII:
            for v in (power.direction, -power.direction):
                delta = _inside(v, radius * eps / row_norm(v, "linf"), eps)
                moved = x + delta
                _keep(direct, _chord(_checked(f(moved.clone()), x) - clean, moved - x), delta)
        summit = _climb(f, x, clean, direct["direction"], eps, steps)
        _keep(best, summit["quotient"], summit["delta"])
    return Ascended(best["value"], best["direction"])


def _inside(w: Tensor, radius: Tensor, eps: float) -> Tensor:
    greatest = eps / row_norm(w, "linf")
    return w * per_row(torch.minimum(torch.maximum(radius, _LEAST_RADIUS * greatest), greatest), w)


def _climb(f: Function, x: Tensor, clean: Tensor, delta: Tensor, eps: float, steps: int) -> Rows:
    """Return the highest quotient of an ascent from ``delta``, each sample at its own pace."""

    def slope(delta: Tensor) -> Rows:
        """Return the quotient at ξ, the gradient g of ½‖f(x + ξ) − f(x)‖², and ⟨g, ξ⟩/‖f(x + ξ) − f(x)‖² − 1."""
        moved = x + delta
        tangents = Linearisation(f, moved)
        change = tangents.y.detach() - clean
        gradient = tangents.vjp(change)
        rate = (gradient * delta).flatten(1).double().sum(1) / change.double().square().sum(1)
        rate = (rate - 1.0).nan_to_num(0.0).clamp(-1.0, 1.0).to(delta.dtype)
        return Rows(quotient=_chord(change, moved - x), delta=delta, gradient=gradient, rate=rate)

    now = slope(delta)
    stride = torch.ones_like(now["quotient"])
    for _ in range(steps):
        radius = _length(now["delta"])
        w = now["delta"] / per_row(radius, delta)
        w = unit(w + per_row(stride, w) * unit(now["gradient"], w), now["delta"])
        new = slope(_inside(w, radius * (stride * now["rate"]).exp(), eps))
        rose = new["quotient"] > now["quotient"]
        now.put(rose, **new)
        stride = torch.where(rose, stride * 1.5, stride * 0.5)
    return now


_FEW_OUTPUTS = 128  # as many backward passes give the whole Jacobian


@dataclass(frozen=True)
class Neighbourhood:
    """Where a local Lipschitz constant is estimated, with how much effort, and what is known there already."""

    f: Function
    x: Samples
    ids: Int64[Tensor, " batch"]  # which key the random draws
    eps: float  # radius of the L∞ ball, in units of the [0, 1] pixel range
    steps: int  # of gradient ascent
    points: int  # random points of the ball at which slopes are looked for
    seed: int
    sampled: Sampled  # slopes to points drawn uniformly from the ball
    slope: OperatorNorm  # at x, by power iteration

    @property
    def known(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("f", "x", "eps", "seed", "ids", "slope")}


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """One estimator of the local Lipschitz constant; :data:`antiphase.registry.ESTIMATORS` lists them."""

    name: str  # as in ESTIMATORS, the stored rows and the tables
    estimates: str  # what its value is and how it relates to the constant: a phrase for the page
    value: Callable[[Neighbourhood], PerSample | None]  # None if it cannot be computed for the function
    panel: str = ""  # what the figure's caption calls it, if it has a panel of its own
    console: bool = False  # whether the table on the console, 80 characters wide, has a column for it
    # whether rows have always had it: of a new estimator, older rows of a directory lack it and are measured again
    from_start: bool = False


def all_estimators() -> list[Estimator]:
    """Return every registered estimator."""
    return [registry.find(registry.ESTIMATORS, name, "estimator") for name in registry.ESTIMATORS]


_VALUES: dict[str, Callable[[Neighbourhood], Tensor | None]] = {
    "sampled mean": lambda near: near.sampled.mean,
    "sampled maximum": lambda near: near.sampled.largest,
    "power iteration": lambda near: near.slope.value,
    "gradient ascent": lambda near: gradient_ascent(steps=near.steps, sampled=near.sampled, **near.known).value,
    "local maximum": lambda near: local_maximum(points=near.points, steps=-(-near.steps // 2), **near.known).largest,
    "exact": lambda near: (
        exact_norm(near.f, near.x).value if near.f(near.x[:1].clone()).numel() <= _FEW_OUTPUTS else None
    ),
}
_WORDS = tomllib.loads(Path(__file__).with_name("estimators.toml").read_text(encoding="utf-8"))
SAMPLED_MEAN, SAMPLED_MAXIMUM, POWER_ITERATION, GRADIENT_ASCENT, LOCAL_MAXIMUM, EXACT = (
    Estimator(name=name, value=value, from_start=True, **_WORDS[name]) for name, value in _VALUES.items()
)
