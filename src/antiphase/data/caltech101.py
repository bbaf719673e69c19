"""Caltech-101, which was published without a split; the split is a rule, or a list supplied by the user."""

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

from antiphase.data.folders import Listing, list_classes, sub_folders
from antiphase.errors import UserError, one_line

CALTECH101_PAGE = "https://data.caltech.edu/records/mzrjq-6wc02"
SPLIT_FILE = "antiphase-split.csv"
_TRAIN_IMAGES = (
    30  # a class, as in "Learning Generative Visual Models from Few Training Examples", Fei-Fei, 2004
)
_SPLITS = ("train", "test")
# class names used by CLIP's authors (data/prompts.md of openai/CLIP) where they differ from the folder names
_NAMES = {
    "BACKGROUND_Google": "background",
    "Faces": "off-center face",
    "Faces_easy": "centered face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
    "airplanes": "airplane",
    "car_side": "side of a car",
    "cougar_body": "body of a cougar cat",
    "cougar_face": "face of a cougar cat",
    "crocodile_head": "head of a crocodile",
    "flamingo_head": "head of a flamingo",
    "snoopy": "snoopy (cartoon beagle)",
    "yin_yang": "yin and yang symbol",
}


def caltech101(split: str, root: Path) -> Listing:
    """List Caltech-101 with its background class: 9,144 images of 102 classes, sorted by folder.

    In each class, the 30 files with the smallest SHA-256 of ``class/file`` are ``train``, the others ``test``. This
    gives 3,060 and 6,084 images, as in tensorflow_datasets, whose split is not published as a list. A file
    ``antiphase-split.csv`` next to the class folders, with columns ``file`` and ``split``, replaces this rule.

    Source: "Learning Generative Visual Models from Few Training Examples", Fei-Fei, Fergus, Perona, 2004.

    Raises:
        UserError: if the folder is missing and its download failed, or the list of the split is invalid.
    """
    folder = _find(root)
    classes = sub_folders(folder)
    names = tuple(_NAMES.get(name, name.replace("_", " ").strip()) for name in classes)
    whole = list_classes("caltech101", split, folder, classes, names)
    manifest = folder / SPLIT_FILE
    part = read_split(manifest, whole.files) if manifest.is_file() else split_by_digest(whole.files)
    rows = [row for row, file in enumerate(whole.files) if part[file] == split]
    return Listing(
        split, folder, names, [whole.files[row] for row in rows], [whole.labels[row] for row in rows]
    )


def split_by_digest(files: Sequence[str]) -> dict[str, str]:
    """Return ``train`` or ``test`` for each ``class/file``, independent of their order.

    >>> split_by_digest(["ant/image_0001.jpg"])
    {'ant/image_0001.jpg': 'train'}
    """
    members: dict[str, list[str]] = {}
    for file in files:
        members.setdefault(file.partition("/")[0], []).append(file)
    train = {file for several in members.values() for file in sorted(several, key=_sha256)[:_TRAIN_IMAGES]}
    return {file: "train" if file in train else "test" for file in files}


def read_split(manifest: Path, files: Sequence[str]) -> dict[str, str]:
    """Return ``train`` or ``test`` for each of ``files`` from a table.

    Raises:
        UserError: if the table is unreadable or does not name each image exactly once; names the line.
    """
    try:
        with manifest.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file)
            lines = [(table.line_num, row) for row in table if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {manifest} ({error}): save it as CSV in UTF-8") from error
    if not lines or lines[0][1] != ["file", "split"]:
        raise UserError(f"{manifest}: expected 'file,split' as the first line: add it")
    known = set(files)
    part: dict[str, str] = {}
    for number, row in lines[1:]:
        where = f"line {number} of {manifest}"
        if len(row) != 2:
            raise UserError(f"{where} has {len(row)} cells, expected a file and a split: correct it")
        name, split = row
        if split not in _SPLITS:
            raise UserError(f"{where} has split {split!r}, expected one of {', '.join(_SPLITS)}: correct it")
        if name not in known:
            raise UserError(f"{where}: {name} is not an image in {manifest.parent}: remove the line")
        if name in part:
            raise UserError(f"{where}: duplicate image {name}: remove the line")
        part[name] = split
    absent = next((file for file in files if file not in part), None)
    if absent is not None:
        raise UserError(
            f"{manifest}: no split for {len(known) - len(part)} images, the first is {absent}: add them"
        )
    return part


def _find(root: Path) -> Path:
    from torchvision.datasets import Caltech101

    below = ("caltech101", "caltech-101", "")  # torchvision's folder, the archive's, or none
    places = [root / folder / "101_ObjectCategories" for folder in below]
    found = next((place for place in places if sub_folders(place)), None)
    if found is not None:
        return found
    try:
        Caltech101(root, download=True)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        reason = one_line(error)
        raise UserError(
            f"caltech101: not found in {places[0]}, and the download failed ({reason}): unpack caltech-101.zip from "
            f"{CALTECH101_PAGE}, and 101_ObjectCategories.tar.gz in it, in {places[0].parent}, "
            "or set ANTIPHASE_DATA to another folder"
        ) from error
    return places[0]


def _sha256(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()
