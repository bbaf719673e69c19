"""Decode image files to 8-bit pixels, optionally at a fixed size."""

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from antiphase.data.members import openable
from antiphase.errors import UserError, one_line
from antiphase.files import printable

Interpolation = Literal["bicubic", "bilinear"]

_MODES = {1: "L", 3: "RGB"}
_MOST_ASPECT = 16  # of an image that is resized whole


def describe_transform(image_size: int, channels: int, interpolation: Interpolation = "bicubic") -> str:
    """Describe the transform of ``decode``, for fingerprints.

    >>> describe_transform(224, 3)
    'shorter side 224 bicubic antialias, centre crop 224, RGB'
    """
    return (
        f"shorter side {image_size} {interpolation} antialias, centre crop {image_size}, {_MODES[channels]}"
    )


@functools.cache
def _resize_and_crop(
    image_size: int, interpolation: str = "bicubic"
) -> Callable[[Image.Image], UInt8[Tensor, "channels size size"]]:
    from torchvision.transforms import InterpolationMode, v2  # seconds to import

    return v2.Compose(
        [
            _shortened,
            v2.Resize(image_size, interpolation=InterpolationMode(interpolation), antialias=True),
            v2.CenterCrop(image_size),
            v2.PILToTensor(),
        ]
    )


@dataclass(frozen=True)
class Square:
    """A model's preprocessing: resize the shorter side to ``size``, crop the centre; no-op at that size.

    Attributes:
        size: height and width in pixels.
        interpolation: ``"bicubic"`` or ``"bilinear"``, with antialiasing.
    """

    size: int
    interpolation: Interpolation = "bicubic"

    def __call__(self, image: UInt8[Tensor, "3 height width"]) -> UInt8[Tensor, "3 size size"]:
        if image.shape[1:] == (self.size, self.size):
            return image
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        return _resize_and_crop(self.size, self.interpolation)(picture)


def decode(
    path: Path, image_size: int, channels: int, interpolation: Interpolation = "bicubic"
) -> UInt8[Tensor, "channels size size"]:
    """Decode an image, resize its shorter side to ``image_size`` and crop the centre.

    The alpha channel is dropped and EXIF orientation is ignored, as in torchvision's image folders.

    Args:
        path: any file that Pillow reads, with 8 or 16 bits per channel; also in an uncompressed tar file,
            ``X.tar/FILE``.
        image_size: height and width of the result, in pixels.
        channels: 3 for RGB, 1 for grey (ITU-R 601-2 luma).
        interpolation: ``"bicubic"`` or ``"bilinear"``.

    Raises:
        UserError: naming the file that cannot be decoded.
    """
    fix = "repair it, or use --skip-bad to skip such files"
    return _resize_and_crop(image_size, interpolation)(_read(path, channels, printable(str(path)), fix))


def decode_whole(
    file: Path | bytes, name: str | None = None, fix: str = "repair it, or remove it from the data"
) -> UInt8[Tensor, "3 height width"]:
    """Decode a file to RGB at its own size; otherwise like :func:`decode`.

    Args:
        file: a path, or the bytes of the file.
        name: name in error messages; None: the path.
        fix: what an error message advises.

    Raises:
        UserError: naming the file that cannot be decoded.
    """
    source = file if isinstance(file, Path) else io.BytesIO(file)
    return pil_to_tensor(
        _read(
            source,
            3,
            name or (printable(str(file)) if isinstance(file, Path) else "in memory"),
            fix,
        )
    )


def pil_to_tensor(image: Image.Image) -> UInt8[Tensor, "3 height width"]:
    """Return an RGB image's pixels."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def flat(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image to 8 bits per channel, without its alpha channel; 16 bits are scaled.

    Args:
        image: any image of Pillow.
        mode: ``"L"`` or ``"RGB"``.

    Raises:
        ValueError: if the range of its pixels is unknown; Pillow would clip them.
    """
    bits = getattr(image, "tag_v2", {}).get(258, (16,))  # of a TIFF file
    if bits == (16,) and (image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")):
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"mode {image.mode} does not tell the range of its pixels; save 8 or 16 bits")
    # Pillow warns about converting a palette with transparency directly to RGB
    return (image.convert("RGBA") if image.mode in ("P", "PA") else image).convert(mode)


def _shortened(image: Image.Image) -> Image.Image:
    """Return the middle of a long, thin image, so that it is not enlarged whole; others unchanged."""
    short, long = sorted(image.size)
    cut = long - _MOST_ASPECT * short
    cut -= cut % 2  # as much on both sides
    if cut <= 0:
        return image
    left, top = (cut // 2, 0) if image.width > image.height else (0, cut // 2)
    return image.crop((left, top, image.width - left, image.height - top))


def _read(source: Path | io.BytesIO, channels: int, name: str, fix: str) -> Image.Image:
    try:
        with Image.open(openable(source) if isinstance(source, Path) else source) as image:
            return flat(image, _MODES[channels])
    except Exception as error:  # Pillow raises anything: OSError, SyntaxError, struct.error, …
        reason = one_line(error)
        raise UserError(f"cannot read image {name} ({reason}): {fix}") from error
