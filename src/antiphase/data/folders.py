"""Where the files and labels of a folder of images are: any folder of classes, and Tiny ImageNet."""

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
    """The files of one split, relative to ``root``, with a label each."""

    split: str
    root: Path
    class_names: tuple[str, ...]
    files: list[str]
    labels: list[int]


def class_folder(name: str, folder: Path, split: str) -> Listing:
    """List the images of ``folder``, one sub-folder a class, classes and files in sorted order.

    ``folder/train``, ``folder/val`` and ``folder/test`` are splits where they hold sub-folders themselves;
    the classes are then those of all splits together, so that a label means the same in each. A folder
    without such splits is one split, ``test``: it would be no good to train and test on the same images.

    Raises:
        UserError: the folder or the split is missing, or a class has no image.
    """
    if not folder.is_dir():
        raise UserError(f"{name}: {folder} is no folder: give one that holds a sub-folder of images a class")
    splits = {split: folder / split for split in SPLITS if sub_folders(folder / split)}
    if splits:
        split = choose_split(name, split, tuple(splits))
        classes = sorted({label for place in splits.values() for label in sub_folders(place)})
        return list_classes(name, split, splits[split], classes, tuple(map(printable, classes)))
    if split != "test":
        raise NoSuchSplit(
            f"{name}: there is no {split} split in {folder}: move the class folders into "
            f"{folder / 'train'} and {folder / 'test'}"
        )
    classes = sub_folders(folder)
    return list_classes(name, split, folder, classes, tuple(map(printable, classes)))


def tiny_imagenet(split: str, root: Path) -> Listing:
    """List Tiny ImageNet (200 classes, 64×64; 100,000 train, 10,000 val) in its unpacked archive.

    Classes are sorted wnids, named by the first synonym in ``words.txt``. The archive's ``test`` images have
    no labels, so ``test`` means ``val``.

    Raises:
        UserError: it is not under ``root``, or one of its lists is damaged.
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
            f"tiny-imagenet is not whole, {error.filename} is missing: unzip "
            f"http://cs231n.stanford.edu/tiny-imagenet-200.zip in {root}, "
            "or name another folder in ANTIPHASE_DATA"
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
                f"tiny-imagenet: line {number} of {annotations}, {notes[number - 1]!r}, names no class of "
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
    """Return ``split``; where a source calls its held-out images ``val``, ``test`` means these.

    >>> choose_split("imagenet", "test", ("train", "val"))
    'val'
    """
    if split in available:
        return split
    if split == "test" and "val" in available:
        return "val"
    raise NoSuchSplit(f"{name} has no split {split!r}: choose one of {', '.join(available)}")


def list_classes(
    name: str, split: str, root: Path, folders: list[str], class_names: tuple[str, ...]
) -> Listing:
    """List every image at any depth below ``root/folders[k]`` with label ``k``; absent folders are empty."""
    files: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        found = sorted(_images_below(root, folder))
        if not found and (root / folder).is_dir():
            raise UserError(
                f"{name}: class folder {root / folder} holds no images ({', '.join(SUFFIXES)}): "
                "add some or remove it"
            )
        files += found
        labels += [label] * len(found)
    return _checked(name, Listing(split, root, class_names, files, labels))


def missing_files(root: Path, files: Iterable[str]) -> list[str]:
    """Return those of ``files``, relative to ``root``, that are not there; a folder is looked into once.

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
            f"{name}: there are no images in {listing.root}: "
            "put those of each class in a sub-folder of its name"
        )
    return listing


def sub_folders(folder: Path) -> list[str]:
    """Return the sorted names of the visible sub-folders; none where ``folder`` is no folder."""
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
