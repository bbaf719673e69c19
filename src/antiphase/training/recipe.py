"""Recipes of training, of classifiers and dual encoders: every field that affects the weights, and no others."""

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from antiphase.arguments import Fields, validated
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.models.clip import ClipConfig, configure_clip, find_clip
from antiphase.models.trained import StartingModel
from antiphase.models.transformer import attention_of
from antiphase.models.vit import VitConfig, configure
from antiphase.precision import Precision, multiplies_bf16
from antiphase.training.adversarial import Adversary

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Kind = Literal["clip", "siglip", "slip_exact"]
MAX_LOGIT_SCALE = math.log(100.0)  # CLIP, Section 2.5
# tuned by hand on OpenMoji (dev/clip.md), the same for every variant
_OPENMOJI = dict(epochs=12, batch_size=256, learning_rate=1e-3, warmup_epochs=3.0, weight_decay=0.2)
# diffclip: recipe and size of the papers; openmoji: for a laptop
TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "diffclip": {"size": "b16", "recipe": {}},
    "openmoji": {"size": "small", "recipe": _OPENMOJI},
}


class AnyRecipe(Fields):
    """What every recipe of training has."""

    data: str
    data_fingerprint: str
    seed: Seed = 0
    precision: Precision = "float32"


class Recipe(AnyRecipe):
    """Hyperparameters of a classifier's training; stored next to its weights.

    The defaults are those of the sensitivity paper (Appendix C.1), which trains 100 epochs on CIFAR-10, 300 on
    CIFAR-100. ``adversarial`` is for adversarial training (Appendix D.2), ``defences`` are strengths by name
    (:mod:`antiphase.training.defences`).
    """

    model: VitConfig | StartingModel
    epochs: Count = 100
    batch_size: Count = 128
    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: Positive = 5e-4
    weight_decay: NonNegative = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_epochs: NonNegative = 0.0
    augment: Literal["none", "flip-crop"] = "none"
    store: Literal["float32", "float16"] = "float32"
    adversarial: Adversary | None = None
    defences: dict[str, float] | None = None  # strengths by name


@validated
def make_recipe(kind: str | StartingModel, images: ImageSet, model_fields: dict[str, Any], **fields: Any) -> Recipe:
    """Build the recipe of a ``vit`` or ``diffvit``, by a preset for the image size, or of a model that is as it comes.

    ``model_fields`` override the preset; the normalisation is from :func:`pixel_statistics`.
    """
    if isinstance(kind, StartingModel):
        model: VitConfig | StartingModel = kind
    else:
        channels, size, _ = images.image_shape
        mean, std = pixel_statistics(images)
        sizes = {"in_channels": channels, "num_classes": len(images.class_names), "mean": mean, "std": std}
        model = configure(attention_of(kind), size, sizes | model_fields)
    recipe = Recipe(model=model, data_fingerprint=images.fingerprint(), **fields)
    check_warmup("warmup_epochs", recipe.warmup_epochs, recipe.epochs)
    if "warmup_epochs" in (fields.get("adversarial") or {}) and recipe.adversarial is not None:
        check_warmup("adversarial_warmup", recipe.adversarial.warmup_epochs, recipe.epochs)
    return recipe


def check_warmup(name: str, value: float, epochs: int) -> None:
    """Refuse a warm-up that lasts longer than the training."""
    if value > epochs:
        raise UserError(f"{name} {value:g}: expected at most {epochs}, the number of epochs; lower it or train longer")


def pixel_statistics(images: ImageSet, limit: int = 60_000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of at most ``limit`` images, in [0, 1], to three digits."""
    count, total, squares = 0, torch.zeros(1), torch.zeros(1)
    for _, batch, _ in images.subset(min(limit, len(images))).batches(1000):
        pixels = batch.double().transpose(0, 1).flatten(1)
        count += pixels.shape[1]
        total, squares = total + pixels.sum(1), squares + pixels.square().sum(1)
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(1e-6).sqrt()
    return tuple(round(m, 3) for m in mean.tolist()), tuple(round(s, 3) for s in std.tolist())


@validated
def fastest_precision(device: torch.device) -> Precision:
    """Return ``"bf16"`` if the device multiplies bf16 matrices in hardware, otherwise ``"float32"``."""
    return "bf16" if multiplies_bf16(device) else "float32"


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then constant or half a cosine to 0."""
    warmup = recipe.warmup_epochs * steps_per_epoch
    if step < warmup:
        return recipe.learning_rate * min(1.0, (step + 1) / warmup)
    if recipe.schedule == "constant":
        return recipe.learning_rate
    total = recipe.epochs * steps_per_epoch
    progress = (step - warmup) / max(1.0, total - warmup)
    return recipe.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))


class ClipRecipe(AnyRecipe):
    """Hyperparameters of a dual encoder's training, by default DiffCLIP's (those of SLIP, as used by SynthCLIP)."""

    kind: Literal["clip"] = "clip"
    model: ClipConfig
    start: str | None = None  # SHA-256 of the weights of another run that it starts from
    epochs: Count = 40
    batch_size: int = Field(default=4096, ge=2)
    learning_rate: Positive = 5e-4
    warmup_epochs: NonNegative = 1.0
    warmup_start: NonNegative = 1e-6
    final_learning_rate: NonNegative = 1e-5
    weight_decay: NonNegative = 0.5
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: Positive = 1e-8
    loss: Kind = "clip"
    crop: tuple[float, float] = (0.5, 1.0)
    captions: Literal["first", "any"] = "any"
    patch_dropout: float = Field(default=0.0, ge=0, lt=1)
    defences: dict[str, float] | None = None  # strengths by name, of penalties on the image tower's maps
    store: Literal["float32", "float16"] = "float32"


def make_clip_recipe(
    variant: str, preset: str, data: str, fingerprint: str, model_fields: dict[str, Any], **fields: Any
) -> ClipRecipe:
    """Build the recipe of a CLIP variant, a key of ``antiphase.registry.CLIPS``, with a preset of ``TRAINING_PRESETS``.

    ``model_fields``, arguments of :func:`~antiphase.models.clip.configure_clip`, and ``fields`` override it.
    """
    if preset not in TRAINING_PRESETS:
        raise UserError(f"preset {preset!r}: expected one of {', '.join(TRAINING_PRESETS)}")
    chosen = TRAINING_PRESETS[preset]
    sigmoid = fields.get("loss") == "siglip"  # SigLIP, Section 3.1: t' = ln 10, b = −10
    start = {"logit_scale": math.log(10.0), "logit_bias": -10.0} if sigmoid else {}
    model = configure_clip(chosen["size"], **{**find_clip(variant).fields, **start, **model_fields})
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


def half_cosine(step: int, steps: int, warmup: float) -> float:
    """Return the share of the peak rate at a step (from 0): linear warm-up in a share of the steps, half a cosine."""
    rising = warmup * steps
    if step < rising:
        return min(1.0, (step + 1) / rising)
    return 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1.0, steps - rising)))
