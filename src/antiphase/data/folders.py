"""The data folder, and folders of images with a sub-folder for each class."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from antiphase.data.images import FileImages, file_set
from antiphase.errors import NoSuchSplit, UserError
from antiphase.files import printable

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "val", "test")
# of pictures that Pillow reads only in some builds, with a plugin, or not at all
_RARE_SUFFIX = re.compile(
    r"\.(jfif|jpe|jp2|j2k|jpx|jxl|avif|heic|heif|tga|pbm|pnm|pcx|dds|ico|psd|svg|exr|hdr|dng|cr2|nef|arw|dcm|npy)"
)
_FEATURES = {"AVIF": "avif", "JPEG2000": "jpg_2000"}  # formats that Pillow may list and not be able to read
_LITTER = ("@eadir", "__macosx", "#recycle", "$recycle.bin", "lost+found")  # folders of operating systems
_SPLIT_WORDS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev")}
_SPLIT_WORDS |= {"test": ("test", "testing")}


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return ``root``, or the environment variable ANTIPHASE_DATA, or ``~/.cache/antiphase``."""
    return Path(root or os.environ.get("ANTIPHASE_DATA") or "~/.cache/antiphase").expanduser()


def choose_split(name: str, split: str, available: Sequence[str]) -> str:
    """Return ``split`` if available; ``test`` means ``val`` if a source has only that.

    >>> choose_split("imagenet", "test", ("train", "val"))
    'val'
    """
    if split in available:
        return split
    if split == "test" and "val" in available:
        return "val"
    raise NoSuchSplit(f"{name} has no split {split!r}: expected one of {', '.join(available)}")


def split_named(word: str) -> str | None:
    """Return the split that a folder's name stands for; None if it stands for none.

    >>> split_named("Training"), split_named("valid"), split_named("bus")
    ('train', 'val', None)
    """
    return next((split for split, words in _SPLIT_WORDS.items() if word.casefold() in words), None)


def class_folder(name: str, folder: Path, split: str) -> FileImages:
    """List the images of ``folder``, one sub-folder per class, with classes and files sorted.

    Folders called train, val, test or a similar word are splits if they contain sub-folders; the classes are those of
    all splits together. A folder without splits has only ``test``, so that a model is not tested on training images.
    """
    if not folder.is_dir():
        raise UserError(f"{name}: {folder} is not a folder: give one with a sub-folder for each class")
    below = sub_folders(folder)
    inside = {entry: sub_folders(folder / entry) for entry in below if split_named(entry)}
    parts = {entry: split_named(entry) for entry in inside if inside[entry]}
    splits = {part: folder / entry for part in SPLITS for entry in parts if parts[entry] == part}
    if len(splits) < len(parts):
        raise UserError(f"{name}: {', '.join(parts)} name the same split twice: rename one of them")
    if not splits:
        if split != "test":
            fix = f"move the class folders into {folder / 'train'} and {folder / 'test'}"
            raise NoSuchSplit(f"{name}: no {split} split in {folder}: {fix}")
        images = list_classes(name, split, folder, below, list(map(printable, below)))
        _check_classes(name, images)
        return images
    split = choose_split(name, split, tuple(splits))
    classes = sorted({label for labels in inside.values() for label in labels})
    first, *others = parts
    for other in [] if others else below:  # a single split next to others, such as valid and invalid
        if (labels := sub_folders(folder / other)) and not set(labels) & set(classes):
            fix = f"if they are classes, rename {first}; if they are splits, give one of them"
            raise UserError(f"{name}: {first} and {other} have different sub-folders: {fix}")
    return list_classes(name, split, splits[split], classes, list(map(printable, classes)))


