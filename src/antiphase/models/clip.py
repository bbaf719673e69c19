"""One dual encoder class for CLIP, DiffCLIP and its variants, which differ only in their attention modules."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.arguments import Fields, Seed, validated
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models.clip_init import Init, initialise_clip
from antiphase.models.factories import VitConfig, build_vision
from antiphase.models.text import TextConfig, TextTransformer, as_tokens, text_tower, trimmed
from antiphase.models.towers import Size, attention_slot
from antiphase.models.vit import VisionTransformer

LOGIT_SCALE = math.log(1 / 0.07)  # CLIP, Section 2.5


class ClipConfig(Fields):
    """Architecture of a dual encoder; stored next to its weights.

    ``interpolation`` is used to resize the shorter side of an image before its centre is cropped. The mean and
    standard deviation of the pixels belong to the image tower.
    """

    vision: VitConfig
    text: TextConfig
    embed_dim: Size
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    init: Init = "matched"
    logit_scale: float = LOGIT_SCALE
    logit_bias: float | None = None


class CLIP(nn.Module):
    """Embed images in [0, 1] and texts in one space, where matching pairs have a high cosine (vectors not normalised).

    Sources: A. Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021;
    H. Hammoud, B. Ghanem, *DiffCLIP: Differential Attention Meets CLIP*, TMLR 2025, Section 3.

    Args:
        visual: image tower without a head.
        text: text tower.
        widths: feature widths of the image tower and the text tower.
        embed_dim: width of the common space.
        logit_scale: natural logarithm of the factor on the cosines.
        logit_bias: added to the logits by the sigmoid loss; None for no bias.
    """

    @validated
    def __init__(
        self,
        visual: VisionTransformer,
        text: TextTransformer,
        widths: tuple[int, int],
        embed_dim: int,
        *,
        logit_scale: float = LOGIT_SCALE,
        logit_bias: float | None = None,
    ) -> None:
        super().__init__()
        self.visual = visual
        self.text = text
        self.image_projection = nn.Parameter(torch.zeros(widths[0], embed_dim))
        self.text_projection = nn.Parameter(torch.zeros(widths[1], embed_dim))
        self.logit_scale = nn.Parameter(torch.tensor(float(logit_scale)))
        self.logit_bias = None if logit_bias is None else nn.Parameter(torch.tensor(float(logit_bias)))
        self.image_shape = visual.image_shape
        self.square = Square(self.image_shape[1])
        self.config: ClipConfig | None = None  # set by the factories

    def encode_image(
        self,
        images: Float[Tensor, "batch 3 height width"],
        normalize: bool = False,
        *,
        keep: Int64[Tensor, "batch kept"] | None = None,
    ) -> Float[Tensor, "batch embed"]:
        """Return image embeddings, of length 1 if ``normalize``; ``keep`` as in :class:`VisionTransformer`."""
        embeddings = self.visual(images, keep) @ self.image_projection
        return F.normalize(embeddings, dim=-1) if normalize else embeddings

    def encode_text(
        self, texts: Sequence[str] | Int64[Tensor, "batch length"], normalize: bool = False
    ) -> Float[Tensor, "batch embed"]:
        """Return text embeddings, of length 1 if ``normalize``."""
        tokens = as_tokens(texts, self.text.context_length).to(self.text_projection.device)
        embeddings = self.text(trimmed(tokens)) @ self.text_projection
        return F.normalize(embeddings, dim=-1) if normalize else embeddings

    def forward(
        self,
        images: Float[Tensor, "batch 3 height width"],
        texts: Sequence[str] | Int64[Tensor, "batch length"],
        keep: Int64[Tensor, "batch kept"] | None = None,
    ) -> tuple[Float[Tensor, "batch embed"], Float[Tensor, "batch embed"]]:
        return self.encode_image(images, keep=keep), self.encode_text(texts)


@validated
def build_clip(config: ClipConfig, seed: Seed = 0) -> CLIP:
    """Build a model from its configuration, with weights drawn from ``seed``.

    Raises:
        UserError: if the sizes are incompatible.
    """
    with torch.random.fork_rng(devices=[]):  # the constructors' weights are overwritten
        model = bare_clip(config)
    initialise_clip(model, config.init, seed)
    return model


def bare_clip(config: ClipConfig) -> CLIP:
    """Build a model with the constructors' default weights.

    Raises:
        UserError: if the sizes are incompatible.
    """
    if config.vision.num_classes:
        raise UserError(
            f"vision.num_classes {config.vision.num_classes}: expected 0, a CLIP's image tower has no head"
        )
    try:
        text = text_tower(config.text, attention_slot(config.text))
    except ValueError as error:
        raise UserError(f"text tower: {error}") from None
    model = CLIP(
        build_vision(config.vision),
        text,
        (config.vision.dim, config.text.dim),
        config.embed_dim,
        logit_scale=config.logit_scale,
        logit_bias=config.logit_bias,
    )
    model.config = config
    model.square = Square(config.vision.image_size, config.interpolation)
    return model
