"""List the files and labels of a folder of images: any folder of class folders, and Tiny ImageNet."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from antiphase.errors import NoSuchSplit, UserError
from antiphase.files import printable

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "val", "test")
# of pictures that Pillow reads only in some builds, with a plugin, or not at all
_RARE_SUFFIXES = (
    ".jfif",
    ".jpe",
    ".jp2",
    ".j2k",
    ".jpx",
    ".jxl",
    ".avif",
    ".heic",
    ".heif",
    ".tga",
    ".pbm",
    ".pnm",
    ".pcx",
    ".dds",
    ".ico",
    ".psd",
    ".svg",
    ".exr",
    ".hdr",
    ".dng",
    ".cr2",
    ".nef",
    ".arw",
    ".dcm",
    ".npy",
)
_FEATURES = {"AVIF": "avif", "JPEG2000": "jpg_2000"}  # formats that Pillow may list and not be able to read
_LITTER = ("@eadir", "__macosx", "#recycle", "$recycle.bin", "lost+found")  # folders of operating systems
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


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

    ``folder/train``, ``folder/val`` and ``folder/test``, also called ``Training``, ``valid``, ``validation``, ``dev``,
    ``Testing``, are splits if they contain sub-folders. The classes are then those of all splits together, so that a
    label has the same meaning in each. A folder without such splits has only the split ``test``, so that a model is
    not tested on its training images.

    Raises:
        UserError: if the folder or the split is missing, a class has no images, or it is unclear what the classes are.
    """
    if not folder.is_dir():
        raise UserError(
            f"{name}: {folder} is not a folder: give one with a sub-folder of images for each class"
        )
    below = sub_folders(folder)
    inside = {entry: sub_folders(folder / entry) for entry in below if split_named(entry)}
    found = {entry: split_named(entry) for entry in inside if inside[entry]}
    splits = {part: folder / entry for part in SPLITS for entry in found if found[entry] == part}
    if len(splits) < len(found):
        raise UserError(f"{name}: {', '.join(found)} name the same split twice: rename one of them")
    if splits:
        split = choose_split(name, split, tuple(splits))
        classes = sorted({label for labels in inside.values() for label in labels})
        _check_siblings(name, folder, below, list(found), classes)
        return list_classes(name, split, splits[split], classes, tuple(map(printable, classes)))
    if split != "test":
        raise NoSuchSplit(
            f"{name}: no {split} split in {folder}: move the class folders into "
            f"{folder / 'train'} and {folder / 'test'}"
        )
    listing = list_classes(name, split, folder, below, tuple(map(printable, below)))
    _check_classes(name, listing)
    return listing


def split_named(word: str) -> str | None:
    """Return the split that a folder's name stands for; None if it stands for none.

    >>> split_named("Training"), split_named("valid"), split_named("bus")
    ('train', 'val', None)
    """
    return _SPLIT_WORDS.get(word.casefold())


def _check_siblings(name: str, folder: Path, below: list[str], splits: list[str], classes: list[str]) -> None:
    """Refuse a single split next to folders with other sub-folders, such as the classes valid and invalid."""
    for other in below if len(splits) == 1 else ():
        inside = sub_folders(folder / other)
        if inside and not set(inside) & set(classes):
            raise UserError(
                f"{name}: {splits[0]} and {other} have different sub-folders: if they are classes, rename {splits[0]}; "
                "if they are splits, give one of them"
            )