def _check_classes(name: str, images: FileImages) -> None:
    """Refuse class folders that look like splits or domains, or like an archive in a folder of its own."""
    places = {file.rpartition("/")[0] for file in images.files}
    below: dict[str, set[str]] = {}  # the sub-folders of each class; "" for images of its own
    for place in places:
        label, _, rest = place.partition("/")
        below.setdefault(label, set()).add(rest.partition("/")[0])
    nested = sorted(label for label, inside in below.items() if "" not in inside)
    counts = Counter(inside for label in nested for inside in below[label])
    alike = sorted(inside for inside, count in counts.items() if count > 1)
    same = f"{len(nested)} of the {len(below)} class folders have the sub-folders {', '.join(alike[:3])}"
    training = [label for label in nested if re.search(r"(^|[\W_])train(ing)?($|[\W_\d])", label.casefold())]
    top = os.path.commonpath(places)
    if len(below) > 1 and all(map(split_named, below)):
        fault = f"{', '.join(sorted(below))} have no sub-folder for each class: move their images into such folders"
    elif training:
        fault = f"{training[0]} looks like a split: rename such folders to train, val and test"
    elif len(alike) >= max(len(below), 2):
        fault = f"{same}: if those are the classes, give one folder above, such as {images.root / nested[0]}"
    elif top and top not in places and len(places) > 1:
        fault = f"all images are in sub-folders of {images.root / top}: give it, or the folder above if it is a class"
    else:
        if len(alike) > 1:
            warnings.warn(f"{name}: {same}: the images of all of them are taken", stacklevel=2)
        return
    raise UserError(f"{name}: {fault}")


def list_classes(
    name: str, split: str, root: Path, folders: Sequence[str], class_names: Sequence[str]
) -> FileImages:
    """List every image at any depth below ``root/folders[k]`` with label ``k``; folders may be missing."""
    files: list[str] = []
    labels: list[int] = []
    left_out: Counter[str] = Counter()
    listed = {_identity(place): "" for place in (root, *root.absolute().parents) if place.exists()}
    for label, folder in enumerate(folders):
        images = sorted(_images_below(name, root, folder, listed, left_out))
        if not images and (root / folder).is_dir():
            raise UserError(f"{name}: class folder {root / folder} has no images: add some or remove it")
        files += images
        labels += [label] * len(images)
    if left_out:
        counts = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(left_out.items()))
        reason = f"left out files that Pillow cannot read, {counts}; convert them to PNG"
        warnings.warn(f"{name}: {reason}", stacklevel=2)
    if not files:
        raise UserError(f"{name}: no images in {root}: put those of each class in a sub-folder")
    return file_set(name, split, root, class_names, files, labels)


def missing_files(root: Path, files: Iterable[str]) -> list[str]:
    """Return the ``files``, relative to ``root``, that do not exist; lists each folder only once.

    >>> missing_files(Path("/"), ["dev/null", "dev/nil"])
    ['dev/nil']
    """

    @cache
    def names(folder: str) -> set[str]:
        return set(os.listdir(root / folder)) if (root / folder).is_dir() else set()

    return [file for file in files if os.path.basename(file) not in names(os.path.dirname(file))]


def refuse_missing(name: str, root: Path, files: Sequence[str], fix: str) -> None:
    """Raise UserError if some files do not exist."""
    if absent := missing_files(root, files):
        missing = f"{len(absent):,} of the {len(files):,} listed images are missing in {root}"
        raise UserError(f"{name}: {missing}, the first is {absent[0]}: {fix}")


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
    """Yield the visible image files at any depth below ``root/folder``, relative to ``root``."""
    for place, folders, names in os.walk(root / folder, onerror=_refuse, followlinks=True):
        identity = _identity(place)
        if (label := listed.get(identity)) is not None:
            if label not in ("", folder):
                raise UserError(f"{source}: {place} is a folder of the class {label}, too: remove the link")
            folders.clear()
            continue
        listed[identity] = folder
        # links last, so that a file has its own path if it has one
        visible = sorted(name for name in folders if not _is_litter(name))
        folders[:] = sorted(visible, key=lambda name: os.path.islink(os.path.join(place, name)))
        below = Path(place).relative_to(root).as_posix()
        for name in names:
            suffix = os.path.splitext(name)[1].lower()
            if name.startswith("."):
                continue
            rare = _RARE_SUFFIX.fullmatch(suffix)
            if suffix in SUFFIXES or (rare and _is_readable(suffix)):
                yield f"{below}/{name}"
            elif rare:
                left_out[suffix] += 1


def _identity(place: str | Path) -> tuple[int, int]:
    status = os.stat(place)
    return status.st_dev, status.st_ino


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise UserError(f"cannot list {error.filename} ({error.strerror}): make it readable, or remove it")


@cache
def _is_readable(suffix: str) -> bool:
    """Return whether Pillow, as it is installed, reads files with a suffix."""
    from PIL import Image, features

    Image.init()
    kind = Image.EXTENSION.get(suffix)
    return kind in Image.OPEN and (kind not in _FEATURES or bool(features.check(_FEATURES[kind])))
