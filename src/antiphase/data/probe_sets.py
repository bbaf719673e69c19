"""Image sets of the linear probe that consist of files, listed by torchvision."""

import hashlib
import tarfile
from collections.abc import Sequence
from pathlib import Path

import torch

from antiphase.data.captions import table_rows
from antiphase.data.folders import list_classes, refuse_missing, sub_folders
from antiphase.data.images import FileImages, file_set
from antiphase.errors import UserError, one_line

SPLIT_FILE = "antiphase-split.csv"
_TRAIN_IMAGES = 30  # of a class of Caltech-101, as in Fei-Fei et al.
# class names used by CLIP's authors (data/prompts.md of openai/CLIP) where they differ from the folder names
_NAMED = """
BACKGROUND_Google=background, Faces=off-center face, Faces_easy=centered face, Leopards=leopard, Motorbikes=motorbike,
airplanes=airplane, car_side=side of a car, cougar_body=body of a cougar cat, cougar_face=face of a cougar cat,
crocodile_head=head of a crocodile, flamingo_head=head of a flamingo, snoopy=snoopy (cartoon beagle),
yin_yang=yin and yang symbol"""
_CALTECH_NAMES = dict(pair.strip().split("=") for pair in _NAMED.split(","))  # pyright: ignore
_SUN_PARTITIONS = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"
_ROBOTS = "https://www.robots.ox.ac.uk/~vgg/data"


# by name: class of torchvision, its folder, the archives and their page if the download fails
_FOOD = "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/"
_AIRCRAFT, _FLOWERS = "fgvc-aircraft-2013b", "102flowers.tgz, imagelabels.mat and setid.mat"
_SETS = {
    "food101": ("Food101", "food-101", "food-101.tar.gz", _FOOD),
    "sun397": ("SUN397", "SUN397", "SUN397.tar.gz", "https://vision.princeton.edu/projects/2010/SUN/"),
    "aircraft": ("FGVCAircraft", _AIRCRAFT, f"{_AIRCRAFT}.tar.gz", f"{_ROBOTS}/fgvc-aircraft/"),
    "dtd": ("DTD", "dtd/dtd", "dtd-r1.0.1.tar.gz", f"{_ROBOTS}/dtd/"),
    "pets": ("OxfordIIITPet", "oxford-iiit-pet", "images.tar.gz and annotations.tar.gz", f"{_ROBOTS}/pets/"),
    "flowers102": ("Flowers102", "flowers-102", _FLOWERS, f"{_ROBOTS}/flowers/102/"),
}
_TWO, _THREE = ("train", "test"), ("train", "val", "test")
_SUN = "SUN397, RGB, 397 classes of scenes, partition 1 (downloaded, but for the partition's lists)"
_CALTECH = "Caltech-101, RGB, 102 classes with the background, 30 images of each to train on (downloaded)"
PROBE_FILE_SETS = {
    "food101": ("Food-101, RGB, 101 classes of dishes (downloaded)", _TWO),
    "sun397": (_SUN, _TWO),
    "aircraft": ("FGVC-Aircraft, RGB, 100 variants of aircraft (downloaded)", _THREE),
    "dtd": ("Describable Textures, RGB, 47 classes, partition 1 (downloaded)", _THREE),
    "pets": ("Oxford-IIIT Pet, RGB, 37 breeds (downloaded)", _TWO),
    "caltech101": (_CALTECH, _TWO),
    "flowers102": ("Oxford Flowers, RGB, 102 classes (downloaded)", _THREE),
}
"""One-line description and splits of each probe set that consists of files."""


def probe_set(name: str, split: str, root: Path) -> FileImages:
    """List a set of the linear probe in the order of its published lists.

    Sources: "Food-101", Bossard, Guillaumin, Van Gool, 2014; "SUN Database", Xiao et al., 2010;
    "Fine-Grained Visual Classification of Aircraft", Maji et al., 2013 (its variants); "Describing Textures in
    the Wild", Cimpoi et al., 2014 (partition 1); "Cats and Dogs", Parkhi et al., 2012 (``trainval`` is our
    ``train``); "Automated Flower Classification over a Large Number of Classes", Nilsback and Zisserman, 2008.
    """
    if name == "caltech101":
        return caltech101(split, root)
    dataset, below, archives, page = _SETS[name]
    folder = root / below
    fix = f"unpack {archives} of {page} as {folder}"
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
        fault = f"missing or incomplete in {folder}, and the download failed ({one_line(error)})"
        raise UserError(f"{name} ({split}) is {fault}: {fix}, or set ANTIPHASE_DATA") from error
    files = [Path(file).relative_to(folder).as_posix() for file in files]
    if not files:
        raise UserError(f"{name} ({split}): its list in {folder} is empty: {fix}")
    refuse_missing(f"{name} ({split})", folder, files, fix)
    names = [" ".join(label.replace("_", " ").replace("?", "").split()) for label in classes]
    return file_set(name, split, folder, names, files, labels)


