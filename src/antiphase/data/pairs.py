"""Images with captions, and their batches for contrastive training."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from antiphase.arguments import validated
from antiphase.data.archives import changed, file_size
from antiphase.data.decoding import Square, decode_whole, in_threads
from antiphase.data.images import FileImages, ImageSet
from antiphase.data.objects import ImageObjects
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.streams import generator


@dataclass(frozen=True)
class PairBatch:
    """One process's share of a batch, decoded but not resized.

    Attributes:
        ids: stable id of each sample, which keys its augmentation.
        images: RGB images, each at its own size.
        captions: all captions of each image.
        size: samples in the whole batch over all processes, including bad ones.
        bad: one line for each unusable sample since the last batch.
    """

    ids: Int64[Tensor, " share"]
    images: list[UInt8[Tensor, "3 height width"]]
    captions: list[tuple[str, ...]]
    size: int
    bad: tuple[str, ...] = ()


class PairSource(Protocol):
    """Interface of training pairs: a set in random order, or a stream of shards."""

    @property
    def name(self) -> str: ...

    def steps_per_epoch(self, batch_size: int) -> int: ...

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        """Yield this process's share of each batch of an epoch, from step ``first`` on.

        A batch depends only on (seed, epoch, step), so a resumed run sees the same batches, and the shares of all
        processes form the batch that a single process would see.
        """
        ...

    def fingerprint(self) -> str: ...


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PairSet(ABC):
    """Images with captions and stable ids, with random access.

    Attributes:
        name: the source's name, as given to ``load_pairs``.
        split: the split's own name, such as ``"train"``.
        ids: position of each sample in the full split; kept by subsets.
        captions: at least one per image; tasks with one caption per image use the first.
        labels: indices into ``class_names``; None if the source has no classes.
        class_names: one name for each label.
        skipped: one line for each sample that was left out.
        prompts: prompts of each class for a dual encoder; None: made from its name.
        objects: what is seen where in each image; None if the source does not say.
    """

    name: str
    split: str
    ids: Int64[Tensor, " n"]
    captions: tuple[tuple[str, ...], ...]
    labels: Int64[Tensor, " n"] | None = None
    class_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    prompts: tuple[tuple[str, ...], ...] | None = None
    objects: tuple[tuple[ImageObjects, ...], ...] | None = None

    def __post_init__(self) -> None:
        if len(self.captions) != len(self.ids):
            raise UserError(f"{len(self.ids)} ids but captions for {len(self.captions)}")
        if not len(self.ids):
            raise UserError(
                f"{self.name} ({self.split}): no pairs found; expected at least one captioned image"
            )

    @abstractmethod
    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        """Return one image as RGB at its own size.

        Raises:
            UserError: if the image is unreadable.
        """

    @abstractmethod
    def take(self, positions: Sequence[int] | Tensor) -> "PairSet":
        """Return the samples at ``positions``, in that order, with their ids, captions and labels."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 of images, captions and ids; equal on all machines."""

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        captions = sum(map(len, self.captions))
        return (
            f"<{type(self).__name__} {self.name} ({self.split}): {len(self):,} images, {captions:,} captions>"
        )

    def subset(self, limit: int | None, seed: int | None = None) -> "PairSet":
        """Return at most ``limit`` samples in their own order: the first, or the first of a seed's permutation."""
        if limit is None or limit >= len(self):
            return self
        if seed is None:
            return self.take(range(limit))
        return self.take(torch.randperm(len(self), generator=generator(seed, "subset"))[:limit].sort().values)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of whole batches per epoch; remaining samples are not used in that epoch.

        Raises:
            UserError: if there are fewer samples than the batch size.
        """
        if not 1 <= batch_size <= len(self):
            raise UserError(
                f"batch size {batch_size}: expected 1 to {len(self)}, the number of pairs in {self.name}"
            )
        return len(self) // batch_size

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        order = torch.randperm(len(self), generator=generator(seed, "order", epoch)).tolist()
        shares = [
            order[step * batch_size : (step + 1) * batch_size][rank::world]
            for step in range(first, self.steps_per_epoch(batch_size))
        ]

        def decoded(row: int) -> UInt8[Tensor, "3 height width"] | UserError:
            try:
                return self.pixels(row)
            except UserError as error:
                return error

        # decode two batches ahead; threads work on single images
        every = in_threads(decoded, itertools.chain(*shares), ahead=2 * max(map(len, shares), default=1))
        for rows in shares:
            found = [(row, next(every)) for row in rows]
            good = [(row, image) for row, image in found if not isinstance(image, UserError)]
            kept = [row for row, _ in good]
            yield PairBatch(
                ids=self.ids[kept],
                images=[image for _, image in good],
                captions=[self.captions[row] for row in kept],
                size=batch_size,
                bad=tuple(str(image) for _, image in found if isinstance(image, UserError)),
            )


@final
@validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ArrayPairs(PairSet):
    """Pairs held in memory, with images of one size."""

    array: UInt8[Tensor, "n 3 height width"]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        return self.array[position]

    def take(self, positions: Sequence[int] | Tensor) -> "ArrayPairs":
        return replace(self, **_rows(self, positions), array=self.array[torch.as_tensor(positions)])

    def fingerprint(self) -> str:
        return digest(f"pairs {tuple(self.array.shape)}", self.array.numpy().tobytes(), *_described(self))


@final
@validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FilePairs(PairSet):
    """Image files with captions, decoded on demand.

    Attributes:
        root: folder of the files; not part of the fingerprint.
        files: names relative to ``root``, with forward slashes.
    """

    root: Path
    files: tuple[str, ...]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        return decode_whole(self.root / self.files[position])

    def take(self, positions: Sequence[int] | Tensor) -> "FilePairs":
        files = tuple(self.files[int(row)] for row in positions)
        return replace(self, **_rows(self, positions), files=files)

    def fingerprint(self) -> str:
        """Return the SHA-256 of names and sizes of the files, captions, labels and ids."""
        named = [f"{_size(self.root / file)} {file}" for file in self.files]
        return digest("file pairs", *named, *_described(self))


def _size(file: Path) -> int | str:
    """Return a file's size; a missing file is a bad sample later, not an error here."""
    try:
        return file_size(file)
    except OSError:
        return "absent"


