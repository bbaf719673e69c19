"""Image towers of vision-language models: an image's tokens before the last block, without the class token."""

import math
from dataclasses import asdict, fields
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models.card import card_of
from antiphase.models.clip import CLIP
from antiphase.models.preprocessing import Normalize
from antiphase.models.schemes.hugging_face import HuggingFaceDual
from antiphase.models.schemes.open_clip import OpenClip
from antiphase.models.transformer import run_blocks
from antiphase.models.vit import VisionTransformer, VitConfig, build_vision
from antiphase.modules import device_of

HIDDEN_STATE = -2
"""Which of a tower's hidden states an image's tokens are: −1 is behind the last block, −2 before it."""

Images = Float[Tensor, "batch 3 height width"]
Tokens = Float[Tensor, "batch tokens width"]


class Tower(Protocol):
    """Interface of an image tower.

    Attributes:
        image_shape: (channels, height, width) of the images, in [0, 1].
        square: resizes and crops an image to that size.
        width: width of a token.
        count: tokens of an image, a square number.
        reference: from what :func:`build_tower` builds it again, without its weights.
    """

    image_shape: tuple[int, int, int]
    square: Square
    width: int
    count: int
    reference: dict[str, Any]

    def __call__(self, images: Images) -> Tokens: ...


class OurTower(nn.Module):
    """A vision transformer of ours.

    Args:
        visual: the transformer; its head and last block are not used.
        square: as in :class:`Tower`.
    """

    image_shape: tuple[int, int, int]

    def __init__(self, visual: VisionTransformer, square: Square) -> None:
        super().__init__()
        if visual.config is None:
            raise UserError("the image tower was built by hand; expected one built from a configuration")
        self.visual = visual
        self.image_shape, self.square = visual.image_shape, square
        self.width, self.count = visual.pos_embed.shape[2], visual.pos_embed.shape[1] - 1
        self.reference = {
            "kind": "antiphase",
            "config": visual.config.model_dump(mode="json"),
            "interpolation": square.interpolation,
        }

    def forward(self, images: Images) -> Tokens:
        x = self.visual.tokens(images)
        if torch.is_autocast_enabled(device := x.device.type):
            x = x.to(torch.get_autocast_dtype(device))  # as in VisionTransformer.features
        return run_blocks(list(self.visual.blocks)[: len(self.visual.blocks) + HIDDEN_STATE + 1], x)[:, 1:]


class OpenClipTower(nn.Module):
    """The image tower of an open_clip model: a vision transformer of its own, or timm's.

    Args:
        visual: the model's ``visual``.
        normalize: normalises the images.
        square: as in :class:`Tower`.
        name: name of the architecture.
        quick_gelu: whether it was built with QuickGELU.
    """

    image_shape: tuple[int, int, int]

    def __init__(
        self, visual: Any, normalize: Normalize, square: Square, name: str, quick_gelu: bool
    ) -> None:
        super().__init__()
        self.visual, self.normalize, self.square = visual, normalize, square
        self.image_shape = (3, square.size, square.size)
        self.reference = {
            "kind": "open_clip",
            "name": name,
            "quick_gelu": quick_gelu,
            **_reference(normalize, square),
        }
        self.count, self.width = _shape_of(self, name)

    def forward(self, images: Images) -> Tokens:
        inner = getattr(self.visual, "trunk", self.visual)
        blocks = inner.blocks if inner is not self.visual else inner.transformer.resblocks
        found = inner.forward_intermediates(
            self.normalize(images),
            indices=[len(blocks) + HIDDEN_STATE],
            stop_early=True,
            intermediates_only=True,
            output_fmt="NLC",
        )
        kept = found["image_intermediates"] if isinstance(found, dict) else found
        return kept[0]


