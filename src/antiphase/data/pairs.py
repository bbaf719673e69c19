"""Images with captions, their batches for contrastive training, and images of any set as a model wants them."""

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, final

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from antiphase.arguments import validated
from antiphase.data.archives import changed, file_size
from antiphase.data.decoding import Square, decode_whole, in_threads
from antiphase.data.images import FileImages, ImageSet, Samples, little_endian, still_there
from antiphase.data.objects import ImageObjects
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.streams import generator


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
class PairSet(Samples):
    """Images with captions and stable ids, with random access, like :class:`~antiphase.data.ImageSet`.

    Attributes:
        captions: at least one per image; tasks with one caption per image use the first.
        labels: None if the source has no classes.
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
                f"{self.name} ({self.split}): no pairs found; expected at least one with a caption"
            )

    @abstractmethod
    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        """Return one image as RGB at its own size."""

    def __repr__(self) -> str:
        counts = f"{len(self):,} images, {sum(map(len, self.captions)):,} captions"
        return f"<{type(self).__name__} {self.name} ({self.split}): {counts}>"

    def subset(self, limit: int | None, seed: int | None = None) -> Self:
        """Return at most ``limit`` samples in their own order: the first, or the first of a seed's permutation."""
        if limit is None or limit >= len(self):
            return self
        if seed is None:
            return self.take(range(limit))
        return self.take(torch.randperm(len(self), generator=generator(seed, "subset"))[:limit].sort().values)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of whole batches per epoch; remaining samples are not used in that epoch."""
        check_batch_size(self.name, batch_size, len(self))
        return len(self) // batch_size

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        steps = range(first, self.steps_per_epoch(batch_size))
        order = torch.randperm(len(self), generator=generator(seed, "order", epoch)).tolist()
        shares = [order[step * batch_size : (step + 1) * batch_size][rank::world] for step in steps]

        def decoded(row: int) -> UInt8[Tensor, "3 height width"] | UserError:
            try:
                return self.pixels(row)
            except UserError as error:
                return error

        # decode two batches ahead; threads work on single images
        images = in_threads(decoded, itertools.chain(*shares), ahead=2 * max(map(len, shares), default=1))
        for rows in shares:
            outcomes = dict(zip(rows, images, strict=False))
            good = {row: image for row, image in outcomes.items() if isinstance(image, Tensor)}
            yield PairBatch(
                ids=self.ids[[*good]],
                images=[*good.values()],
                captions=[self.captions[row] for row in good],
                size=batch_size,
                bad=tuple(str(image) for image in outcomes.values() if isinstance(image, UserError)),
            )

    def _described(self) -> list[bytes | str]:
        """Return what belongs to the images, for the fingerprint."""
        captions = ["\x1f".join(several) for several in self.captions]
        labels = b"" if self.labels is None else little_endian(self.labels)
        return [*captions, labels, "\x1f".join(self.class_names), little_endian(self.ids)]


@final
@validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ArrayPairs(PairSet):
    """Pairs held in memory, with images of one size."""

    array: UInt8[Tensor, "n 3 height width"]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        return self.array[position]

    def fingerprint(self) -> str:
        return digest(f"pairs {tuple(self.array.shape)}", self.array.numpy().tobytes(), *self._described())


@final
@validated
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FilePairs(PairSet):
    """Image files with captions, decoded on demand; ``files`` are relative to ``root``, with forward slashes."""

    root: Path
    files: tuple[str, ...]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        return decode_whole(self.root / self.files[position])

    def fingerprint(self) -> str:
        """Return the SHA-256 of names and sizes of the files, captions, labels and ids."""
        named = [f"{_size(self.root / file)} {file}" for file in self.files]
        return digest("file pairs", *named, *self._described())


def _size(file: Path) -> int | str:
    """Return a file's size; a missing file is a bad sample later, not an error here."""
    try:
        return file_size(file)
    except OSError:
        return "absent"


def content_key(data: ImageSet | PairSet) -> str:
    """Return a key of the images for caches on this machine: the fingerprint, and modification times of files.

    Names and sizes do not distinguish a folder of bitmaps from a corrupted copy.
    """
    if not isinstance(data, FileImages | FilePairs):
        return data.fingerprint()
    with still_there(data.name):
        times = [str(changed(data.root / file)) for file in data.files]
    return digest(data.fingerprint(), *times)


def model_images(
    data: ImageSet | PairSet, positions: Sequence[int], square: Square, channels: int = 3
) -> Float[Tensor, "b channels size size"]:
    """Return images as float32 in [0, 1] with the size of ``square``, a model's preprocessing, and its channels.

    Grey images are repeated over three channels if needed; arrays of the model's size are not changed.
    """
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
