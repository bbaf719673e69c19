"""What other libraries do with a picture before their models see it: read, and checked against the library itself."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast, get_args

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from antiphase.data.decoding import Interpolation, Square, describe_transform
from antiphase.errors import UserError, first_line, shown

_EXACT = 0.05  # grey levels of 255, for rounding
_TENSORS = 2.0  # where the library resizes tensors: torch rounds other weights than Pillow
_FIX = "load it with python:FILE:FUNCTION as a module that does its own preprocessing"


class Normalize(nn.Module):
    """Normalise images per channel: (x − mean) / std.

    Args:
        mean: one number per channel, in units of the [0, 1] pixel range.
        std: one positive number per channel, in the same units.
        bgr: whether the normalised channels are returned in reverse order, for a model of blue, green and red.

    Raises:
        UserError: if the lengths differ or a standard deviation is not positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], bgr: bool = False) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise UserError(
                f"mean {tuple(mean)} and std {tuple(std)}: expected one of each per channel, std above 0"
            )
        self.bgr = bgr
        # not in the state dict: checkpoints keep timm's names, and the recipe stores these values
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        normalised = (images - self.mean) / self.std
        return normalised.flip(-3) if self.bgr else normalised

    def extra_repr(self) -> str:
        """Tell the order of the channels, which is part of a model's fingerprint."""
        return "bgr" if self.bgr else ""


class Normalized(nn.Module):
    """Wrap a classifier of normalised images as a classifier of images in [0, 1].

    Args:
        model: maps normalised images to logits.
        mean: mean of each channel, in units of the [0, 1] pixel range.
        std: standard deviation of each channel, in the same units.
        bgr: whether the model takes blue, green and red.
    """

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], bgr: bool = False
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std, bgr)
        self.model = model

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.model(self.normalize(images))


@dataclass(frozen=True)
class Preprocessing:
    """A model's preprocessing.

    Attributes:
        square: resizes and crops pictures when they are loaded.
        mean: of each channel, in units of the [0, 1] pixel range; includes offset and factor.
        std: of each channel, in the same units; likewise.
        bgr: whether the model takes the channels in reverse order.
    """

    square: Square
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bgr: bool = False

    def normalize(self) -> Normalize:
        """Return the part that lives in the model."""
        return Normalize(self.mean, self.std, self.bgr)

    def __str__(self) -> str:
        channels = f"mean {_shown(self.mean)}, std {_shown(self.std)}{', BGR' * self.bgr}"
        return f"{describe_transform(self.square, len(self.mean))}, {channels}"


def of_timm(settings: dict[str, Any], spec: str) -> Preprocessing:
    """Read the data configuration of a timm model, as ``timm.data.resolve_data_config`` returns it.

    Raises:
        UserError: if it cannot be reproduced.
    """
    from timm.data import transforms_factory  # seconds to import

    channels, *sides = settings["input_size"]
    if settings["crop_mode"] not in ("center", "squash"):
        _refuse(spec, f"crop mode {settings['crop_mode']!r} is not supported")
    size = one_side(sides, spec)
    resize = math.floor(size / settings["crop_pct"])
    square = _square(spec, size, settings["interpolation"], resize, settings["crop_mode"] == "squash")
    found = Preprocessing(square, _numbers(settings["mean"], channels), _numbers(settings["std"], channels))
    make: Any = transforms_factory.create_transform
    return _checked(found, make(**settings | {"mean": found.mean, "std": found.std}, is_training=False), spec)


def of_torchvision(preset: Any, spec: str, size: int | None = None) -> Preprocessing:
    """Read the transforms of torchvision's weights.

    Args:
        preset: the transforms.
        spec: the model's specification, for messages.
        size: side of the model's images in pixels; that of the preset if None, otherwise ``resize_size`` is scaled.

    Raises:
        UserError: if they cannot be reproduced.
    """
    side = one_side(preset.crop_size * (3 - len(preset.crop_size)), spec)
    square = _square(spec, side, preset.interpolation.value, preset.resize_size[0])
    found = _checked(Preprocessing(square, tuple(preset.mean), tuple(preset.std)), preset, spec)
    return Preprocessing(square.at(size or side), found.mean, found.std)


