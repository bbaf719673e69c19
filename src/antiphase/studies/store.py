"""Cells on disk, each in a folder ``cells/TABLE-IDENTITY`` with its rows, checkpoints and provenance.

It is finished if it has a ``done.json`` and every file listed there has the recorded digest. A process that runs a cell
holds a file lock, which the system releases when the process ends: several runs can share a store.
"""

import contextlib
import dataclasses
import fcntl
import inspect
import json
import os
import re
import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from antiphase.errors import UserError
from antiphase.files import PRIVATE, digest, read_json, read_rows, write_json
from antiphase.store import write_frame

DONE_FILE = "done.json"
ROWS_FILE = "rows.parquet"
WORK_FOLDER = "work"  # partial results of a measurement


class _Record(BaseModel):
    """What ``done.json`` has to hold."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    files: dict[str, str] = Field(min_length=1)
    seconds: float
    whole: bool
    hardware: str
    versions: dict[str, str]
    warnings: list[str]


class Reader(Protocol):
    """What finished cells are read from: a store, or rows that ship."""

    def done(self, cell: Any) -> bool: ...
    def record(self, cell: Any) -> dict[str, Any] | None: ...
    def damage(self, cell: Any) -> str | None: ...
    def rows(self, cell: Any) -> pl.DataFrame | None: ...
    def busy(self, cell: Any) -> bool: ...


@dataclass(frozen=True)
class Store:
    """A folder of cells."""

    root: Path
    shipped: Reader | None = None

    def folder(self, cell: Any) -> Path:
        return self.root / "cells" / folder_name(cell)

    def done(self, cell: Any) -> bool:
        if self.shipped is not None and self.shipped.done(cell):
            return True
        return (self.folder(cell) / DONE_FILE).exists() and self.damage(cell) is None

    def record(self, cell: Any) -> dict[str, Any] | None:
        path = self.folder(cell) / DONE_FILE
        if self.shipped is not None and not path.exists():
            return self.shipped.record(cell)
        try:
            return read_json(path, _Record).model_dump()
        except UserError:
            return None

    def damage(self, cell: Any) -> str | None:
        """Return a description of a damaged file of a finished cell, or None."""
        if not (path := self.folder(cell) / DONE_FILE).exists():
            return None
        if (record := self.record(cell)) is None:
            return f"{path}: cannot be read"
        for name, expected in record["files"].items():
            if not (file := path.parent / name).exists():
                return f"{file}: is missing"
            if file_digest(file) != expected:
                return f"{file}: is damaged (its SHA-256 differs from the recorded one)"
        return None

    def discard(self, cell: Any) -> None:
        """Delete a damaged cell, so that it is repeated from the beginning."""
        folder = self.folder(cell)
        gone = folder.with_name(f".gone-{os.getpid()}-{folder.name}")
        folder.rename(gone)  # first: the rest must not pass for a finished training
        shutil.rmtree(gone, ignore_errors=True)

    def finish(self, cell: Any, rows: pl.DataFrame | None, about: dict[str, Any]) -> None:
        """Write the rows, then the record that marks the cell as finished."""
        folder = self.folder(cell)
        if rows is not None:
            write_frame(folder / ROWS_FILE, rows)
        named = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
        aside = (f"{WORK_FOLDER}/", PRIVATE)
        files = {name: file_digest(path) for name, path in named.items() if not name.startswith(aside)}
        write_json(folder / DONE_FILE, {"what": described(cell), "label": cell.label, "files": files} | about)
        # last: until then a killed run resumes from it
        shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)

    def rows(self, cell: Any) -> pl.DataFrame | None:
        """Return the rows of a finished cell, or None for a training."""
        path = self.folder(cell) / ROWS_FILE
        return read_rows(path) if path.exists() else None

    @contextlib.contextmanager
    def claim(self, cell: Any) -> Iterator[bool]:
        """Try to lock a cell within a block; yield whether this process holds the lock."""
        path = self.root / "locks" / folder_name(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            mine = False
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            yield mine

    def busy(self, cell: Any) -> bool:
        if not (self.root / "locks" / folder_name(cell)).exists():
            return False
        with self.claim(cell) as mine:
            return not mine

    def log(self, event: str, cell: Any, **about: Any) -> None:
        """Append an event, its cell, time and process to ``log.jsonl``."""
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, "cell": folder_name(cell)}
        line |= {"label": cell.label, "process": f"{os.uname().nodename}:{os.getpid()}"}
        # a single write keeps lines of several processes apart
        with (self.root / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | about, ensure_ascii=False) + "\n")


def file_digest(*paths: Path) -> str:
    """Return the digest of files, read once for each modification time and size."""
    stats = ((path, path.stat()) for path in paths)
    return _digest_of(*((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats))


@cache
def _digest_of(*files: tuple[Path, int, int]) -> str:
    return digest(*(path.read_bytes() for path, _, _ in files))


_EMOJI = ("openmoji", "noto-emoji", "emoji-mmvp", "emoji-scenes", "emoji-objects", "emoji-pope")
RENEWED: dict[str, str] = dict.fromkeys(_EMOJI, "split by concept")
"""Data sources that changed since rows on them were first stored, and how: new cells on them are others."""
_LENGTH = 16  # hexadecimal digits; a billion cells collide with probability 3 %


def described(cell: Any, renewed: bool = True) -> dict[str, Any]:
    """Return class, version and non-default fields of a cell for JSON, ``RENEWED`` sources told from what they were."""
    fields = {}
    for field in dataclasses.fields(cell):
        value, default = getattr(cell, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if (default is dataclasses.MISSING or value != default) and field.metadata.get("identity") is not False:
            fields[field.name] = _plain(value, renewed)
    description = {"cell": type(cell).__name__, "version": getattr(type(cell), "version", 1), "fields": fields}
    content = cell.content() if callable(getattr(cell, "content", None)) else {}
    if renewed and (how := RENEWED.get(str(getattr(cell, "data", "")))):
        content = content | {"source": how}
    return description | ({"content": content} if content else {})


def identity(cell: Any, renewed: bool = True) -> str:
    """Return the identity of a cell: the first digits of the SHA-256 of :func:`described` as sorted JSON.

    It is found once for each object, which are frozen: when its content changes, a new object is another cell.
    """
    known = getattr(cell, "__dict__", {}).setdefault("_identities", {})
    if renewed not in known:
        known[renewed] = digest(json.dumps(described(cell, renewed), sort_keys=True, allow_nan=False))[:_LENGTH]
    return known[renewed]


def folder_name(cell: Any) -> str:
    """Return the name of a cell's folder, lock and log lines: its table and identity."""
    return f"{cell.table}-{identity(cell)}"


@lru_cache
def _source(function: Callable[..., Any]) -> str:
    """Return the digest of a function's source, cached because its file may be edited during a run."""
    return digest(textwrap.dedent(inspect.getsource(function)))[:_LENGTH]


def _plain(value: Any, renewed: bool) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"identity": identity(value, renewed)}
    if isinstance(value, dict):
        return {str(name): _plain(item, renewed) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, renewed) for item in value]
    if inspect.isfunction(value):  # a user's own function: its result may change with its source
        return {"function": value.__name__, "source": _source(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"{value!r} in a cell: expected numbers, strings, tuples, dictionaries, functions, cells")


def core_seconds(record: Mapping[str, Any]) -> float:
    """Return the seconds of a cell times its threads; those of a GPU as they are."""
    threads = re.search(r", (\d+) threads$", record["hardware"])
    return record["seconds"] * (int(threads[1]) if threads else 1)


@lru_cache
def source_commit() -> str:
    """Return the commit of the package's source, with ``+`` if files differ from it; empty outside a checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = bool(git("status", "--porcelain", "--untracked-files=no", "."))
        return git("rev-parse", "--short=12", "HEAD") + "+" * changed
    except (OSError, subprocess.CalledProcessError):
        return ""
