"""The threat model of an attack (norm, ε and pixel range), and the geometry of its ball, with one ε per row."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from antiphase import arguments, streams
from antiphase.errors import UserError, shown

Norm = Literal["linf", "l2", "l1", "l0"]
Points = Float[Tensor, "batch *shape"]
Numbers = Float[Tensor, " batch"]
Flags = Bool[Tensor, " batch"]
Keys = Int64[Tensor, " batch"]  # of random streams
Bounds = tuple[float, float]
DUAL: dict[Norm, Norm] = {"linf": "l1", "l2": "l2", "l1": "linf"}
_BUDGET = arguments.Must("of at least 0, in units of the pixel range", lambda eps: eps >= 0)
_LONGEST = 1e6  # under l2: the length of a change of 10¹² pixels from 0 to 1


@arguments.validated
@dataclass(frozen=True)
class Threat:
    """Allow all images with ‖x' − x‖ ≤ ε and every pixel within the bounds.

    Args:
        norm: ``"linf"`` (largest change of a pixel), ``"l2"`` (Euclidean norm of the change), ``"l1"`` (sum of the
            changes) or ``"l0"`` (number of changed values, each channel of a pixel being one).
        eps: perturbation budget ε, at least 0, in units of the pixel range: 8/255 is 8 levels of an 8-bit image with
            pixels in [0, 1]. At most the pixel range for linf; infinite for attacks that minimise the norm.
        bounds: smallest and largest pixel value, both finite.
    """

    norm: Norm = "linf"
    eps: Annotated[float, _BUDGET, arguments.ANY_NUMBER] = 8 / 255
    bounds: Annotated[Bounds, arguments.OWN_WORDS] = (0.0, 1.0)
    tolerance: ClassVar[float] = 1e-6  # rounding error of x + δ in float32, for pixels up to 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", float(self.eps))
        try:
            low, high = (float(bound) if isinstance(bound, Real) else math.nan for bound in self.bounds)
        except (TypeError, ValueError, OverflowError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            fix = "expected (smallest, largest), two finite numbers such as (0, 1)"
            raise UserError(f"bounds {shown(self.bounds)}: {fix}")
        object.__setattr__(self, "bounds", (low, high))
        whole = high - low
        if self.norm == "linf" and whole < self.eps < math.inf:
            levels = self.bounds == (0, 1) and self.eps <= 255
            example = f"; for {self.eps:g} of 255 levels, pass {self.eps:g}/255" if levels else ""
            raise UserError(f"eps {self.eps:g}: expected at most {whole:g}, the pixel range{example}")
        if self.norm == "l0" and 0 < self.eps < 1:
            fix = "expected a number of values, at least 1"
            raise UserError(f"eps {self.eps:g}: allows no change in norm 'l0'; {fix}")
        most = {"l2": _LONGEST * whole, "l1": _LONGEST**2 * whole, "l0": _LONGEST**2}
        if (longest := most.get(self.norm, math.inf)) < self.eps < math.inf:
            raise UserError(f"eps {self.eps:g}: expected at most {longest:g} in norm {self.norm!r}")

    def require(self, who: str, *norms: str, finite: bool = True) -> None:
        """Refuse a norm that an attack does not know, and an infinite ε for an attack that needs a finite one."""
        if self.norm not in norms:
            others = "fmn knows all norms, apgd, fab and square linf, l2 and l1"
            raise UserError(f"norm {self.norm!r}: {who} knows {' and '.join(norms)}; {others}")
        if finite and math.isinf(self.eps):
            raise UserError(f"eps inf: {who} needs a finite ε; use FAB to minimise the perturbation")

    def slack(self, adversarial: Points) -> Numbers | float:
        """Return the rounding error allowed on top of ε: ``tolerance`` times a sample's largest pixel if above 1."""
        if max(map(abs, self.bounds)) <= 1:
            return self.tolerance
        return self.tolerance * row_norm(adversarial, "linf").clamp_min(1.0)

    def distance(self, adversarial: Points, clean: Points) -> Numbers:
        """Return ‖adversarial − clean‖ for each sample."""
        return row_norm(adversarial - clean, self.norm)

    def allows(self, adversarial: Points, clean: Points, eps: Numbers | float | None = None) -> Flags:
        """Return whether each sample is within ε + :meth:`slack` of its clean image and within the bounds.

        Images with a NaN are not. ``eps`` holds one ε per sample; None: the threat's.
        """
        flat = adversarial.flatten(1)
        inside = ((flat >= self.bounds[0]) & (flat <= self.bounds[1])).all(1)
        reach = (self.eps if eps is None else eps) + self.slack(adversarial)
        return inside & (self.distance(adversarial, clean) <= reach)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per row so that it broadcasts over ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))


