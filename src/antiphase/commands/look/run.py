"""Maps of where models look in images for texts: computed, measured against masks, drawn."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.commands.lineup import short_names
from antiphase.commands.loading import find_device, load_models
from antiphase.commands.look import LookOptions
from antiphase.commands.look.figure import check_rows, check_suffix
from antiphase.commands.look.result import LookResult
from antiphase.data.decoding import decode_whole
from antiphase.errors import UserError
from antiphase.evaluation.localisation import localise
from antiphase.models.zeroshot import is_dual_encoder
from antiphase.progress import progress_bar
from antiphase.sensitivity.relevance import METHODS, NoSecondMap
from antiphase.terminal import console, say

_AT_ONCE = 8  # images through a model; affects no map
_NO_IMAGE = "give the file of an image, such as a PNG or a JPEG"
_SHOWN = 384  # pixels a side of the image that is drawn


def run(options: LookOptions, command: str = "") -> dict[str, Any]:
    """Compute the maps, write the figure and, next to it, the maps; return what was measured."""
    result = look(options, command)
    maps = result.write(options.out)
    for column in result.stored["left_out"]:
        say(f"{column['model']}: no column for {column['method']} ({column['why']})", err=True)
    for table in result.all_tables():
        console().print(table.console())
    say(f"figure: {options.out}   maps: {maps}")
    written = {"figure": str(options.out), "maps": str(maps)}
    return {key: value for key, value in result.stored.items() if key != "maps"} | written


def look(options: LookOptions, command: str = "") -> LookResult:
    """Load models and images and compute the maps; nothing is written.

    Raises:
        UserError: an option, a model or an image cannot be used.
    """
    images, texts, methods = options.images, options.text, options.method
    _check(options)
    pictures = [decode_whole(path, fix=_NO_IMAGE) for path in images]
    masks = [_read_mask(*part) for part in zip(options.mask, images, pictures, strict=False)]
    specs = [*options.model, *options.against]
    loaded: list[Any] = load_models(specs, find_device(options.device), options.random_weights)
    for spec, model in zip(specs, loaded, strict=True):
        if not is_dual_encoder(model):
            raise UserError(f"{spec}: look needs a CLIP, a model with encode_image and encode_text")
    models = dict(zip(short_names([model.card for model in loaded]), loaded, strict=True))
    prompts = [options.prompt.replace("{}", text) for text in texts]
    layer = -1 if options.layer is None else options.layer
    maps, metrics, left_out = [], [], []
    with progress_bar("maps", len(methods) * len(models), not options.quiet) as advance:
        for method, (name, model) in itertools.product(methods, models.items()):
            about = {"model": name, "method": method}
            advance(1)
            try:
                column = _maps(model, pictures, prompts, method, layer)
            except NoSecondMap as error:
                left_out.append(about | {"why": str(error)})
                continue
            for (text, of_text), image in itertools.product(
                zip(texts, column, strict=True), range(len(images))
            ):
                place = about | {"image": image, "text": text}
                values = of_text[image]
                maps.append(place | {"map": [[float(f"{value:.6g}") for value in line] for line in values]})
                if masks:
                    hit, precision = localise(values, masks[image])
                    precision = float(f"{precision:.6g}")
                    metrics.append(place | {"pointing_game": hit, "average_precision": precision})
    if not maps:
        raise UserError(f"method {', '.join(methods)}: {left_out[0]['why']}; expected another method")
    stored = {
        "command": command,
        "options": options.record(),
        "models": [
            {"name": name} | {key: getattr(model.card, key) for key in ("spec", "attention", "seed")}
            for name, model in models.items()
        ],
        "images": [str(path) for path in images],
        "texts": list(texts),
        "prompt": options.prompt,
        "methods": list(methods),
        "layer": layer,
        "left_out": left_out,
        "maps": maps,
        "metrics": metrics,
    }
    square = loaded[0].square.at(_SHOWN)  # the same part of the image in view, at another size
    shown = [(square(picture).float() / 255).permute(1, 2, 0).numpy() for picture in pictures]
    return LookResult.of(stored, shown, masks)


def _check(options: LookOptions) -> None:
    check_suffix(options.out)
    check_rows(len(options.images), len(options.text))
    if options.out.resolve() in [path.resolve() for path in (*options.images, *options.mask)]:
        raise UserError(f"{options.out}: is one of the images; expected another file for the figure")
    for text in options.text:
        if not text.strip():
            raise UserError(f"text {text!r}: expected words, such as mug")
    if "{}" not in options.prompt:
        raise UserError(f"prompt {options.prompt!r}: expected {{}} in the place of the text")
    for method in options.method:
        if method not in METHODS:
            raise UserError(f"method {method!r}: expected one of {', '.join(METHODS)}")
    if options.layer is not None and all(METHODS[method].asks for method in options.method):
        raise UserError(
            f"layer {options.layer}: only attention, positive and negative are of one layer; add a --method"
        )
    if options.mask and len(options.mask) != len(options.images):
        raise UserError(
            f"{len(options.mask)} masks for {len(options.images)} images: expected one each, in their order"
        )


def _read_mask(path: Path, image: Path, picture: Tensor) -> np.ndarray:
    """Return the object in the centre square of an image, which is what a model is shown of it."""
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
    return seen


def _maps(
    model: Any, pictures: Sequence[Tensor], prompts: Sequence[str], method: str, layer: int
) -> Float[np.ndarray, "texts images rows columns"]:
    parts = []
    for start in range(0, len(pictures), _AT_ONCE):
        seen = [model.square(picture).float() / 255 for picture in pictures[start : start + _AT_ONCE]]
        images = torch.stack(seen).to(model.logit_scale.device)
        parts.append(METHODS[method].maps(model, images, prompts, layer).float().cpu())
    return torch.cat(parts, 1).numpy()
