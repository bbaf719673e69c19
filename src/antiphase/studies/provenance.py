"""What the record of a cell says of its making: core-seconds and the commit of the source."""

import re
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any


def core_seconds(record: Mapping[str, Any]) -> float:
    """Return the seconds of a cell times its threads; those of a GPU as they are.

    >>> core_seconds({"seconds": 30.0, "hardware": "AMD EPYC 7B13, 2 threads"})
    60.0
    """
    threads = re.search(r", (\d+) threads$", record["hardware"])
    return record["seconds"] * (int(threads[1]) if threads else 1)


@lru_cache
def source_commit() -> str:
    """Return the commit of the package's source, with ``+`` if files differ from it; empty outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str:
    found = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return found.stdout.strip()
