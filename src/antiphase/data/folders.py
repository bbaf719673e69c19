"""The data folder, and folders of images with a sub-folder for each class."""

import os
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from PIL import Image

from antiphase.data.images import FileImages
from antiphase.errors import NoSuchSplit, UserError
from antiphase.files import printable

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "val", "test")
# of pictures that Pillow reads only in some builds, with a plugin, or not at all
_RARE = "jfif jpe jp2 j2k jpx jxl avif heic heif tga pbm pnm pcx dds ico psd svg exr hdr dng cr2 nef arw dcm"
_RARE_SUFFIXES = {f".{suffix}" for suffix in (*_RARE.split(), "npy")}
_BEGINNINGS = re.compile(  # of pictures' bytes
    rb"\xff\xd8\xff|\x89PNG|GIF8|II\*\0|MM\0\*|RIFF.{4}WEBP|BM.{4}\0{4}|.{4}ftyp(avi|hei)", re.DOTALL
)
_LITTER = ("@eadir", "__macosx", "#recycle", "$recycle.bin", "lost+found")  # folders of operating systems
_NO_CLASSES = {"images", "labels", "masks", "annotations", "segmentations"}  # of data sets for other tasks
SPLIT_WORDS = {split: split for split in SPLITS} | {"training": "train", "testing": "test"}
SPLIT_WORDS |= dict.fromkeys(("valid", "validation", "dev"), "val")


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return ``root``, or the environment variable ANTIPHASE_DATA, or ``~/.cache/antiphase``."""
    return Path(root or os.environ.get("ANTIPHASE_DATA") or "~/.cache/antiphase").expanduser()


def choose_split(name: str, split: str, available: Sequence[str]) -> str:
    """Return ``split`` if available; ``test`` means ``val`` if a source has only that."""
    if split in available:
        return split
    if split == "test" and "val" in available:
        return "val"
    raise NoSuchSplit(f"{name} has no split {split!r}: expected one of {', '.join(available)}")


def split_named(word: str) -> str | None:
    """Return the split that a folder's name stands for, such as ``valid``; None if it stands for none."""
    return SPLIT_WORDS.get(word.casefold())


def class_folder(name: str, place: Path, split: str) -> FileImages:
    """List the images of a folder, one sub-folder per class, with classes and files sorted.

    The classes are those of all splits. Without splits there is only ``test``: no model is tested on training images.
    """
    name = printable(name)
    if not place.is_dir():
        raise UserError(f"{name}: {place} is not a folder: give one with a sub-folder for each class")
    below = {entry: sub_folders(place / entry) for entry in sub_folders(place)}
    parts = [entry for entry in below if split_named(entry) and below[entry]]
    splits = {split_named(entry) or "": entry for entry in parts}
    if len(splits) < len(parts):
        raise UserError(f"{name}: {', '.join(parts)} name the same split twice: rename one of them")
    if splits:
        split = choose_split(name, split, [part for part in SPLITS if part in splits])
        for entry in parts:
            if {label.casefold() for label in below[entry]} <= _NO_CLASSES:
                fault = f"{place / entry} has no sub-folder for each class, only {', '.join(below[entry])}"
                raise UserError(f"{name}: {fault}: move its images into such folders")
        classes = sorted({label for entry in parts for label in below[entry]})
        first = splits.get("train", parts[0])
        for other in parts if parts[1:] else below:  # of a single split those next to it, such as valid and invalid
            if below[other] and not {*below[other]} & {*below[first]}:
                raise UserError(f"{name}: {first} and {other} have different sub-folders: rename one of them")
        plain = {_bare(label): label for label in below[first]}
        for label in classes:
            other = plain.get(_bare(label))
            if other and label not in below[first]:
                raise UserError(f"{name}: {first} has a class {other!a}, not {label!a}: rename one of them")
        if others := [entry for entry in below if entry not in parts]:
            warnings.warn(f"{name}: left out {', '.join(others[:5])}, which name no split", stacklevel=2)
        return list_classes(name, split, place / splits[split], classes, list(map(printable, classes)))
    if split != "test":
        fix = f"move the class folders into {place / 'train'} and {place / 'test'}"
        raise NoSuchSplit(f"{name}: no {split} split in {place}: {fix}")
    images = list_classes(name, split, place, [*below], list(map(printable, below)))
    _check_classes(name, images)
    return images


def _bare(label: str) -> str:
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFC", label).casefold())


