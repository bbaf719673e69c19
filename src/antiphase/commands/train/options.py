"""The options of ``antiphase train``."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from antiphase.commands.fields import MOST_AT_ONCE, AutoPrecision, OptionalNumber, Out, Quiet, Seed, Track
from antiphase.commands.options import Options, Typed, given
from antiphase.errors import UserError
from antiphase.registry import LAMBDAS, VITS

_OF_LAMBDA = {"lambda_init", "lambda_schedule", "parameterisation"}
_OF_MODEL = {"depth", "dim", "patch_size"} | _OF_LAMBDA
_ADVERSARY_FIELDS = {
    "adversarial": "eps",
    "adversarial_variant": "variant",
    "adversarial_steps": "steps",
    "adversarial_step_size": "step_size",
    "adversarial_warmup": "warmup_epochs",
    "replays": "replays",
}


class TrainOptions(Options):
    """Train a ViT or a DiffViT by the robustness paper's recipe (Adam, 5e-4, batches of 128).

    The same command resumes a killed run, which ends with the weights of an uninterrupted one.
    Under torchrun the processes share the batch. With --adversarial, each epoch also reports the
    accuracy under PGD at that ε.

    **Examples**

    antiphase train --model diffvit --data digits --epochs 20 --out runs/diffvit

    antiphase train --model vit --data cifar10 --depth 4 --augment flip-crop --out runs/vit-4

    antiphase train --model diffvit --data cifar10 --adversarial 0.5/255 --out runs/diffvit-robust

    torchrun --nproc-per-node 2 -m antiphase train --model vit --data imagenet --out runs/b16
    """

    model: Annotated[
        str,
        Typed(choices=VITS),
        Field(
            description="Kind of model: standard attention, differential attention, or standard attention with a "
            "DiffViT's norm after each head (vit-norm)."
        ),
    ]
    data: str = Field(
        description="Source of images with a train split, such as digits, fashion-mnist, cifar10 or folder:PATH; "
        "docs/data.md has all."
    )
    out: Out
    epochs: int = Field(100, ge=1, description="Passes over the data.")
    depth: int | None = Field(None, ge=1, description="Number of blocks. If not given: by the image size.")
    dim: int | None = Field(None, ge=1, description="Width of the tokens. If not given: by the image size.")
    heads: int | None = Field(
        None, ge=1, description="Heads of the standard twin; a DiffViT has half as many."
    )
    patch_size: int | None = Field(
        None, ge=1, description="Side of a patch in pixels. If not given: by the image size."
    )
    lambda_init: float | None = Field(None, description="DiffViT: initial λ. If not given: 0.8.")
    lambda_schedule: Literal["constant", "depth"] | None = Field(
        None,
        description="DiffViT: initial λ of each layer: the same, or 0.8 − 0.6·exp(−0.3·layer). If not given: "
        "constant.",
    )
    parameterisation: Annotated[
        str | None,
        Typed(choices=LAMBDAS),
        Field(
            description="DiffViT: what λ is computed from: four vectors a layer as in the paper (vector), two numbers "
            "a head (scalar), λ_init alone (fixed) or 0 (zero). If not given: vector."
        ),
    ] = None
    image_size: int | None = Field(
        None,
        ge=1,
        description="Side in pixels that image files are resized to. If not given: the source's own.",
    )
    limit: int | None = Field(None, ge=1, description="Train on at most N images.")
    batch_size: int = Field(128, ge=1, le=MOST_AT_ONCE, description="Images per step, over all processes.")
    optimizer: Literal["adam", "adamw"] = Field("adam", description="Optimizer.")
    learning_rate: float = Field(5e-4, description="Peak learning rate.")
    weight_decay: float = Field(0.0, description="Weight decay, applied to matrices only.")
    schedule: Literal["constant", "cosine"] = Field("constant", description="Schedule of the learning rate.")
    warmup_epochs: float = Field(0.0, description="Epochs of linear warm-up.")
    augment: Literal["none", "flip-crop"] = Field("none", description="Augmentation of the images.")
    precision: AutoPrecision = "auto"
    adversarial: OptionalNumber = Field(
        None,
        description="Train on images perturbed by up to this ε, in units of the [0, 1] pixel range; fractions such "
        "as 1/255 are accepted.",
    )
    adversarial_variant: Literal["pgd", "fast", "free"] | None = Field(
        None,
        description="Adversarial training: PGD, fast (one step) or free (repeated minibatches). If not given: pgd.",
    )
    adversarial_steps: int | None = Field(None, ge=1, description="Steps of pgd. If not given: 3.")
    adversarial_step_size: OptionalNumber = Field(
        None,
        description="Step size in units of the [0, 1] pixel range. If not given: max(ε/4, 2·ε/steps) for pgd, "
        "1.25·ε for fast, ε for free.",
    )
    adversarial_warmup: float | None = Field(
        None, ge=0, description="Epochs over which ε rises from 0. If not given: 1."
    )
    replays: int | None = Field(None, ge=1, description="Uses of each minibatch by free. If not given: 4.")
    store: Literal["float32", "float16"] = Field(
        "float32", description="Number format of the stored weights."
    )
    track: Track = ()
    seed: Seed = 0
    quiet: Quiet = False

    @model_validator(mode="after")
    def _check(self) -> "TrainOptions":
        if odd := sorted(_OF_LAMBDA & set(self.model_part)):
            from antiphase.models.transformer import attention_of, attention_spec

            if not attention_spec(attention_of(self.model)).differential:
                raise UserError(f"{odd[0]}: a {self.model} has no λ; leave it out or train a diffvit")
        if self.lambda_init is not None and self.lambda_schedule == "depth":
            raise UserError(
                f"lambda_init {self.lambda_init:g}: has no effect with lambda_schedule depth; leave one of them out"
            )
        if self.adversary and "eps" not in self.adversary:
            raise UserError(
                f"adversarial {', '.join(self.adversary)} without an ε: give --adversarial too, such as 1/255"
            )
        return self

    @property
    def model_part(self) -> dict[str, Any]:
        """The fields of the model that were given."""
        return given(num_heads=self.heads, **{name: getattr(self, name) for name in sorted(_OF_MODEL)})

    @property
    def adversary(self) -> dict[str, Any]:
        """The fields of the adversary that were given."""
        return given(**{name: getattr(self, field) for field, name in _ADVERSARY_FIELDS.items()})
