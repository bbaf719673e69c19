"""Rows stored on disk as they are made, so that a killed measurement can resume."""

import contextlib
import hashlib
import io
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from antiphase.errors import UserError
from antiphase.files import digest, read_json, read_rows, write_bytes, write_json
from antiphase.processes import Item, Process

_NAME = re.compile(r"[0-9]+-[0-9]+(-[0-9a-f]{16})?\.parquet")  # writer, number, digest
_AGAIN = "delete it and its rows are made again"
_FLUSH_SECONDS = 2.0  # how much work a kill may cost


class Journal:
    """The rows of one cell, in numbered Parquet files of a folder, each whole or absent, named with its SHA-256."""

    def __init__(self, directory: Path, schema: Mapping[str, Any], writer: int = 0) -> None:
        self.directory, self.schema, self.writer = directory, schema, writer
        self.pending: list[pl.DataFrame] = []
        self.flushed = time.monotonic()
        numbers = [path.stem.split("-")[:2] for path in self._files()]
        self.next = max((int(number) for who, number in numbers if int(who) == writer), default=0) + 1

    def rows(self) -> pl.DataFrame:
        """Return every row on disk; a UserError names a file that cannot be read, or holds other rows."""
        frames = [pl.DataFrame(schema=self.schema)]
        for path in self._files():
            frame = read_rows(path, _AGAIN, *path.stem.split("-")[2:])
            if dict(frame.schema) != dict(frames[0].schema):
                columns, expected = (dict(rows.schema) for rows in (frame, frames[0]))
                raise UserError(f"{path}: has rows of {columns}, expected {expected}; {_AGAIN}")
            frames.append(frame)
        return pl.concat(frames).unique(maintain_order=True)  # a kill while compacting leaves rows twice

    def append(self, rows: pl.DataFrame) -> None:
        """Take rows; they reach the disk within about two seconds or at the next :meth:`flush`."""
        self.pending.append(rows)
        if time.monotonic() - self.flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self.pending:
            content = as_parquet(pl.concat(self.pending))
            digest = hashlib.sha256(content).hexdigest()[:16]
            write_bytes(self.directory / f"{self.writer}-{self.next:06d}-{digest}.parquet", content)
            self.next += 1
            self.pending = []
        self.flushed = time.monotonic()

    def compact(self, rows: pl.DataFrame) -> None:
        old = self._files()
        self.pending = [rows]
        self.flush()
        for path in old:
            path.unlink()

    def warn(self, warnings: Iterable[str]) -> None:
        file = self.directory / f"warnings-{self.writer}.json"
        known = _read_warnings(file) if file.exists() else []
        write_json(file, list(dict.fromkeys([*known, *warnings])))

    def warnings(self) -> list[str]:
        files = sorted(self.directory.glob("warnings-[0-9]*.json"))
        return [warning for file in files for warning in _read_warnings(file)]

    def _files(self) -> list[Path]:
        return [path for path in sorted(self.directory.glob("*.parquet")) if _NAME.fullmatch(path.name)]


def as_parquet(frame: pl.DataFrame, **how: Any) -> bytes:
    """Return rows as the content of a Parquet file."""
    frame.write_parquet(content := io.BytesIO(), **how)
    return content.getvalue()


def write_frame(path: Path, frame: pl.DataFrame, **how: Any) -> None:
    """Write rows to one file, whole or not at all."""
    write_bytes(path, as_parquet(frame, **how))  # polars takes no name that is not UTF-8, and hides why a disk refuses


def _read_warnings(file: Path) -> list[str]:
    return read_json(file, list[str], f"delete {file.parent} and its images are attacked again")


_SLICE_BYTES = 2**28  # of images in memory at once


def missing(candidates: Iterable[Item], stored: Callable[[Item], bool], process: Process) -> list[Item]:
    """Return what is not stored yet, once every process has looked."""
    items = [item for item in candidates if not stored(item)]
    process.wait()  # nobody writes before everybody has read
    return items


def slice_size(shape: tuple[int, int, int]) -> int:
    """Return how many images of this shape are loaded at once."""
    return max(1, _SLICE_BYTES // (4 * math.prod(shape)))


class Cache:
    """The rows of one cell of a run directory, completed by all its processes together.

    The cell is a folder named by the hash of the ``inputs`` its rows depend on. Every process appends rows to
    ``journal`` within :meth:`filling` and calls :meth:`collect`.
    """

    def __init__(
        self, out: Path, inputs: Mapping[str, Any], schema: Mapping[str, Any], samples: Sequence[int], process: Process
    ) -> None:
        self.process, self.warnings = process, list[str]()
        self.journal = Journal(out / "cells" / digest(json.dumps(inputs, sort_keys=True))[:16], schema, process.rank)
        stored = set(self.journal.rows()["sample"])
        self.missing = missing(range(len(samples)), lambda position: samples[position] in stored, process)
        self.mine = process.share(self.missing)

    @contextlib.contextmanager
    def filling(self, size: int) -> Iterator[Iterator[list[int]]]:
        """Yield the positions in ``samples`` that this process makes, ``size`` at a time; rows are kept after each."""

        def parts() -> Iterator[list[int]]:
            for start in range(0, len(self.mine), size):
                yield self.mine[start : start + size]
                self.journal.flush()

        try:
            yield parts()
        finally:
            self.journal.flush()

    def collect(self) -> pl.DataFrame:
        """Return the rows that all processes stored, and note their ``warnings``; leave one file."""
        self.process.wait()
        rows, self.warnings = self.journal.rows(), self.journal.warnings()
        self.process.wait()  # nobody tidies up before everybody has read
        if self.process.first and self.missing:
            self.journal.compact(rows)
        self.process.wait()  # nobody reads again while files are deleted
        return rows
