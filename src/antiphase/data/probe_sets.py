"""Image sets of the linear probe that consist of files, listed by torchvision."""

import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.data.caltech101 import caltech101
from antiphase.data.folders import Listing, choose_split, missing_files
from antiphase.errors import UserError, one_line

SUN_PARTITIONS = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"

Entries = tuple[Sequence[str | Path], Sequence[int], Sequence[str]]
"""Files, labels and class names."""


@dataclass(frozen=True)
class _ProbeSet:
    """One set.

    Attributes:
        splits: published splits.
        folder: its folder below the data folder.
        fix: advice if the download fails.
        entries: lists a split; may raise any of torchvision's exceptions.
    """

    splits: tuple[str, ...]
    folder: str
    fix: str
    entries: Callable[[Path, str], Entries]


def probe_set(name: str, split: str, root: Path) -> Listing:
    """List a set of the linear probe in the order of its published lists.

    Sources: "Food-101", Bossard, Guillaumin, Van Gool, 2014; "SUN Database", Xiao et al., 2010;
    "Fine-Grained Visual Classification of Aircraft", Maji et al., 2013 (its variants); "Describing Textures in
    the Wild", Cimpoi et al., 2014 (partition 1); "Cats and Dogs", Parkhi et al., 2012 (``trainval`` is our
    ``train``); "Automated Flower Classification over a Large Number of Classes", Nilsback and Zisserman, 2008.

    Args:
        name: one of ``PROBE_FILE_SETS``.
        split: ``train``, ``test``, or ``val`` if the set has one.
        root: data folder.

    Raises:
        UserError: if the set is missing and its download failed, or a list is damaged or contains missing files.
    """
    if name == "caltech101":
        return caltech101(choose_split(name, split, ("train", "test")), root)
    known = _SETS[name]
    split = choose_split(name, split, known.splits)
    folder = root / known.folder
    try:
        files, labels, classes = known.entries(root, split)
    except UserError:
        raise
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, tarfile.TarError) as error:
        raise UserError(
            f"{name} ({split}) is missing or incomplete in {folder}, and the download failed "
            f"({one_line(error)}): {known.fix.format(root=root)}, or set ANTIPHASE_DATA to another folder"
        ) from error
    listed = [Path(file).relative_to(folder).as_posix() for file in files]
    if not listed:
        raise UserError(f"{name} ({split}): its list in {folder} is empty: {known.fix.format(root=root)}")
    if absent := missing_files(folder, listed):
        raise UserError(
            f"{name} ({split}): {len(absent):,} of the {len(listed):,} listed images are missing in {folder}, "
            f"the first is {absent[0]}: {known.fix.format(root=root)}"
        )
    names = tuple(" ".join(label.replace("_", " ").replace("?", "").split()) for label in classes)
    return Listing(split, folder, names, listed, list(labels))


def _food101(root: Path, split: str) -> Entries:
    from torchvision.datasets import Food101

    return _listed(Food101(root, split=split, download=True))


def _aircraft(root: Path, split: str) -> Entries:
    from torchvision.datasets import FGVCAircraft

    return _listed(FGVCAircraft(root, split=split, annotation_level="variant", download=True))


def _dtd(root: Path, split: str) -> Entries:
    from torchvision.datasets import DTD

    return _listed(DTD(root, split=split, partition=1, download=True))


def _flowers102(root: Path, split: str) -> Entries:
    from torchvision.datasets import Flowers102

    return _listed(Flowers102(root, split=split, download=True))


def _pets(root: Path, split: str) -> Entries:
    from torchvision.datasets import OxfordIIITPet

    found: Any = OxfordIIITPet(root, split={"train": "trainval"}.get(split, split), download=True)
    return found._images, found._labels, found.classes


def _sun397(root: Path, split: str) -> Entries:
    """List the first of the ten published partitions, with 50 images per class in each half."""
    from torchvision.datasets import SUN397

    classes = SUN397(root, download=True).classes  # torchvision has no splits here
    folder = root / "SUN397"
    name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    partition = next(
        (place / name for place in (folder, folder / "Partitions") if (place / name).is_file()), None
    )
    if partition is None:
        raise UserError(
            f"sun397 ({split}): its published partition {name} not found in {folder} or "
            f"{folder / 'Partitions'}: unzip {SUN_PARTITIONS} there"
        )
    numbers = {label: number for number, label in enumerate(classes)}
    files: list[Path] = []
    labels: list[int] = []
    for line, text in enumerate(partition.read_text(encoding="utf-8").splitlines(), start=1):
        if not text.strip():
            continue
        _, *places = Path(text.strip().lstrip("/")).parts  # /a/abbey/sun_x.jpg: drop the initial letter
        label = "/".join(places[:-1])
        if label not in numbers:
            raise UserError(
                f"sun397: line {line} of {partition}, {text!r}: expected a class of {folder / 'ClassName.txt'}: "
                f"unzip {SUN_PARTITIONS} again"
            )
        files.append(folder / text.strip().lstrip("/"))
        labels.append(numbers[label])
    return files, labels, [label.replace("/", " ") for label in classes]


def _listed(found: Any) -> Entries:
    return found._image_files, found._labels, found.classes


_ROBOTS = "https://www.robots.ox.ac.uk/~vgg/data"
_SETS = {
    "food101": _ProbeSet(
        ("train", "test"),
        "food-101",
        "unpack food-101.tar.gz of https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/ in {root}",
        _food101,
    ),
    "sun397": _ProbeSet(
        ("train", "test"),
        "SUN397",
        "unpack SUN397.tar.gz of https://vision.princeton.edu/projects/2010/SUN/ in {root}",
        _sun397,
    ),
    "aircraft": _ProbeSet(
        ("train", "val", "test"),
        "fgvc-aircraft-2013b",
        "unpack fgvc-aircraft-2013b.tar.gz of " + _ROBOTS + "/fgvc-aircraft/ in {root}",
        _aircraft,
    ),
    "dtd": _ProbeSet(
        ("train", "val", "test"),
        "dtd/dtd",
        "unpack dtd-r1.0.1.tar.gz of " + _ROBOTS + "/dtd/ in {root}/dtd",
        _dtd,
    ),
    "pets": _ProbeSet(
        ("train", "test"),
        "oxford-iiit-pet",
        "unpack images.tar.gz and annotations.tar.gz of " + _ROBOTS + "/pets/ in {root}/oxford-iiit-pet",
        _pets,
    ),
    "flowers102": _ProbeSet(
        ("train", "val", "test"),
        "flowers-102",
        "unpack 102flowers.tgz of " + _ROBOTS + "/flowers/102/ in {root}/flowers-102, and put its "
        "imagelabels.mat and setid.mat there",
        _flowers102,
    ),
}

PROBE_FILE_SETS = {
    "food101": "Food-101, RGB, 101 classes of dishes (downloaded)",
    "sun397": "SUN397, RGB, 397 classes of scenes, its first partition (downloaded, but for the partition's lists)",
    "aircraft": "FGVC-Aircraft, RGB, 100 variants of aircraft (downloaded)",
    "dtd": "Describable Textures, RGB, 47 classes, partition 1 (downloaded)",
    "pets": "Oxford-IIIT Pet, RGB, 37 breeds (downloaded)",
    "caltech101": "Caltech-101, RGB, 102 classes with the background, 30 images of each to train on (downloaded)",
    "flowers102": "Oxford Flowers, RGB, 102 classes (downloaded)",
}
"""One-line description of each probe set that consists of files."""
