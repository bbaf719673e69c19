"""The options of ``antiphase quickstart``, ``audit`` and ``attack``."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from antiphase.commands.evaluate.options import is_pope
from antiphase.commands.fields import (
    Against,
    BatchSize,
    Classes,
    Compile,
    Data,
    Device,
    Limit,
    Model,
    Norm,
    Numbers,
    Out,
    Prompt,
    Quiet,
    RandomWeights,
    SearchPrecision,
    Seed,
    SkipBad,
    Split,
    Suffix,
)
from antiphase.commands.options import Options, Typed, given
from antiphase.errors import UserError
from antiphase.registry import ATTACKS

Eps = Annotated[
    Numbers,
    Field(
        description="Perturbation budgets ε in units of the [0, 1] pixel range, separated by commas; fractions such "
        "as 1/255 are accepted."
    ),
]
AttackName = Annotated[str, Typed(choices=ATTACKS), Field(description="Attack to run.")]
_NOT_OF_QUESTIONS = ("classes", "prompt", "sense_limit", "skip_bad", "random_weights")
_SETTINGS = ("version", "steps", "restarts", "queries", "width", "objective")


class AuditOptions(Options):
    """Attack a model, and its twin on the same images."""

    model: Model
    against: Against = ()
    data: Data = None
    classes: Classes = None
    split: Split = "test"
    limit: Limit = 1000
    eps: Eps = (0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255)
    norm: Norm = "linf"
    attack: AttackName = "pgd"
    version: Annotated[
        Literal["standard", "plus", "rand", "2020"] | None,
        Field(
            description="AutoAttack: set of attacks. standard: APGD-CE, APGD-T, FAB-T, Square. 2020: APGD-CE, "
            "APGD-DLR, FAB, Square. plus: all six, with restarts. rand: for randomised models. If not given: standard."
        ),
    ] = None
    steps: Annotated[
        int | None,
        Field(
            ge=1,
            le=10**8,
            description="Steps of the attack. If not given: the attack's own number (PGD: 20 steps of size ε/4).",
        ),
    ] = None
    restarts: Annotated[
        int | None, Field(ge=1, description="Random restarts per sample. If not given: 1.")
    ] = None
    queries: Annotated[
        int | None, Field(ge=1, description="Square: forward passes per sample. If not given: 5,000.")
    ] = None
    width: Annotated[
        int | None, Field(ge=1, description="Patch: side of the square in pixels. If not given: 8.")
    ] = None
    objective: Annotated[
        Literal["cross_entropy", "margin", "dlr", "cosine"] | None,
        Field(
            description="Loss that PGD, FGSM, APGD, Square and patch maximise; cosine (CLIP only) lowers the "
            "similarity to the prompt of the image's class. If not given: the attack's own."
        ),
    ] = None
    nested: Annotated[
        Literal["up", "down", "off"],
        Field(
            description="How samples carry over from one ε to the next. up: a sample broken at one ε counts as "
            "broken at every larger one. down: start at the largest ε and retry only the broken samples at the next "
            "smaller one; faster if most samples are robust. off: attack every ε independently."
        ),
    ] = "up"
    control: Annotated[
        bool, Field(description="Also add random noise of the same ε, to compare with the attack.")
    ] = False
    sense_limit: Annotated[
        int,
        Field(
            ge=0,
            description="Images on which to measure how the gradients of the attention maps A1 and A2 align; 0: none.",
        ),
    ] = 32
    precision: SearchPrecision = "float32"
    compile: Compile = False
    seed: Seed = 0
    out: Out = Path("antiphase-audit")
    random_weights: RandomWeights = False
    skip_bad: SkipBad = False
    prompt: Prompt = None
    suffix: Suffix = ""
    batch_size: BatchSize = None
    device: Device = "auto"
    quiet: Quiet = False

    @model_validator(mode="after")
    def _check_questions(self) -> "AuditOptions":
        if not is_pope(str(self.data)):
            if self.suffix:
                raise UserError("suffix: is for questions; leave it out, or give --data pope or emoji-pope")
            return self
        names = [name for name in _NOT_OF_QUESTIONS if self.typed(name) and getattr(self, name)]
        for name in names + ["objective"] * (self.objective == "cosine"):
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{name} {getattr(self, name)}: is not for questions such as {self.data}; leave out {option}"
            )
        return self

    @property
    def settings(self) -> dict[str, Any]:
        return given(**{name: getattr(self, name) for name in _SETTINGS})


class AttackOptions(AuditOptions):
    """Attack a model, or several, with any attack or ensemble."""

    left_out: ClassVar = ("against", "sense_limit")

    attack: AttackName = "autoattack"
    eps: Eps = (8 / 255,)
    sense_limit: Annotated[int, Field(ge=0)] = 0
    out: Out = Path("antiphase-attack")


_ALIGNED = 8  # images; a quickstart has eight models whose maps are measured


class QuickstartOptions(Options):
    """Audit the small models that come with the package."""

    out: Out = Path("antiphase-quickstart")
    eps: Eps = (1 / 255, 2 / 255, 4 / 255, 8 / 255)
    limit: Annotated[int, Field(ge=1, description="At most N of the 1,000 images.")] = 250
    train: Annotated[
        bool, Field(description="Train a fresh pair of models first (minutes; needs Fashion-MNIST).")
    ] = False
    epochs: Annotated[
        int | None, Field(ge=1, description="With --train: passes over the 60,000 images. If not given: 3.")
    ] = None
    seed: Seed = 0
    device: Device = "auto"
    quiet: Quiet = False

    @model_validator(mode="after")
    def _check(self) -> "QuickstartOptions":
        if self.epochs is not None and not self.train:
            raise UserError(f"epochs {self.epochs}: is of --train; add --train to train a fresh pair")
        return self

    def audit(self, models: tuple[str, ...], against: tuple[str, ...]) -> AuditOptions:
        """Return the options of the audit that follows."""
        return AuditOptions(
            model=models,
            against=against,
            data="specimen-fashion-mnist",
            limit=self.limit,
            eps=self.eps,
            seed=self.seed,
            out=self.out,
            device=self.device,
            quiet=self.quiet,
            sense_limit=_ALIGNED,
        )
