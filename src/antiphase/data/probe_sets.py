"""Image sets of the linear probe that consist of files, listed by torchvision."""

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from antiphase.data.captions import table_rows
from antiphase.data.folders import file_images, list_classes, missing_files, sub_folders
from antiphase.data.images import FileImages
from antiphase.errors import UserError, one_line

SPLIT_FILE = "antiphase-split.csv"
_TRAIN_IMAGES = 30  # of a class of Caltech-101, as in Fei-Fei et al.
# class names used by CLIP's authors (data/prompts.md of openai/CLIP) where they differ from the folder names
_CALTECH_NAMES = {
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
_SUN_PARTITIONS = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"
_ROBOTS = "https://www.robots.ox.ac.uk/~vgg/data"


@dataclass(frozen=True)
class _TorchvisionSet:
    """A class of torchvision, its arguments besides the split, its folder, and advice if the download fails."""

    dataset: str
    options: dict[str, Any]
    folder: str
    fix: str


_SETS = {
    "food101": _TorchvisionSet(
        "Food101",
        {},
        "food-101",
        "unpack food-101.tar.gz of https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/ in {root}",
    ),
    "sun397": _TorchvisionSet(
        "SUN397",
        {},
        "SUN397",
        "unpack SUN397.tar.gz of https://vision.princeton.edu/projects/2010/SUN/ in {root}",
    ),
    "aircraft": _TorchvisionSet(
        "FGVCAircraft",
        {"annotation_level": "variant"},
        "fgvc-aircraft-2013b",
        f"unpack fgvc-aircraft-2013b.tar.gz of {_ROBOTS}/fgvc-aircraft/ in {{root}}",
    ),
    "dtd": _TorchvisionSet(
        "DTD", {"partition": 1}, "dtd/dtd", f"unpack dtd-r1.0.1.tar.gz of {_ROBOTS}/dtd/ in {{root}}/dtd"
    ),
    "pets": _TorchvisionSet(
        "OxfordIIITPet",
        {},
        "oxford-iiit-pet",
        f"unpack images.tar.gz and annotations.tar.gz of {_ROBOTS}/pets/ in {{root}}/oxford-iiit-pet",
    ),
    "flowers102": _TorchvisionSet(
        "Flowers102",
        {},
        "flowers-102",
        f"unpack 102flowers.tgz of {_ROBOTS}/flowers/102/ in {{root}}/flowers-102, and put its imagelabels.mat and "
        "setid.mat there",
    ),
}

_TWO, _THREE = ("train", "test"), ("train", "val", "test")
PROBE_FILE_SETS = {
    "food101": ("Food-101, RGB, 101 classes of dishes (downloaded)", _TWO),
    "sun397": (
        "SUN397, RGB, 397 classes of scenes, its first partition (downloaded, but for the partition's lists)",
        _TWO,
    ),
    "aircraft": ("FGVC-Aircraft, RGB, 100 variants of aircraft (downloaded)", _THREE),
    "dtd": ("Describable Textures, RGB, 47 classes, partition 1 (downloaded)", _THREE),
    "pets": ("Oxford-IIIT Pet, RGB, 37 breeds (downloaded)", _TWO),
    "caltech101": (
        "Caltech-101, RGB, 102 classes with the background, 30 images of each to train on (downloaded)",
        _TWO,
    ),
    "flowers102": ("Oxford Flowers, RGB, 102 classes (downloaded)", _THREE),
}
"""One-line description and splits of each probe set that consists of files."""


def probe_set(name: str, split: str, root: Path) -> FileImages:
    """List a set of the linear probe in the order of its published lists.

    Sources: "Food-101", Bossard, Guillaumin, Van Gool, 2014; "SUN Database", Xiao et al., 2010;
    "Fine-Grained Visual Classification of Aircraft", Maji et al., 2013 (its variants); "Describing Textures in
    the Wild", Cimpoi et al., 2014 (partition 1); "Cats and Dogs", Parkhi et al., 2012 (``trainval`` is our
    ``train``); "Automated Flower Classification over a Large Number of Classes", Nilsback and Zisserman, 2008.

    Raises:
        UserError: if the set is missing and its download failed, or a list is damaged or contains missing files.
    """
    if name == "caltech101":
        return caltech101(split, root)
    known = _SETS[name]
    folder, fix = root / known.folder, known.fix.format(root=root)
    try:
        files, labels, classes = _sun397(root, split) if name == "sun397" else _listed(name, root, split)
    except UserError:
        raise
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, tarfile.TarError) as error:
        raise UserError(
            f"{name} ({split}) is missing or incomplete in {folder}, and the download failed ({one_line(error)}): "
            f"{fix}, or set ANTIPHASE_DATA to another folder"
        ) from error
    files = [Path(file).relative_to(folder).as_posix() for file in files]
    if not files:
        raise UserError(f"{name} ({split}): its list in {folder} is empty: {fix}")
    if absent := missing_files(folder, files):
        raise UserError(
            f"{name} ({split}): {len(absent):,} of the {len(files):,} listed images are missing in {folder}, the first "
            f"is {absent[0]}: {fix}"
        )
    names = [" ".join(label.replace("_", " ").replace("?", "").split()) for label in classes]
    return file_images(name, split, folder, names, files, labels)


