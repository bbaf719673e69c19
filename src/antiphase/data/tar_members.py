"""Files that lie in a plain tar file, by a path that goes on into it: ``test/0.tar/s0000001.webp``."""

import errno
import functools
import io
import os
import tarfile
from pathlib import Path
from typing import NamedTuple

from antiphase.errors import UserError

_BLOCK = 512  # of a tar file, bytes


class Member(NamedTuple):
    """Where a file's bytes are in the tar file."""

    offset: int
    size: int


def read_index(tar: Path) -> dict[str, Member]:
    """Return where each regular file of a tar file is, in its order; only headers are read, and once a process.

    Raises:
        UserError: it cannot be read, is compressed, cut short or damaged.
    """
    try:
        status = tar.stat()
        return _index(str(tar), status.st_size, status.st_mtime_ns)
    except (OSError, tarfile.TarError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{tar} is no whole, uncompressed tar file ({reason}): fetch it again") from error


def openable(path: Path) -> Path | io.BytesIO:
    """Return ``path``, or the bytes of the file that it names in a tar file.

    Raises:
        UserError: the tar file is damaged.
        OSError: it holds no such file.
    """
    inside = _inside(path)
    if inside is None:
        return path
    tar, member = inside
    with tar.open("rb") as file:
        file.seek(member.offset)
        return io.BytesIO(file.read(member.size))


def file_size(path: Path) -> int:
    """Return a file's size in bytes, in a tar file or not; OSError where it is absent."""
    inside = _inside(path)
    return path.stat().st_size if inside is None else inside[1].size


def changed(path: Path) -> int:
    """Return when a file, or the tar file that it lies in, was last changed, in nanoseconds; OSError if absent."""
    inside = _inside(path)
    return (path if inside is None else inside[0]).stat().st_mtime_ns


def _inside(path: Path) -> tuple[Path, Member] | None:
    """Return the tar file that a path goes into and the member it names; None where it goes into none."""
    before, sign, name = path.as_posix().rpartition(".tar/")
    tar = Path(f"{before}.tar")
    if not sign or not tar.is_file():
        return None
    member = read_index(tar).get(name)
    if member is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return tar, member


@functools.lru_cache(maxsize=256)
def _index(path: str, size: int, changed: int) -> dict[str, Member]:
    """Read the headers; size and time of change are there for the cache."""
    with tarfile.open(path, "r:") as archive:
        found = {
            member.name.removeprefix("./"): Member(member.offset_data, member.size)
            for member in archive
            if member.isreg()
        }
        end = archive.offset
    with open(path, "rb") as file:
        file.seek(end)
        # tarfile takes a damaged header for the end of the file, which is a block of zeros
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise tarfile.ReadError("it is cut short or damaged")
    return found