def _sun397(root: Path, split: str) -> tuple[list[Path], list[int], list[str]]:
    """List the first of the ten published partitions, with 50 images per class in each half."""
    from torchvision.datasets import SUN397

    classes = SUN397(root, download=True).classes  # torchvision has no splits here
    folder = root / "SUN397"
    name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    partition = next(filter(Path.is_file, (folder / name, folder / "Partitions" / name)), None)
    if partition is None:
        raise UserError(f"sun397 ({split}): no partition {name} in {folder}: unzip {_SUN_PARTITIONS} there")
    lines = enumerate(partition.read_text(encoding="utf-8").split("\n"), start=1)
    files = {line: text.strip().lstrip("/") for line, text in lines if text.strip()}
    labels: list[int] = []
    for line, file in files.items():
        label = "/".join(Path(file).parts[1:-1])  # a/abbey/sun_x.jpg: without the initial letter
        if label not in classes:
            expected = f"expected a class of {folder / 'ClassName.txt'}: unzip {_SUN_PARTITIONS} again"
            raise UserError(f"sun397: line {line} of {partition}, {file!r}: {expected}")
        labels.append(classes.index(label))
    names = [label.replace("/", " ") for label in classes]
    return [folder / file for file in files.values()], labels, names


def caltech101(split: str, root: Path) -> FileImages:
    """List Caltech-101 with its background class: 9,144 images of 102 classes, sorted by folder.

    In each class, the 30 files with the smallest SHA-256 of ``class/file`` are ``train``, the others ``test``. This
    gives 3,060 and 6,084 images, as in tensorflow_datasets, whose split is not published as a list. A file
    ``antiphase-split.csv`` next to the class folders, with columns ``file`` and ``split``, replaces this rule.

    Source: "Learning Generative Visual Models from Few Training Examples", Fei-Fei, Fergus, Perona, 2004.
    """
    folder = _caltech101_folder(root)
    classes = sub_folders(folder)
    names = [_CALTECH_NAMES.get(name, name.replace("_", " ").strip()) for name in classes]  # pyright: ignore
    images = list_classes("caltech101", split, folder, classes, names)
    manifest = folder / SPLIT_FILE
    splits = read_split(manifest, images.files) if manifest.is_file() else split_by_digest(images.files)
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


def read_split(manifest: Path, files: Sequence[str]) -> dict[str, str]:
    """Return ``train`` or ``test`` for each of ``files`` from a table; errors name the line."""
    (_, header), *rows = table_rows(manifest) or [(1, [])]
    if header != ["file", "split"]:
        raise UserError(f"{manifest}: expected 'file,split' as the first line: add it")
    known = set(files)
    splits: dict[str, str] = {}
    for number, row in rows:
        if len(row) != 2 or row[0] not in known or row[0] in splits or row[1] not in _TWO:
            expected = f"an image in {manifest.parent} that no other line has, and train or test"
            raise UserError(f"line {number} of {manifest}, {','.join(row)}: expected {expected}")
        splits[row[0]] = row[1]
    absent = [file for file in files if file not in splits]
    if absent:
        raise UserError(f"{manifest}: no split for {len(absent)} images, the first is {absent[0]}: add them")
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
        fault = f"not found in {places[0]}, and the download failed ({one_line(error)})"
        page = "https://data.caltech.edu/records/mzrjq-6wc02"
        fix = f"unpack caltech-101.zip from {page}, and 101_ObjectCategories.tar.gz in it, in"
        raise UserError(f"caltech101: {fault}: {fix} {places[0].parent}, or set ANTIPHASE_DATA") from error
    return places[0]
