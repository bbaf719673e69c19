"""Recipe of a contrastive training run: every field that affects the weights, and no others."""

import math
from typing import Any, Literal

from pydantic import Field

from antiphase.arguments import Fields
from antiphase.errors import UserError
from antiphase.models.clip import ClipConfig, configure_clip, find_clip
from antiphase.precision import Precision
from antiphase.training.contrastive_loss import Kind
from antiphase.training.recipe import check_warmup

MAX_LOGIT_SCALE = math.log(100.0)  # CLIP, Section 2.5


class ClipRecipe(Fields):
    """Hyperparameters of a dual encoder's training; stored next to its weights.

    The defaults are DiffCLIP's recipe (that of SLIP, as used by SynthCLIP): AdamW, one epoch of linear warm-up, half
    a cosine, 40 epochs, batches of 4,096, random crops of at least half the image.
    """

    kind: Literal["clip"] = "clip"
    model: ClipConfig
    data: str
    data_fingerprint: str
    seed: int = Field(default=0, ge=0, lt=2**63)
    epochs: int = Field(default=40, ge=1)
    batch_size: int = Field(default=4096, ge=2)
    learning_rate: float = Field(default=5e-4, gt=0)
    warmup_epochs: float = Field(default=1.0, ge=0)
    warmup_start: float = Field(default=1e-6, ge=0)
    final_learning_rate: float = Field(default=1e-5, ge=0)
    weight_decay: float = Field(default=0.5, ge=0)
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = Field(default=1e-8, gt=0)
    loss: Kind = "clip"
    crop: tuple[float, float] = (0.5, 1.0)
    captions: Literal["first", "any"] = "any"
    patch_dropout: float = Field(default=0.0, ge=0, lt=1)
    precision: Precision = "float32"
    store: Literal["float32", "float16"] = "float32"


# openmoji: tuned by hand on that set (dev/clip.md), the same for every variant
TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "diffclip": {"size": "b16", "recipe": {}},
    "openmoji": {
        "size": "small",
        "recipe": {
            "epochs": 12,
            "batch_size": 256,
            "learning_rate": 1e-3,
            "warmup_epochs": 3.0,
            "weight_decay": 0.2,
        },
    },
}


def make_clip_recipe(
    variant: str, preset: str, data: str, fingerprint: str, model_fields: dict[str, Any], **fields: Any
) -> ClipRecipe:
    """Build the recipe of a CLIP variant.

    Args:
        variant: a key of ``antiphase.registry.CLIPS``, such as ``diffclip-depth`` (DiffCLIP*).
        preset: ``diffclip`` (recipe and size of the papers) or ``openmoji`` (for a laptop).
        data: name of the training pairs.
        fingerprint: fingerprint of the training pairs.
        model_fields: arguments of :func:`~antiphase.models.clip.configure_clip` that override the preset.
        **fields: fields of the recipe that override the preset.

    Raises:
        UserError: naming the field that is unknown or out of range.
    """
    own = find_clip(variant).fields
    if preset not in TRAINING_PRESETS:
        raise UserError(f"preset {preset!r}: expected one of {', '.join(TRAINING_PRESETS)}")
    chosen = TRAINING_PRESETS[preset]
    sigmoid = fields.get("loss") == "siglip"  # SigLIP, Section 3.1: t' = ln 10, b = −10
    start = {"logit_scale": math.log(10.0), "logit_bias": -10.0} if sigmoid else {}
    model = configure_clip(chosen["size"], **{**own, **start, **model_fields})
    recipe = ClipRecipe(model=model, data=data, data_fingerprint=fingerprint, **(chosen["recipe"] | fields))
    if "warmup_epochs" in fields:  # the preset's may be longer than a short training
        check_warmup("warmup_epochs", recipe.warmup_epochs, recipe.epochs)
    return recipe


def clip_learning_rate(recipe: ClipRecipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then half a cosine."""
    total = recipe.epochs * steps_per_epoch
    warmup = min(round(recipe.warmup_epochs * steps_per_epoch), total)
    if step < warmup:
        share = step / max(1, warmup - 1)
        return recipe.warmup_start + share * (recipe.learning_rate - recipe.warmup_start)
    share = (step - warmup) / max(1, total - warmup)
    low, high = recipe.final_learning_rate, recipe.learning_rate
    return low + 0.5 * (high - low) * (1.0 + math.cos(math.pi * share))
