"""Files in an uncompressed tar file, addressed by paths such as ``test/0.tar/s0000001.webp``."""

import errno
import functools
import os
import stat
import tarfile
from pathlib import Path
from typing import NamedTuple

from antiphase.errors import UserError, one_line

_BLOCK = 512  # of a tar file, bytes


class Member(NamedTuple):
    """Position of a file's bytes in the tar file."""

    offset: int
    size: int


def read_index(tar: Path) -> dict[str, Member]:
    """Return the position of each regular file in a tar file, in order; reads only headers, cached per process.

    Raises:
        UserError: if the tar file is unreadable, compressed, truncated or damaged.
    """
    try:
        status = tar.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            raise tarfile.ReadError("it is no regular file")
        return _index(str(tar), status.st_size, status.st_mtime_ns)
    except (OSError, tarfile.TarError) as error:
        reason = one_line(error)
        raise UserError(
            f"{tar} is not a complete, uncompressed tar file ({reason}): download it again"
        ) from error


def tar_member(path: Path) -> tuple[Path, Member] | None:
    """Return the tar file and member that a path points to; None if it does not point into a tar file."""
    before, sign, name = path.as_posix().rpartition(".tar/")
    tar = Path(f"{before}.tar")
    if not sign or not tar.is_file():
        return None
    member = read_index(tar).get(name)
    if member is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return tar, member


@functools.lru_cache(maxsize=4096)  # shards of a set that is read in random order
def _index(path: str, size: int, changed: int) -> dict[str, Member]:
    """Read the headers; size and modification time only key the cache."""
    with tarfile.open(path, "r:") as archive:
        found = {
            member.name.removeprefix("./"): Member(member.offset_data, member.size)
            for member in archive
            if member.isreg()
        }
        end = archive.offset
    with open(path, "rb") as file:
        file.seek(end)
        # tarfile takes a damaged header for the end of the file, so check the zero block
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise tarfile.ReadError("it is truncated or damaged")
    return found
