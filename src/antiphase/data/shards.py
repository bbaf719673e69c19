"""Images with captions from webdataset shards, as a stream that can be resumed at any step."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import final

import torch
from jaxtyping import UInt8
from torch import Tensor

from antiphase.data.decoding import decode_whole
from antiphase.data.pairs import PairBatch
from antiphase.data.prefetch import in_threads
from antiphase.data.root import data_root
from antiphase.data.shard_files import Shard, count_samples, find_shards
from antiphase.data.shard_lanes import ShardLane, read_ahead
from antiphase.data.shard_reading import RawSample
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.streams import key

BUFFER = 1000  # samples
_LANES = (8, 4, 2, 1)


@final
@dataclass(frozen=True)
class ShardStream:
    """Pairs from tar files in img2dataset's layout: KEY.jpg, .png, .webp or .jpeg, KEY.txt, maybe KEY.json.

    The shards are dealt to ``lanes``, of which each gives the same number of samples to every batch, and a
    process of rank r reads the lanes r, r + world, ...: so a step holds the same samples for any number of
    processes. Within a lane the order of the shards is permuted, samples pass through a shuffle buffer, and
    a lane that comes to its end before the epoch does begins again; each is drawn by (seed, epoch, lane,
    pass). An epoch is ``samples // batch_size`` steps: where the lanes are of unequal size, it leaves out a
    few samples of the longer ones and repeats some of the shorter.

    Sources: img2dataset (https://github.com/rom1504/img2dataset) for the layout; webdataset reads it.

    Attributes:
        name: as given to ``load_pairs``.
        shards: the tar files, in order.
        samples: in an epoch.
        lanes: at most the number of shards; a part of what the batches are.
        buffer: samples that each lane holds and draws from; also a part of what the batches are.
    """

    name: str
    shards: tuple[Shard, ...]
    samples: int
    lanes: int
    buffer: int = BUFFER

    def __post_init__(self) -> None:
        for label, value in (("samples", self.samples), ("buffer", self.buffer)):
            if value < 1:
                raise UserError(f"{self.name}: {label} {value} must be at least 1")
        if not 1 <= self.lanes <= len(self.shards):
            raise UserError(
                f"{self.name}: lanes {self.lanes}: expected 1 to {len(self.shards)}, the number of shards"
            )

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many whole batches an epoch has.

        Raises:
            UserError: there is not one, or the lanes cannot share a batch evenly.
        """
        if not 1 <= batch_size <= self.samples:
            raise UserError(
                f"batch size {batch_size}: expected 1 to {self.samples}, the samples of {self.name}"
            )
        if batch_size % self.lanes:
            near = max(batch_size // self.lanes, 1) * self.lanes
            raise UserError(
                f"batch size {batch_size}: expected a multiple of {self.lanes}, the lanes of {self.name}: "
                f"use {near}, or --lanes {_divisor(batch_size, self.lanes)}"
            )
        return self.samples // batch_size

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        """Yield this process's share of each batch, as :class:`~antiphase.data.pairs.PairSource` says.

        Where ``first`` is not 0, the steps before it are read and thrown away undecoded. What a batch names
        as bad are its own broken images, each of which makes it smaller by one, and what was met in the
        shards since the batch before, in whose place the next sample came.

        Raises:
            UserError: the numbers do not divide each other, or a lane holds no usable sample.
        """
        steps = self.steps_per_epoch(batch_size)
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world} processes")
        if self.lanes % world:
            raise UserError(
                f"{self.name}: {world} processes cannot share {self.lanes} lanes evenly: use "
                f"{_divisor(self.lanes, world)} of them, or a --lanes that is a multiple of {world}, divides "
                f"the batch size {batch_size} and is at most {len(self.shards)}, the number of shards"
            )
        lanes = [
            ShardLane(self.name, number, self.shards[number :: self.lanes], seed, epoch, self.buffer)
            for number in range(rank, self.lanes, world)
        ]
        return self._batches(lanes, batch_size, range(min(first, steps), steps))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' names and sizes, or URLs, and of samples, lanes and buffer."""
        try:
            told = [
                f"{Path(shard.place).stat().st_size} {shard.name}" if shard.local else shard.place
                for shard in self.shards
            ]
        except OSError as error:
            raise UserError(f"{self.name}: {error.filename} is gone since the shards were listed") from error
        return digest("shards", f"{self.samples} {self.lanes} {self.buffer}", *told)

    def _batches(self, lanes: list[ShardLane], batch_size: int, steps: range) -> Iterator[PairBatch]:
        size = batch_size // self.lanes
        share = size * len(lanes)
        met: deque[list[str]] = deque()

        def samples() -> Iterator[RawSample]:
            for chunks in read_ahead(lanes, size, steps):
                met.append([line for _, lines in chunks for line in lines])
                for chunk, _ in chunks:
                    yield from chunk

        decoded = in_threads(_decoded, samples(), ahead=2 * share)
        while outcomes := list(islice(decoded, share)):
            good = [(sample, pixels) for sample, pixels in outcomes if isinstance(pixels, Tensor)]
            bad = met.popleft() + [line for _, line in outcomes if isinstance(line, str)]
            ids = [key("shard", sample.shard, sample.key) for sample, _ in good]
            yield PairBatch(
                torch.tensor(ids, dtype=torch.int64),
                [pixels for _, pixels in good],
                [(sample.caption,) for sample, _ in good],
                batch_size,
                tuple(bad),
            )


def open_shards(
    patterns: str | Sequence[str],
    *,
    samples: int | None = None,
    lanes: int | None = None,
    buffer: int = BUFFER,
    root: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> ShardStream:
    """Return the stream of the shards that a pattern names.

    Args:
        patterns: as :func:`~antiphase.data.shard_files.find_shards` takes them.
        samples: in an epoch; else what :func:`~antiphase.data.shard_files.count_samples` finds.
        lanes: see :class:`ShardStream`; else the largest of 1, 2, 4 and 8 that is not above the number of
            shards.
        buffer: samples that each lane holds, all in memory.
        root: folder of the data sets, where counts are kept.
        progress: show a bar on stderr while samples are counted.

    Raises:
        UserError: the pattern matches nothing, a number is out of range, or samples cannot be counted.
    """
    shards = find_shards(patterns)
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    name = f"shards:{listed[0]}" + (f" and {len(listed) - 1} more" if len(listed) > 1 else "")
    if samples is None:
        samples = count_samples(name, shards, data_root(root), progress=progress)
    if lanes is None:
        lanes = next(count for count in _LANES if count <= len(shards))
    return ShardStream(name, shards, samples, lanes, buffer)


def _decoded(sample: RawSample) -> tuple[RawSample, UInt8[Tensor, "3 height width"] | str]:
    """Return the sample with its pixels, or with the line that says why it has none."""
    file = f"{sample.key}.{sample.suffix}"
    try:
        return sample, decode_whole(sample.image, file)
    except UserError as error:
        reason = str(error.__cause__).partition(" <_io")[0]  # Pillow names the address of the bytes
        return sample, f"{sample.shard}: {file} cannot be read as an image ({' '.join(reason.split())})"


def _divisor(whole: int, most: int) -> int:
    """Return the largest divisor of ``whole`` that is at most ``most``."""
    return next(part for part in range(min(whole, most), 0, -1) if whole % part == 0)
