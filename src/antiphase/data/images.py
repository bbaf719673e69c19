"""Labelled images and image–caption pairs, in memory or decoded from files on demand, and their batches."""

import copy
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from antiphase import arguments, streams, terminal
from antiphase.data.archives import changed, file_size
from antiphase.data.decoding import Square, decode, decode_whole, describe_transform, in_threads, or_error
from antiphase.errors import UserError
from antiphase.files import digest, printable

Region = tuple[tuple[float, ...], ...] | tuple[int, ...]  # polygons, each x0, y0, x1, y1, …; or run lengths
_OF_EACH_SAMPLE = ("ids", "labels", "pixels", "files", "captions", "array", "objects")
_OF_EACH_SAMPLE += ("which", "places", "samplings")  # of questions about images, see ``vlm/pope``


@final
@dataclass(frozen=True)
class ImageObjects:
    """All objects of one name in an image of ``height`` × ``width`` pixels, and the regions that make them up."""

    name: str
    regions: tuple[Region, ...]
    height: int
    width: int

    def mask(self) -> Bool[np.ndarray, "height width"]:
        """Return the union of the regions."""
        size = (self.height, self.width)
        masks = [np.zeros(size, bool)]
        for region in self.regions:
            if region and isinstance(region[0], tuple):
                masks += (polygon_mask(np.array(points, float).reshape(-1, 2), *size) for points in region)
            else:
                masks.append(run_length_mask(region, *size))  # pyright: ignore[reportArgumentType]
        return np.logical_or.reduce(masks)


def polygon_mask(points: Float[np.ndarray, "corners 2"], height: int, width: int) -> Bool[np.ndarray, "height width"]:
    """Return the pixels whose centre lies in a polygon of corners (x, y), by the even–odd rule."""
    from matplotlib.path import Path as Outline  # slow to import

    y, x = np.mgrid[:height, :width] + 0.5
    return Outline(points).contains_points(np.c_[x.ravel(), y.ravel()]).reshape(height, width)


def run_length_mask(counts: Sequence[int], height: int, width: int) -> Bool[np.ndarray, "height width"]:
    """Return the mask of COCO's uncompressed run lengths: column by column, off and on in turn, beginning with off."""
    if sum(counts) != height * width or min(counts, default=0) < 0:
        raise ValueError(f"run lengths of {sum(counts)} pixels: expected {height * width}")
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T


def run_lengths(mask: Bool[np.ndarray, "height width"]) -> tuple[int, ...]:
    """Return the run lengths of a mask, as for :func:`run_length_mask`."""
    flat = mask.T.ravel()
    lengths = np.diff(np.r_[0, np.flatnonzero(np.diff(flat)) + 1, flat.size]).tolist()
    return tuple([0, *lengths] if flat[0] else lengths)


def region_of(segmentation: Any, height: int, width: int) -> Region:
    """Return the region of an annotation of COCO: polygons, or uncompressed run lengths of the image."""
    if isinstance(segmentation, dict):
        counts = segmentation["counts"]
        if not isinstance(counts, list) or segmentation["size"] != [height, width]:
            raise ValueError(f"run lengths: expected a list of numbers for an image of {height} × {width}")
        run_length_mask(counts, height, width)
        return tuple(counts)
    if any(len(points) < 6 or len(points) % 2 for points in segmentation):
        raise ValueError("a polygon: expected at least three corners, x and y in turn")
    return tuple(tuple(map(float, points)) for points in segmentation)


