"""Estimates of the local Lipschitz constant L(x) = sup ‖f(x + ξ) − f(x)‖₂ / ‖ξ‖ over ξ ≠ 0 of a ball (equation 4).

All but :func:`local_maximum` are lower bounds.
``norm`` is that in which the length of ξ is taken, ``ball`` that of the ball ‖ξ‖ ≤ ε:
the robustness paper draws from an L∞ ball (Section 5.3) and does not say how it measures ξ. Nothing is
clipped to the range of a pixel. As ξ shrinks, the quotient tends to ‖J(x)·v‖ for ξ = r·v, so that
L(x) ≥ ‖J(x)‖, which :mod:`antiphase.sensitivity.operator_norm` finds. (The paper's Lemma 2 has it the other way round.)
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.arguments import UNIQUE, Count, Positive, Seed, validated
from antiphase.attacks.engine.search import Rows
from antiphase.attacks.threat import Norm, per_row, row_norm
from antiphase.sensitivity.eager import eager_attention
from antiphase.sensitivity.operator_norm import (
    Function,
    Linearisation,
    OperatorNorm,
    checked,
    power_iteration,
    unit,
)
from antiphase.sensitivity.sampling import Sampled, check_ball, chord, draw_point, keep, uniform_sampling

# Of the greatest radius in the ball: below, the rounding of f would pass for slope, and the limit is taken instead.
LEAST_RADIUS = 1 / 16
_RADII = (1.0, 0.5, 0.25, LEAST_RADIUS)


@dataclass(frozen=True)
class Ascended:
    """The steepest chord found from each sample.

    Attributes:
        value: a lower bound of L(x).
        perturbation: its ξ; zero where no chord is steeper than the slope at x itself.
        norm: in which ξ is measured; the output is in L2.
        ball, eps: where it was looked for.
    """

    value: Float[Tensor, " batch"]
    perturbation: Float[Tensor, "batch *shape"]
    norm: Norm
    ball: Norm
    eps: float


@validated
def local_maximum(
    f: Function,
    x: Float[Tensor, "batch *shape"],
    eps: Positive,
    *,
    points: Count = 8,
    steps: Count = 20,
    seed: Seed = 0,
    ids: Annotated[Int64[Tensor, " batch"], UNIQUE] | None = None,
    norm: Norm = "l2",
    ball: Norm = "linf",
    slope: OperatorNorm | None = None,
) -> Sampled:
    """Return the largest ‖J(x + ξ)‖ over ξ = 0 and points drawn uniformly from the ball, by power iteration.

    Over all points it is the Lipschitz constant of f on the ball, between any two of its points, and hence
    bounds L(x) from above; over a few it bounds neither. The mean is over the points drawn.

    Source: T.-W. Weng et al., *Evaluating the Robustness of Neural Networks: An Extreme Value Theory Approach*
    (CLEVER), ICLR 2018, whose extreme-value fit is left out.

    Args:
        f: the function, which treats samples apart.
        x: where.
        eps: ε, above 0, in the units of x.
        points: drawn in addition to x itself, at least 1.
        steps: of each power iteration; those at the points start from the direction found at x.
        seed: of the draws.
        ids: ids of the samples, the keys of their random draws; positions by default.
        norm: of the input.
        ball: of the draws.
        slope: what :func:`~antiphase.sensitivity.operator_norm.power_iteration` found at x, where that is known.

    Raises:
        UserError: for parameters, inputs or outputs out of range.
    """
    ids = check_ball(x, eps, ids)
    centre = slope or power_iteration(f, x, steps=steps, seed=seed, ids=ids, norm=norm)
    total = torch.zeros_like(centre.value)
    best = Rows(quotient=centre.value, delta=torch.zeros_like(x))
    for draw in range(points):
        moved = draw_point(x, eps, ball, seed, ids, draw)
        found = power_iteration(f, moved, steps=steps, seed=seed, ids=ids, norm=norm, start=centre.direction)
        total += found.value
        keep(best, found.value, moved - x)
    return Sampled(best["quotient"], total / points, best["delta"], norm, ball, eps)


@validated
def gradient_ascent(
    f: Function,
    x: Float[Tensor, "batch *shape"],
    eps: Positive,
    *,
    steps: Count = 20,
    samples: Count = 16,
    restarts: Count = 2,
    power_steps: Count = 50,
    seed: Seed = 0,
    ids: Annotated[Int64[Tensor, " batch"], UNIQUE] | None = None,
    norm: Norm = "l2",
    ball: Norm = "linf",
    slope: OperatorNorm | None = None,
    sampled: Sampled | None = None,
) -> Ascended:
    """Climb log ‖f(x + ξ) − f(x)‖₂ − log ‖ξ‖ within the ball, and keep the steepest chord ever seen.

    ξ = r·w with ‖w‖ = 1 in ``norm``: w moves along the gradient and back onto the sphere, log r by its own
    derivative, and a step that does not rise is taken back and halved. The first start is the best of
    ±v at several radii, v from :func:`~antiphase.sensitivity.operator_norm.power_iteration`, the second the best
    uniform sample, all others are uniform samples. The value is at least ‖J(x)·v‖ (r = 0, the limit), and
    at least the largest of :func:`uniform_sampling` with the same seed and no more ``samples``. In float32 f's own
    rounding hangs on the batch and grows as it climbs: 10⁻⁴ of the value at most on the specimens.

    Args:
        f: the function, which treats samples apart.
        x: where.
        eps: ε, above 0, in the units of x; where f works in float32 no less than about 10⁻³ of them.
        steps: T, at least 1, of a forward and a backward pass each.
        samples: uniform samples that compete with the rest, at least 1.
        restarts: starts that are climbed from, and of the power iteration, at least 1.
        power_steps: of the power iteration.
        seed: of the draws.
        ids: ids of the samples, the keys of their random draws; positions by default.
        norm: of ξ in the quotient.
        ball: in which ξ stays.
        slope: what power iteration found at x, where that is known.
        sampled: what :func:`uniform_sampling` found, where that is known.

    Raises:
        UserError: for parameters, inputs or outputs out of range, and where x + ξ = x in x's precision.
    """
    ids = check_ball(x, eps, ids)
    power = slope or power_iteration(
        f, x, steps=power_steps, restarts=restarts, seed=seed, ids=ids, norm=norm
    )
    uniform = sampled or uniform_sampling(
        f, x, eps, samples=samples, seed=seed, ids=ids, norm=norm, ball=ball
    )
    best = Rows(quotient=power.value, delta=torch.zeros_like(x))
    keep(best, uniform.largest, uniform.perturbation)
    with eager_attention(), torch.no_grad():
        climb = _Climb(f, x, eps, norm, ball)
        direct = Rows(quotient=torch.full_like(power.value, -1.0), delta=torch.zeros_like(x))
        for radius in _RADII:
            for v in (power.direction, -power.direction):
                delta = climb.inside(v, radius * eps / row_norm(v, ball))
                keep(direct, climb.quotient(delta), delta)
        for restart in range(restarts):
            other = draw_point(x, eps, ball, seed, ids, samples + restart) - x  # none of the samples above
            delta = (direct["delta"], uniform.perturbation, other)[min(restart, 2)]
            # a draw that x rounds off has no direction
            delta = torch.where(per_row(row_norm(delta, norm) > 0, x), delta, direct["delta"])
            found = climb.run(delta, steps)
            keep(best, found["quotient"], found["delta"])
    return Ascended(best["quotient"], best["delta"], norm, ball, eps)


class _Climb:
    """Ascent of the quotient from a start, each sample at its own pace."""

    def __init__(self, f: Function, x: Tensor, eps: float, norm: Norm, ball: Norm) -> None:
        self.f, self.x, self.eps = f, x, eps
        self.norm: Norm = norm
        self.ball: Norm = ball
        self.clean = checked(f(x.clone()), x)

    def inside(self, w: Tensor, radius: Tensor) -> Tensor:
        """Return r·w, r the nearest to ``radius`` that the ball and the least radius leave."""
        greatest = self.eps / row_norm(w, self.ball)
        return w * per_row(torch.minimum(torch.maximum(radius, LEAST_RADIUS * greatest), greatest), w)

    def quotient(self, delta: Tensor) -> Tensor:
        moved = self.x + delta
        return chord(checked(self.f(moved.clone()), self.x) - self.clean, moved - self.x, self.norm)

    def slope(self, delta: Tensor) -> Rows:
        """Return the quotient at ξ, the gradient g of ½‖f(x + ξ) − f(x)‖², and ⟨g, ξ⟩/‖f(x + ξ) − f(x)‖² − 1."""
        moved = self.x + delta
        at = Linearisation(self.f, moved)
        change = at.y.detach() - self.clean
        gradient = at.vjp(change)
        rate = (gradient * delta).flatten(1).double().sum(1) / change.double().square().sum(1)
        rate = (rate - 1.0).nan_to_num(0.0).clamp(-1.0, 1.0).to(delta.dtype)
        quotient = chord(change, moved - self.x, self.norm)
        return Rows(quotient=quotient, delta=delta, gradient=gradient, rate=rate)

    def run(self, delta: Tensor, steps: int) -> Rows:
        now = self.slope(delta)
        stride = torch.ones_like(now["quotient"])
        for _ in range(steps):
            radius = row_norm(now["delta"], self.norm)
            w = now["delta"] / per_row(radius, delta)
            w = w + per_row(stride, w) * unit(now["gradient"], self.norm, w)
            if self.norm == "linf":  # a point of the cube first, lest numbers at the wrong end rule the scale
                w = w.clamp(-1.0, 1.0)
            length = row_norm(w, self.norm)
            w = torch.where(per_row(length > 0, w), w / per_row(length, w), now["delta"])
            new = self.slope(self.inside(w, radius * (stride * now["rate"]).exp()))
            rose = new["quotient"] > now["quotient"]
            for name in new:
                now.put(name, rose, new[name])
            stride = torch.where(rose, stride * 1.5, stride * 0.5)
        return now
