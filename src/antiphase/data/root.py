"""The folder that data sets are looked for in and downloaded to."""

import os
from pathlib import Path


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return ``root`` if given, else the environment variable ANTIPHASE_DATA, else ``~/.cache/antiphase``."""
    return Path(root or os.environ.get("ANTIPHASE_DATA") or "~/.cache/antiphase").expanduser()