def of_open_clip(settings: dict[str, Any], spec: str) -> Preprocessing:
    """Read the ``preprocess_cfg`` of open_clip's image tower.

    Raises:
        UserError: if it cannot be reproduced.
    """
    from open_clip.transform import PreprocessCfg, image_transform_v2  # seconds to import

    if settings["resize_mode"] not in ("shortest", "squash"):
        _refuse(spec, f"resize mode {settings['resize_mode']!r} is not supported")
    size = settings["size"]
    size = one_side(size, spec) if isinstance(size, list | tuple) else int(size)
    kind = "bilinear" if settings["interpolation"] == "bilinear" else "bicubic"  # "random" is for training
    square = _square(spec, size, kind, size, settings["resize_mode"] == "squash")
    found = Preprocessing(square, tuple(settings["mean"]), tuple(settings["std"]))
    own: Any = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    return _checked(found, own, spec)


def of_processor(processor: Any, channels: int, spec: str) -> Preprocessing:
    """Read an image processor of transformers.

    Args:
        processor: the processor; that for Pillow where there are two.
        channels: number of the model's image channels.
        spec: the model's specification, for messages.

    Raises:
        UserError: if it cannot be reproduced.
    """
    name = type(processor).__name__
    spec = f"{spec}: {name}"
    if name == "TimmWrapperImageProcessor":
        return of_timm(processor.data_config, spec)
    try:
        square, (mean, std), bgr = (
            _geometry(processor, spec),
            _affine(processor, channels),
            _reverses(processor),
        )
    except UserError:
        raise
    except Exception as error:
        _refuse(spec, f"its settings are not understood ({type(error).__name__}: {first_line(error)})")
    on_tensors = any(
        base.__name__ in ("TorchvisionBackend", "BaseImageProcessorFast") for base in type(processor).__mro__
    )

    def own(picture: Image.Image) -> Tensor:
        return processor(picture, return_tensors="pt")["pixel_values"][0]

    return _checked(Preprocessing(square, mean, std, bgr), own, spec, _TENSORS if on_tensors else _EXACT)


def assumed(
    spec: str, found: Preprocessing, like: str, others: Sequence[str], resized: bool = False
) -> tuple[str, ...]:
    """Return a warning that a file of weights does not tell its preprocessing, if it may be another.

    Args:
        spec: ``SCHEME:NAME@FILE``.
        found: what is used.
        like: name of the pretrained weights whose preprocessing it is.
        others: names of those of the same architecture that have another one.
        resized: whether the images have another size than those of ``like``.
    """
    named, _, file = spec.partition("@")
    other = f"; for that of {others[0]} give {named}.{others[0]}@{file}" if others else ""
    said = (
        f"{spec}: a file of weights does not tell its preprocessing; used is that of {like}, {found}{other}"
    )
    return (said,) if others or resized else ()


def one_side(sides: Sequence[Any], spec: str) -> int:
    """Return the side of a model's square images.

    Raises:
        UserError: if they are not square.
    """
    height, width = map(int, sides)
    if height != width:
        _refuse(spec, f"takes images of {height}×{width} pixels, which are not square")
    return height


def _geometry(processor: Any, spec: str) -> Square:
    """Read how a processor resizes and crops; classes of it that resize in a way of their own are named."""
    name = type(processor).__name__.removesuffix("Pil").removesuffix("Fast")
    size = {key: value for key, value in dict(processor.size or {}).items() if value is not None}
    if not size:
        _refuse(spec, "gives images of different sizes")
    shorter, fraction = size.get("shortest_edge"), getattr(processor, "crop_pct", None)
    resize, squash = (shorter, False) if shorter else (one_side((size["height"], size["width"]), spec), True)
    crop = None
    if getattr(processor, "do_center_crop", False):
        cropped = dict(processor.crop_size)
        crop = one_side((cropped["height"], cropped["width"]), spec)
    if name == "LevitImageProcessor" and shorter:
        resize = int(256 / 224 * shorter)
    elif name == "PoolFormerImageProcessor" and fraction:
        resize, squash = int(resize / fraction), False
    elif name == "ConvNextImageProcessor" and shorter:
        crop, squash = crop or shorter, shorter >= 384
        resize = shorter if squash else int(shorter / fraction)
    elif name == "PPLCNetImageProcessor" and processor.resize_short:
        resize, squash = processor.resize_short, False
    if crop is None and not squash:
        _refuse(spec, "gives images of different sizes")
    kind = getattr(processor, "resample", None)
    kind = Image.Resampling(2 if kind is None else int(kind)).name.lower()
    return _square(spec, crop or resize, kind, resize, squash, floor=True)


