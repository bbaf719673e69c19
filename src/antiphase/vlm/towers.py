"""Image towers of vision-language models: an image's tokens before the last block, without the class token."""

import math
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models.card import card_of
from antiphase.models.clip import CLIP
from antiphase.models.preprocessing import Normalize
from antiphase.models.schemes.libraries import HuggingFaceDual, OpenClip, quiet_logging
from antiphase.models.transformer import run_blocks
from antiphase.models.vit import VisionTransformer, VitConfig, build_vision
from antiphase.modules import device_of

HIDDEN_STATE = -2
"""Which of a tower's hidden states an image's tokens are: −1 is behind the last block, −2 before it."""

Images = Float[Tensor, "batch 3 height width"]
Tokens = Float[Tensor, "batch tokens width"]


class Tower(nn.Module):
    """An image tower: from images in [0, 1] to tokens, a square number ``count`` of vectors of ``width``.

    ``visual`` is a vision transformer of ours, open_clip or transformers; its head and last block are not used.
    :func:`build_tower` builds it again from ``reference``, without weights; ``kind`` in it is a key of ``_KINDS``.
    """

    def __init__(
        self, visual: Any, square: Square, reference: dict[str, Any], normalize: Normalize | None = None
    ) -> None:
        super().__init__()
        self.visual, self.normalize = visual, normalize
        self.square, self.reference = square, reference
        self.image_shape = (3, square.size, square.size)
        self.count, self.width = 0, 0
        blank = torch.zeros(1, *self.image_shape, device=device_of(visual))
        try:
            with torch.no_grad():
                self.count, self.width = self(blank).shape[1:]
        except (AttributeError, TypeError, ValueError):
            pass
        if not self.count or math.isqrt(self.count) ** 2 != self.count:
            name = reference.get("name") or reference["config"].get("model_type")
            raise UserError(f"{name}: its image tower gives no grid of tokens; expected a vision transformer")

    def forward(self, images: Images) -> Tokens:
        images = images if self.normalize is None else self.normalize(images)
        return _KINDS[self.reference["kind"]][1](self.visual, images)

    def _get_name(self) -> str:
        return _KINDS[self.reference["kind"]][0]


def _our_tokens(visual: VisionTransformer, images: Images) -> Tokens:
    x = visual.tokens(images)
    if torch.is_autocast_enabled(device := x.device.type):
        x = x.to(torch.get_autocast_dtype(device))  # as in VisionTransformer.features
    return run_blocks(list(visual.blocks)[: len(visual.blocks) + HIDDEN_STATE + 1], x)[:, 1:]


def _open_clip_tokens(visual: Any, images: Images) -> Tokens:
    inner = getattr(visual, "trunk", visual)  # timm's transformer, or open_clip's own
    blocks = inner.blocks if inner is not visual else inner.transformer.resblocks
    wanted = {"stop_early": True, "intermediates_only": True, "output_fmt": "NLC"}
    states = inner.forward_intermediates(images, indices=[len(blocks) + HIDDEN_STATE], **wanted)
    return (states["image_intermediates"] if isinstance(states, dict) else states)[0]


def _hugging_face_tokens(visual: Any, images: Images) -> Tokens:
    states = visual(pixel_values=images, output_hidden_states=True).hidden_states
    patches = (images.shape[-1] // int(visual.config.patch_size)) ** 2
    return states[HIDDEN_STATE][:, -patches:]  # SigLIP has no class token


# the names in a model's repr, on which the identity of stored rows depends, and the functions
_KINDS: dict[str, tuple[str, Callable[[Any, Images], Tokens]]] = {
    "antiphase": ("OurTower", _our_tokens),
    "open_clip": ("OpenClipTower", _open_clip_tokens),
    "hf": ("HuggingFaceTower", _hugging_face_tokens),
}


@validated
def image_tokens(model: nn.Module) -> Tower:
    """Return the image tower of a model that ``load_model`` returned: a CLIP, or a vision transformer of ours."""
    if isinstance(model, CLIP):
        return _our_tower(model.visual, model.config and model.config.vision, model.square)
    if isinstance(model, VisionTransformer):
        if model.image_shape[0] != 3:
            raise UserError(f"tower {card_of(model).spec}: takes grey images; expected one of colour images")
        return _our_tower(model, model.config, Square(model.image_shape[1]))  # pyright: ignore[reportArgumentType]
    if isinstance(model, OpenClip):
        name = model.card.name.partition("/")[0]  # type: ignore[union-attr]
        quick = any(type(part).__name__ == "QuickGELU" for part in model.model.visual.modules())
        about = {"kind": "open_clip", "name": name, "quick_gelu": quick}
        visual = model.model.visual
    elif isinstance(model, HuggingFaceDual) and hasattr(model.model, "vision_model"):
        about = {"kind": "hf", "config": model.model.config.to_dict()}
        visual = model.model.vision_model
    else:
        expected = "a CLIP of train-clip, open_clip or transformers, a released DiffCLIP, or a ViT of antiphase train"
        raise UserError(f"{type(model).__name__} has no image tokens: expected {expected}")
    return Tower(visual, model.square, about | _preprocessing(model.normalize, model.square), model.normalize)


def build_tower(reference: dict[str, Any]) -> Tower:
    """Build a tower from its :attr:`Tower.reference`; its weights are arbitrary."""
    with torch.random.fork_rng(devices=[]):
        if reference["kind"] == "antiphase":
            config = VitConfig.model_validate(reference["config"])
            square = Square(config.image_size, reference["interpolation"])
            return _our_tower(build_vision(config), config, square)
        normalize = Normalize(reference["mean"], reference["std"], reference.get("bgr", False))
        values = {field.name: reference[field.name] for field in fields(Square) if field.name in reference}
        square = Square(**values)
        if reference["kind"] == "open_clip":
            import open_clip  # seconds to import

            quick = reference["quick_gelu"]
            with quiet_logging():
                model = open_clip.create_model(reference["name"], pretrained=None, force_quick_gelu=quick)
            return Tower(model.visual, square, reference, normalize)
        import transformers

        config = cast(Any, transformers.AutoConfig).for_model(**reference["config"])
        return Tower(transformers.AutoModel.from_config(config).vision_model, square, reference, normalize)


def _our_tower(visual: VisionTransformer, config: VitConfig | None, square: Square) -> Tower:
    if config is None:
        raise UserError("the image tower was built by hand; expected one built from a configuration")
    written = config.model_dump(mode="json")
    about = {"kind": "antiphase", "config": written, "interpolation": square.interpolation}
    return Tower(visual, square, about)


def _preprocessing(normalize: Normalize, square: Square) -> dict[str, Any]:
    """Return the preprocessing without what is at its default, as older files have it."""
    defaults = {field.name: field.default for field in fields(Square)}
    changed = {name: value for name, value in asdict(square).items() if value != defaults[name]}
    mean, std = normalize.mean.flatten().tolist(), normalize.std.flatten().tolist()
    order = {"bgr": True} if normalize.bgr else {}
    return {"interpolation": square.interpolation, **changed, "mean": mean, "std": std, **order}
