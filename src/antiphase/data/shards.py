"""Image–caption pairs from webdataset shards, as a stream that can be resumed at any step."""

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
    """Pairs from tar files in img2dataset's layout: KEY.jpg, .png, .webp or .jpeg, KEY.txt, optionally KEY.json.

    The shards are distributed over ``lanes``. Every batch takes the same number of samples from each lane, and the
    process of rank r reads the lanes r, r + world, …, so that a batch does not depend on the number of processes.
    Within a lane the shards are permuted and samples pass through a shuffle buffer, both keyed by (seed, epoch, lane,
    pass); a lane that ends before the epoch starts again. An epoch has ``samples // batch_size`` steps: if lanes have
    different sizes, it omits a few samples of the longer ones and repeats some of the shorter ones.

    Sources: img2dataset (https://github.com/rom1504/img2dataset) for the layout; webdataset to read it.

    Attributes:
        name: as given to ``load_pairs``.
        shards: the tar files in order.
        samples: samples per epoch.
        lanes: number of lanes, at most the number of shards; affects the batches.
        buffer: size of each lane's shuffle buffer, in samples; affects the batches.
    """

    name: str
    shards: tuple[Shard, ...]
    samples: int
    lanes: int
    buffer: int = BUFFER

    def __post_init__(self) -> None:
        for label, value in (("samples", self.samples), ("buffer", self.buffer)):
            if value < 1:
                raise UserError(f"{self.name}: {label} {value}: expected an integer of at least 1")
        if not 1 <= self.lanes <= len(self.shards):
            raise UserError(
                f"{self.name}: lanes {self.lanes}: expected 1 to {len(self.shards)}, the number of shards"
            )

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of whole batches per epoch.

        Raises:
            UserError: if there is none, or the batch size is not a multiple of the lanes.
        """
        if not 1 <= batch_size <= self.samples:
            raise UserError(
                f"batch size {batch_size}: expected 1 to {self.samples}, the number of samples in {self.name}"
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
        """Yield this process's share of each batch, see :class:`~antiphase.data.pairs.PairSource`.

        Steps before ``first`` are read but not decoded. ``bad`` lists broken images, each of which makes the batch
        smaller by one, and unusable entries of the shards, which are replaced by the next sample.

        Raises:
            UserError: if batch size, lanes and processes do not divide evenly, or a lane has no usable samples.
        """
        steps = self.steps_per_epoch(batch_size)
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world} processes: expected 0 to {world - 1}")
        if self.lanes % world:
            raise UserError(
                f"{self.name}: {world} processes cannot share {self.lanes} lanes evenly: use "
                f"{_divisor(self.lanes, world)} processes, or --lanes with a multiple of {world} that divides "
                f"the batch size {batch_size} and is at most {len(self.shards)}, the number of shards"
            )
        lanes = [
            ShardLane(self.name, number, self.shards[number :: self.lanes], seed, epoch, self.buffer)
            for number in range(rank, self.lanes, world)
        ]
        return self._batches(lanes, batch_size, range(min(first, steps), steps))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' names and sizes (or URLs), samples, lanes and buffer."""
        try:
            told = [
                f"{Path(shard.place).stat().st_size} {shard.name}" if shard.local else shard.place
                for shard in self.shards
            ]
        except OSError as error:
            raise UserError(
                f"{self.name}: {error.filename} was removed after the shards were listed"
            ) from error
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
    """Open a stream of shards.

    Args:
        patterns: as for :func:`~antiphase.data.shard_files.find_shards`.
        samples: samples per epoch; None: :func:`~antiphase.data.shard_files.count_samples`.
        lanes: see :class:`ShardStream`; None: the largest of 1, 2, 4 and 8 that is at most the number of shards.
        buffer: size of each lane's shuffle buffer, in samples.
        root: data folder, where counts are cached, and shards lie that the working directory does not have.
        progress: show a progress bar on stderr while samples are counted.

    Raises:
        UserError: if no shard matches, a number is out of range, or samples cannot be counted.
    """
    shards = find_shards(patterns, data_root(root))
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
