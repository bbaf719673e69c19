"""From a list of image files and captions, whoever wrote it, to pairs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from antiphase.data.folders import missing_files
from antiphase.data.pairs import FilePairs
from antiphase.errors import UserError

Row = tuple[str, tuple[str, ...], int | None]
"""File, captions, label."""


def listed_pairs(
    name: str,
    split: str,
    places: Sequence[Path],
    rows: Sequence[Row],
    class_names: tuple[str, ...] = (),
    *,
    lack: str = "has no caption",
    mend: str = "move them there",
) -> FilePairs:
    """Return the rows that have captions, under the numbers of all; the others are ``skipped``.

    A single image of training data may be missing: it is a bad sample when its turn comes. What a model is
    measured on is whole, or figures would be of another set than they say.

    Args:
        name: of the source.
        split: of it.
        places: folders that the images are looked for in.
        rows: what was listed.
        class_names: of the labels, if there are any.
        lack: what is said of a row without captions.
        mend: what is to be done where images are not there.

    Raises:
        UserError: the images are in none of the places, or one of a split other than ``train`` is missing.
    """
    kept = [(number, row) for number, row in enumerate(rows) if row[1]]
    files = tuple(file for _, (file, _, _) in kept)
    root = _image_folder(name, places, files, mend)
    if split != "train" and (absent := missing_files(root, files)):
        raise UserError(
            f"{name} ({split}): {len(absent):,} of the {len(files):,} images that the list names are not in "
            f"{root}, the first is {absent[0]}: {mend}"
        )
    labels = torch.tensor([label for _, (_, _, label) in kept], dtype=torch.int64) if class_names else None
    return FilePairs(
        name=name,
        split=split,
        ids=torch.tensor([number for number, _ in kept], dtype=torch.int64),
        captions=tuple(said for _, (_, said, _) in kept),
        labels=labels,
        class_names=class_names,
        skipped=tuple(f"{file} {lack}" for file, said, _ in rows if not said),
        root=root,
        files=files,
    )


def _image_folder(name: str, places: Sequence[Path], files: Sequence[str], mend: str) -> Path:
    """Return the first place that has one of the first files: a single one may be missing."""
    some = files[:100]
    for place in places:
        if not files or any((place / file).is_file() for file in some):
            return place
    shown = ", ".join(dict.fromkeys(str(place) for place in places))
    raise UserError(f"{name}: {some[0]} and those after it are not in {shown}: {mend}")


def read_json(path: Path) -> Any:
    """Return what a list in JSON says; UserError where it is not there or no JSON."""
    try:
        with path.open(encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): name a file that is there") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}): fetch it again") from error


def damaged(path: Path, what: str, error: Exception) -> UserError:
    """Return the error for a list in JSON that is of another make."""
    reason = f"{type(error).__name__}: {error}"
    return UserError(f"{path} is not what {what} look like ({reason}): fetch it again")