def _affine(processor: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, in units of the [0, 1] pixel range."""
    rescales = getattr(processor, "do_rescale", True)
    factor = 255 * processor.rescale_factor if rescales else 255
    offset = float(
        bool(rescales and getattr(processor, "rescale_offset", False))
    )  # EfficientNet's, in [-1, 1]
    plain = not getattr(processor, "do_normalize", True)
    mean = (0.0,) * channels if plain else _numbers(processor.image_mean, channels)
    std = (1.0,) * channels if plain else _numbers(processor.image_std, channels)
    again = (1.0,) * channels
    if getattr(processor, "include_top", False):  # EfficientNet's divide a second time
        again = _numbers(processor.image_std, channels)
    return (
        tuple((value + offset) / factor for value in mean),
        tuple(value * more / factor for value, more in zip(std, again, strict=True)),
    )


def _reverses(processor: Any) -> bool:
    pp_lcnet = type(processor).__name__.startswith("PPLCNet")
    return pp_lcnet or bool(getattr(processor, "do_flip_channel_order", False))


def _shown(numbers: Sequence[float]) -> str:
    return "/".join(f"{number:.3g}" for number in numbers)


def _numbers(values: Any, channels: int) -> tuple[float, ...]:
    """Return one number for each channel: their mean if there are as many for colour pictures, and others are taken."""
    numbers = (float(values),) if isinstance(values, int | float) else tuple(map(float, values))
    return numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels


def _square(
    spec: str, size: int, interpolation: str, resize: int, squash: bool = False, floor: bool = False
) -> Square:
    if interpolation not in get_args(Interpolation):
        _refuse(spec, f"interpolation {shown(interpolation)} is not supported")
    whole = resize == size
    kind = cast(Interpolation, interpolation)
    return Square(int(size), kind, None if whole else int(resize), squash, floor and not (whole and squash))


def _checked(
    found: Preprocessing, own: Callable[[Image.Image], Tensor], spec: str, levels: float = _EXACT
) -> Preprocessing:
    """Return what was read if it gives the pixels of the library's own transform.

    Args:
        found: what was read.
        own: the library's own transform of one picture.
        spec: the model's specification, for messages.
        levels: by how many of 255 grey levels a pixel may differ.

    Raises:
        UserError: if it does not.
    """
    try:
        normalize = found.normalize()
        for picture in _pictures(found.square.size, len(found.mean)):
            theirs = own(picture)
            ours = normalize(found.square.apply(picture).float() / 255)
            if theirs.shape != ours.shape:
                _refuse(spec, f"gives {tuple(theirs.shape)} for a picture, not {tuple(ours.shape)}")
            units = normalize.std.flip(0) if found.bgr else normalize.std
            gap = float(((ours - theirs).abs() * units).max() * 255)
            if not gap <= levels:
                _refuse(
                    spec,
                    f"its pixels differ by up to {gap:.3g} of 255 grey levels from what its settings say",
                )
    except UserError:
        raise
    except Exception as error:
        _refuse(spec, f"fails on a picture ({type(error).__name__}: {first_line(error)})")
    return found


def _pictures(size: int, channels: int) -> list[Image.Image]:
    """Return noise wider than the model's images, smaller and higher, and of their size; in colour, grey, or none."""
    if channels not in (1, 3):
        return []
    rng = np.random.default_rng(0)
    shapes = ((size * 5 // 4 + 3, size * 3 // 2 + 1), (size // 2 + 2, size // 3 + 1), (size, size))
    return [
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).convert(
            "RGB" if channels == 3 else "L"
        )
        for shape in shapes
    ]


def _refuse(spec: str, reason: str) -> NoReturn:
    raise UserError(f"{spec}: preprocessing cannot be reproduced: {reason}; {_FIX}")
