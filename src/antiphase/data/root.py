"""The folder of all data sets."""

import os
from pathlib import Path


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return ``root``, or the environment variable ANTIPHASE_DATA, or ``~/.cache/antiphase``."""
    return Path(root or os.environ.get("ANTIPHASE_DATA") or "~/.cache/antiphase").expanduser()
