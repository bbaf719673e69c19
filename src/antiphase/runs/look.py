"""Maps of where models look in images for texts: computed, measured against masks, stored as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from antiphase.commands.loading import find_device, load_models
from antiphase.data.decoding import decode_whole
from antiphase.errors import UserError
from antiphase.evaluation.localisation import localise
from antiphase.files import write_json
from antiphase.models.zeroshot import is_dual_encoder
from antiphase.progress import progress_bar
from antiphase.runs.options.look import LookOptions
from antiphase.sensitivity.relevance import METHODS, NoSecondMap

_AT_ONCE = 8  # images through a model; affects no map
_NO_IMAGE = "give the file of an image, such as a PNG or a JPEG"
_SHOWN = 384  # pixels a side of the image that is drawn


@dataclass(frozen=True)
class MapColumn:
    """The maps of one model by one method.

    Attributes:
        model: its name, the title.
        method: said below the title where the figure shows several; columns of one method share a colour map.
        maps: of any sign, finite.
    """

    model: str
    method: str
    maps: Float[np.ndarray, "texts images rows columns"]


@dataclass(frozen=True)
class Looked:
    """What was found.

    Attributes:
        shown: the images, square, in [0, 1].
        columns: the maps.
        masks: the object in each image, or none.
        stored: all of it for JSON; ``metrics`` holds a row for each model, method, text and image with a mask.
    """

    shown: list[Float[np.ndarray, "height width 3"]]
    columns: list[MapColumn]
    masks: list[Bool[np.ndarray, "height width"]]
    stored: dict[str, Any]

    def write(self, figure: Path) -> Path:
        """Store the maps next to their figure and return the path."""
        path = figure.with_suffix(".json")
        write_json(path, self.stored)
        return path


def run(options: LookOptions, command: str = "") -> Looked:
    """Load models and images and compute the maps; nothing is written.

    Args:
        options: models, images and methods.
        command: for the record.

    Raises:
        UserError: an option, a model or an image cannot be used.
    """
    images, texts, methods, masks = options.images, options.text, options.method, options.mask
    if options.out.resolve() in [path.resolve() for path in (*images, *masks)]:
        raise UserError(f"{options.out}: is one of the images; expected another file for the figure")
    _check_words(options)
    pictures = [decode_whole(path, fix=_NO_IMAGE) for path in images]
    objects = _read_masks(masks, images, pictures)
    loaded = _load([*options.model, *options.against], options.random_weights, find_device(options.device))
    names = _names(loaded)
    prompts = [options.prompt.replace("{}", text) for text in texts]
    columns: list[MapColumn] = []
    left_out: list[dict[str, str]] = []
    with progress_bar("maps", len(methods) * len(loaded), not options.quiet) as advance:
        for method in methods:
            for name, model in zip(names, loaded, strict=True):
                try:
                    columns.append(_column(name, model, pictures, prompts, method, options.layer))
                except NoSecondMap as error:
                    left_out.append({"model": name, "method": method, "why": str(error)})
                advance(1)
    if not columns:
        raise UserError(f"method {', '.join(methods)}: {left_out[0]['why']}; expected another method")
    stored = {
        "command": command,
        "options": options.record(),
        "models": [_described(name, model) for name, model in zip(names, loaded, strict=True)],
        "images": [str(path) for path in images],
        "texts": list(texts),
        "prompt": options.prompt,
        "methods": list(methods),
        "layer": -1 if options.layer is None else options.layer,
        "left_out": left_out,
        "maps": [entry for column in columns for entry in _entries(column, texts)],
        "metrics": _measure(columns, texts, objects) if objects else [],
    }
    square = _square_of(loaded[0], _SHOWN)
    shown = [_pixels(picture, square).permute(1, 2, 0).numpy() for picture in pictures]
    return Looked(shown, columns, objects, stored)


def _check_words(options: LookOptions) -> None:
    methods = options.method
    for text in options.text:
        if not text.strip():
            raise UserError(f"text {text!r}: expected words, such as mug")
    if "{}" not in options.prompt:
        raise UserError(f"prompt {options.prompt!r}: expected {{}} in the place of the text")
    for method in methods:
        if method not in METHODS:
            raise UserError(f"method {method!r}: expected one of {', '.join(METHODS)}")
    if options.layer is not None and all(METHODS[method].asks for method in methods):
        raise UserError(
            f"layer {options.layer}: only attention, positive and negative are of one layer; add a --method"
        )


def _read_masks(
    paths: Sequence[Path], images: Sequence[Path], pictures: Sequence[Tensor]
) -> list[np.ndarray]:
    """Return the object in the centre square of each image, which is what a model is shown of it."""
    if paths and len(paths) != len(images):
        raise UserError(f"{len(paths)} masks for {len(images)} images: expected one each, in their order")
    found = []
    for path, image, picture in zip(paths, images, pictures, strict=False):
        mask = decode_whole(path, fix=_NO_IMAGE)
        if mask.shape != picture.shape:
            have, want = tuple(mask.shape[:0:-1]), tuple(picture.shape[:0:-1])
            raise UserError(f"mask {path}: {have} pixels, but {image} has {want}; expected the same")
        height, width = mask.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        seen = (mask[:, top : top + side, left : left + side].float().mean(0) > 127).numpy()
        if not seen.any():
            raise UserError(f"mask {path}: nothing white in its centre square; expected the object in white")
        found.append(seen)
    return found


def _load(specs: Sequence[str], random_weights: bool, device: torch.device) -> list[nn.Module]:
    loaded = load_models(specs, device, random_weights)
    for spec, model in zip(specs, loaded, strict=True):
        if not is_dual_encoder(model):
            raise UserError(f"{spec}: look needs a CLIP, a model with encode_image and encode_text")
    return loaded


def _names(models: Sequence[Any]) -> list[str]:
    """Return the models' names, or their specifications where two have the same name."""
    names = [model.card.name for model in models]
    return [
        model.card.spec if names.count(name) > 1 else name for name, model in zip(names, models, strict=True)
    ]


