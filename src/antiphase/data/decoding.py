"""From an image file to 8-bit pixels of a fixed shape."""

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

from antiphase.data.tar_members import openable
from antiphase.errors import UserError
from antiphase.files import printable

Interpolation = Literal["bicubic", "bilinear"]

_MODES = {1: "L", 3: "RGB"}


def describe_transform(image_size: int, channels: int, interpolation: Interpolation = "bicubic") -> str:
    """Return the sentence that stands for ``decode``'s transform in a fingerprint.

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
    from torchvision.transforms import InterpolationMode, v2  # seconds to import, and arrays never need it

    return v2.Compose(
        [
            v2.Resize(image_size, interpolation=InterpolationMode(interpolation), antialias=True),
            v2.CenterCrop(image_size),
            v2.PILToTensor(),
        ]
    )


@dataclass(frozen=True)
class Square:
    """A model's preprocessing: shorter side to ``size``, centre cut out; an image of that size stays as it is.

    Attributes:
        size: height and width in pixels.
        interpolation: ``"bicubic"`` or ``"bilinear"``, with antialiasing.
    """

    size: int
    interpolation: Interpolation = "bicubic"

    def __call__(self, image: UInt8[Tensor, "3 height width"]) -> UInt8[Tensor, "3 size size"]:
        """Return the square."""
        if image.shape[1:] == (self.size, self.size):
            return image
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        return _resize_and_crop(self.size, self.interpolation)(picture)


def decode(
    path: Path, image_size: int, channels: int, interpolation: Interpolation = "bicubic"
) -> UInt8[Tensor, "channels size size"]:
    """Return the image at ``path`` with its shorter side resized to ``image_size`` and its centre cut out.

    An alpha channel is dropped and an EXIF orientation is not applied, as in torchvision's own folders.

    Args:
        path: any file that Pillow reads, 8 bits a channel; it may lie in a plain tar file, ``X.tar/FILE``.
        image_size: height and width of the result in pixels.
        channels: 3 for RGB, 1 for grey (ITU-R 601-2 luma).
        interpolation: of the resizing.

    Raises:
        UserError: the file cannot be decoded; the line names it.
    """
    mend = "mend it, or use --skip-bad to leave such files out"
    return _resize_and_crop(image_size, interpolation)(_read(path, channels, printable(str(path)), mend))


def decode_whole(file: Path | bytes, name: str | None = None) -> UInt8[Tensor, "3 height width"]:
    """Return a file's RGB image in its own size; otherwise as :func:`decode`.

    Args:
        file: a path, or the file's bytes.
        name: what messages call it; the path where not given.

    Raises:
        UserError: it cannot be decoded; the line names it.
    """
    source = file if isinstance(file, Path) else io.BytesIO(file)
    return pil_to_tensor(
        _read(
            source,
            3,
            name or (printable(str(file)) if isinstance(file, Path) else "in memory"),
            "mend it or leave it out",
        )
    )


def pil_to_tensor(image: Image.Image) -> UInt8[Tensor, "3 height width"]:
    """Return an RGB image's pixels."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _read(source: Path | io.BytesIO, channels: int, name: str, mend: str) -> Image.Image:
    try:
        with Image.open(openable(source) if isinstance(source, Path) else source) as image:
            if image.mode.startswith(("I", "F")):  # Pillow would clip these to white without a word
                raise ValueError(f"its pixels have more than 8 bits (mode {image.mode})")
            # Pillow warns when a palette with transparency goes to RGB in one step
            flat = image.convert("RGBA") if image.mode in ("P", "PA") else image
            return flat.convert(_MODES[channels])
    except Exception as error:  # Pillow's readers raise anything: OSError, SyntaxError, struct.error, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot read image {name} ({reason}): {mend}") from error
