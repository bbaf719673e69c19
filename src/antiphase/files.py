"""Atomic writes: files are written in a private folder next to their place, then renamed."""

import contextlib
import errno
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphase.errors import UserError

PRIVATE = ".antiphase-"  # begins the names of folders of temporary files; then machine and process
_tidied: set[Path] = set()  # by this process
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path on the same file system; on a clean exit it replaces ``path``, otherwise it is deleted.

    It is in a folder of its own, so that what a library writes next to it goes with it. What killed processes left is
    deleted when another first writes to the same directory.

    Raises:
        UserError: ``path`` is a directory, a device or a pipe.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        what = "is a directory" if path.is_dir() else "is no regular file"
        raise UserError(f"{path}: {what}; expected the name of a file")
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
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _tidy(directory: Path) -> None:
    """Delete temporary files of processes that no longer run: of this machine, or a day old."""
    if directory in _tidied:
        return
    _tidied.add(directory)
    for left in directory.glob(f"{PRIVATE}*-*-*"):
        machine, process, _ = left.name.removeprefix(PRIVATE).rsplit("-", 2)
        with contextlib.suppress(OSError, ValueError, OverflowError):
            here = machine == platform.node()
            if not (here and _runs(int(process))) and (here or time.time() - left.stat().st_mtime > 86_400):
                shutil.rmtree(left, ignore_errors=True)


def _runs(process: int) -> bool:
    """Return whether this machine has a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


@contextlib.contextmanager
def room(root: Path) -> Iterator[None]:
    """Turn the error of a full disk into a ``UserError``."""
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
