"""How sensitive a model's attention is, layer by layer: alignment, Lipschitz constants, depth."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from antiphase.commands import options as fields
from antiphase.commands.command import Command
from antiphase.errors import UserError

PARTS = ("alignment", "depth", "terms", "lipschitz")
# the parts that use an option
_USERS = {"probes": ("alignment", "terms"), "eps": ("depth",), "steps": ("lipschitz", "depth")}
_USERS |= dict.fromkeys(("radius", "samples", "points", "lipschitz_limit"), ("lipschitz",))


class SenseOptions(fields.Measurement):
    """Measure how sensitive a model's attention is, layer by layer: alignment, Lipschitz constants, depth.

    Works with any model that has attention. Attention that is not known is found by what it does. The maps of each
    layer are checked against the module's own output. Defaults are what Sections 5.3, 5.4 of the paper leave open.

    **Examples**

    antiphase sense specimen:diffvit-0 --against specimen:vit-0 --parts alignment,depth,lipschitz
    antiphase sense timm:vit_dwee_patch16_reg1_gap_256 --random-weights --data random --limit 2 --out dwee
    antiphase sense runs/diffvit-4 --against runs/vit-4 --parts alignment --probes 32 --limit 256
    """

    against: fields.Against = ()
    seeds: fields.Seeds = ()
    limit: fields.Limit = 64
    parts: Annotated[
        fields.Words,
        AfterValidator(fields.at_least_one),
        Field(description=f"Measurements, separated by commas: {', '.join(PARTS)} (a few hundred passes per layer)."),
    ] = ("alignment", "depth")
    probes: int = Field(32, ge=2, lt=2**31)
    """Random directions in pixel space."""
    radius: fields.Number = Field(8 / 255, gt=0, le=1)
    """Radius of the L∞ ball of the local Lipschitz constants, in units of the [0, 1] pixel range."""
    samples: int = Field(100, ge=1, lt=2**31)
    """Uniform samples in the ball, for the sensitivity paper's estimator."""
    steps: int = Field(10, ge=1, lt=2**31)
    """Steps of gradient ascent; power iteration takes twice as many."""
    points: int = Field(2, ge=1, lt=2**31)
    """Random starting points of the search for the largest slope in the ball."""
    lipschitz_limit: int = Field(16, ge=1, lt=2**31)
    """Images on which Lipschitz constants are estimated."""
    eps: fields.Numbers = (1 / 255, 4 / 255)
    """L∞ budgets ε of the perturbations that are followed through the layers, separated by commas."""
    out: fields.Out = Path("antiphase-sense")
    batch_size: fields.BatchSize = None

    def model_post_init(self, context: Any, /) -> None:
        for eps in self.eps:
            if not 0 < eps <= 1:
                expected = "expected numbers above 0 and at most 1, in units of the [0, 1] pixel range"
                raise UserError(f"eps {eps:g}: {expected}")
        for name, parts in _USERS.items():
            at_default = getattr(self, name) == type(self).model_fields[name].default
            if self.typed(name) and not at_default and not set(parts) & set(self.parts):
                option = name.replace("_", "-")
                fix = f"add it to --parts or leave --{option} out"
                raise UserError(f"--{option}: is of {' and '.join(parts)} alone; {fix}")


COMMAND = Command("sense", SenseOptions, f"{__name__}.run:run", f"{__name__}.result:SenseResult")
