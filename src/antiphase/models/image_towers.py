"""Image features of any model, for linear probes and few-shot learning."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models.card import card_of
from antiphase.models.clip import CLIP
from antiphase.models.dual_encoders import OpenClip
from antiphase.models.normalize import Normalized
from antiphase.models.vit import VisionTransformer

Images = Float[Tensor, "batch channels height width"]
Features = Float[Tensor, "batch width"]


@dataclass(frozen=True)
class ImageTower:
    """A model's image tower, split in front of its projection or head.

    Attributes:
        features: maps images in [0, 1] to the input of the projection or head.
        project: maps features to the joint embedding space, not normalised; None for a classifier.
        square: resizes and crops an image to the model's size.
        channels: number of image channels.
        raw: whether ``features`` precede the projection; False for open_clip models that cannot be split there, whose
            ``project`` is the identity.
    """

    features: Callable[[Images], Features]
    project: Callable[[Features], Features] | None
    square: Square
    channels: int
    raw: bool = True


def image_tower(model: nn.Module) -> ImageTower:
    """Split the image tower of a loaded model.

    Raises:
        UserError: for a classifier of an unknown kind.
    """
    if isinstance(model, CLIP):
        return ImageTower(model.visual, lambda x: x @ model.image_projection, model.square, 3)
    if isinstance(model, OpenClip):
        return _open_clip(model)
    channels, size, _ = card_of(model).image_shape
    if isinstance(model, VisionTransformer):
        return ImageTower(model.features, None, Square(size), channels)
    if isinstance(model, Normalized) and hasattr(model.model, "forward_head"):
        timm: Any = model.model

        def features(images: Images) -> Features:
            return timm.forward_head(timm.forward_features(model.normalize(images)), pre_logits=True)

        return ImageTower(features, None, Square(size), channels)
    raise UserError(
        f"{card_of(model).spec}: cannot extract features; expected a CLIP, a vision transformer or a timm model"
    )


def _open_clip(model: OpenClip) -> ImageTower:
    visual: Any = model.model.visual
    if isinstance(getattr(visual, "proj", None), nn.Parameter):  # the vision transformers
        projection = cast(nn.Parameter, visual.proj)

        def features(images: Images) -> Features:
            visual.proj = None  # makes forward stop before the projection
            try:
                found = visual(model.normalize(images))
                return found[0] if isinstance(found, tuple) else found  # some also return tokens
            finally:
                visual.proj = projection

        return ImageTower(features, lambda x: x @ projection, model.square, model.image_shape[0])
    if hasattr(visual, "trunk") and hasattr(visual, "head"):  # the towers from timm

        def trunk(images: Images) -> Features:
            return visual.trunk(model.normalize(images))

        return ImageTower(trunk, visual.head, model.square, model.image_shape[0])
    return ImageTower(model.encode_image, lambda x: x, model.square, model.image_shape[0], raw=False)
