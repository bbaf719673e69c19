"""The options of ``antiphase train-clip``."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from antiphase.commands.fields import (
    MOST_AT_ONCE,
    AutoPrecision,
    Checkpointing,
    Epochs,
    LearningRate,
    Out,
    Quiet,
    Seed,
    Track,
    Words,
)
from antiphase.commands.options import Options, Typed, given
from antiphase.errors import UserError
from antiphase.registry import CLIPS


class TrainClipOptions(Options):
    """Train a CLIP or a DiffCLIP on images with captions, by DiffCLIP's recipe.

    The same command resumes a killed run, which ends with the weights of an uninterrupted one. Under
    torchrun the processes share the batch, and the gradient is that of the whole batch.

    **Examples**

    antiphase train-clip --model diffclip --data openmoji --preset openmoji --out runs/diffclip

    antiphase train-clip --model clip --data "shards:cc3m/{00000..00331}.tar" --out runs/clip

    torchrun --nproc-per-node 8 -m antiphase train-clip --model diffclip --part 256 --compile
    --data "shards:s3://bucket/cc12m/{00000..01242}.tar" --samples 10000000 --out runs/cc12m
    """

    model: Annotated[
        str,
        Typed(choices=CLIPS),
        Field(
            description="Kind of model: diffclip-depth is DiffCLIP* (λ_init rises with depth), diffclip-vision is "
            "DiffCLIP† (differential attention in the image tower only), diffclip-text has it in the text tower only."
        ),
    ]
    data: str = Field(
        description="Source of image-text pairs: openmoji, emoji-objects, shards:PATTERN, coco, karpathy:JSON, "
        "csv:PATH, and more in docs/data.md."
    )
    out: Out
    preset: Literal["diffclip", "openmoji"] = Field(
        "diffclip",
        description="Recipe: the papers' (ViT-B/16 at 224 pixels), or a laptop's for OpenMoji (64 pixels).",
    )
    held_out: Words = Field(
        (),
        description="Sources whose test split is evaluated after each epoch, separated by commas, or none. If not "
        "given: the training source.",
    )
    samples: int | None = Field(
        None, ge=1, description="Samples per epoch, for shards that do not state their size."
    )
    lanes: int | None = Field(
        None,
        ge=1,
        description="Streams among which the shards are divided, a multiple of the number of processes. If not "
        "given: 8, or as many as the shards allow.",
    )
    limit: int | None = Field(None, ge=2, description="Train on at most N pairs.")
    epochs: Epochs = None
    batch_size: int | None = Field(
        None,
        ge=2,
        le=MOST_AT_ONCE,
        description="Pairs per step, over all processes. If not given: the preset's.",
    )
    part: int | None = Field(
        None,
        ge=1,
        description="Pairs of a process that pass through the towers at a time (GradCache): less memory, same "
        "gradient.",
    )
    learning_rate: LearningRate = None
    warmup_epochs: float | None = Field(
        None, description="Epochs of linear warm-up. If not given: the preset's."
    )
    weight_decay: float | None = Field(
        None, description="Weight decay, applied to matrices only. If not given: the preset's."
    )
    loss: Literal["clip", "siglip", "slip_exact"] = Field(
        "clip",
        description="Loss; slip_exact is SLIP's code on several GPUs, where the keys of other processes have no "
        "gradient.",
    )
    init: Literal["matched", "released"] = Field(
        "matched", description="Initial weights: the same for both twins, or as in the released pair."
    )
    lambda_init: float | None = Field(
        None, description="DiffCLIP: λ_init of the constant schedule. If not given: 0.8."
    )
    patch_dropout: float = Field(0.0, description="Fraction of patches that are left out in training.")
    precision: AutoPrecision = "auto"
    compile: bool = Field(False, description="Run the towers under torch.compile.")
    checkpointing: Checkpointing = False
    track: Track = ()
    seed: Seed = 0
    quiet: Quiet = False

    @model_validator(mode="after")
    def _check(self) -> "TrainClipOptions":
        if self.lambda_init is not None:
            from antiphase.models.clip import find_clip

            schedule = find_clip(self.model).schedule
            if schedule != "constant":
                why = "has no λ" if schedule is None else "has λ_init by depth"
                raise UserError(
                    f"lambda_init {self.lambda_init:g}: a {self.model} {why}; leave out --lambda-init or train a "
                    "diffclip"
                )
        return self

    @property
    def model_part(self) -> dict[str, Any]:
        """The fields of the model that were given."""
        return given(init=self.init, lambda_init=self.lambda_init)

    @property
    def recipe_part(self) -> dict[str, Any]:
        """The fields of the recipe that were given."""
        names = (
            "epochs",
            "batch_size",
            "learning_rate",
            "warmup_epochs",
            "weight_decay",
            "loss",
            "patch_dropout",
            "seed",
        )
        return given(**{name: getattr(self, name) for name in names})
