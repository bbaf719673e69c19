"""Files: written in a private folder next to their place, then renamed; read although others may have written them.

Reading is of whole files of a bounded size. A file that cannot be used raises a ``UserError`` that names it and ends
with ``fix``, what to do about it.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import io
import json
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from antiphase.errors import Unreadable, UserError, first_line, invalid

if TYPE_CHECKING:
    import polars as pl

MOST_BYTES = 2**28  # far more than any text file that we write has
_DIGITS = 20  # of an integer of 64 bits, with its sign
_COMPLETE = "expected a complete file"
PRIVATE = ".antiphase-"  # begins the names of folders of temporary files; then machine and process
_tidied: set[Path] = set()  # by this process
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path on the same file system; on a clean exit it replaces ``path``, otherwise it is deleted.

    Its folder is its own, for what a library writes next to it; those of killed processes are deleted later.
    """
    if (path := Path(path)).exists() and not path.is_file():
        fault = "is a directory" if path.is_dir() else "is no regular file"
        raise UserError(f"{path}: {fault}; expected the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    _tidy(path.parent)
    try:
        private = tempfile.mkdtemp(dir=path.parent, prefix=f"{PRIVATE}{platform.node()}-{os.getpid()}-")
    except OSError as error:
        error.filename = str(path)  # not the temporary name, which nobody gave
        raise
    try:
        temporary = Path(private, f"{path.name}.part")
        temporary.touch()
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)  # some libraries make files private; give them the permissions of any other file
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _tidy(directory: Path) -> None:
    """Delete temporary files of processes that no longer run: of this machine, or a day old."""
    if directory in _tidied:
        return
    _tidied.add(directory)
    for left in directory.glob(f"{PRIVATE}*-*-*"):
        machine, process, _ = left.name.removeprefix(PRIVATE).rsplit("-", 2)
        with contextlib.suppress(OSError, ValueError, OverflowError):  # such as a process of another user
            over = time.time() - left.stat().st_mtime > 86_400
            if machine == platform.node():
                try:
                    os.kill(int(process), 0)
                except ProcessLookupError:
                    over = True
            if over:
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def room(root: Path) -> Iterator[None]:
    """Turn the error of a full disk into a ``UserError``."""
    try:
        yield
    except Exception as error:  # the Parquet and safetensors writers raise their own exceptions
        for code in _FULL:
            if code == getattr(error, "errno", None) or f"(os error {code})" in str(error):
                fix = "free some space, then run the same command again: rows and checkpoints that it stored are kept"
                raise UserError(f"{root}: the disk is full ({os.strerror(code)}); {fix}") from None
        raise


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to ``path`` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` atomically in UTF-8; characters that UTF-8 cannot encode are escaped."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def printable(name: str) -> str:
    r"""Escape the bytes of a file name that are not UTF-8, so that it can be printed and stored."""
    return os.fsencode(name).decode(errors="backslashreplace")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` atomically as indented JSON; NaN and infinities raise ``ValueError``."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def digest(*parts: bytes | str) -> str:
    """Return the hexadecimal SHA-256 of the parts, each preceded by its length."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


@contextlib.contextmanager
def regular_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a regular file to read; a pipe or a device, which may never end, raises an ``OSError``."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        yield file


def read_bytes(path: str | os.PathLike[str], fix: str = _COMPLETE, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes."""
    try:
        with regular_file(path) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise ValueError(f"it has more than {most:,} bytes")
            return file.read()
    except (OSError, ValueError) as error:
        raise unreadable(path, error, fix) from None


def read_text(path: str | os.PathLike[str], fix: str = _COMPLETE, most: int = MOST_BYTES) -> str:
    """Return the text of a regular file in UTF-8."""
    try:
        return read_bytes(path, fix, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(path, error, fix) from None


def unreadable(path: object, error: BaseException, fix: str = _COMPLETE) -> Unreadable:
    """Return the error for a file that cannot be read."""
    why = getattr(error, "strerror", None) or first_line(error)
    return Unreadable(f"{path}: cannot be read ({why}); {fix}")


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; a ValueError refuses integers of more than 64 bits, and what is nested too deeply."""

    def integer(digits: str) -> int:
        if len(digits) > _DIGITS:
            raise ValueError(f"an integer has {len(digits):,} digits; expected at most {_DIGITS}")
        return int(digits)

    try:
        return json.loads(text, parse_int=integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(
    path: str | os.PathLike[str], kind: Any = dict[str, Any], fix: str = _COMPLETE, most: int = MOST_BYTES
) -> Any:
    """Return the value in a JSON file; ``kind`` is its type, checked by pydantic; None for any."""
    return as_json(read_bytes(path, fix, most), path, kind, fix)


def as_json(content: str | bytes, name: object, kind: Any = dict[str, Any], fix: str = _COMPLETE) -> Any:
    """Return the JSON value in the content of a file, as :func:`read_json` does."""
    try:
        value = parse_json(content)
    except ValueError as error:
        raise unreadable(name, error, fix) from None
    if kind is None:
        return value
    from pydantic import ValidationError

    try:
        return _checker(kind).validate_python(value, strict=not dataclasses.is_dataclass(kind))
    except ValidationError as error:
        raise UserError(f"{invalid(error, f'{name}: ')}; {fix}") from None


def read_json_lines(path: str | os.PathLike[str], fix: str = _COMPLETE) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object on each line."""
    return as_json_lines(read_bytes(path, fix), path, fix)


def as_json_lines(content: bytes, name: object, fix: str = _COMPLETE) -> list[dict[str, Any]]:
    """Return the objects in the content of a file with one JSON object on each line."""
    return [as_json(line, name, fix=fix) for line in content.splitlines() if line.strip()]


@functools.cache
def _checker(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read_rows(path: str | os.PathLike[str], fix: str = _COMPLETE, digest: str = "") -> "pl.DataFrame":
    """Return the rows of a Parquet file; ``digest``: first hexadecimal digits of the SHA-256 that it has to have."""
    return as_rows(read_bytes(path, fix, most=2**40), path, fix, digest)


def as_rows(content: bytes, name: object, fix: str = _COMPLETE, digest: str = "") -> "pl.DataFrame":
    """Return the rows in the content of a Parquet file, as :func:`read_rows` does."""
    import polars as pl

    if not hashlib.sha256(content).hexdigest().startswith(digest):
        raise unreadable(name, ValueError("it is damaged: its SHA-256 differs from the recorded one"), fix)
    try:
        return pl.read_parquet(io.BytesIO(content))
    except (Exception, pl.exceptions.PanicException) as error:  # a panic of polars is no Exception
        raise unreadable(name, error, fix) from None
