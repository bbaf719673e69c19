"""The directory of a run: writable, not another command's, and left as it was if nothing comes of the run."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from antiphase.errors import UserError, shown
from antiphase.files import digest, read_bytes, read_json, room, write_json, write_text

MARKER = ".antiphase"  # holds the name of the command
LOCK = ".lock"  # holds the process that writes; the system releases it however the process ends
CLOCK = ".began"  # holds when a run that has not ended began, and for how long it had run before
_BEGINNING = (MARKER, CLOCK, "recipe.json")  # what is written before a training saves anything
_OF_A_RUN = {MARKER, "run.json", "recipe.json"}  # one of them is in every run's directory
_WRITTEN = {"report.html", "rows.parquet", "summary.json", "model.safetensors", "metrics.jsonl"}
_NO_NUMBER = {"out", "quiet", "batch_size", "device", "fail_under"}  # options that leave a run the same
_before: dict[Path, float] = {}  # seconds of runs that go on


@contextlib.contextmanager
def run_folder(out: Path, command: str, options: Any = None) -> Iterator[None]:
    """Make the directory of a run, or take that of an earlier run of the same command, and lock it.

    A run that fails before it has written anything leaves no directory behind. With ``options`` its time counts, from
    where a killed run with the same options ended. Of torchrun's processes the first holds the lock for all.
    """
    missing: list[Path] = []
    with contextlib.ExitStack() as stack:
        try:
            missing += [folder for folder in (out, *out.parents) if not folder.exists()]
            before = [] if missing else os.listdir(out)
            check_holder(out, command)
            if _OF_A_RUN.isdisjoint(before) and (others := _WRITTEN.intersection(before)):
                raise UserError(f"out {shown(str(out))}: holds {min(others)}, of no run; give another directory")
            if os.environ.get("RANK", "0") == "0":
                stack.enter_context(locked(out))
            write_text(out / MARKER, f"{command}\n")
            if options is not None and os.environ.get("RANK", "0") == "0":
                _start_clock(out, options)
        except OSError as error:
            stack.close()
            _remove(missing)
            why = f"cannot be written ({error.strerror}); give another directory"
            raise UserError(f"out {shown(str(out))}: {why}") from None
        try:
            with room(out):
                yield
            if not (out / MARKER).exists():
                raise UserError(f"out {shown(str(out))}: was deleted while the run wrote into it: run it again")
            (out / CLOCK).unlink(missing_ok=True)
        except BaseException:
            with contextlib.suppress(OSError):  # under torchrun another process may have cleaned up already
                if set(os.listdir(out)) <= {*before, *_BEGINNING, LOCK}:
                    for name in _BEGINNING:
                        if name not in before:
                            (out / name).unlink(missing_ok=True)
                    stack.close()
                    _remove(missing)
            raise
        finally:
            _before.pop(out, None)


def refuse_finished(out: Path) -> None:
    """Refuse a directory that holds a finished run."""
    if (out / "run.json").exists() and not (out / CLOCK).exists():
        raise UserError(f"out {shown(str(out))}: holds a finished run; give a new directory with --out")


def _start_clock(out: Path, options: Any) -> None:
    same, now, before = digest(options.model_dump_json(exclude=_NO_NUMBER)), time.time(), 0.0
    with contextlib.suppress(UserError, KeyError, TypeError):  # there is none, or it is damaged
        left = read_json(out / CLOCK)
        if left["options"] == same:
            ours = (path for path in out.rglob("*") if path.name not in (MARKER, LOCK) and path.is_file())
            before = left["before"] + max(0.0, max(path.stat().st_mtime for path in ours) - left["began"])
    _before[out] = before
    write_json(out / CLOCK, {"options": same, "began": now, "before": before})


def finished(out: Path, began: float) -> dict[str, Any]:
    """Return the seconds of a run that began then, with those before a kill, and the date, for ``run.json``."""
    seconds = _before.get(out, 0.0) + time.monotonic() - began
    return {"seconds": round(seconds, 2), "date": datetime.now(UTC).isoformat(timespec="seconds")}


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the lock of a directory, which is made; refuse one that another process holds."""
    out.mkdir(parents=True, exist_ok=True)
    while True:
        with (out / LOCK).open("a+", encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                who = file.read(200).strip() or "another process"
                fix = "wait until it has ended, or give another directory"
                raise UserError(f"out {shown(str(out))}: {who} is writing it; {fix}") from None
            except OSError:
                pass  # a file system without locks
            with contextlib.suppress(FileNotFoundError):  # whoever held it before may have deleted the file
                if os.path.samestat(os.fstat(file.fileno()), os.stat(out / LOCK)):
                    file.truncate(0)
                    file.write(f"process {os.getpid()} on {os.uname().nodename}")
                    file.flush()
                    try:
                        yield
                    finally:
                        (out / LOCK).unlink(missing_ok=True)
                    return


def check_holder(out: Path, command: str) -> None:
    """Refuse a directory that holds the run of another command."""
    if (holder := held_by(out)) not in (None, command):
        place = f"out {shown(str(out))}: holds a run of antiphase {holder}"
        raise UserError(f"{place}; give antiphase {command} another directory")


def held_by(out: Path) -> str | None:
    """Return the command whose run a directory holds; None if it holds none."""
    if (out / MARKER).exists():
        if not (name := read_bytes(out / MARKER, "delete it").decode(errors="replace").strip()[:20]):
            raise UserError(f"{out / MARKER}: is empty; delete it")
        return name
    studies = (out / "log.jsonl").exists() and (out / "cells").exists()  # their store has no marker
    return "study run" if studies else None


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
