"""CLIP and DiffCLIP by size and variant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from antiphase.arguments import Seed, validated
from antiphase.errors import UserError, invalid
from antiphase.models.clip import CLIP, ClipConfig, build_clip
from antiphase.models.clip_init import Init
from antiphase.models.towers import ScheduleName
from antiphase.registry import CLIPS, find

Towers = Literal["both", "vision", "text"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # the recipe's, not OpenAI's
IMAGENET_STD = (0.229, 0.224, 0.225)

# b16: the model of both papers; small: 64-pixel images, for a laptop (tuned on openmoji)
PRESETS: dict[str, dict[str, Any]] = {
    "b16": {
        "vision": {"image_size": 224, "patch_size": 16, "dim": 768, "depth": 12, "num_heads": 12},
        "text": {"dim": 512, "depth": 12, "num_heads": 8},
        "embed_dim": 512,
    },
    "small": {
        "vision": {"image_size": 64, "patch_size": 8, "dim": 192, "depth": 4, "num_heads": 6},
        "text": {"dim": 192, "depth": 3, "num_heads": 6, "context_length": 32},
        "embed_dim": 192,
    },
}


@dataclass(frozen=True)
class ClipVariant:
    """A kind of CLIP, as registered in :data:`antiphase.registry.CLIPS`.

    Attributes:
        label: what reports call it; * and † are the DiffCLIP paper's (Sections 4.5 and 4.6).
        fields: arguments of :func:`configure_clip` that make it what it is.
    """

    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schedule(self) -> str | None:
        """The schedule of its λ_init; None for standard attention in both towers."""
        return self.fields.get("schedule", "constant") if self.fields.get("towers") else None


CLIP_VARIANT = ClipVariant("CLIP")
DIFFCLIP = ClipVariant("DiffCLIP", {"towers": "both"})
DIFFCLIP_DEPTH = ClipVariant("DiffCLIP*", {"towers": "both", "schedule": "depth"})
DIFFCLIP_VISION = ClipVariant("DiffCLIP†", {"towers": "vision"})
DIFFCLIP_TEXT = ClipVariant("DiffCLIP, text only", {"towers": "text"})


def find_clip(variant: str) -> ClipVariant:
    """Return the registered kind of CLIP of a name, such as ``"diffclip-depth"``."""
    return find(CLIPS, variant, "model")


@validated
def clip(preset: str = "small", *, seed: Seed = 0, **fields: Any) -> CLIP:
    """Build a CLIP with standard attention in both towers.

    Args:
        preset: ``"b16"`` or ``"small"``.
        seed: random seed of the initial weights.
        **fields: ``vision`` and ``text`` (dictionaries of sizes that differ from the preset), ``embed_dim``
            and the other fields of :class:`~antiphase.models.clip.ClipConfig`.

    Raises:
        UserError: for an unknown preset or field, or incompatible sizes.
    """
    return build_clip(configure_clip(preset, **fields), seed)


@validated
def diffclip(preset: str = "small", *, seed: Seed = 0, **fields: Any) -> CLIP:
    """Build a DiffCLIP: the same class as :func:`clip`, with differential attention.

    Args:
        preset: ``"b16"`` or ``"small"``.
        seed: random seed of the initial weights.
        **fields: as in :func:`clip`, and ``lambda_init`` (0.8), ``schedule`` (``"constant"``, or ``"depth"``
            for the paper's DiffCLIP*) and ``towers`` (``"both"``, ``"text"``, or ``"vision"`` for DiffCLIP†) and
            ``attention``, another registered differential attention.

    Raises:
        UserError: for an unknown preset or field, or incompatible sizes.
    """
    values: dict[str, Any] = {"towers": "both"} | fields
    return build_clip(configure_clip(preset, **values), seed)


@validated
def clip_vit_b16(*, seed: Seed = 0, **fields: Any) -> CLIP:
    """Build the papers' baseline, ViT-B/16 at 224 pixels (149,619,969 parameters); arguments as for :func:`clip`."""
    return clip("b16", seed=seed, **fields)


@validated
def diffclip_vit_b16(
    lambda_init: float = 0.8,
    schedule: ScheduleName = "constant",
    towers: Towers = "both",
    init: Init = "matched",
    *,
    seed: Seed = 0,
    **fields: Any,
) -> CLIP:
    """Build the paper's DiffCLIP at ViT-B/16 (DiffCLIP, Section 4).

    Args:
        lambda_init: λ_init of every layer; used by the constant schedule.
        schedule: ``"constant"``, or ``"depth"``: 0.8 − 0.6·exp(−0.3·layer), the paper's DiffCLIP*.
        towers: towers with differential attention; ``"vision"`` is the paper's DiffCLIP†.
        init: ``"matched"`` to the baseline, or ``"released"``, see :mod:`antiphase.models.clip_init`.
        seed: random seed of the initial weights.
        **fields: as in :func:`clip`.
    """
    fields |= {"lambda_init": lambda_init, "schedule": schedule, "towers": towers, "init": init}
    return diffclip("b16", seed=seed, **fields)


@validated
def configure_clip(
    preset: str = "small",
    *,
    towers: Towers | None = None,
    lambda_init: float = 0.8,
    schedule: ScheduleName = "constant",
    attention: str = "differential",
    init: Init = "matched",
    vision: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    **fields: Any,
) -> ClipConfig:
    """Return a validated configuration.

    The ``towers`` have the registered ``attention``, other towers have standard attention; ``towers=None`` means
    standard attention in both.

    Raises:
        UserError: naming the first field that is unknown or out of range.
    """
    if preset not in PRESETS:
        raise UserError(f"preset {preset!r}: expected one of {', '.join(PRESETS)}")
    if towers not in (None, "both", "vision", "text"):
        raise UserError(f"towers {towers!r}: expected one of both, vision, text")
    sizes = PRESETS[preset]
    lam = {"attention": attention, "lambda_init": lambda_init, "lambda_schedule": schedule}
    standard = {"attention": "softmax"}
    # the released DiffCLIP uses PyTorch's layer-norm eps in its image tower, the baseline timm's
    eps = 1e-5 if init == "released" and towers in ("both", "vision") else 1e-6
    fixed = {"in_channels": 3, "num_classes": 0, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "norm_eps": eps}
    values = {
        "vision": fixed
        | sizes["vision"]
        | (lam if towers in ("both", "vision") else standard)
        | (vision or {}),
        "text": sizes["text"] | (lam if towers in ("both", "text") else standard) | (text or {}),
        "embed_dim": sizes["embed_dim"],
        "init": init,
        **fields,
    }
    return valid_clip(values)


def valid_clip(values: Any, source: str = "", at: tuple[str, ...] = ()) -> ClipConfig:
    """Validate ``values`` and return them as a configuration.

    Raises:
        UserError: naming ``source`` and the first invalid field.
    """
    try:
        return ClipConfig.model_validate(values)
    except ValidationError as error:
        raise invalid(error, source, at) from None