class HuggingFaceTower(nn.Module):
    """The image tower of a dual encoder of transformers.

    Args:
        visual: its ``vision_model``.
        normalize: normalises the images.
        square: as in :class:`Tower`.
        config: configuration of the whole model.
    """

    image_shape: tuple[int, int, int]

    def __init__(self, visual: Any, normalize: Normalize, square: Square, config: dict[str, Any]) -> None:
        super().__init__()
        self.visual, self.normalize, self.square = visual, normalize, square
        self.image_shape = (3, square.size, square.size)
        self.patches = (square.size // int(visual.config.patch_size)) ** 2
        self.reference = {"kind": "hf", "config": config, **_reference(normalize, square)}
        self.count, self.width = _shape_of(self, str(config.get("model_type")))

    def forward(self, images: Images) -> Tokens:
        hidden = self.visual(pixel_values=self.normalize(images), output_hidden_states=True).hidden_states
        return hidden[HIDDEN_STATE][:, -self.patches :]  # SigLIP has no class token


@validated
def image_tokens(model: nn.Module) -> Tower:
    """Return the image tower of a model that ``load_model`` returned: a CLIP, or a vision transformer of ours.

    Raises:
        UserError: for a model of another kind.
    """
    if isinstance(model, CLIP):
        if model.config is not None:
            model.visual.config = model.config.vision
        return OurTower(model.visual, model.square)
    if isinstance(model, VisionTransformer):
        if model.image_shape[0] != 3:
            raise UserError(
                f"tower {card_of(model).spec}: takes grey images; expected a tower of colour images"
            )
        return OurTower(model, Square(model.image_shape[1]))
    if isinstance(model, OpenClip):
        name = model.card.name.partition("/")[0]  # type: ignore[union-attr]
        quick = any(type(part).__name__ == "QuickGELU" for part in model.model.visual.modules())
        return OpenClipTower(model.model.visual, model.normalize, model.square, name, quick)
    if isinstance(model, HuggingFaceDual) and hasattr(model.model, "vision_model"):
        return HuggingFaceTower(
            model.model.vision_model, model.normalize, model.square, model.model.config.to_dict()
        )
    raise UserError(
        f"{type(model).__name__} has no image tokens: expected a CLIP of train-clip, open_clip or transformers, a "
        "released DiffCLIP, or a vision transformer of antiphase train"
    )


def build_tower(reference: dict[str, Any]) -> Tower:
    """Build a tower from its :attr:`Tower.reference`; its weights are arbitrary."""
    with torch.random.fork_rng(devices=[]):
        if reference["kind"] == "antiphase":
            config = VitConfig.model_validate(reference["config"])
            visual = build_vision(config)
            visual.config = config
            return OurTower(visual, Square(config.image_size, reference["interpolation"]))
        normalize = Normalize(reference["mean"], reference["std"], reference.get("bgr", False))
        square = Square(
            **{each.name: reference[each.name] for each in fields(Square) if each.name in reference}
        )
        if reference["kind"] == "open_clip":
            import open_clip  # seconds to import

            from antiphase.models.schemes.open_clip import quiet_logging

            name, quick = reference["name"], reference["quick_gelu"]
            with quiet_logging():
                model = open_clip.create_model(name, pretrained=None, force_quick_gelu=quick)
            return OpenClipTower(model.visual, normalize, square, name, quick)
        import transformers

        config = cast(Any, transformers.AutoConfig).for_model(**reference["config"])
        visual = transformers.AutoModel.from_config(config).vision_model
        return HuggingFaceTower(visual, normalize, square, reference["config"])


def _reference(normalize: Normalize, square: Square) -> dict[str, Any]:
    """Return the preprocessing without what is at its default, as files of before have it."""
    defaults = {each.name: each.default for each in fields(Square)}
    own = {name: value for name, value in asdict(square).items() if value != defaults[name]}
    mean, std = normalize.mean.flatten().tolist(), normalize.std.flatten().tolist()
    order = {"bgr": True} if normalize.bgr else {}
    return {"interpolation": square.interpolation, **own, "mean": mean, "std": std, **order}


def _shape_of(tower: Any, name: str) -> tuple[int, int]:
    """Return the number of tokens of an image and their width.

    Raises:
        UserError: if the tower is not a transformer of square patches.
    """
    place = device_of(tower.visual)
    try:
        with torch.no_grad():
            tokens = tower(torch.zeros(1, *tower.image_shape, device=place))
        count, width = tokens.shape[1:]
    except (AttributeError, TypeError, ValueError):
        count, width = 0, 0
    if not count or math.isqrt(count) ** 2 != count:
        raise UserError(f"{name}: its image tower gives no grid of tokens; expected a vision transformer")
    return count, width