@contextmanager
def still_there(name: str) -> Iterator[None]:
    """Turn the OSError of a file of the data set ``name`` that was removed into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{name}: {error.filename} was removed after it was listed") from error


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Samples(ABC):
    """Samples with stable ``ids``, their positions in the full split, which subsets keep; they key random streams."""

    name: str
    split: str
    ids: Int64[Tensor, " samples"]
    skipped: tuple[str, ...] = ()  # files that were left out
    prompts: tuple[tuple[str, ...], ...] | None = None  # of each class; None: made from its name

    @classmethod
    def whole(cls, name: str, split: str, class_names: Iterable[str], labels: Any, **others: Any) -> Self:
        """Return a whole split; ids are counted from 0 unless given. Pairs may have no labels, None."""
        numbers = None if labels is None else torch.as_tensor(labels, dtype=torch.int64)
        arrays = {key: torch.from_numpy(one) for key, one in others.items() if isinstance(one, np.ndarray)}
        ids = torch.arange(len(others["captions"] if labels is None else labels))
        about = {"class_names": tuple(class_names), "labels": numbers, "ids": ids}
        values: dict[str, Any] = {**about, **others, **arrays}
        return cls(name=name, split=split, **values)

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

    @property
    def left_out(self) -> list[str]:
        """A warning that counts what is ``skipped``, if anything is."""
        told = f"{self.name} ({self.split}): {len(self.skipped):,} left out, the first: "
        return [told + self.skipped[0]] if self.skipped else []

    def without_unreadable(self, limit: int | None = None, seed: int | None = None, *, progress: bool = True) -> Self:
        """Decode files and return at most ``limit`` readable ones, as ``subset`` takes them; others are ``skipped``."""
        if not isinstance(self, FileImages | FilePairs):
            raise UserError(f"{self.name}: --skip-bad leaves out files, and it has none; remove the option")
        read = self._decode if isinstance(self, FileImages) else self.pixels
        count = min(limit or len(self), len(self))
        rows: list[int] = []
        bad: list[str] = []
        order = subset_order(len(self), seed).tolist()
        with terminal.progress_bar(f"Checking {self.name}", count, progress) as advance:
            for row, outcome in zip(order, in_threads(or_error(read), order), strict=True):
                if isinstance(outcome, UserError):
                    bad.append(printable(self.files[row]))
                    continue
                rows.append(row)
                advance(1)
                if len(rows) == count:
                    break
        if not rows:
            raise UserError(f"{self.name}: none of its {len(bad)} images can be read, the first is {bad[0]}")
        return self.take(sorted(rows)).altered(skipped=(*self.skipped, *bad))

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 of images, ids and what belongs to them; equal on all machines."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ImageSet(Samples):
    """Labelled images with stable ids; ``labels`` are indices into ``class_names``."""

    class_names: tuple[str, ...]
    labels: Int64[Tensor, " samples"]

    def __post_init__(self) -> None:
        if len(outside := self.labels[(self.labels < 0) | (self.labels >= len(self.class_names))]):
            raise UserError(f"{self.name}: label {outside[0]}: expected 0 to {len(self.class_names) - 1}")

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""

    @abstractmethod
    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        """Return the images at ``positions`` (0 to ``len(self) - 1``) as float32 in [0, 1]."""

    def batches(self, size: int) -> Iterator[tuple[Int64[Tensor, " b"], Float[Tensor, "b c h w"], Int64[Tensor, " b"]]]:
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
    return torch.from_numpy(np.sort(subset_order(count, seed)[:limit]))


def subset_order(count: int, seed: int | None) -> np.ndarray:
    """Return the order in which a subset takes samples: theirs, or a seed's permutation."""
    return np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)


