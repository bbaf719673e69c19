"""Sources of data by name, such as ``digits`` or ``csv:PATH``."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from antiphase.errors import UserError, shown

T = TypeVar("T")
_FILES = {
    ".npz": ("npz",),
    ".parquet": ("parquet",),
    ".csv": ("csv",),
    ".tsv": ("csv",),
    ".json": ("karpathy", "llava"),
    ".tar": ("shards",),
}


def find_named(name: str, sources: Mapping[str, T], what: str) -> T:
    """Return the source of a name.

    Args:
        name: a key of ``sources``, with a path in place of what follows the colon.
        sources: the sources by name, such as ``"csv:PATH"``.
        what: what to call a source in the message.

    Raises:
        UserError: there is no such source, or its path is missing.

    >>> find_named("csv:pairs.csv", {"coco": 1, "csv:PATH": 2}, "source of pairs")
    2
    >>> find_named("cocos", {"coco": 1, "wds:PATH": 2}, "source of pairs")
    Traceback (most recent call last):
    antiphase.errors.UserError: unknown source of pairs 'cocos': did you mean coco? Expected one of coco, wds:PATH
    """
    kind, _, path = name.partition(":")
    for key, source in sources.items():
        if key == name if ":" not in key else path and key.startswith(f"{kind}:"):
            return source
    listed = ", ".join(sources)
    kinds = {key.partition(":")[0]: key for key in sources}
    near = [kinds[one] for one in difflib.get_close_matches(kind.lower(), kinds, n=2, cutoff=0.5)]
    guess = f"did you mean {' or '.join(near)}? Expected" if near else "expected"
    known = next((kind for kind in _kinds_of_file(name) if kind in kinds), None)
    hint = f"for that {'folder of images say' if known == 'folder' else 'file use'} '{known}:{name}'"
    raise UserError(f"unknown {what} {shown(name)}: {hint if known else f'{guess} one of {listed}'}")


def _kinds_of_file(name: str) -> tuple[str, ...]:
    """Return the kinds of sources that a file or folder could be."""
    if ":" not in name and (kinds := _FILES.get(Path(name).suffix.lower())):
        return kinds
    return ("folder",) if name and os.path.isdir(os.path.expanduser(name)) else ()