def _listed(name: str, root: Path, split: str) -> tuple[Sequence[Any], Sequence[int], Sequence[str]]:
    """Return files, labels and class names of one of torchvision's data sets."""
    from torchvision import datasets

    known = _SETS[name]
    theirs = "trainval" if (name, split) == ("pets", "train") else split
    data = getattr(datasets, known.dataset)(root, split=theirs, download=True, **known.options)
    return data._images if name == "pets" else data._image_files, data._labels, data.classes


def _sun397(root: Path, split: str) -> tuple[list[Path], list[int], list[str]]:
    """List the first of the ten published partitions, with 50 images per class in each half."""
    from torchvision.datasets import SUN397

    classes = SUN397(root, download=True).classes  # torchvision has no splits here
    folder = root / "SUN397"
    name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    places = (folder / name, folder / "Partitions" / name)
    partition = next(filter(Path.is_file, places), None)
    if partition is None:
        raise UserError(
            f"sun397 ({split}): its published partition {name} not found in {folder} or {folder / 'Partitions'}: unzip "
            f"{_SUN_PARTITIONS} there"
        )
    numbers = {label: number for number, label in enumerate(classes)}
    files: list[Path] = []
    labels: list[int] = []
    for line, text in enumerate(partition.read_text(encoding="utf-8").splitlines(), start=1):
        if not (file := text.strip().lstrip("/")):
            continue
        label = "/".join(Path(file).parts[1:-1])  # a/abbey/sun_x.jpg: without the initial letter
        if label not in numbers:
            raise UserError(
                f"sun397: line {line} of {partition}, {text!r}: expected a class of {folder / 'ClassName.txt'}: unzip "
                f"{_SUN_PARTITIONS} again"
            )
        files.append(folder / file)
        labels.append(numbers[label])
    return files, labels, [label.replace("/", " ") for label in classes]


def caltech101(split: str, root: Path) -> FileImages:
    """List Caltech-101 with its background class: 9,144 images of 102 classes, sorted by folder.

    In each class, the 30 files with the smallest SHA-256 of ``class/file`` are ``train``, the others ``test``. This
    gives 3,060 and 6,084 images, as in tensorflow_datasets, whose split is not published as a list. A file
    ``antiphase-split.csv`` next to the class folders, with columns ``file`` and ``split``, replaces this rule.

    Source: "Learning Generative Visual Models from Few Training Examples", Fei-Fei, Fergus, Perona, 2004.

    Raises:
        UserError: if the folder is missing and its download failed, or the list of the split is invalid.
    """
    folder = _caltech101_folder(root)
    classes = sub_folders(folder)
    names = [_CALTECH_NAMES.get(name, name.replace("_", " ").strip()) for name in classes]
    images = list_classes("caltech101", split, folder, classes, names)
    manifest = folder / SPLIT_FILE
    splits = read_split(manifest, images.files) if manifest.is_file() else split_by_digest(images.files)
    rows = [row for row, file in enumerate(images.files) if splits[file] == split]
    return replace(images.take(rows), ids=torch.arange(len(rows)))


def split_by_digest(files: Sequence[str]) -> dict[str, str]:
    """Return ``train`` or ``test`` for each ``class/file``, independent of their order.

    >>> split_by_digest(["ant/image_0001.jpg"])
    {'ant/image_0001.jpg': 'train'}
    """
    members: dict[str, list[str]] = {}
    for file in sorted(files, key=lambda file: hashlib.sha256(file.encode()).hexdigest()):
        members.setdefault(file.partition("/")[0], []).append(file)
    train = {file for several in members.values() for file in several[:_TRAIN_IMAGES]}
    return {file: "train" if file in train else "test" for file in files}


def read_split(manifest: Path, files: Sequence[str]) -> dict[str, str]:
    """Return ``train`` or ``test`` for each of ``files`` from a table.

    Raises:
        UserError: if the table is unreadable or does not name each image exactly once; names the line.
    """
    rows = table_rows(manifest)
    if not rows or rows[0][1] != ["file", "split"]:
        raise UserError(f"{manifest}: expected 'file,split' as the first line: add it")
    known = set(files)
    splits: dict[str, str] = {}
    for number, row in rows[1:]:
        where = f"line {number} of {manifest}"
        if len(row) != 2:
            raise UserError(f"{where} has {len(row)} cells, expected a file and a split: correct it")
        name, split = row
        if split not in _TWO:
            raise UserError(f"{where} has split {split!r}, expected one of {', '.join(_TWO)}: correct it")
        if name not in known:
            raise UserError(f"{where}: {name} is not an image in {manifest.parent}: remove the line")
        if name in splits:
            raise UserError(f"{where}: duplicate image {name}: remove the line")
        splits[name] = split
    absent = next((file for file in files if file not in splits), None)
    if absent is not None:
        raise UserError(
            f"{manifest}: no split for {len(known) - len(splits)} images, the first is {absent}: add them"
        )
    return splits


def _caltech101_folder(root: Path) -> Path:
    from torchvision.datasets import Caltech101

    below = ("caltech101", "caltech-101", "")  # torchvision's folder, the archive's, or none
    places = [root / folder / "101_ObjectCategories" for folder in below]
    for place in places:
        if sub_folders(place):
            return place
    try:
        Caltech101(root, download=True)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        raise UserError(
            f"caltech101: not found in {places[0]}, and the download failed ({one_line(error)}): unpack "
            "caltech-101.zip from https://data.caltech.edu/records/mzrjq-6wc02, and 101_ObjectCategories.tar.gz in "
            f"it, in {places[0].parent}, or set ANTIPHASE_DATA to another folder"
        ) from error
    return places[0]
