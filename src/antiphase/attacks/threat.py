"""The threat model of an attack: norm, perturbation budget ε and pixel range."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Literal

from jaxtyping import Bool, Float
from torch import Tensor

from antiphase.arguments import ANY_NUMBER, OWN_WORDS, Must, validated
from antiphase.errors import UserError, shown

Norm = Literal["linf", "l2"]
_BUDGET = Must("of at least 0, in units of the pixel range", lambda eps: eps >= 0)
_LONGEST = 1e6  # under l2: the length of a change of 10¹² pixels from 0 to 1
_ROUNDING = 1e-6  # of x + δ in float32, for pixels up to 1


@validated
@dataclass(frozen=True)
class Threat:
    """Allow all images with ‖x' − x‖ ≤ ε and every pixel within the bounds.

    Args:
        norm: ``"linf"`` (largest change of a pixel) or ``"l2"`` (Euclidean norm of the change).
        eps: perturbation budget ε, at least 0, in units of the pixel range: 8/255 is 8 levels of an 8-bit image with
            pixels in [0, 1]. At most the pixel range for linf; infinite for attacks that minimise the norm.
        bounds: smallest and largest pixel value, both finite.

    Raises:
        UserError: The norm is unknown, ε is out of range, or the bounds are not two rising finite numbers.
    """

    norm: Norm = "linf"
    eps: Annotated[float, _BUDGET, ANY_NUMBER] = 8 / 255
    bounds: Annotated[tuple[float, float], OWN_WORDS] = (0.0, 1.0)

    def __post_init__(self) -> None:
        try:
            low, high = map(_number, self.bounds)
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise UserError(
                f"bounds {shown(self.bounds)}: expected (smallest, largest), two finite numbers such as (0, 1)"
            )
        object.__setattr__(self, "bounds", (low, high))
        whole = high - low
        if self.norm == "linf" and whole < self.eps < math.inf:
            levels = self.bounds == (0, 1) and self.eps <= 255
            example = f"; for {self.eps:g} of 255 levels, pass {self.eps:g}/255" if levels else ""
            raise UserError(f"eps {self.eps:g}: expected at most {whole:g}, the pixel range{example}")
        if self.norm == "l2" and _LONGEST * whole < self.eps < math.inf:
            raise UserError(f"eps {self.eps:g}: expected at most {_LONGEST * whole:g} in norm 'l2'")

    @property
    def tolerance(self) -> float:
        """Rounding error allowed on top of ε for pixels up to 1."""
        return _ROUNDING

    def slack(self, adversarial: Float[Tensor, "batch *shape"]) -> Float[Tensor, " batch"] | float:
        """Return the rounding error allowed on top of ε: ``tolerance`` times a sample's largest pixel if above 1."""
        if max(map(abs, self.bounds)) <= 1:
            return self.tolerance
        return self.tolerance * row_norm(adversarial, "linf").clamp_min(1.0)

    def distance(
        self, adversarial: Float[Tensor, "batch *shape"], clean: Float[Tensor, "batch *shape"]
    ) -> Float[Tensor, " batch"]:
        """Return ‖adversarial − clean‖ for each sample."""
        return row_norm(adversarial - clean, self.norm)

    def allows(
        self,
        adversarial: Float[Tensor, "batch *shape"],
        clean: Float[Tensor, "batch *shape"],
        eps: Float[Tensor, " batch"] | float | None = None,
    ) -> Bool[Tensor, " batch"]:
        """Return whether each sample is within ``eps`` + :meth:`slack` of its clean image and within the bounds.

        Images with a NaN are not.

        Args:
            adversarial: perturbed images.
            clean: clean images.
            eps: one ε per sample instead of the threat's.
        """
        flat = adversarial.flatten(1)
        inside = ((flat >= self.bounds[0]) & (flat <= self.bounds[1])).all(1)
        return inside & (
            self.distance(adversarial, clean) <= (self.eps if eps is None else eps) + self.slack(adversarial)
        )


def _number(value: object) -> float:
    if not isinstance(value, Real):
        raise TypeError
    return float(value)


def row_norm(
    delta: Float[Tensor, "batch *shape"], norm: Literal["linf", "l2", "l1"]
) -> Float[Tensor, " batch"]:
    """Return the norm of each row.

    Sums run in float64: in float32 a long row summed by two threads differs in the last bits from one
    summed by one, and how many threads share a row depends on the size of the batch.
    """
    flat = delta.flatten(1)
    if norm == "linf":
        return flat.abs().amax(1)
    if norm == "l1":
        return flat.double().abs().sum(1).to(delta.dtype)
    return flat.double().square().sum(1).sqrt().to(delta.dtype)
