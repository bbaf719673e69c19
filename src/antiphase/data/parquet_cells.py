"""Encoded images in the rows of a Parquet file, addressed by paths such as ``test.parquet/17``."""

import functools
import threading
from pathlib import Path

import polars as pl

IMAGE_COLUMNS = ("image", "img")
_BLOCK = 128  # rows that are read at a time
_LOCK = threading.Lock()  # threads that decode neighbouring images would read the same block


def cell_bytes(path: Path, row: int) -> bytes:
    """Return the encoded image in a row.

    Raises:
        OSError: if there is none.
    """
    with _LOCK:
        block = _block(str(path), path.stat().st_mtime_ns, row // _BLOCK)
    found = block[row % _BLOCK]
    if found is None:
        raise OSError("the row has a path in place of an image; expected its bytes")
    return found


def cell_size(path: Path, row: int) -> int:
    """Return the size of the encoded image in a row, in bytes."""
    with _LOCK:
        return _sizes(str(path), path.stat().st_mtime_ns)[row]


@functools.lru_cache(maxsize=8)
def _block(path: str, changed: int, number: int) -> list[bytes | None]:
    """Read a block of rows; the time of modification only keys the cache."""
    rows = scan(path).slice(number * _BLOCK, _BLOCK)
    return rows.select(_encoded(rows)).collect().to_series().to_list()


@functools.lru_cache(maxsize=256)
def _sizes(path: str, changed: int) -> list[int]:
    rows = scan(path)
    return rows.select(_encoded(rows).bin.size().fill_null(0)).collect().to_series().to_list()


def scan(path: str) -> pl.LazyFrame:
    """Return a lazy frame of one file."""
    return pl.scan_parquet(path, glob=False)


def _encoded(rows: pl.LazyFrame) -> pl.Expr:
    schema = rows.collect_schema()
    column = next(name for name in IMAGE_COLUMNS if name in schema)
    image = pl.col(column)
    return image if schema[column] == pl.Binary else image.struct.field("bytes")
