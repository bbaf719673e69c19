"""Sets of labelled images, in memory or decoded from files on demand."""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from antiphase.arguments import validated
from antiphase.data.archives import file_size
from antiphase.data.decoding import Square, decode, describe_transform, in_threads, or_error
from antiphase.errors import UserError
from antiphase.files import digest, printable
from antiphase.progress import progress_bar

_OF_EACH_SAMPLE = ("ids", "labels", "pixels", "files", "captions", "array", "objects")


@contextmanager
def still_there(name: str) -> Iterator[None]:
    """Turn the OSError of a file of the data set ``name`` that was removed into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{name}: {error.filename} was removed after it was listed") from error


class Samples(ABC):
    """Samples with stable ids, of which some may be taken."""

    name: str
    split: str
    ids: Int64[Tensor, " samples"]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Sequence[int] | Tensor) -> Self:
        """Return the samples at ``positions``, in that order, with all that belongs to each."""
        rows = _index(positions, len(self))
        chosen = {
            name: value[rows] if isinstance(value, Tensor) else tuple(value[row] for row in rows.tolist())
            for name, value in vars(self).items()
            if name in _OF_EACH_SAMPLE and value is not None
        }
        return self.altered(**chosen)

    def altered(self, **values: Any) -> Self:
        """Return a copy with other values, which are not checked: a million file names would take seconds."""
        other = copy.copy(self)
        vars(other).update(values)
        return other

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} ({self.split}): {len(self):,} images>"

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 of images, ids and what belongs to them; equal on all machines."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ImageSet(Samples):
    """Labelled images with stable ids.

    Attributes:
        name: as given to ``load_data``.
        split: the split's own name, such as ``"train"``.
        ids: position of each sample in the full split; kept by subsets, and used as keys of random streams.
        labels: indices into ``class_names``.
        skipped: unreadable files that were left out.
        prompts: prompts of each class for a dual encoder; None: made from its name.
    """

    name: str
    split: str
    class_names: tuple[str, ...]
    ids: Int64[Tensor, " samples"]
    labels: Int64[Tensor, " samples"]
    skipped: tuple[str, ...] = ()
    prompts: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        outside = self.labels[(self.labels < 0) | (self.labels >= len(self.class_names))]
        if len(outside):
            expected = f"expected 0 to {len(self.class_names) - 1}; the data are damaged, download them again"
            raise UserError(f"{self.name} ({self.split}): label {outside[0]}: {expected}")

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""

    @abstractmethod
    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        """Return the images at ``positions`` (0 to ``len(self) - 1``) as float32 in [0, 1]."""

    def batches(
        self, size: int
    ) -> Iterator[tuple[Int64[Tensor, " b"], Float[Tensor, "b c h w"], Int64[Tensor, " b"]]]:
        """Yield ``(ids, images, labels)`` in order, ``size`` at a time; the last batch may be smaller."""
        if size < 1:
            raise UserError(f"batch size {size}: expected an integer of at least 1")
        for rows in torch.arange(len(self)).split(min(size, max(len(self), 1))):
            yield self.ids[rows], self.images(rows), self.labels[rows]

    def subset(self, limit: int | None, seed: int | None = None) -> Self:
        """Return at most ``limit`` samples in their own order: the first, or the first of a seed's permutation."""
        return self if limit is None else self.take(subset_rows(len(self), limit, seed))


def subset_rows(count: int, limit: int | None, seed: int | None) -> Int64[Tensor, " rows"]:
    """Return the rows of at most ``limit`` of ``count`` samples, see ``ImageSet.subset``."""
    if limit is not None and limit < 1:
        raise UserError(f"limit {limit}: expected an integer of at least 1; leave it out for all images")
    order = np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)
    return torch.from_numpy(np.sort(order[:limit]))


