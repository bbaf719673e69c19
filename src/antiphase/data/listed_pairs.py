"""Build pairs from a list of image files and captions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from antiphase import reading
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
    fix: str = "move them there",
) -> FilePairs:
    """Return the rows that have captions as pairs; ids are row numbers, other rows are ``skipped``.

    Single training images may be missing; they are bad samples during training. Evaluation splits must be complete,
    so that results are comparable.

    Args:
        name: name of the source.
        split: name of the split.
        places: folders to search for the images.
        rows: listed files, captions and labels.
        class_names: names of the labels, if any.
        lack: message for a row without captions.
        fix: advice for missing images.

    Raises:
        UserError: if the images are in none of the folders, or an image of a split other than ``train`` is missing.
    """
    kept = [(number, row) for number, row in enumerate(rows) if row[1]]
    files = tuple(file for _, (file, _, _) in kept)
    root = _image_folder(name, places, files, fix)
    if split != "train" and (absent := missing_files(root, files)):
        raise UserError(
            f"{name} ({split}): {len(absent):,} of the {len(files):,} listed images are missing in {root}, "
            f"the first is {absent[0]}: {fix}"
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


def _image_folder(name: str, places: Sequence[Path], files: Sequence[str], fix: str) -> Path:
    """Return the first folder with any of the first files, since single files may be missing."""
    some = files[:100]
    for place in places:
        if not files or any((place / file).is_file() for file in some):
            return place
    shown = ", ".join(dict.fromkeys(str(place) for place in places))
    raise UserError(f"{name}: {some[0]} and the next images not found in {shown}: {fix}")


def read_json(path: Path) -> Any:
    """Read a JSON file of any size; UserError if it is missing or invalid."""
    return reading.read_json(path, None, "download it again, or give an existing file", most=2**40)


def damaged(path: Path, what: str, error: Exception) -> UserError:
    """Return the error for a JSON list with an unexpected structure."""
    reason = f"{type(error).__name__}: {error}"
    return UserError(f"{path}: expected {what} ({reason}): download it again")