def _square_of(model: Any, size: int | None = None) -> Any:
    """Return what brings an image to the model's size, or to another with the same part of it in view."""
    return model.square.at(size or model.square.size)


def _pixels(picture: Tensor, square: Any) -> Tensor:
    return square(picture).float() / 255


def _column(
    name: str, model: Any, pictures: Sequence[Tensor], prompts: Sequence[str], method: str, layer: int | None
) -> MapColumn:

    square, device = _square_of(model), model.logit_scale.device
    parts = []
    for start in range(0, len(pictures), _AT_ONCE):
        images = torch.stack([_pixels(one, square) for one in pictures[start : start + _AT_ONCE]]).to(device)
        parts.append(
            METHODS[method].maps(model, images, prompts, -1 if layer is None else layer).float().cpu()
        )
    return MapColumn(name, method, torch.cat(parts, 1).numpy())


def _described(name: str, model: Any) -> dict[str, Any]:
    return {"name": name, "spec": model.card.spec, "attention": model.card.attention, "seed": model.card.seed}


def _entries(column: MapColumn, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each map, its values to six significant digits."""
    return [
        {"model": column.model, "method": column.method, "image": image, "text": text}
        | {"map": [[float(f"{value:.6g}") for value in line] for line in values]}
        for text, maps in zip(texts, column.maps, strict=True)
        for image, values in enumerate(maps)
    ]


def _measure(
    columns: Sequence[MapColumn], texts: Sequence[str], masks: list[np.ndarray]
) -> list[dict[str, Any]]:
    """Return a row for each model, method, text and image."""
    return [
        {"model": column.model, "method": column.method, "image": image, "text": text}
        | {"pointing_game": hit, "average_precision": float(f"{precision:.6g}")}
        for column in columns
        for text, maps in zip(texts, column.maps, strict=True)
        for image, (hit, precision) in enumerate(map(localise, maps, masks))
    ]