@final
@validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ArrayImages(ImageSet):
    """Images held in memory; ``pixels`` are uint8 in 0..255, or float32 in [0, 1]."""

    pixels: UInt8[Tensor, "samples c h w"] | Float[Tensor, "samples c h w"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pixels.dtype == torch.uint8:
            return
        outside = self.pixels[~((self.pixels >= 0) & (self.pixels <= 1))]  # includes NaN
        if len(outside):
            raise UserError(f"{self.name}: pixel {outside[0]:g} is outside [0, 1]: scale the images first")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        chosen = self.pixels[_index(positions, len(self))]
        return chosen.float() / 255 if chosen.dtype == torch.uint8 else chosen

    def fingerprint(self) -> str:
        pixels = self.pixels.numpy()
        little = pixels.astype(pixels.dtype.newbyteorder("<"), copy=False)
        kind = f"array {self.pixels.dtype} {tuple(self.pixels.shape)}"
        return digest(kind, little.tobytes(), little_endian(self.labels), little_endian(self.ids))


@final
@validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FileImages(ImageSet):
    """Image files, decoded on demand, resized and cropped to squares of one size.

    Attributes:
        root: folder of the files; not part of the fingerprint.
        files: names relative to ``root``, with forward slashes.
        image_size: height and width in pixels.
        channels: 1 (grey) or 3 (RGB).
        square: resizes and crops to ``image_size``; None: as ``Square(image_size)``.
    """

    root: Path
    files: tuple[str, ...]
    image_size: int
    channels: int
    square: Square | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.files) != len(self):
            raise UserError(f"{len(self.files)} files but {len(self)} labels")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.image_size, self.image_size

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        """Decode the images at ``positions`` in several threads and return them as float32 in [0, 1]."""
        rows = _index(positions, len(self)).tolist()
        if not rows:
            return torch.empty(0, *self.image_shape)
        decoded = [pixels.numpy() for pixels in in_threads(self._decode, rows)]
        # torch.stack synchronises its threads for each image, which on a busy machine took longer than decoding
        return torch.from_numpy(np.stack(decoded)).float().div_(255)  # in place to save memory

    def resized(self, square: Square, channels: int | None = None) -> "FileImages":
        """Return the same files, resized and cropped in another way."""
        return self.altered(image_size=square.size, square=square, channels=channels or self.channels)

    def fingerprint(self) -> str:
        """Return the SHA-256 of relative names, file sizes, the transform, the labels and the ids."""
        kind = f"files {describe_transform(self.square or Square(self.image_size), self.channels)}"
        with still_there(self.name):
            names = [os.fsencode(f"{file_size(self.root / file)} {file}") for file in self.files]
        return digest(kind, *names, little_endian(self.labels), little_endian(self.ids))

    def without_unreadable(self, *, progress: bool = True) -> "FileImages":
        """Decode every file once and return the set without unreadable files, which are listed in ``skipped``."""
        rows: list[int] = []
        bad: list[str] = []
        with progress_bar(f"Checking {self.name}", len(self), progress) as advance:
            for row, outcome in enumerate(in_threads(or_error(self._decode), range(len(self)))):
                if isinstance(outcome, UserError):
                    bad.append(printable(self.files[row]))
                else:
                    rows.append(row)
                advance(1)
        if not rows:
            raise UserError(f"{self.name}: none of its {len(bad)} images can be read, the first is {bad[0]}")
        return self.take(rows).altered(skipped=(*self.skipped, *bad))

    def _decode(self, row: int) -> UInt8[Tensor, "c h w"]:
        return decode(self.root / self.files[row], self.square or self.image_size, self.channels)


def array_set(
    name: str,
    split: str,
    class_names: Sequence[str],
    pixels: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    ids: Tensor | None = None,
) -> ArrayImages:
    """Return images in memory; ids are counted from 0 unless given."""
    return ArrayImages(
        name=name,
        split=split,
        class_names=tuple(class_names),
        ids=torch.arange(len(labels)) if ids is None else ids,
        labels=torch.as_tensor(labels, dtype=torch.int64),
        pixels=torch.as_tensor(pixels),
    )


def file_set(
    name: str,
    split: str,
    root: Path,
    class_names: Sequence[str],
    files: Sequence[str],
    labels: Sequence[int],
    prompts: tuple[tuple[str, ...], ...] | None = None,
) -> FileImages:
    """Return a full split of image files, with ids counted from 0; ``load_data`` sets its size and channels."""
    return FileImages(
        name=name,
        split=split,
        class_names=tuple(class_names),
        ids=torch.arange(len(files)),
        labels=torch.tensor(labels, dtype=torch.int64),
        prompts=prompts,
        root=root,
        files=tuple(files),
        image_size=224,
        channels=3,
    )


def _index(positions: Sequence[int] | Tensor, length: int) -> Int64[Tensor, " b"]:
    """Return ``positions`` as an index tensor; no masks, floats and positions outside 0..length-1."""
    index = torch.as_tensor(positions)
    if index.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if index.ndim != 1 or index.dtype == torch.bool or index.is_floating_point():
        kind = f"type {index.dtype} and shape {tuple(index.shape)}"
        raise TypeError(f"positions of {kind}: expected a list of integers")
    if index.min() < 0 or index.max() >= length:
        raise IndexError(f"positions {index.min()} to {index.max()}: expected positions in 0..{length - 1}")
    return index.to(device="cpu", dtype=torch.int64)


def little_endian(values: Int64[Tensor, " n"]) -> bytes:
    """Return the bytes of integers, equal on all machines."""
    return values.numpy().astype("<i8").tobytes()
