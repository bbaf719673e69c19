"""Decode image files to 8-bit pixels, optionally at a fixed size."""

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from antiphase.data.archives import openable
from antiphase.errors import UserError, one_line
from antiphase.files import printable

Interpolation = Literal["bicubic", "bilinear", "nearest", "lanczos", "box", "hamming"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_MODES = {1: "L", 3: "RGB"}
_MOST_ASPECT = 16  # of an image that is resized whole
WORKERS = min(16, os.cpu_count() or 1)


def describe_transform(square: "Square", channels: int) -> str:
    """Describe the transform of ``decode``, for fingerprints."""
    sides, rounded = ("both sides" if square.squash else "shorter side"), " rounded down" * square.floor
    resized = f"{sides} {square.resize or square.size} {square.interpolation} antialias"
    return f"{resized}, centre crop {square.size}{rounded}, {_MODES.get(channels, f'{channels} channels')}"


@dataclass(frozen=True)
class Square:
    """How a model's pictures are resized and cropped to ``size``; the other defaults do nothing at that size.

    ``interpolation`` is a filter of Pillow, with antialiasing; ``resize`` the shorter side before the centre is
    cropped, or padded in black (None: ``size``). ``squash`` makes the longer side as long. ``floor`` rounds half a
    pixel down, as in transformers, not to even, as in torchvision.
    """

    size: int
    interpolation: Interpolation = "bicubic"
    resize: int | None = None
    squash: bool = False
    floor: bool = False

    def __repr__(self) -> str:
        """Leave out defaults, so that what is stored with the repr of a plain square keeps its name."""
        values = {name: value for name, value in vars(self).items() if value or name == "size"}
        return f"Square({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def __call__(self, image: UInt8[Tensor, "3 height width"]) -> UInt8[Tensor, "3 size size"]:
        return self.apply(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()))

    def apply(self, picture: Image.Image) -> UInt8[Tensor, "channels size size"]:
        """Return the pixels of a picture of any size."""
        picture = picture if self.squash else _shortened(picture)
        side, short, whole = self.resize or self.size, min(picture.size), self.squash
        wide, tall = (side if whole or edge == short else int(side * edge / short) for edge in picture.size)
        rests = wide - self.size, tall - self.size  # cut at the left and the top; negative: padded
        left, top = (r // 2 if self.floor else round(r / 2) if r > 0 else -(-r // 2) for r in rests)
        resized = picture.resize((wide, tall), Image.Resampling[self.interpolation.upper()])
        return pil_to_tensor(resized.crop((left, top, left + self.size, top + self.size)))

    def resized(self, how: Literal["squash", "crop"]) -> "Square":
        """Return a square of the same size and filter that squashes pictures, or crops their centre."""
        squash = how == "squash"
        return self if squash == self.squash else replace(self, squash=squash, resize=None)

    def at(self, size: int) -> "Square":
        """Return a square of another size with the same part of a picture in view."""
        return replace(self, size=size, resize=self.resize and round(self.resize * size / self.size))


def decode(path: Path, square: Square, channels: int) -> UInt8[Tensor, "channels size size"]:
    """Decode an image to RGB or grey without alpha and EXIF orientation, as torchvision does, resize and crop it."""
    return square.apply(_read(path, channels, "repair it, or use --skip-bad to skip such files"))


def decode_whole(
    file: Path | bytes, name: str = "", fix: str = "repair it, or remove it from the data"
) -> UInt8[Tensor, "3 height width"]:
    """Decode a path, or the bytes of a file ``name``, to RGB at its own size; otherwise like :func:`decode`."""
    return pil_to_tensor(_read(file, 3, fix, name))


def _read(file: Path | bytes, channels: int, fix: str, name: str = "") -> Image.Image:
    try:
        with Image.open(openable(file) if isinstance(file, Path) else io.BytesIO(file)) as image:
            return flat(image, _MODES[channels])
    except Exception as error:  # Pillow raises anything: OSError, SyntaxError, struct.error, …
        name = printable(str(file)) if isinstance(file, Path) else name
        reason = one_line(error).partition(" <_io")[0]  # Pillow names the address of the bytes
        raise UserError(f"cannot read image {name} ({reason}): {fix}") from error


def pil_to_tensor(image: Image.Image) -> UInt8[Tensor, "channels height width"]:
    """Return the pixels of an image in grey or RGB."""
    return torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1).contiguous()


def flat(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image to 8 bits per channel in mode "L" or "RGB", without its alpha channel; 16 bits are scaled."""
    tags = getattr(image, "tag_v2", {})  # of a TIFF file: 258 bits, and 262 whether 0 is white
    if tags.get(258, (16,)) == (16,) and (image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM")):
        pixels = (np.asarray(image) / 257).round().astype(np.uint8)
        image = Image.fromarray(255 - pixels if tags.get(262) == 0 else pixels)
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
    return ImageOps.crop(image, (left, top, left, top))


def or_error(function: Callable[[Item], Result]) -> Callable[[Item], Result | UserError]:
    """Return a function that returns the UserError that it would raise."""

    def call(item: Item) -> Result | UserError:
        try:
            return function(item)
        except UserError as error:
            return error

    return call


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], ahead: int = WORKERS, workers: int | None = None
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order, while up to ``ahead`` items are computed in threads."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers or min(WORKERS, ahead))
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
