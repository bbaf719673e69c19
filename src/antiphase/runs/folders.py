"""The directory of a run: writable, not another command's, and left as it was if nothing comes of the run."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphase.errors import UserError, shown
from antiphase.files import room, write_text

MARKER = ".antiphase"  # holds the name of the command
_BEGINNING = (MARKER, "recipe.json")  # what is written before a training saves anything


@contextlib.contextmanager
def run_folder(out: Path, command: str) -> Iterator[None]:
    """Make the directory of a run, or take that of an earlier run of the same command.

    A run that fails before it has written anything leaves no directory behind.

    Args:
        out: the directory.
        command: which command writes it, such as ``"audit"``.

    Raises:
        UserError: the directory cannot be written or holds the run of another command, or the disk is full.
    """
    missing: list[Path] = []
    try:
        missing += [folder for folder in (out, *out.parents) if not folder.exists()]
        before = [] if missing else os.listdir(out)
        check_holder(out, command)
        write_text(out / MARKER, f"{command}\n")
    except OSError as error:
        _remove(missing)
        raise UserError(
            f"out {shown(str(out))}: cannot be written ({error.strerror}); give another directory"
        ) from None
    try:
        with room(out):
            yield
    except BaseException:
        with contextlib.suppress(OSError):  # under torchrun another process may have cleaned up already
            if set(os.listdir(out)) <= {*before, *_BEGINNING}:
                for name in _BEGINNING:
                    if name not in before:
                        (out / name).unlink(missing_ok=True)
                _remove(missing)
        raise


def check_holder(out: Path, command: str) -> None:
    """Refuse a directory that holds the run of another command.

    Raises:
        UserError: naming that command.
    """
    holder = held_by(out)
    if holder not in (None, command):
        raise UserError(
            f"out {shown(str(out))}: holds a run of antiphase {holder}; give antiphase {command} another directory"
        )


def held_by(out: Path) -> str | None:
    """Return the command whose run a directory holds; None if it holds none that is known."""
    if (out / MARKER).exists():
        return (out / MARKER).read_text(encoding="utf-8", errors="replace").strip()[:20]
    # runs of before there were markers
    if (out / "log.jsonl").exists() and (out / "cells").exists():
        return "study run"
    if (out / "metrics.jsonl").exists() or (out / "state.safetensors").exists():
        kind = str(_read(out / "recipe.json").get("kind"))
        return {"clip": "train-clip", "vlm": "train-vlm"}.get(kind, "train")
    words = str(_read(out / "run.json").get("command", "")).split()
    return words[1] if words[:1] == ["antiphase"] and len(words) > 1 else None


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remove(folders: Sequence[Path]) -> None:
    """Remove the empty ones, innermost first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
