"""Atomic writes: files are written under a temporary name in the same folder, then renamed."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphase.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; on a clean exit it replaces ``path``, otherwise it is deleted.

    Raises:
        UserError: ``path`` is a directory, a device or a pipe.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        what = "is a directory" if path.is_dir() else "is no regular file"
        raise UserError(f"{path}: {what}; expected the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        error.filename = str(path)  # not the temporary name, which nobody gave
        raise
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)  # mkstemp makes files private; give them the permissions of any other file
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def room(root: Path) -> Iterator[None]:
    """Turn the error of a full disk into a ``UserError``.

    Raises:
        UserError: The disk is full.
    """
    try:
        yield
    except Exception as error:  # the Parquet and safetensors writers raise their own exceptions
        words = str(error)
        full = [
            code for code in _FULL if code == getattr(error, "errno", None) or f"(os error {code})" in words
        ]
        if not full:
            raise
        raise UserError(
            f"{root}: the disk is full ({os.strerror(full[0])}); finished work is kept: free some space, then "
            "resume with the same command"
        ) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` atomically in UTF-8; characters that UTF-8 cannot encode are escaped."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def printable(name: str) -> str:
    r"""Escape the bytes of a file name that are not UTF-8, so that it can be printed and stored.

    >>> print(printable(os.fsdecode(b"caf\xe9.png")))
    caf\xe9.png
    """
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
