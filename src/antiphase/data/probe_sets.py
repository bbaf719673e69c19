"""Image sets of the linear probe that consist of files, listed by torchvision."""

import hashlib
import tarfile
from collections.abc import Sequence
from pathlib import Path

import torch

from antiphase.data.folders import list_classes, refuse_missing, sub_folders
from antiphase.data.images import FileImages, file_set
from antiphase.errors import UserError, one_line

_TRAIN_IMAGES = 30  # of a class of Caltech-101, as in Fei-Fei et al.
# class names used by CLIP's authors (data/prompts.md of openai/CLIP) where they differ from the folder names
_NAMED = """
BACKGROUND_Google=background, Faces=off-center face, Faces_easy=centered face, Leopards=leopard, Motorbikes=motorbike,
airplanes=airplane, car_side=side of a car, cougar_body=body of a cougar cat, cougar_face=face of a cougar cat,
crocodile_head=head of a crocodile, flamingo_head=head of a flamingo, snoopy=snoopy (cartoon beagle),
yin_yang=yin and yang symbol"""
_CALTECH_NAMES = dict(pair.strip().split("=") for pair in _NAMED.split(","))  # pyright: ignore
_SUN_PARTITIONS = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"


def probe_set(name: str, split: str, root: Path, dataset: str, folder: str, archives: str) -> FileImages:
    """List a set of the linear probe in the order of its published lists.

    Sources: "Food-101", Bossard, Guillaumin, Van Gool, 2014; "SUN Database", Xiao et al., 2010;
    "Fine-Grained Visual Classification of Aircraft", Maji et al., 2013 (its variants); "Describing Textures in
    the Wild", Cimpoi et al., 2014 (partition 1); "Cats and Dogs", Parkhi et al., 2012 (``trainval`` is our
    ``train``); "Automated Flower Classification over a Large Number of Classes", Nilsback and Zisserman, 2008.
    """
    place = root / folder
    fix = f"unpack {archives} as {place}"
    try:
        if name == "sun397":
            files, labels, classes = _sun397(root, split)
        else:
            from torchvision import datasets

            theirs = "trainval" if (name, split) == ("pets", "train") else split
            # by default, FGVC-Aircraft has its variants as classes, and DTD is partition 1
            data = getattr(datasets, dataset)(root, split=theirs, download=True)
            files = data._images if name == "pets" else data._image_files
            labels, classes = data._labels, data.classes
    except UserError:
        raise
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, tarfile.TarError) as error:
        fault = f"missing or incomplete in {place}, and the download failed ({one_line(error)})"
        raise UserError(f"{name} ({split}) is {fault}: {fix}, or set ANTIPHASE_DATA") from error
    files = [Path(file).relative_to(place).as_posix() for file in files]
    if not files:
        raise UserError(f"{name} ({split}): its list in {place} is empty: {fix}")
    refuse_missing(f"{name} ({split})", place, files, fix)
    names = [" ".join(label.replace("_", " ").replace("?", "").split()) for label in classes]
    return file_set(name, split, place, names, files, labels)


def _sun397(root: Path, split: str) -> tuple[list[Path], list[int], list[str]]:
    """List the first of the ten published partitions, with 50 images per class in each half."""
    from torchvision.datasets import SUN397

    classes = SUN397(root, download=True).classes  # torchvision has no splits here
    folder = root / "SUN397"
    name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    partition = next(filter(Path.is_file, (folder / name, folder / "Partitions" / name)), None)
    if partition is None:
        raise UserError(f"sun397 ({split}): no partition {name} in {folder}: unzip {_SUN_PARTITIONS} there")
    files = [
        line.strip().lstrip("/") for line in partition.read_text(encoding="utf-8").split("\n") if line.strip()
    ]
    # a/abbey/sun_x.jpg: without the initial letter
    labels = [classes.index("/".join(Path(file).parts[1:-1])) for file in files]
    return [folder / file for file in files], labels, [label.replace("/", " ") for label in classes]


def caltech101(split: str, root: Path) -> FileImages:
    """List Caltech-101 with its background class: 9,144 images of 102 classes, sorted by folder.

    In each class, the 30 files with the smallest SHA-256 of ``class/file`` are ``train``, the others ``test``. This
    gives 3,060 and 6,084 images, as in tensorflow_datasets, whose split is not published as a list.

    Source: "Learning Generative Visual Models from Few Training Examples", Fei-Fei, Fergus, Perona, 2004.
    """
    folder = _caltech101_folder(root)
    classes = sub_folders(folder)
    names = [_CALTECH_NAMES.get(name, name.replace("_", " ").strip()) for name in classes]  # pyright: ignore
    images = list_classes("caltech101", split, folder, classes, names)
    splits = split_by_digest(images.files)
    rows = [row for row, file in enumerate(images.files) if splits[file] == split]
    return images.take(rows).altered(ids=torch.arange(len(rows)))


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


def _caltech101_folder(root: Path) -> Path:
    from torchvision.datasets import Caltech101

    below = ("caltech101", "caltech-101", "")  # torchvision's folder, the archive's, or none
    places = [root / folder / "101_ObjectCategories" for folder in below]
    if folder := next(filter(sub_folders, places), None):
        return folder
    try:
        Caltech101(root, download=True)
    except (RuntimeError, OSError, ValueError, EOFError) as error:
        fault = f"not found in {places[0]}, and the download failed ({one_line(error)})"
        page = "https://data.caltech.edu/records/mzrjq-6wc02"
        fix = f"unpack caltech-101.zip from {page}, and 101_ObjectCategories.tar.gz in it, in"
        raise UserError(f"caltech101: {fault}: {fix} {places[0].parent}, or set ANTIPHASE_DATA") from error
    return places[0]