def _check_classes(name: str, listing: Listing) -> None:
    """Refuse class folders that look like splits or domains, or like an archive in a folder of its own."""
    places = {file.rpartition("/")[0] for file in listing.files}
    below: dict[str, set[str]] = {}  # the sub-folders of each class; "" for images of its own
    for place in places:
        label, _, rest = place.partition("/")
        below.setdefault(label, set()).add(rest.partition("/")[0])
    nested = sorted(label for label, inside in below.items() if "" not in inside)
    counts = Counter(inside for label in nested for inside in below[label])
    alike = sorted(inside for inside, count in counts.items() if count > 1)
    same = f"{len(nested)} of the {len(below)} class folders have the sub-folders {', '.join(alike[:3])}"
    training = [one for one in nested if re.search(r"(^|[\W_])train(ing)?($|[\W_\d])", one.casefold())]
    top = os.path.commonpath(places)
    if len(below) > 1 and all(map(split_named, below)):
        fault = f"{', '.join(sorted(below))} have no sub-folder for each class: move their images into such folders"
    elif training:
        fault = f"{training[0]} looks like a split: rename such folders to train, val and test"
    elif len(alike) >= max(len(below), 2):
        fault = f"{same}: if those are the classes, give one folder above, such as {listing.root / nested[0]}"
    elif top and top not in places and len(places) > 1:
        fault = f"all images are in sub-folders of {listing.root / top}: give it, or the folder above if it is a class"
    elif len(alike) > 1:
        warnings.warn(f"{name}: {same}: the images of all of them are taken", stacklevel=2)
        return
    else:
        return
    raise UserError(f"{name}: {fault}")


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
    left_out: Counter[str] = Counter()
    listed = {_identity(place): "" for place in (root, *root.absolute().parents) if place.exists()}
    for label, folder in enumerate(folders):
        found = sorted(_images_below(name, root, folder, listed, left_out))
        if not found and (root / folder).is_dir():
            raise UserError(
                f"{name}: class folder {root / folder} has no images ({', '.join(SUFFIXES)}): "
                "add some or remove it"
            )
        files += found
        labels += [label] * len(found)
    if left_out:
        counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(left_out.items()))
        warnings.warn(
            f"{name}: left out files that Pillow cannot read, {counts}; convert them to PNG", stacklevel=2
        )
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
        return sorted(entry.name for entry in entries if entry.is_dir() and not _is_litter(entry.name))


def _is_litter(folder: str) -> bool:
    return folder.startswith(".") or folder.casefold() in _LITTER


def _images_below(
    source: str, root: Path, folder: str, listed: dict[tuple[int, int], str], left_out: Counter[str]
) -> Iterator[str]:
    """Yield the visible image files at any depth below ``root/folder``, relative to ``root``.

    Linked folders are followed; a folder that is reached twice is listed once. ``listed`` keeps the class of each, and
    ``left_out`` counts files by suffix.
    """
    for place, folders, names in os.walk(root / folder, onerror=_refuse, followlinks=True):
        identity = _identity(place)
        if (label := listed.get(identity)) is not None:
            if label not in ("", folder):
                raise UserError(f"{source}: {place} is a folder of the class {label}, too: remove the link")
            folders.clear()
            continue
        listed[identity] = folder
        # links last, so that a file has its own path if it has one
        visible = sorted(one for one in folders if not _is_litter(one))
        folders[:] = sorted(visible, key=lambda one: os.path.islink(os.path.join(place, one)))
        below = Path(place).relative_to(root).as_posix()
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if name.startswith("."):
                continue
            if suffix in SUFFIXES or (suffix in _RARE_SUFFIXES and _is_readable(suffix)):
                yield f"{below}/{name}"
            elif suffix in _RARE_SUFFIXES:
                left_out[suffix] += 1


def _identity(place: str | Path) -> tuple[int, int]:
    status = os.stat(place)
    return status.st_dev, status.st_ino


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise UserError(
            f"cannot list {error.filename} ({error.strerror}): make it readable, or remove it"
        ) from None


@cache
def _is_readable(suffix: str) -> bool:
    """Return whether Pillow, as it is installed, reads files with a suffix."""
    from PIL import Image, features

    Image.init()
    kind = Image.EXTENSION.get(suffix)
    return kind in Image.OPEN and (kind not in _FEATURES or bool(features.check(_FEATURES[kind])))