def row_norm(delta: Points, norm: Norm) -> Numbers:
    """Return the norm of each row; sums run in float64, since in float32 their last bits depend on the batch."""
    flat = delta.flatten(1)
    if norm == "linf":
        return flat.abs().amax(1)
    if norm == "l0":
        return (flat != 0).sum(1).to(delta.dtype)
    if norm == "l1":
        return flat.double().abs().sum(1).to(delta.dtype)
    return flat.double().square().sum(1).sqrt().to(delta.dtype)


def project(x: Points, clean: Points, eps: Numbers, norm: Norm, bounds: Bounds) -> Points:
    """Project onto the ε-ball, then clip to the bounds: for linf and l1 the nearest point; in l0 ε changes remain."""
    eps = per_row(eps, x)
    if norm == "linf":
        return torch.minimum(torch.maximum(x, clean - eps), clean + eps).clamp(*bounds)
    delta = x - clean
    if norm == "l1":
        return (clean + _within_l1(delta, clean, eps.flatten(), bounds)).clamp(*bounds)
    if norm == "l0":
        rank = delta.flatten(1).abs().argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(rank.view_as(x) < eps, x, clean).clamp(*bounds)
    length = per_row(row_norm(delta, "l2"), x)
    return (clean + delta * (eps / length.clamp_min(1e-12)).clamp(max=1.0)).clamp(*bounds)


def _within_l1(delta: Points, clean: Points, eps: Numbers, bounds: Bounds) -> Points:
    """Return the nearest change with ‖δ‖₁ ≤ ε that keeps the bounds: clip(|δ| − τ, 0, room)·sign δ with one τ per row.

    The sum falls with τ and is linear between the points |δ| and |δ| − room, which are sorted.
    """
    size = delta.flatten(1).abs().double()
    room = torch.where(delta > 0, bounds[1] - clean, clean - bounds[0]).flatten(1).double()
    eps = eps.double() * (1 - 1e-5)  # x + δ is rounded
    ends = torch.cat([size, (size - room).clamp_min(0.0)], 1)
    signs = torch.ones_like(ends)
    signs[:, size.shape[1] :] = -1.0
    ends, order = ends.sort(dim=1, descending=True, stable=True)
    slope = signs.gather(1, order).cumsum(1)
    total = (signs.gather(1, order) * ends).cumsum(1)
    last = ((total - slope * ends < eps[:, None]).sum(1, keepdim=True) - 1).clamp_min(0)
    tau = (total.gather(1, last) - eps[:, None]) / slope.gather(1, last).clamp_min(1.0)
    fits = torch.minimum(size, room).sum(1, keepdim=True) <= eps[:, None]
    left = (size - torch.where(fits, 0.0, tau)).clamp_min(0.0)
    return torch.minimum(left, room).to(delta.dtype).view_as(delta) * delta.sign()


def steepest(gradient: Points, norm: Norm) -> Points:
    """Return the direction of unit norm that raises the loss fastest: the sign (linf) or g/‖g‖₂ (l2)."""
    if norm == "linf":
        return gradient.sign()
    return gradient / per_row(row_norm(gradient, "l2"), gradient).clamp_min(torch.finfo(gradient.dtype).tiny)


def random_point(clean: Points, eps: Numbers, norm: Norm, bounds: Bounds, keys: Keys) -> Points:
    """Return a point drawn uniformly from each row's ε-ball, clipped to the bounds; in l1 normal noise, projected."""
    size = clean[0].numel()
    if norm == "l1":
        return project(clean + streams.normal(keys, size).to(clean).view_as(clean), clean, eps, norm, bounds)
    if norm == "linf":
        delta = 2.0 * streams.uniform(keys, size) - 1.0
    else:
        delta = streams.normal(keys, size)
        # in float64: the last bit of torch's powers depends on the position in the tensor
        radius = (streams.uniform(keys, 1, offset=size).double() ** (1.0 / size)).float()
        delta = delta / row_norm(delta, "l2")[:, None] * radius
    return project(clean + delta.to(clean.dtype).view_as(clean) * per_row(eps, clean), clean, eps, norm, bounds)
