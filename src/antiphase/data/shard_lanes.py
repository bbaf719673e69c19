"""Shards dealt to lanes: each lane is read over and over in a random order by key, a few steps ahead."""

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
"""A lane's samples of one step, and what could not be used since its step before, one line each."""


@dataclass(frozen=True)
class ShardLane:
    """A share of the shards, read over and over in an order that depends on nothing but these fields.

    Attributes:
        source: the name of the stream, for messages.
        number: which lane it is.
        shards: its own.
        seed: of the run.
        epoch: from 0.
        buffer: samples that are held at a time, from which the next one is drawn.
    """

    source: str
    number: int
    shards: tuple[Shard, ...]
    seed: int
    epoch: int
    buffer: int

    def chunks(self, size: int, steps: range, stop: threading.Event) -> Generator[Chunk, None, None]:
        """Yield the lane's samples of each step in turn; those before ``steps.start`` are read and left out.

        Args:
            size: samples in a step.
            steps: of the epoch, one after another.
            stop: once it is set, no more is read.

        Raises:
            UserError: the lane holds no usable sample.
        """
        bad: list[str] = []
        samples = self._samples(bad, stop)
        for step in range(steps.stop):
            chunk = list(itertools.islice(samples, size))
            if step in steps:
                yield chunk, tuple(bad)
            bad.clear()

    def _samples(self, bad: list[str], stop: threading.Event) -> Iterator[RawSample]:
        """Yield pass after pass over the shards, each in an order of its own."""
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
                    f"shards, the first of which is {self.shards[0].name}{reason}: mend or leave out these "
                    "shards, or use fewer lanes"
                )


def shuffled(samples: Iterator[RawSample], buffer: int, random: torch.Generator) -> Iterator[RawSample]:
    """Yield the samples in random order, as far as a buffer allows: any of the ``buffer`` held ones is next."""
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

    One thread for all lanes: with one for each they waited for Python's lock and were no faster.

    Raises:
        UserError: a lane holds no usable sample.
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
    """Nobody waits for what is being read."""


def _goes_on(stop: threading.Event) -> bool:
    if stop.is_set():
        raise _StoppedError
    return True
