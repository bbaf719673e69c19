"""Images with captions: what a contrastive trainer draws its batches from."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from antiphase.data.decoding import decode_whole
from antiphase.data.prefetch import in_threads
from antiphase.data.tar_members import file_size
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.streams import generator


@dataclass(frozen=True)
class PairBatch:
    """One process's share of a batch, as it was decoded: nothing is resized yet.

    Attributes:
        ids: stable number of each sample; augmentation is keyed by them.
        images: RGB, each of its own size.
        captions: all captions of each image.
        size: samples in the whole batch, over all processes, bad ones included.
        bad: what could not be used since the last batch, one line each.
    """

    ids: Int64[Tensor, " share"]
    images: list[UInt8[Tensor, "3 height width"]]
    captions: list[tuple[str, ...]]
    size: int
    bad: tuple[str, ...] = ()


class PairSource(Protocol):
    """What a contrastive trainer needs of its data: a set in random order, or a stream of shards."""

    @property
    def name(self) -> str:
        """The source's name, as given to ``load_pairs``."""
        ...

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many whole batches an epoch has."""
        ...

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        """Yield this process's share of the batches of an epoch from step ``first`` on.

        What a step holds depends on (seed, epoch, step) alone, so that a resumed run sees the same batches,
        and the shares of all processes make up the batch of one process.
        """
        ...

    def fingerprint(self) -> str:
        """Return a digest of what the data are, for the identity of a run."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class PairSet(ABC):
    """Images with captions and stable ids, in random access.

    Attributes:
        name: the source's name, as given to ``load_pairs``.
        split: the split's own name, such as ``"train"``.
        ids: position of each sample in the full split; subsets keep them.
        captions: at least one for each image; the first is the one that retrieval takes where it takes one.
        labels: index into ``class_names``; None where the source has no classes.
        class_names: one name for each label.
        skipped: what was left out, one line each.
        prompts: texts for each class that a model is bound to in place of its name; None: the name.
    """

    name: str
    split: str
    ids: Int64[Tensor, " n"]
    captions: tuple[tuple[str, ...], ...]
    labels: Int64[Tensor, " n"] | None = None
    class_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    prompts: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        if len(self.captions) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but captions for {len(self.captions)}")
        if not len(self.ids):
            raise UserError(f"{self.name} ({self.split}): no pair of an image and a caption in it")

    @abstractmethod
    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        """Return one image as it is, RGB.

        Raises:
            UserError: it cannot be read.
        """

    @abstractmethod
    def take(self, positions: Sequence[int] | Tensor) -> "PairSet":
        """Return the samples at ``positions``, in that order, with their ids, captions and labels."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 of images, captions and ids: the same for the same pairs on any machine."""

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, limit: int | None, seed: int | None = None) -> "PairSet":
        """Return ``limit`` samples in their own order, all where it is None.

        Without a seed they are the first ones, else the first of the seed's permutation.
        """
        if limit is None or limit >= len(self):
            return self
        if seed is None:
            return self.take(range(limit))
        return self.take(torch.randperm(len(self), generator=generator(seed, "subset"))[:limit].sort().values)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many whole batches an epoch has; the rest of the samples sit it out.

        Raises:
            UserError: there is not one whole batch.
        """
        if not 1 <= batch_size <= len(self):
            raise UserError(f"batch size {batch_size}: expected 1 to {len(self)}, the pairs of {self.name}")
        return len(self) // batch_size

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        """Yield this process's share of each batch, as :class:`PairSource` says."""
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

        # two batches ahead; the threads share out images, not batches
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
@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayPairs(PairSet):
    """Pairs held in memory.

    Attributes:
        array: the images, all of one size.
    """

    array: UInt8[Tensor, "n 3 height width"]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        """Return one image."""
        return self.array[position]

    def take(self, positions: Sequence[int] | Tensor) -> "ArrayPairs":
        """Return the samples at ``positions``, in that order."""
        return replace(self, **_rows(self, positions), array=self.array[torch.as_tensor(positions)])

    def fingerprint(self) -> str:
        """Return the SHA-256 of pixels, captions, labels and ids."""
        return digest(f"pairs {tuple(self.array.shape)}", self.array.numpy().tobytes(), *_described(self))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class FilePairs(PairSet):
    """Image files with captions, decoded when they are asked for.

    Attributes:
        root: the folder that ``files`` are relative to; not part of the fingerprint.
        files: relative names with forward slashes, one for each sample.
    """

    root: Path
    files: tuple[str, ...]

    def pixels(self, position: int) -> UInt8[Tensor, "3 height width"]:
        """Decode one file.

        Raises:
            UserError: it cannot be read; the line names it.
        """
        return decode_whole(self.root / self.files[position])

    def take(self, positions: Sequence[int] | Tensor) -> "FilePairs":
        """Return the samples at ``positions``, in that order."""
        files = tuple(self.files[int(row)] for row in positions)
        return replace(self, **_rows(self, positions), files=files)

    def fingerprint(self) -> str:
        """Return the SHA-256 of names and sizes of the files, captions, labels and ids."""
        named = [f"{_size(self.root / file)} {file}" for file in self.files]
        return digest("file pairs", *named, *_described(self))


def _size(file: Path) -> int | str:
    """Return a file's size; one that is missing is a bad sample when its turn comes."""
    try:
        return file_size(file)
    except OSError:
        return "absent"


def _rows(pairs: PairSet, positions: Sequence[int] | Tensor) -> dict[str, object]:
    rows = torch.as_tensor(positions, dtype=torch.int64)
    labels = None if pairs.labels is None else pairs.labels[rows]
    return {
        "ids": pairs.ids[rows],
        "captions": tuple(pairs.captions[row] for row in rows.tolist()),
        "labels": labels,
    }


def _described(pairs: PairSet) -> list[bytes | str]:
    captions = ["\x1f".join(several) for several in pairs.captions]
    labels = b"" if pairs.labels is None else pairs.labels.numpy().astype("<i8").tobytes()
    return [*captions, labels, "\x1f".join(pairs.class_names), pairs.ids.numpy().astype("<i8").tobytes()]
