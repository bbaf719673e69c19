"""Lanes of shards: each is read repeatedly in a keyed random order, a few steps ahead."""

import itertools
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from antiphase.data.shard_files import Shard
from antiphase.data.shard_reading import RawSample, read_shard
from antiphase.errors import UserError
from antiphase.streams import generator

READ_AHEAD = 4  # steps

Chunk = tuple[list[RawSample], tuple[str, ...]]
"""A lane's samples of one step, and one line for each unusable sample since its previous step."""


@dataclass(frozen=True)
class ShardLane:
    """A subset of the shards, read repeatedly in an order that depends only on these fields.

    Attributes:
        source: name of the stream in error messages.
        number: index of the lane.
        shards: shards of the lane.
        seed: random seed of the run.
        epoch: epoch, from 0.
        buffer: size of the shuffle buffer, in samples.
    """

    source: str
    number: int
    shards: tuple[Shard, ...]
    seed: int
    epoch: int
    buffer: int

    def chunks(self, size: int, steps: range, stop: threading.Event) -> Generator[Chunk, None, None]:
        """Yield the lane's samples of each step; samples before ``steps.start`` are read and dropped.

        Args:
            size: samples per step.
            steps: consecutive steps of the epoch.
            stop: reading stops when it is set.

        Raises:
            UserError: if the lane has no usable samples.
        """
        bad: list[str] = []
        samples = self._samples(bad, stop)
        for step in range(steps.stop):
            chunk = list(itertools.islice(samples, size))
            if step in steps:
                yield chunk, tuple(bad)
            bad.clear()

    def _samples(self, bad: list[str], stop: threading.Event) -> Iterator[RawSample]:
        """Yield the samples of repeated passes over the shards, each in its own order."""
        for number in itertools.count():
            keys = (self.number, self.epoch, number)
            order = torch.randperm(len(self.shards), generator=generator(self.seed, "shards", *keys))
            raw = (
                sample
                for row in order.tolist()
                for sample in read_shard(self.shards[row], bad.append)
                if _goes_on(stop)
            )
            found = False
            for sample in shuffled(raw, self.buffer, generator(self.seed, "shard buffer", *keys)):
                found = True
                yield sample
            if not found:
                reason = f"; {bad[-1]}" if bad else ""
                raise UserError(
                    f"{self.source}: lane {self.number} has no usable sample in its {len(self.shards)} "
                    f"shards, the first is {self.shards[0].name}{reason}: repair or remove these shards, or use "
                    "fewer lanes"
                )


def shuffled(samples: Iterator[RawSample], buffer: int, random: torch.Generator) -> Iterator[RawSample]:
    """Shuffle the samples with a buffer of the given size."""
    held: list[RawSample] = []
    for sample in samples:
        if len(held) < buffer:
            held.append(sample)
            continue
        place = int(torch.randint(buffer, (1,), generator=random))
        yield held[place]
        held[place] = sample
    for place in torch.randperm(len(held), generator=random).tolist():
        yield held[place]


def read_ahead(lanes: Sequence[ShardLane], size: int, steps: range) -> Iterator[list[Chunk]]:
    """Yield each step's chunks, lane by lane, while a thread reads the next few steps.

    One thread serves all lanes; one per lane was no faster because of Python's lock.

    Raises:
        UserError: if a lane has no usable samples.
    """
    stop = threading.Event()
    chunks = [lane.chunks(size, steps, stop) for lane in lanes]
    pool = ThreadPoolExecutor(1)

    def read(step: int) -> list[Chunk]:
        return [next(lane) for lane in chunks]

    try:
        waiting = deque(pool.submit(read, step) for step in steps[:READ_AHEAD])
        for step in steps:
            yield waiting.popleft().result()
            if step + READ_AHEAD in steps:
                waiting.append(pool.submit(read, step + READ_AHEAD))
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
        for lane in chunks:
            lane.close()


class _StoppedError(Exception):
    """Reading was stopped because the consumer has finished."""


def _goes_on(stop: threading.Event) -> bool:
    if stop.is_set():
        raise _StoppedError
    return True
