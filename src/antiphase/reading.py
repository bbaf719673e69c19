"""Reading of files that somebody else may have written: whole, of a bounded size, and with errors of one line.

A file that cannot be used raises a ``UserError`` that names it and ends with ``fix``, what to do about it.
"""

import dataclasses
import errno
import functools
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from antiphase.errors import UserError, first_line, invalid

if TYPE_CHECKING:
    import polars as pl

MOST_BYTES = 2**28  # far more than any text file that we write has
_DIGITS = 20  # of an integer of 64 bits, with its sign
_COMPLETE = "expected a complete file"


@contextmanager
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
        return read_bytes(path, fix, most).decode()
    except UnicodeDecodeError as error:
        raise unreadable(path, error, fix) from None


def unreadable(path: object, error: BaseException, fix: str = _COMPLETE) -> UserError:
    """Return the error for a file that cannot be read."""
    why = getattr(error, "strerror", None) or first_line(error)
    return UserError(f"{path}: cannot be read ({why}); {fix}")


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; a ValueError refuses integers of more than 64 bits, and what is nested too deeply."""
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"an integer has {len(digits):,} digits; expected at most {_DIGITS}")
    return int(digits)


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
    content = read_bytes(path, fix, most=2**40)
    if not hashlib.sha256(content).hexdigest().startswith(digest):
        raise unreadable(path, ValueError("it is damaged: its SHA-256 differs from the recorded one"), fix)
    return as_rows(content, path, fix)


def as_rows(content: bytes, name: object, fix: str = _COMPLETE) -> "pl.DataFrame":
    """Return the rows in the content of a Parquet file."""
    import polars as pl

    try:
        return pl.read_parquet(io.BytesIO(content))
    except (Exception, pl.exceptions.PanicException) as error:  # a panic of polars is no Exception
        raise unreadable(name, error, fix) from None
