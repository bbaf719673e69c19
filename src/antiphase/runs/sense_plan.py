"""The settings of a measurement of sensitivity, with defaults where the robustness paper gives none."""

from dataclasses import dataclass

from antiphase.budgets import eps_label
from antiphase.errors import UserError
from antiphase.streams import check_seed


@dataclass(frozen=True)
class SensePlan:
    """What is measured; the defaults are those the robustness paper leaves open (Sections 5.3, 5.4), declared.

    Attributes:
        probes: directions at the pixels (and cotangents at the tokens where no closed form exists), ≥ 2.
        eps: L∞ radius within which local Lipschitz constants are looked for (8/255: Section 5.3), and the budget of the
            perturbed images at which alignment is measured (Section 5.4).
        samples: points of the paper's uniform sampling.
        steps: of gradient ascent; power iteration takes twice as many.
        points: at which the local supremum of the operator norm is looked for, in addition to the image itself.
        travel: L∞ budgets of the perturbations that are followed through the depth.
        lipschitz_limit: images that Lipschitz constants are estimated at.
        seed: of every random draw.
    """

    probes: int = 32
    eps: float = 8 / 255
    samples: int = 100
    steps: int = 10
    points: int = 2
    travel: tuple[float, ...] = (1 / 255, 4 / 255)
    lipschitz_limit: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.probes < 2:
            raise UserError(f"probes {self.probes}: expected at least 2, for an interval")
        for name, least in (("samples", 1), ("steps", 1), ("points", 1), ("lipschitz_limit", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name} {getattr(self, name)}: expected at least {least}")
        for name, value in (("radius", self.eps), *(("eps", each) for each in self.travel)):
            if not 0 < value <= 1:
                raise UserError(
                    f"{name} {eps_label(value)}: expected a number above 0 and at most 1, in units of the [0, 1] pixel "
                    "range"
                )
