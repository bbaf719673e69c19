"""The image tower of any model, cut where its features are: what probes and few-shot learning are given."""

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
    """A model's image tower in two parts.

    Attributes:
        features: from images in [0, 1] to what the projection or the head is given.
        project: from features to the space that is common with texts, not normalised; None for a classifier.
        square: brings an image of any size to the model's.
        channels: of the images.
        raw: whether ``features`` are those before the projection; some models of open_clip cannot be cut there,
            their ``project`` does nothing.
    """

    features: Callable[[Images], Features]
    project: Callable[[Features], Features] | None
    square: Square
    channels: int
    raw: bool = True


def image_tower(model: nn.Module) -> ImageTower:
    """Return the two parts of a loaded model.

    Raises:
        UserError: a classifier whose features are not known.
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
        f"{card_of(model).spec}: its features are not known; expected a CLIP, a vision transformer or a model of timm"
    )


def _open_clip(model: OpenClip) -> ImageTower:
    visual: Any = model.model.visual
    if isinstance(getattr(visual, "proj", None), nn.Parameter):  # the vision transformers
        projection = cast(nn.Parameter, visual.proj)

        def features(images: Images) -> Features:
            visual.proj = None  # its forward pass then stops before the projection
            try:
                found = visual(model.normalize(images))
                return found[0] if isinstance(found, tuple) else found  # some return their tokens too
            finally:
                visual.proj = projection

        return ImageTower(features, lambda x: x @ projection, model.square, model.image_shape[0])
    if hasattr(visual, "trunk") and hasattr(visual, "head"):  # the towers from timm

        def trunk(images: Images) -> Features:
            return visual.trunk(model.normalize(images))

        return ImageTower(trunk, visual.head, model.square, model.image_shape[0])
    return ImageTower(model.encode_image, lambda x: x, model.square, model.image_shape[0], raw=False)