def _check_classes(name: str, images: FileImages) -> None:
    """Refuse class folders that look like splits or domains, or like an archive in a folder of its own."""
    inside: dict[str, set[str]] = {}  # the sub-folders of each class; "" for images of its own
    for file in images.files:
        label, _, rest = file.partition("/")
        inside.setdefault(label, set()).add(rest.rpartition("/")[0].partition("/")[0])
    nested = [label for label in inside if "" not in inside[label]]
    counts = Counter(folder for label in nested for folder in inside[label])
    alike = ", ".join(sorted(folder for folder, count in counts.items() if count > 1)[:3])
    training = [label for label in nested if re.search(r"(^|[\W_])train(ing)?($|[\W_\d])", label.casefold())]
    if len(inside) > 1 and all(map(split_named, inside)):
        fault = f"{', '.join(inside)} have no sub-folder for each class: move their images into such folders"
    elif len(inside) > 1 and {label.casefold() for label in inside} <= _NO_CLASSES:
        fault = f"{', '.join(inside)} are no classes: put the images of each class in a sub-folder"
    elif training:
        fault = f"{training[0]} looks like a split: rename such folders to train, val and test"
    elif alike and len(counts) > 1:  # one sub-folder that all classes have, such as images, tells nothing
        fix = f"give one folder above, such as {images.root / nested[0]}, or move the images up"
        fault = f"several class folders have a sub-folder {alike}: {fix}"
    elif nested and len(inside) == 1:
        fault = f"all images are in sub-folders of {images.root / nested[0]}: give it, or move the images up"
    else:
        return
    raise UserError(f"{name}: {fault}")


def list_classes(name: str, split: str, root: Path, folders: Sequence[str], class_names: Sequence[str]) -> FileImages:
    """List every image at any depth below ``root/folders[k]`` with label ``k``; folders may be missing."""
    files: list[str] = []
    labels: list[int] = []
    left_out: Counter[str] = Counter()
    listed = dict.fromkeys(map(str, (root.resolve(), *root.resolve().parents)), "")
    for label, folder in enumerate(folders):
        images = sorted(_images_below(name, root, folder, listed, left_out))
        if not images and (root / folder).is_dir():
            raise UserError(f"{name}: class folder {root / folder} has no images: add some or remove it")
        files += images
        labels += [label] * len(images)
    if left_out:
        reason = f"left out files that Pillow cannot read, or has no reader for by their names, {dict(left_out)}"
        reason += "; convert them to PNG, or rename them"
        warnings.warn(f"{name}: {reason}", stacklevel=2)
    visible = (entry for entry in os.listdir(root) if not entry.startswith("."))
    if files and (loose := [entry for entry in visible if os.path.splitext(entry)[1].lower() in SUFFIXES]):
        reason = f"left out images that are in no class folder: {len(loose):,} in {root}, such as {min(loose)}"
        warnings.warn(f"{name}: {reason}", stacklevel=2)
    if not files:
        raise UserError(f"{name}: no images in {root}: put those of each class in a sub-folder")
    return FileImages.whole(name, split, class_names, labels, root=root, files=tuple(files))


def missing_files(root: Path, files: Iterable[str]) -> list[str]:
    """Return the ``files``, relative to ``root``, that are no files."""
    return [file for file in files if not os.path.isfile(os.path.join(root, file))]


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


def _images_below(name: str, root: Path, folder: str, listed: dict[str, str], left_out: Counter[str]) -> Iterator[str]:
    """Yield the visible image files at any depth below ``root/folder``, relative to ``root``."""
    # what Pillow, as it is installed, reads
    readable = {*SUFFIXES, *(one for one in _RARE_SUFFIXES if Image.registered_extensions().get(one) in Image.OPEN)}
    for place, folders, names in os.walk(root / folder, onerror=_refuse, followlinks=True):
        if (label := listed.get(real := os.path.realpath(place))) is not None:
            if label not in ("", folder):
                raise UserError(f"{name}: {place} is a folder of the class {label}, too: remove the link")
            folders.clear()
            continue
        listed[real] = folder
        # links last, so that a file has its own path if it has one
        visible = sorted(one for one in folders if not _is_litter(one))
        folders[:] = sorted(visible, key=lambda one: os.path.islink(os.path.join(place, one)))
        below = Path(place).relative_to(root).as_posix()
        for file in names:
            suffix = "" if file.startswith(".") else os.path.splitext(file)[1].lower()
            if suffix in readable:
                yield f"{below}/{file}"
            elif suffix in _RARE_SUFFIXES or (not file.startswith(".") and _begins_as_picture(f"{place}/{file}")):
                left_out[suffix or "without a suffix"] += 1


def _begins_as_picture(path: str) -> bool:
    with suppress(OSError):  # it may not be readable
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return _BEGINNINGS.match(file.read(16)) is not None
    return False


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise UserError(f"cannot list {error.filename} ({error.strerror}): make it readable, or remove it")
