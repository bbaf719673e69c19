"""The loop of every run: read what is on disk, divide what is missing among the processes, store it as it comes."""

import contextlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl

from antiphase.files import digest
from antiphase.runs.journal import Journal
from antiphase.runs.processes import Process

_SLICE_BYTES = 2**28  # of images in memory at once

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def missing(wanted: Iterable[Item], stored: Callable[[Item], bool], process: Process) -> list[Item]:
    """Return what is not stored yet, once every process has looked."""
    found = [item for item in wanted if not stored(item)]
    process.wait()  # nobody writes before everybody has read
    return found


def slice_size(shape: tuple[int, int, int]) -> int:
    """Return how many images of this shape are loaded at once."""
    return max(1, _SLICE_BYTES // (4 * math.prod(shape)))


class Cache(Generic[Key]):
    """Rows in cells of a run directory, completed by all its processes together.

    A cell is a folder named by the hash of what its rows depend on. Every process opens the cache, appends rows
    within :meth:`filling` and calls :meth:`collect`.

    Args:
        out: run directory; the cells lie under ``cells/``.
        cells: what the rows of each cell depend on, by a key for the cell.
        schema: of the rows; the column ``sample`` tells which sample a row belongs to.
        wanted: the key of the cell and the sample, for each sample wanted.
        process: this process; it makes its share of what is missing.
    """

    def __init__(
        self,
        out: Path,
        cells: Mapping[Key, Mapping[str, Any]],
        schema: Mapping[str, Any],
        wanted: Sequence[tuple[Key, int]],
        process: Process,
    ) -> None:
        self.wanted, self.process, self.warnings = wanted, process, dict[str, None]()
        self.journals: dict[Key, Journal] = {}
        stored: set[tuple[Key, int]] = set()
        for key, what in cells.items():
            name = digest(json.dumps(what, sort_keys=True))[:16]
            self.journals[key] = Journal(out / "cells" / name, schema, process.rank)
            stored |= {(key, sample) for sample in self.journals[key].rows()["sample"]}
        self.missing = missing(range(len(wanted)), lambda at: wanted[at] in stored, process)
        self.mine = process.share(self.missing)

    @contextlib.contextmanager
    def filling(self, size: int) -> Iterator[Iterator[list[int]]]:
        """Yield the positions in ``wanted`` that this process makes, ``size`` at a time.

        Appended rows reach the disk after each part, and whatever stops the work.
        """

        def parts() -> Iterator[list[int]]:
            for start in range(0, len(self.mine), size):
                yield self.mine[start : start + size]
                self._flush()

        try:
            yield parts()
        finally:
            self._flush()

    def collect(self) -> dict[Key, pl.DataFrame]:
        """Return the rows that all processes stored, by cell, and note their ``warnings``; leave one file a cell."""
        self.process.wait()
        rows = {key: journal.rows() for key, journal in self.journals.items()}
        for journal in self.journals.values():
            self.warnings.update(dict.fromkeys(journal.warnings()))
        self.process.wait()  # nobody tidies up before everybody has read
        if self.process.first:
            for key in {self.wanted[at][0] for at in self.missing}:
                self.journals[key].compact(rows[key])
        self.process.wait()  # nobody reads again while files are deleted
        return rows

    def _flush(self) -> None:
        for journal in self.journals.values():
            journal.flush()
