"""A set of labelled images: what every source returns, held in memory or decoded from files on demand."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from antiphase.data.decoding import Interpolation, decode, describe_transform
from antiphase.data.tar_members import file_size
from antiphase.errors import UserError
from antiphase.files import digest, printable

_WORKERS = min(16, os.cpu_count() or 1)
_VERIFY_CHUNK = 256  # files in flight while a folder is verified: keeps the list of futures short


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet(ABC):
    """Labelled images with stable ids.

    Attributes:
        name: the source's name, as given to ``load_data``.
        split: the split's own name, such as ``"train"``.
        class_names: one name for each label.
        ids: position of each sample in the full split; subsets keep them, random streams are keyed by them.
        labels: index into ``class_names``; known without decoding an image.
        skipped: files left out because they could not be read.
        prompts: texts for each class that a dual encoder is bound to in place of its name; None: the name.
    """

    name: str
    split: str
    class_names: tuple[str, ...]
    ids: Int64[Tensor, " n"]
    labels: Int64[Tensor, " n"]
    skipped: tuple[str, ...] = ()
    prompts: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.ids.shape != self.labels.shape:
            raise ValueError(f"{len(self.ids)} ids but {len(self.labels)} labels")
        outside = self.labels[(self.labels < 0) | (self.labels >= len(self.class_names))]
        if len(outside):
            raise UserError(
                f"{self.name} ({self.split}): label {outside[0]} is none of its classes, "
                f"0 to {len(self.class_names) - 1}: the data are damaged, fetch them again"
            )

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""

    @abstractmethod
    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        """Return the images at ``positions`` (0 to ``len(self) - 1``) as float32 in [0, 1]."""

    @abstractmethod
    def take(self, positions: Sequence[int] | Tensor) -> "ImageSet":
        """Return the samples at ``positions``, in that order, with their ids and labels."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 of images, labels and ids: the same for the same samples on any machine."""

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, size: int
    ) -> Iterator[tuple[Int64[Tensor, " b"], Float[Tensor, "b c h w"], Int64[Tensor, " b"]]]:
        """Yield ``(ids, images, labels)`` in order, ``size`` at a time; the last batch may be smaller."""
        if size < 1:
            raise UserError(f"batch size {size} must be at least 1")
        for start in range(0, len(self), size):
            rows = torch.arange(start, min(start + size, len(self)))
            yield self.ids[rows], self.images(rows), self.labels[rows]

    def subset(self, limit: int | None, seed: int | None = None) -> "ImageSet":
        """Return at most ``limit`` samples in their own order.

        Args:
            limit: number of samples, at least 1; ``None`` keeps them all.
            seed: ``None`` takes the first ``limit``; a number takes the first ``limit`` of that seed's
                permutation, so that a larger limit contains the smaller one.

        Raises:
            UserError: ``limit`` is less than 1, or ``seed`` is negative.
        """
        if limit is None:
            return self
        if limit < 1:
            raise UserError(
                f"limit {limit} must be at least 1: give a number of images, or leave it out for all"
            )
        if seed is None:
            return self.take(torch.arange(min(limit, len(self))))
        if seed < 0:
            raise UserError(f"seed {seed} must be 0 or more")
        order = np.random.default_rng(seed).permutation(len(self))[:limit]
        return self.take(torch.from_numpy(np.sort(order)))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayImages(ImageSet):
    """Images held in memory.

    Attributes:
        pixels: uint8 in 0..255, or float32 in [0, 1].
    """

    pixels: UInt8[Tensor, "n c h w"] | Float[Tensor, "n c h w"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.pixels) != len(self):
            raise ValueError(f"{len(self.pixels)} images but {len(self)} labels")
        if self.pixels.dtype == torch.uint8:
            return
        if self.pixels.dtype != torch.float32:
            raise TypeError(f"pixels must be uint8 or float32, not {self.pixels.dtype}")
        outside = self.pixels[~((self.pixels >= 0) & (self.pixels <= 1))]  # written so that NaN is outside
        if len(outside):
            raise UserError(
                f"{self.name}: pixel {outside[0]:g} is outside [0, 1]: scale the images to [0, 1] first"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        """Return the images at ``positions`` as float32 in [0, 1]; uint8 is divided by 255."""
        chosen = self.pixels[_index(positions, len(self))]
        return chosen.float() / 255 if chosen.dtype == torch.uint8 else chosen

    def take(self, positions: Sequence[int] | Tensor) -> "ArrayImages":
        """Return the samples at ``positions``, in that order, with their ids and labels."""
        rows = _index(positions, len(self))
        return replace(self, ids=self.ids[rows], labels=self.labels[rows], pixels=self.pixels[rows])

    def fingerprint(self) -> str:
        """Return the SHA-256 of the array's type, shape and bytes, the labels and the ids."""
        pixels = self.pixels.numpy()
        little = pixels.astype(pixels.dtype.newbyteorder("<"), copy=False)
        kind = f"array {self.pixels.dtype} {tuple(self.pixels.shape)}"
        return digest(kind, little.tobytes(), _little(self.labels), _little(self.ids))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class FileImages(ImageSet):
    """Image files, decoded when they are asked for, resized and cut to one square shape.

    Attributes:
        root: the folder that ``files`` are relative to; not part of the fingerprint.
        files: relative names with forward slashes, one for each sample.
        image_size: height and width in pixels.
        channels: 1 (grey) or 3 (RGB).
        interpolation: of the resizing, ``"bicubic"`` or ``"bilinear"``.
    """

    root: Path
    files: tuple[str, ...]
    image_size: int
    channels: int
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.files) != len(self):
            raise ValueError(f"{len(self.files)} files but {len(self)} labels")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        return self.channels, self.image_size, self.image_size

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        """Decode the images at ``positions`` in a few threads and return them as float32 in [0, 1].

        Raises:
            UserError: a file cannot be read; the line names the first such file.
        """
        rows = _index(positions, len(self)).tolist()
        if not rows:
            return torch.empty(0, *self.image_shape)
        with ThreadPoolExecutor(_WORKERS) as pool:
            decoded = [pixels.numpy() for pixels in pool.map(self._decode, rows)]
        # torch.stack meets its threads once an image: on a busy machine that took longer than the decoding
        return torch.from_numpy(np.stack(decoded)).float().div_(255)  # in place: it may be large

    def take(self, positions: Sequence[int] | Tensor) -> "FileImages":
        """Return the samples at ``positions``, in that order, with their ids and labels."""
        rows = _index(positions, len(self))
        files = tuple(self.files[row] for row in rows.tolist())
        return replace(self, ids=self.ids[rows], labels=self.labels[rows], files=files)

    def fingerprint(self) -> str:
        """Return the SHA-256 of relative names, file sizes, the transform, the labels and the ids."""
        kind = f"files {describe_transform(self.image_size, self.channels, self.interpolation)}"
        try:
            names = [os.fsencode(f"{file_size(self.root / file)} {file}") for file in self.files]
        except OSError as error:
            raise UserError(f"{self.name}: {error.filename} is gone since the folder was listed") from error
        return digest(kind, *names, _little(self.labels), _little(self.ids))

    def without_unreadable(self, *, progress: bool = True) -> "FileImages":
        """Decode every file once and return the set without those that fail, named in ``skipped``.

        The ids stay as they were: a bad file leaves a gap and moves nobody.

        Raises:
            UserError: no file can be read.
        """
        good: list[int] = []
        console = Console(stderr=True)
        with (
            Progress(console=console, transient=True, disable=not progress) as bar,
            ThreadPoolExecutor(_WORKERS) as pool,
        ):
            task = bar.add_task(f"Checking {self.name}", total=len(self))
            for start in range(0, len(self), _VERIFY_CHUNK):
                rows = range(start, min(start + _VERIFY_CHUNK, len(self)))
                good += [
                    row
                    for row, readable in zip(rows, pool.map(self._readable, rows), strict=True)
                    if readable
                ]
                bar.advance(task, len(rows))
        if not good:
            raise UserError(
                f"{self.name}: none of its {len(self)} images can be read, the first is {self.files[0]}"
            )
        bad = sorted(set(range(len(self))) - set(good))
        return replace(
            self.take(good), skipped=self.skipped + tuple(printable(self.files[row]) for row in bad)
        )

    def _decode(self, row: int) -> UInt8[Tensor, "c h w"]:
        return decode(self.root / self.files[row], self.image_size, self.channels, self.interpolation)

    def _readable(self, row: int) -> bool:
        try:
            self._decode(row)
        except UserError:
            return False
        return True


def _index(positions: Sequence[int] | Tensor, length: int) -> Int64[Tensor, " b"]:
    """Return ``positions`` as an index; a mask, a fraction or a position outside 0..length-1 is refused."""
    index = torch.as_tensor(positions)
    if index.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if index.ndim != 1 or index.dtype == torch.bool or index.is_floating_point():
        raise TypeError(
            f"positions must be a list of whole numbers, not {index.dtype} of shape {tuple(index.shape)}"
        )
    if index.min() < 0 or index.max() >= length:
        raise IndexError(f"positions {index.min()} to {index.max()} do not all lie in 0..{length - 1}")
    return index.to(device="cpu", dtype=torch.int64)


def _little(values: Int64[Tensor, " n"]) -> bytes:
    return values.numpy().astype("<i8").tobytes()
