"""Architecture and hyperparameters of vision-language models, as stored next to their weights."""

import math
from typing import Any, Literal

from pydantic import ConfigDict, Field

from antiphase.arguments import Fields
from antiphase.precision import Precision
from antiphase.vlm.model import Kind
from antiphase.vlm.prompt import Style


class VlmConfig(Fields):
    """Architecture of a vision-language model; stored in its recipe.

    Attributes:
        tower_spec: from where the image tower came, as given to ``load_model``.
        tower: from what :func:`~antiphase.vlm.towers.build_tower` builds it.
        tower_sha256: digest of the tower's weights.
        projector: ``linear`` or ``mlp2x``.
        merge: side of the squares of image tokens that become one.
        language: name of the language model, as given to ``load_language``.
        language_sha256: digest of its pretrained weights.
        prompt: conversation format.
        lora: rank of the adapters; None: none.
        tuned: whether all weights of the language model were trained and are stored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tower_spec: str
    tower: dict[str, Any]
    tower_sha256: str
    projector: Kind = "linear"
    merge: int = Field(default=1, ge=1)
    language: str
    language_sha256: str
    prompt: Style
    lora: int | None = Field(default=None, ge=1)
    tuned: bool = False


class VlmRecipe(Fields):
    """Hyperparameters of one stage of a vision-language model's training: every field that affects the weights.

    Stage 1 trains the projector on captions, stage 2 the projector and the language model on conversations. The image
    tower is frozen. The defaults are those of DiffCLIP's Section 5.1, which follows TinyLLaVA: AdamW without weight
    decay, batches of 192, 3 % linear warm-up, then half a cosine to 0, one epoch, gradients clipped to the norm 1.

    ``projector_start`` of stage 1: ``"default"`` are PyTorch's weights, as in LLaVA; ``"captions"`` are a least squares
    fit from image tokens to the words of the captions, see :meth:`~antiphase.vlm.Projector.start_at_words`. With
    ``text_first`` the first epoch begins with the conversations that have no image.
    """

    kind: Literal["vlm"] = "vlm"
    stage: Literal[1, 2]
    model: VlmConfig
    pretrained_sha256: str | None = None
    data: str
    data_fingerprint: str
    seed: int = Field(default=0, ge=0, lt=2**63)
    epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=192, ge=1)
    learning_rate: float = Field(gt=0)
    warmup: float = Field(default=0.03, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = Field(default=1e-8, gt=0)
    gradient_norm: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=2048, ge=8)
    projector_start: Literal["default", "captions"] = "default"
    text_first: bool = False
    precision: Precision = "float32"
    store: Literal["float32", "bfloat16"] = "float32"


# by preset and stage; diffclip: DiffCLIP's Section 5.1, as TinyLLaVA; emoji: see dev/vlm.md
VLM_PRESETS: dict[str, dict[int, dict[str, Any]]] = {
    "diffclip": {1: {"learning_rate": 1e-3}, 2: {"learning_rate": 2e-5}},
    "emoji": {
        1: {"learning_rate": 5e-5, "batch_size": 16, "epochs": 1, "projector_start": "captions"},
        2: {"learning_rate": 3e-5, "batch_size": 4, "epochs": 1, "text_first": True},
    },
}
SCHEDULE = "cosine"
"""What :func:`vlm_learning_rate` follows after the warm-up."""
MERGE = {"diffclip": 1, "emoji": 2}
"""Side of the squares of image tokens that become one, by preset."""


def make_vlm_recipe(stage: int, preset: str, model: VlmConfig, **fields: Any) -> VlmRecipe:
    """Build the recipe of a stage; fields override those of the preset, a key of ``VLM_PRESETS``."""
    return VlmRecipe(stage=stage, model=model, **(VLM_PRESETS[preset][stage] | fields))  # type: ignore[arg-type]


def vlm_learning_rate(recipe: VlmRecipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step (from 0), as transformers' cosine schedule: warm-up from 0, half a cosine."""
    total = recipe.epochs * steps_per_epoch
    warmup = math.ceil(recipe.warmup * total)
    if step < warmup:
        return recipe.learning_rate * step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return recipe.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
