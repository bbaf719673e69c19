"""The options of ``antiphase sense``."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from antiphase.commands.fields import (
    Against,
    BatchSize,
    Data,
    Device,
    Limit,
    Model,
    Number,
    Numbers,
    Out,
    Prompt,
    Quiet,
    RandomWeights,
    Seed,
    SkipBad,
    Split,
    Words,
)
from antiphase.commands.options import Options, Typed, at_least_one
from antiphase.errors import UserError

# the parts that use an option
_USERS = {
    "probes": ("alignment",),
    "eps": ("depth",),
    "steps": ("lipschitz", "depth"),
    "radius": ("lipschitz",),
    "samples": ("lipschitz",),
    "points": ("lipschitz",),
    "lipschitz_limit": ("lipschitz",),
}


class SenseOptions(Options):
    """Measure how sensitive a model's attention is."""

    model: Model
    against: Against = ()
    data: Data = None
    split: Split = "test"
    limit: Limit = 64
    parts: Annotated[
        Words,
        AfterValidator(at_least_one),
        Field(
            description="Measurements, separated by commas: alignment, depth, lipschitz (a few hundred passes per "
            "layer)."
        ),
    ] = ("alignment", "depth")
    probes: Annotated[int, Field(description="Random directions in pixel space, at least 2.")] = 32
    radius: Annotated[
        Number,
        Field(
            description="Radius of the L∞ ball of the local Lipschitz constants, in units of the [0, 1] pixel range."
        ),
    ] = 8 / 255
    samples: Annotated[
        int, Field(description="Uniform samples in the ball, for the robustness paper's estimator.")
    ] = 100
    steps: Annotated[
        int, Field(description="Steps of gradient ascent; power iteration takes twice as many.")
    ] = 10
    points: Annotated[
        int, Field(description="Random starting points of the search for the largest slope in the ball.")
    ] = 2
    lipschitz_limit: Annotated[
        int, Field(ge=1, description="Images on which Lipschitz constants are estimated.")
    ] = 16
    eps: Annotated[
        Numbers,
        Field(
            description="L∞ budgets ε of the perturbations that are followed through the layers, separated by commas."
        ),
    ] = (1 / 255, 4 / 255)
    seed: Seed = 0
    write_adapter: Annotated[
        Path | None,
        Typed(metavar="FILE"),
        Field(
            description="Write an adapter to complete, for attention that is not recognised, and measure nothing."
        ),
    ] = None
    out: Out = Path("antiphase-sense")
    random_weights: RandomWeights = False
    skip_bad: SkipBad = False
    prompt: Prompt = None
    batch_size: BatchSize = None
    device: Device = "auto"
    quiet: Quiet = False

    @model_validator(mode="after")
    def _check(self) -> "SenseOptions":
        for name, parts in _USERS.items():
            at_default = getattr(self, name) == type(self).model_fields[name].default
            if self.typed(name) and not at_default and not set(parts) & set(self.parts):
                option = name.replace("_", "-")
                raise UserError(
                    f"--{option}: is of {' and '.join(parts)} alone; add it to --parts or leave --{option} out"
                )
        return self