@final
@arguments.validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ArrayImages(ImageSet):
    """Images held in memory; ``pixels`` are uint8 in 0..255, or float32 in [0, 1]."""

    pixels: UInt8[Tensor, "samples c h w"] | Float[Tensor, "samples c h w"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pixels.dtype == torch.uint8:
            return
        if len(outside := self.pixels[~((self.pixels >= 0) & (self.pixels <= 1))]):  # includes NaN
            raise UserError(f"{self.name}: pixel {outside[0]:g} is outside [0, 1]: scale the images first")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        chosen = self.pixels[_index(positions, len(self))]
        return chosen.float() / 255 if chosen.dtype == torch.uint8 else chosen

    def fingerprint(self) -> str:
        kind = f"array {self.pixels.dtype} {tuple(self.pixels.shape)}"
        return digest(kind, self.pixels.numpy().tobytes(), little_endian(self.labels), little_endian(self.ids))


@final
@arguments.validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FileImages(ImageSet):
    """Image files, decoded on demand, resized and cropped by ``square`` (None: ``Square(image_size)``)."""

    root: Path
    files: tuple[str, ...]  # names relative to ``root``, with forward slashes
    image_size: int = 224
    channels: int = 3  # 1 (grey) or 3 (RGB)
    square: Square | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.files) != len(self):
            raise UserError(f"{len(self.files)} files but {len(self)} labels")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.image_size, self.image_size

    @property
    def resizing(self) -> Square:
        return self.square or Square(self.image_size)

    def images(self, positions: Sequence[int] | Tensor) -> Float[Tensor, "b c h w"]:
        if not (rows := _index(positions, len(self)).tolist()):
            return torch.empty(0, *self.image_shape)
        decoded = [pixels.numpy() for pixels in in_threads(self._decode, rows)]
        # torch.stack synchronises its threads for each image, which on a busy machine took longer than decoding
        return torch.from_numpy(np.stack(decoded)).float().div_(255)  # in place to save memory

    def resized(self, square: Square, channels: int | None = None) -> "FileImages":
        return self.altered(image_size=square.size, square=square, channels=channels or self.channels)

    def fingerprint(self) -> str:
        """Return the SHA-256 of relative names, file sizes, the transform, the labels and the ids."""
        kind = f"files {describe_transform(self.resizing, self.channels)}"
        with still_there(self.name):
            names = [os.fsencode(f"{file_size(self.root / file)} {file}") for file in self.files]
        return digest(kind, *names, little_endian(self.labels), little_endian(self.ids))

    def _decode(self, row: int) -> UInt8[Tensor, "c h w"]:
        return decode(self.root / self.files[row], self.resizing, self.channels)


def resized_images(images: ImageSet, how: Literal["squash", "crop"]) -> FileImages:
    """Return image files that become squares in one of two ways; refuse arrays."""
    if not isinstance(images, FileImages):
        raise UserError(f"resize {how}: {images.name} has no image files to resize; leave it out")
    return images.resized(images.resizing.resized(how))


def described_pixels(images: ImageSet) -> str:
    """Say what size images have and how files were resized and cropped: '5×7 pixels, 3 channels, not resized'."""
    channels, height, width = images.image_shape
    how = describe_transform(images.resizing, channels) if isinstance(images, FileImages) else "not resized"
    return f"{height}×{width} pixels, {channels} channel{'s' * (channels > 1)}, {how}"


def _index(positions: Sequence[int] | Tensor, length: int) -> Int64[Tensor, " b"]:
    """Return ``positions`` as an index tensor; no masks, floats and positions outside 0..length-1."""
    if (index := torch.as_tensor(positions)).numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if index.ndim != 1 or index.dtype == torch.bool or index.is_floating_point():
        raise TypeError(f"positions of {index.dtype}, {tuple(index.shape)}: expected a list of integers")
    if index.min() < 0 or index.max() >= length:
        raise IndexError(f"positions {index.min()} to {index.max()}: expected positions in 0..{length - 1}")
    return index.to(device="cpu", dtype=torch.int64)


def little_endian(values: Int64[Tensor, " n"]) -> bytes:
    """Return the bytes of integers, equal on all machines."""
    return values.numpy().astype("<i8").tobytes()


@dataclass(frozen=True)
class PairBatch:
    """One process's share of a batch: ids (which key the augmentation), RGB images at their own size, all captions."""

    ids: Int64[Tensor, " share"]
    images: list[UInt8[Tensor, "3 height width"]]
    captions: list[tuple[str, ...]]
    size: int  # samples in the whole batch over all processes, including bad ones
    bad: tuple[str, ...] = ()  # one line for each unusable sample since the last batch


