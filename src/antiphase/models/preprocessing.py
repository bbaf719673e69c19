"""A model's preprocessing: its normalisation, and what other libraries do with a picture, read from their settings."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, cast, get_args

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from antiphase.data.decoding import Interpolation, Square, describe_transform
from antiphase.errors import UserError, first_line, shown

Images = Float[Tensor, "batch channels height width"]
Numbers = tuple[float, ...]  # one for each channel
_EXACT = 0.05  # grey levels of 255, for rounding
_TENSORS = 2.0  # where the library resizes tensors: torch rounds other weights than Pillow
_NEVER_SQUARE = "gives images of different sizes"


class Normalize(nn.Module):
    """Normalise images in [0, 1] per channel, (x − mean) / std; ``bgr`` reverses the result's channels."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], bgr: bool = False) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise UserError(f"mean {tuple(mean)}, std {tuple(std)}: expected one of each per channel, std above 0")
        self.bgr = bgr
        # not in the state dict: checkpoints keep timm's names, and the recipe stores these values
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Images) -> Images:
        normalised = (images - self.mean) / self.std
        return normalised.flip(-3) if self.bgr else normalised

    def extra_repr(self) -> str:
        return "bgr" if self.bgr else ""


class Normalized(nn.Module):
    """Wrap a classifier of normalised images as a classifier of images in [0, 1]."""

    def __init__(self, model: nn.Module, normalize: Normalize) -> None:
        super().__init__()
        self.normalize, self.model = normalize, model

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.model(self.normalize(images))


@dataclass(frozen=True)
class Preprocessing:
    """A model's preprocessing; mean and std of each channel, in [0, 1] pixels, include offset and factor."""

    square: Square  # resizes and crops pictures when they are loaded
    mean: Numbers
    std: Numbers
    bgr: bool = False  # whether the model takes the channels in reverse order

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return len(self.mean), self.square.size, self.square.size

    def normalize(self) -> Normalize:
        return Normalize(self.mean, self.std, self.bgr)

    def __str__(self) -> str:
        mean, std = ("/".join(f"{number:.3g}" for number in numbers) for numbers in (self.mean, self.std))
        return f"{describe_transform(self.square, len(self.mean))}, mean {mean}, std {std}{', BGR' * self.bgr}"


def of_timm(settings: dict[str, Any], spec: str) -> Preprocessing:
    """Read the data configuration of a timm model, as ``timm.data.resolve_data_config`` returns it."""
    from timm.data import transforms_factory  # seconds to import

    channels, *sides = settings["input_size"]
    crop_mode, size = settings["crop_mode"], one_side(sides, spec)
    if crop_mode not in ("center", "squash"):
        _refuse(spec, f"crop mode {crop_mode!r} is not supported")
    colours: Any = {name: _numbers(settings[name], channels) for name in ("mean", "std")}
    make: Any = transforms_factory.create_transform
    resize = math.floor(size / settings["crop_pct"])
    used = Preprocessing(_square(spec, size, settings["interpolation"], resize, crop_mode == "squash"), **colours)
    return checked(spec, used, lambda picture: make(**settings | colours, is_training=False)(picture))


def of_torchvision(preset: Any, spec: str, size: int | None = None) -> Preprocessing:
    """Read the transforms of torchvision's weights, for images of ``size`` pixels if it is given."""
    side = one_side(preset.crop_size * (3 - len(preset.crop_size)), spec)
    kind, resize, mean, std = preset.interpolation.value, preset.resize_size[0], preset.mean, preset.std
    square = _square(spec, side, kind, resize)
    same = checked(spec, Preprocessing(square, tuple(mean), tuple(std)), preset)
    return replace(same, square=square.at(size or side))


def of_open_clip(settings: dict[str, Any], spec: str) -> Preprocessing:
    """Read the ``preprocess_cfg`` of open_clip's image tower."""
    from open_clip.transform import PreprocessCfg, image_transform_v2  # seconds to import

    mode, size = settings["resize_mode"], settings["size"]
    if mode not in ("shortest", "squash"):
        _refuse(spec, f"resize mode {mode!r} is not supported")
    size = one_side(size, spec) if isinstance(size, list | tuple) else int(size)
    kind = "bilinear" if settings["interpolation"] == "bilinear" else "bicubic"  # "random" is for training
    transform: Any = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    colours: Any = {name: tuple(settings[name]) for name in ("mean", "std")}
    return checked(spec, Preprocessing(_square(spec, size, kind, size, mode == "squash"), **colours), transform)


def of_processor(processor: Any, channels: int, spec: str) -> Preprocessing:
    """Read an image processor of transformers, that for Pillow where there are two, for a model of some channels."""
    name = type(processor).__name__
    spec = f"{spec}: {name}"
    if name == "TimmWrapperImageProcessor":
        return of_timm(processor.data_config, spec)
    try:
        mean, std = _affine(processor, channels)
        square = _geometry(processor, spec)
    except UserError:
        raise
    except Exception as error:
        _refuse(spec, f"its settings are not understood ({type(error).__name__}: {first_line(error)})")
    bases = {base.__name__ for base in type(processor).__mro__}
    levels = _TENSORS if bases & {"TorchvisionBackend", "BaseImageProcessorFast"} else _EXACT
    process = partial(processor, return_tensors="pt")
    bgr = bool(name.startswith("PPLCNet") or getattr(processor, "do_flip_channel_order", False))
    used = Preprocessing(square, mean, std, bgr)
    return checked(spec, used, lambda picture: process(picture)["pixel_values"][0], levels)


