"""Image features of a CLIP or a classifier, for linear probes, few-shot learning and retrieval."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models import preprocessing, trained
from antiphase.models.card import card_of, square_of
from antiphase.models.clip import CLIP
from antiphase.models.schemes.libraries import OpenClip
from antiphase.models.vit import VisionTransformer
from antiphase.models.zeroshot import as_dual_encoder, is_dual_encoder
from antiphase.modules import device_of

Features = Float[Tensor, "batch width"]


@dataclass(frozen=True)
class ImageTower:
    """A model's image tower, split in front of its projection or head."""

    features: Callable[[preprocessing.Images], Features]  # from images in [0, 1] to the input of the projection or head
    project: Callable[[Features], Features] | None  # to the joint space; None for a classifier
    square: Square  # resizes and crops an image to the model's size
    channels: int
    raw: bool = True  # False for models that cannot be split there: ``project`` is the identity


def image_tower(model: nn.Module) -> ImageTower:
    """Split the image tower of a loaded model; refuse a classifier of an unknown kind."""
    if isinstance(model, CLIP):
        return ImageTower(model.visual, lambda x: x @ model.image_projection, model.square, 3)
    if isinstance(model, OpenClip) and (parts := _open_clip(model)):
        return ImageTower(*parts, model.square, model.image_shape[0])
    channels = card_of(model).image_shape[0]
    if is_dual_encoder(model):  # that cannot be split before its projection
        dual = as_dual_encoder(model)
        return ImageTower(dual.encode_image, lambda x: x, dual.square, channels, raw=False)
    square, net = square_of(model), cast(Any, model)
    if isinstance(model, VisionTransformer):
        return ImageTower(model.features, None, square, channels)
    if isinstance(model, preprocessing.Normalized) and hasattr(model.model, "forward_head"):
        timm = net.model

        def before_head(x: preprocessing.Images) -> Features:
            return timm.forward_head(timm.forward_features(net.normalize(x)), pre_logits=True)

        return ImageTower(before_head, None, square, channels)
    fits = False
    with suppress(RuntimeError, ValueError, TypeError), torch.no_grad():
        grey = torch.full((1, *card_of(model).image_shape), 0.5, device=device_of(model))
        fits = trained.last_linear(model, grey) is not None
    if not fits:
        known = "a CLIP, a vision transformer, a timm model or a classifier whose last layer is linear"
        raise UserError(f"{card_of(model).spec}: cannot extract features; expected {known}")
    return ImageTower(lambda x: cast(Any, trained.last_linear(model, x))[1], None, square, channels)


def _open_clip(model: OpenClip) -> tuple[Any, Any] | None:
    visual: Any = model.model.visual
    if isinstance(projection := getattr(visual, "proj", None), nn.Parameter):  # the vision transformers

        def features(images: preprocessing.Images) -> Features:
            visual.proj = None  # makes forward stop before the projection
            try:
                output = visual(model.normalize(images))
                return output[0] if isinstance(output, tuple) else output  # some also return tokens
            finally:
                visual.proj = projection

        return features, lambda x: x @ projection
    if hasattr(visual, "trunk") and hasattr(visual, "head"):  # the towers from timm
        return lambda images: visual.trunk(model.normalize(images)), visual.head
    return None