def check_batch_size(name: str, batch_size: int, samples: int) -> None:
    """Refuse batches that are larger than a source."""
    if not 1 <= batch_size <= samples:
        raise UserError(f"batch size {batch_size}: expected 1 to {samples}, the samples of {name}")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PairSet(Samples):
    """Images with captions, at least one each, and stable ids, with random access."""

    captions: tuple[tuple[str, ...], ...]
    labels: Int64[Tensor, " samples"] | None = None  # None: the source does not say
    class_names: tuple[str, ...] = ()
    objects: tuple[tuple[ImageObjects, ...], ...] | None = None  # what is seen where; None: not said

    def __post_init__(self) -> None:
        if len(self.captions) != len(self.ids):
            raise UserError(f"{len(self.ids)} ids but captions for {len(self.captions)}")
        if not len(self.ids):
            raise UserError(f"{self.name} ({self.split}): no pairs; expected at least one with a caption")

    @abstractmethod
    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        """Return one image as RGB at its own size."""

    def subset(self, limit: int | None, seed: int | None = None) -> Self:
        """Return at most ``limit`` samples in their own order: the first, or some that a seed draws."""
        if limit is None or limit >= len(self):
            return self
        if seed is None:
            return self.take(range(limit))
        return self.take(torch.randperm(len(self), generator=streams.generator(seed, "subset"))[:limit].sort().values)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of whole batches per epoch; remaining samples are not used in that epoch."""
        check_batch_size(self.name, batch_size, len(self))
        return len(self) // batch_size

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        """Yield this process's share of each batch from step ``first`` on; it depends on (seed, epoch, step) only."""
        steps = range(first, self.steps_per_epoch(batch_size))
        order = torch.randperm(len(self), generator=streams.generator(seed, "order", epoch)).tolist()
        shares = [order[step * batch_size : (step + 1) * batch_size][rank::world] for step in steps]

        # decode two batches ahead; threads work on single images
        images = in_threads(or_error(self.pixels), itertools.chain(*shares), 2 * max(map(len, shares), default=1))
        for rows in shares:
            outcomes = dict(zip(rows, images, strict=False))
            good = {row: image for row, image in outcomes.items() if isinstance(image, Tensor)}
            bad = tuple(str(image) for image in outcomes.values() if isinstance(image, UserError))
            yield PairBatch(self.ids[[*good]], [*good.values()], [self.captions[row] for row in good], batch_size, bad)

    def _described(self) -> list[bytes | str]:
        captions = ["\x1f".join(several) for several in self.captions]
        labels = b"" if self.labels is None else little_endian(self.labels)
        return [*captions, labels, "\x1f".join(self.class_names), little_endian(self.ids)]


@final
@arguments.validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ArrayPairs(PairSet):
    """Pairs held in memory, with images of one size."""

    array: UInt8[Tensor, "samples 3 height width"]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        return self.array[position]

    def fingerprint(self) -> str:
        return digest(f"pairs {tuple(self.array.shape)}", self.array.numpy().tobytes(), *self._described())


@final
@arguments.validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FilePairs(PairSet):
    """Image files with captions, decoded on demand; ``files`` are relative to ``root``, with forward slashes."""

    root: Path
    files: tuple[str, ...]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        return decode_whole(self.root / self.files[position])

    def fingerprint(self) -> str:
        """Return the SHA-256 of names and sizes of the files, captions, labels and ids."""
        named: list[str] = []
        for file in self.files:
            size: int | str = "absent"  # a missing file is a bad sample later, not an error here
            with suppress(OSError):
                size = file_size(self.root / file)
            named.append(f"{size} {file}")
        return digest("file pairs", *named, *self._described())


def content_key(data: ImageSet | PairSet) -> str:
    """Return a key of the images for caches: the fingerprint, and the modification times of files."""
    if not isinstance(data, FileImages | FilePairs):
        return data.fingerprint()
    with still_there(data.name):
        times = [str(changed(data.root / file)) for file in data.files]
    return digest(data.fingerprint(), *times)


def model_images(
    data: ImageSet | PairSet, positions: Sequence[int], square: Square, channels: int = 3
) -> Float[Tensor, "b channels size size"]:
    """Return images in [0, 1] as a model takes them: resized by ``square``, grey ones repeated for three channels."""
    if isinstance(data, FileImages):
        return data.resized(square, channels).images(positions)
    if isinstance(data, PairSet):
        if channels != 3:
            raise UserError(f"{data.name} is in colour, but the model expects grey images; use other data")
        pixels = in_threads(lambda row: square(data.pixels(row)), map(int, positions))
        return torch.stack(list(pixels)).float() / 255
    images = data.images(positions)
    shape = (channels, square.size, square.size)
    if images.shape[1:] == shape:
        return images
    if channels != 3:
        raise UserError(f"{data.name} has images of shape {data.image_shape}, but the model expects {shape}")
    pixels = (images * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    return torch.stack([square(image) for image in pixels]).float() / 255
