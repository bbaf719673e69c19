"""Files that are whole or absent: written under a temporary name in the same folder, then renamed."""

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
    """Yield a temporary path beside ``path``; on a clean exit it replaces ``path``, else it goes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
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
    """Turn a full disk into one line; what is finished stays as it is.

    Raises:
        UserError: there is no room left.
    """
    try:
        yield
    except Exception as error:  # Parquet's and safetensors' writers have exceptions of their own
        words = str(error)
        full = [
            code for code in _FULL if code == getattr(error, "errno", None) or f"(os error {code})" in words
        ]
        if not full:
            raise
        raise UserError(
            f"{root}: no room left on the disk ({os.strerror(full[0])}); what is finished is kept: make room, then "
            "resume with the same command"
        ) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8, whole or not at all; what UTF-8 cannot hold is escaped."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def printable(name: str) -> str:
    r"""Return a file name with the bytes that are not UTF-8 escaped, so that it can be printed and stored.

    >>> print(printable(os.fsdecode(b"caf\xe9.png")))
    caf\xe9.png
    """
    return os.fsencode(name).decode(errors="backslashreplace")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON; NaN and infinities are refused, as JSON has none."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def digest(*parts: bytes | str) -> str:
    """Return the hexadecimal SHA-256 of the parts, each preceded by its length."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()
