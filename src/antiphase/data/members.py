"""Files that may lie within another file: a tar file, or the rows of a Parquet file."""

import errno
import io
import os
from pathlib import Path

from antiphase.data.tar_members import tar_member
from antiphase.errors import UserError


def regular(path: Path) -> Path:
    """Return a path unless it is a pipe or device, which would be waited for.

    Raises:
        UserError: if it is one.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is a pipe or a device; expected a file")
    return path


def openable(path: Path) -> Path | io.BytesIO:
    """Return ``path``, or the bytes of the file if ``path`` points into another file.

    Raises:
        UserError: if the tar file is damaged, or the path is a pipe.
        OSError: if it has no such file.
    """
    if cell := _parquet_cell(path):
        from antiphase.data.parquet_cells import cell_bytes

        return io.BytesIO(cell_bytes(*cell))
    inside = tar_member(path)
    if inside is None:
        return regular(path)
    tar, member = inside
    with tar.open("rb") as file:
        file.seek(member.offset)
        return io.BytesIO(file.read(member.size))


def file_size(path: Path) -> int:
    """Return the size in bytes of a file, possibly within another file; OSError if it is missing."""
    if cell := _parquet_cell(path):
        from antiphase.data.parquet_cells import cell_size

        return cell_size(*cell)
    inside = tar_member(path)
    return path.stat().st_size if inside is None else inside[1].size


def changed(path: Path) -> int:
    """Return the modification time of a file or the one it lies in, in nanoseconds; OSError if it is missing."""
    if cell := _parquet_cell(path):
        return cell[0].stat().st_mtime_ns
    inside = tar_member(path)
    return (path if inside is None else inside[0]).stat().st_mtime_ns


def _parquet_cell(path: Path) -> tuple[Path, int] | None:
    """Return the Parquet file and the row that a path points to; None if it does not point into such a file."""
    if path.parent.suffix != ".parquet" or not path.name.isdecimal():
        return None
    if not path.parent.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    return path.parent, int(path.name)
