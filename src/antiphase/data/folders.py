"""List the files and labels of a folder of images: any folder of class folders, and Tiny ImageNet."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from antiphase.errors import NoSuchSplit, UserError
from antiphase.files import printable

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Listing:
    """The files of one split, relative to ``root``, and their labels."""

    split: str
    root: Path
    class_names: tuple[str, ...]
    files: list[str]
    labels: list[int]


def class_folder(name: str, folder: Path, split: str) -> Listing:
    """List the images of ``folder``, one sub-folder per class, with classes and files sorted.

    ``folder/train``, ``folder/val`` and ``folder/test`` are splits if they contain sub-folders. The classes are then
    those of all splits together, so that a label has the same meaning in each. A folder without such splits has only
    the split ``test``, so that a model is not tested on its training images.

    Raises:
        UserError: if the folder or the split is missing, or a class has no images.
    """
    if not folder.is_dir():
        raise UserError(
            f"{name}: {folder} is not a folder: give one with a sub-folder of images for each class"
        )
    splits = {split: folder / split for split in SPLITS if sub_folders(folder / split)}
    if splits:
        split = choose_split(name, split, tuple(splits))
        classes = sorted({label for place in splits.values() for label in sub_folders(place)})
        return list_classes(name, split, splits[split], classes, tuple(map(printable, classes)))
    if split != "test":
        raise NoSuchSplit(
            f"{name}: no {split} split in {folder}: move the class folders into "
            f"{folder / 'train'} and {folder / 'test'}"
        )
    classes = sub_folders(folder)
    return list_classes(name, split, folder, classes, tuple(map(printable, classes)))


def tiny_imagenet(split: str, root: Path) -> Listing:
    """List Tiny ImageNet (200 classes, 64×64; 100,000 train, 10,000 val) from its unpacked archive.

    Classes are sorted by wnid and named by their first synonym in ``words.txt``. The archive's ``test`` images have
    no labels, so ``test`` means ``val``.

    Raises:
        UserError: if it is not in ``root``, or one of its lists is damaged.
    """
    folder = root if (root / "wnids.txt").is_file() else root / "tiny-imagenet-200"
    split = choose_split("tiny-imagenet", split, ("train", "val"))
    annotations = folder / "val" / "val_annotations.txt"
    try:
        wnids = sorted((folder / "wnids.txt").read_text().split())
        entries = [line.partition("\t") for line in (folder / "words.txt").read_text().splitlines()]
        notes = annotations.read_text().splitlines() if split == "val" else []
    except OSError as error:
        raise UserError(
            f"tiny-imagenet: {error.filename} is missing: unzip "
            f"http://cs231n.stanford.edu/tiny-imagenet-200.zip in {root}, "
            "or set ANTIPHASE_DATA to another folder"
        ) from error
    words = {wnid: synonyms.split(",")[0].strip() for wnid, _, synonyms in entries}
    class_names = tuple(words.get(wnid, wnid) for wnid in wnids)
    if split == "train":
        return list_classes("tiny-imagenet", split, folder / "train", wnids, class_names)
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    pairs = [line.split("\t")[:2] for line in notes]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) < 2 or pair[1] not in labels:
            raise UserError(
                f"tiny-imagenet: line {number} of {annotations}, {notes[number - 1]!r}: expected a class of "
                "wnids.txt: unzip the archive again"
            )
    return _checked(
        "tiny-imagenet",
        Listing(
            split=split,
            root=folder / "val",
            class_names=class_names,
            files=[f"images/{file}" for file, _ in pairs],
            labels=[labels[wnid] for _, wnid in pairs],
        ),
    )


def choose_split(name: str, split: str, available: tuple[str, ...]) -> str:
    """Return ``split`` if available; ``test`` means ``val`` if a source has only that.

    >>> choose_split("imagenet", "test", ("train", "val"))
    'val'
    """
    if split in available:
        return split
    if split == "test" and "val" in available:
        return "val"
    raise NoSuchSplit(f"{name} has no split {split!r}: expected one of {', '.join(available)}")


def list_classes(
    name: str, split: str, root: Path, folders: list[str], class_names: tuple[str, ...]
) -> Listing:
    """List every image at any depth below ``root/folders[k]`` with label ``k``; folders may be missing."""
    files: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        found = sorted(_images_below(root, folder))
        if not found and (root / folder).is_dir():
            raise UserError(
                f"{name}: class folder {root / folder} has no images ({', '.join(SUFFIXES)}): "
                "add some or remove it"
            )
        files += found
        labels += [label] * len(found)
    return _checked(name, Listing(split, root, class_names, files, labels))


def missing_files(root: Path, files: Iterable[str]) -> list[str]:
    """Return the ``files``, relative to ``root``, that do not exist; lists each folder only once.

    >>> missing_files(Path("/"), ["dev/null", "dev/nil"])
    ['dev/nil']
    """
    held: dict[str, set[str]] = {}
    absent: list[str] = []
    for file in files:
        folder, _, name = file.rpartition("/")
        if folder not in held:
            place = root / folder
            held[folder] = set(os.listdir(place)) if place.is_dir() else set()
        if name not in held[folder]:
            absent.append(file)
    return absent


def _checked(name: str, listing: Listing) -> Listing:
    if not listing.files:
        raise UserError(
            f"{name}: no images in {listing.root}: put the images of each class in a sub-folder named after it"
        )
    return listing


def sub_folders(folder: Path) -> list[str]:
    """Return the sorted names of the visible sub-folders; empty if ``folder`` is not a folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images_below(root: Path, folder: str) -> Iterator[str]:
    """Yield the visible image files at any depth below ``root/folder``, relative to ``root``."""
    for place, _, names in os.walk(root / folder):
        below = Path(place).relative_to(root).as_posix()
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield f"{below}/{name}"
