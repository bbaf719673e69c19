"""Files in an uncompressed tar file, such as ``test/0.tar/1.webp``, or in rows of a Parquet file, ``a.parquet/17``."""

import errno
import functools
import io
import os
import stat
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tarfile import HeaderError, ReadError
from typing import Any, NamedTuple, Self

import polars as pl
from webdataset.tariterators import base_plus_ext

from antiphase.errors import UserError, one_line, refusing

IMAGE_COLUMNS = ("image", "img")
IMAGE_SUFFIXES = ("jpg", "png", "webp", "jpeg")
CAPTION_SUFFIX = "txt"
_KNOWN_SUFFIXES = {*IMAGE_SUFFIXES, CAPTION_SUFFIX, "cls", "json"}
_ROWS = 128  # of a Parquet file that are read at a time
_LOCK = threading.Lock()  # threads that decode neighbouring images would read the same rows


class Member(NamedTuple):
    """Position of a file's bytes in a tar file."""

    offset: int
    size: int


class Header(tarfile.TarInfo):
    """A header of a tar file. A damaged or missing one is an error; tarfile takes it for the end of the file."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # a block of zeros: the proper end
                raise
            raise ReadError(str(error)) from error


def openable(path: Path) -> Path | io.BytesIO:
    """Return ``path``, or the bytes of the file if ``path`` points into another file; OSError if there is none."""
    whole, place = _inside(path)
    if place is None:
        if path.exists() and not path.is_file():
            raise OSError("is no regular file")  # a pipe would be waited for
        return path
    if isinstance(place, Member):
        with whole.open("rb") as file:
            file.seek(place.offset)
            return io.BytesIO(file.read(place.size))
    with _LOCK:
        cell = _cells(str(whole), whole.stat().st_mtime_ns, place // _ROWS)[place % _ROWS]
    if cell is None:
        raise OSError("the row has a path in place of an image; expected its bytes")
    return io.BytesIO(cell)


def file_size(path: Path) -> int:
    """Return the size in bytes of a file, possibly within another file; OSError if it is missing."""
    whole, place = _inside(path)
    if place is None:
        return path.stat().st_size
    if isinstance(place, Member):
        return place.size
    with _LOCK:
        return _cell_sizes(str(whole), whole.stat().st_mtime_ns)[place]


def changed(path: Path) -> int:
    """Return the modification time of a file or the one it lies in, in nanoseconds; OSError if it is missing."""
    return _inside(path)[0].stat().st_mtime_ns


def _inside(path: Path) -> tuple[Path, Member | int | None]:
    """Return the file that is on disk, and what the path means in it: a member, a row, or None for all of it."""
    if path.parent.suffix == ".parquet" and path.name.isdecimal():
        return path.parent, int(path.name)
    before, sign, name = path.as_posix().rpartition(".tar/")
    tar = Path(f"{before}.tar")
    if not sign or not tar.is_file():
        return path, None
    if (member := read_index(tar).get(name)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return tar, member


def read_index(tar: Path) -> dict[str, Member]:
    """Return the position of each regular file in a tar file, in order; reads only headers, cached per process."""
    try:
        status = tar.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            raise ReadError("it is no regular file")
        return _index(str(tar), status.st_size, status.st_mtime_ns)
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"{tar} is no complete, uncompressed tar file ({one_line(error)}): get it again") from error


@functools.lru_cache(maxsize=4096)  # shards of a set that is read in random order
def _index(path: str, size: int, changed: int) -> dict[str, Member]:
    """Read the headers; size and modification time only key the cache."""
    with tarfile.open(path, "r:", tarinfo=Header) as archive:
        index: dict[str, Member] = {}
        for file in filter(tarfile.TarInfo.isreg, archive):
            if (name := file.name.removeprefix("./")) in index:
                raise ReadError(f"it has {name} twice")
            index[name] = Member(file.offset_data, file.size)
        return index


def members_by_key(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the names of a tar file's members by key and suffix, as webdataset does, also for keys that have dots."""
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        key, suffix = base_plus_ext(name)
        if key is not None and suffix is not None:
            groups.setdefault(key, {})[suffix.lower()] = name
    members: dict[str, dict[str, str]] = {}
    for key, kinds in groups.items():
        if kinds.keys() & _KNOWN_SUFFIXES:
            members[key] = kinds
            continue
        for suffix, name in kinds.items():  # webdataset took 0001.jpg of v1.0001.jpg for the suffix
            rest, dot, last = suffix.rpartition(".")
            members.setdefault(f"{key}{dot}{rest}", {})[last] = name
    return members


def read_samples(tar: Path, suffix: str) -> Iterator[tuple[str, dict[str, str], bytes | None]]:
    """Yield of each sample its key, its members by suffix, and the content of one of them; None if it lacks that."""
    index = read_index(tar)
    with tar.open("rb") as file:
        for key, kinds in members_by_key(index).items():
            content = None
            if suffix in kinds:
                offset, size = index[kinds[suffix]]
                file.seek(offset)
                content = file.read(size)
            yield key, kinds, content


def whole_parquet(path: object) -> AbstractContextManager[None]:
    """Turn polars' errors about a damaged file, and its panics, into a ``UserError``."""
    failures: Any = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
    return refusing(f"{path} is no complete Parquet file", ": download it again", *failures)


@functools.lru_cache(maxsize=8)
def _cells(path: str, changed: int, block: int) -> list[bytes | None]:
    with whole_parquet(path):
        return _images(path).slice(block * _ROWS, _ROWS).collect().to_series().to_list()


@functools.lru_cache(maxsize=256)
def _cell_sizes(path: str, changed: int) -> list[int]:
    with whole_parquet(path):
        return _images(path).select(pl.all().bin.size().fill_null(0)).collect().to_series().to_list()


def _images(path: str) -> pl.LazyFrame:
    rows = pl.scan_parquet(path, glob=False)
    schema = rows.collect_schema()
    column = next(name for name in IMAGE_COLUMNS if name in schema)
    return rows.select(pl.col(column) if schema[column] == pl.Binary else pl.col(column).struct.field("bytes"))