def _rows(pairs: PairSet, positions: Sequence[int] | Tensor) -> dict[str, object]:
    rows = torch.as_tensor(positions, dtype=torch.int64)
    labels = None if pairs.labels is None else pairs.labels[rows]
    objects = None if pairs.objects is None else tuple(pairs.objects[row] for row in rows.tolist())
    return {
        "ids": pairs.ids[rows],
        "captions": tuple(pairs.captions[row] for row in rows.tolist()),
        "labels": labels,
        "objects": objects,
    }


def _described(pairs: PairSet) -> list[bytes | str]:
    captions = ["\x1f".join(several) for several in pairs.captions]
    labels = b"" if pairs.labels is None else pairs.labels.numpy().astype("<i8").tobytes()
    return [*captions, labels, "\x1f".join(pairs.class_names), pairs.ids.numpy().astype("<i8").tobytes()]


def content_key(data: ImageSet | PairSet) -> str:
    """Return a key of the images for caches on this machine.

    For files it combines the fingerprint with the modification times, because the fingerprint (names and sizes) does
    not distinguish a folder of bitmaps from a corrupted copy.

    Raises:
        UserError: if a file was removed.
    """
    if not isinstance(data, (FileImages, FilePairs)):
        return data.fingerprint()
    try:
        times = [str(changed(data.root / file)) for file in data.files]
    except OSError as error:
        raise UserError(f"{data.name}: {error.filename} was removed after the set was listed") from error
    return digest(data.fingerprint(), *times)


def model_images(
    data: ImageSet | PairSet, positions: Sequence[int], square: Square, channels: int = 3
) -> Float[Tensor, "b channels size size"]:
    """Return images as float32 in [0, 1] with the model's size and number of channels.

    Grey images are repeated over three channels if needed; arrays of the model's size are not changed.

    Args:
        data: labelled images or pairs.
        positions: positions of the images in ``data``.
        square: the model's preprocessing.
        channels: the model's number of channels.

    Raises:
        UserError: if an image is unreadable, or is in colour and the model expects grey.
    """
    if isinstance(data, FileImages):
        return data.resized(square, channels).images(positions)
    if isinstance(data, PairSet):
        if channels != 3:
            raise UserError(f"{data.name} is in colour, but the model expects grey images; use other data")
        return (
            torch.stack(list(in_threads(lambda at: square(data.pixels(at)), map(int, positions)))).float()
            / 255
        )
    images = data.images(positions)
    if images.shape[1:] == (channels, square.size, square.size):
        return images
    if channels != 3:
        raise UserError(
            f"{data.name} has images of shape {data.image_shape}, but the model expects "
            f"{(channels, square.size, square.size)}; use other data"
        )
    pixels = (images * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    return torch.stack([square(image) for image in pixels]).float() / 255
