"""The options of ``antiphase train-vlm``."""

from pathlib import Path
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
)
from antiphase.commands.options import Options, Typed, given
from antiphase.errors import UserError

_OF_RECIPE = (
    "epochs",
    "batch_size",
    "learning_rate",
    "warmup",
    "store",
    "seed",
    "projector_start",
    "text_first",
)
_OF_STAGE_1 = ("tower", "language", "projector", "projector_start", "merge", "prompt")


class TrainVlmOptions(Options):
    """Train a small vision-language model on an image tower, in two stages, as DiffCLIP does.

    The same command resumes a killed run, which ends with the weights of an uninterrupted one. Under
    torchrun the processes share the batch, and the gradient is that of the whole batch.

    **Examples**

    antiphase train-vlm --stage 1 --tower runs/diffclip --data emoji-objects --limit 1200 --preset emoji
    --out runs/vlm-1

    antiphase train-vlm --stage 2 --pretrained runs/vlm-1 --data emoji-objects --limit 800 --preset emoji
    --out runs/vlm

    antiphase train-vlm --stage 1 --tower runs/diffclip --data "llava:blip_laion_cc_sbu_558k.json?images=llava"
    --out runs/vlm-1

    antiphase train-vlm --stage 2 --pretrained runs/vlm-1 --data "llava:llava_v1_5_mix665k.json?images=data"
    --out runs/vlm
    """

    stage: Literal["1", "2"] = Field(
        description="Stage: 1 trains the projector on captions, 2 also the language model on conversations."
    )
    data: str = Field(
        description="Source of conversations: emoji-objects, llava:JSON?images=DIR or shards:PATTERN (tar files "
        "with KEY.json and KEY.jpg)."
    )
    out: Out
    tower: str | None = Field(
        None,
        description="Model whose image tower sees: a run directory of train-clip, open_clip:NAME/TAG, "
        "diffclip:PATH and so on. With --pretrained: that model's.",
    )
    language: str | None = Field(
        None,
        description="Language model: smollm2, a name on the Hugging Face hub, a directory of save_pretrained, or "
        "tiny (random weights, to try out a pipeline). If not given: smollm2.",
    )
    pretrained: Path | None = Field(None, description="Directory of stage 1, from which stage 2 starts.")
    preset: Literal["diffclip", "emoji"] = Field(
        "diffclip", description="Recipe: DiffCLIP's, or a laptop's for emoji scenes."
    )
    projector: Literal["linear", "mlp2x"] | None = Field(
        None, description="Kind of projector. If not given: linear."
    )
    projector_start: Literal["default", "captions"] | None = Field(
        None,
        description="Weights with which stage 1 begins: PyTorch's default, or fitted so that image tokens resemble "
        "the words of the captions (linear projectors only). If not given: the preset's.",
    )
    text_first: Annotated[
        bool | None,
        Field(
            description="Begin the first epoch of stage 2 with the conversations that have no image. If not given: the "
            "preset's."
        ),
        Typed(flags=("--text-first/--no-text-first",)),
    ] = None
    merge: int | None = Field(
        None,
        ge=1,
        description="Side of the squares of image tokens that become one position. If not given: the preset's.",
    )
    prompt: Literal["chat", "llava"] | None = Field(
        None,
        description="Conversation format: the tokenizer's chat template, or LLaVA 1.5's. If not given: chat if the "
        "tokenizer has a template.",
    )
    lora: int | None = Field(
        None,
        ge=1,
        description="Rank of LoRA adapters: stage 2 trains them in place of the language model's weights.",
    )
    limit: int | None = Field(None, ge=1, description="Train on at most N conversations.")
    epochs: Epochs = None
    batch_size: int | None = Field(
        None,
        ge=1,
        le=MOST_AT_ONCE,
        description="Conversations per step, over all processes. If not given: the preset's.",
    )
    part: int | None = Field(
        None,
        ge=1,
        description="Conversations of a process that pass through the model at a time: less memory. If not given: "
        "4 on a processor, otherwise all.",
    )
    learning_rate: LearningRate = None
    warmup: float | None = Field(
        None, description="Share of the steps with linear warm-up. If not given: 0.03."
    )
    precision: AutoPrecision = "auto"
    store: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type in which a language model that was trained is stored."
    )
    checkpointing: Checkpointing = False
    shard: bool = Field(
        False,
        description="Divide weights, gradients and optimizer state among the processes of torchrun (FSDP), for a "
        "language model that does not fit one device. Implies --checkpointing.",
    )
    track: Track = ()
    seed: Seed = 0
    quiet: Quiet = False

    @model_validator(mode="after")
    def _check(self) -> "TrainVlmOptions":
        if self.pretrained is not None:
            for name in _OF_STAGE_1:
                if (value := getattr(self, name)) is not None:
                    option = name.replace("_", "-")
                    raise UserError(f"{option} {value}: --pretrained has one; leave out --{option}")
            if self.stage == "1":
                raise UserError("pretrained: stage 1 starts from a tower; give --tower, or --stage 2")
        elif self.tower is None:
            raise UserError(
                "tower: is missing; expected --tower, or --pretrained with a directory of stage 1"
            )
        if self.text_first is not None and self.stage == "1":
            raise UserError(
                "text-first: conversations of stage 1 all have an image; leave it out, or use --stage 2"
            )
        if self.lora is not None and self.stage == "1":
            raise UserError(
                f"lora {self.lora}: stage 1 trains the projector alone; leave out --lora, or use --stage 2"
            )
        return self

    @property
    def recipe_fields(self) -> dict[str, Any]:
        """The fields of the recipe that were given."""
        return given(**{name: getattr(self, name) for name in _OF_RECIPE})