def one_side(sides: Sequence[Any], spec: str) -> int:
    """Return the side of a model's square images; refuse others."""
    height, width = map(int, sides)
    if height != width:
        _refuse(spec, f"takes images of {height}×{width} pixels, which are not square")
    return height


def _geometry(processor: Any, spec: str) -> Square:
    name = type(processor).__name__.removesuffix("Pil").removesuffix("Fast").removesuffix("ImageProcessor")
    size = {key: value for key, value in dict(processor.size or {}).items() if value is not None}
    if not size:
        _refuse(spec, _NEVER_SQUARE)
    shorter, fraction = size.get("shortest_edge"), getattr(processor, "crop_pct", None)
    if shorter and size.get("longest_edge"):
        _refuse(spec, "a longest edge beside the shortest one is not supported")
    resize = shorter or one_side((size["height"], size["width"]), spec)
    squash, crop = not shorter, None
    if getattr(processor, "do_center_crop", False):
        crop = one_side((processor.crop_size["height"], processor.crop_size["width"]), spec)
    if name == "Levit" and shorter:
        resize = int(256 / 224 * shorter)
    elif name == "PoolFormer" and fraction:
        resize, squash = int(resize / fraction), False
    elif name == "ConvNext" and shorter:
        crop, squash = crop or shorter, shorter >= 384
        resize = shorter if squash else int(shorter / fraction)
    elif name == "PPLCNet" and processor.resize_short:
        resize, squash = processor.resize_short, False
    if crop is None and not squash:
        _refuse(spec, _NEVER_SQUARE)
    kind = getattr(processor, "resample", None)
    kind = Image.Resampling(2 if kind is None else int(kind)).name.lower()
    return _square(spec, crop or resize, kind, resize, squash, floor=True)


def _square(spec: str, size: int, kind: str, resize: int, squash: bool = False, *, floor: bool = False) -> Square:
    if kind not in get_args(Interpolation):
        _refuse(spec, f"interpolation {shown(kind)} is not supported")
    whole, interpolation = resize == size, cast(Interpolation, kind)
    return Square(int(size), interpolation, None if whole else int(resize), squash, floor and not (whole and squash))


def _affine(processor: Any, channels: int) -> tuple[Numbers, Numbers]:
    rescales = getattr(processor, "do_rescale", True)
    factor = 255 * processor.rescale_factor if rescales else 255
    offset = float(rescales and getattr(processor, "rescale_offset", False))  # EfficientNet's, in [-1, 1]
    mean, std = (0.0,) * channels, (1.0,) * channels
    if getattr(processor, "do_normalize", True):
        mean, std = _numbers(processor.image_mean, channels), _numbers(processor.image_std, channels)
    if getattr(processor, "include_top", False):  # EfficientNet's divide a second time
        std = tuple(map(operator.mul, std, _numbers(processor.image_std, channels)))
    return tuple((value + offset) / factor for value in mean), tuple(value / factor for value in std)


def _numbers(values: Any, channels: int) -> Numbers:
    numbers = (float(values),) if isinstance(values, int | float) else tuple(map(float, values))
    return numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels


def checked(
    spec: str, used: Preprocessing, transform: Callable[[Image.Image], Tensor], levels: float = _EXACT
) -> Preprocessing:
    """Return what was read if no pixel differs from the library's own transform by more of 255 grey levels."""
    try:
        normalize = used.normalize()
        units = normalize.std.flip(0) if used.bgr else normalize.std
        size, channels, rng = used.square.size, len(used.mean), np.random.default_rng(0)
        shapes = (size * 5 // 4 + 3, size * 3 // 2 + 1), (size // 2 + 2, size // 3 + 1), (size, size)
        for shape in shapes if channels in (1, 3) else ():
            noise = Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8))
            picture = noise.convert("RGB" if channels == 3 else "L")
            expected, pixels = transform(picture), normalize(used.square.apply(picture).float() / 255)
            if expected.shape != pixels.shape:
                _refuse(spec, f"gives {tuple(expected.shape)} for a picture, not {tuple(pixels.shape)}")
            gap = float(((pixels - expected).abs() * units).max() * 255)
            if not gap <= levels:
                _refuse(spec, f"its pixels differ by up to {gap:.3g} of 255 grey levels from its settings")
    except UserError:
        raise
    except Exception as error:
        _refuse(spec, f"fails on a picture ({type(error).__name__}: {first_line(error)})")
    return used


def _refuse(spec: str, reason: str) -> NoReturn:
    fix = "load it with python:FILE:FUNCTION as a module that does its own preprocessing"
    raise UserError(f"{spec}: preprocessing cannot be reproduced: {reason}; {fix}")
