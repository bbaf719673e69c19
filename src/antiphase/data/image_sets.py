"""Published sets of labelled images: ImageNet and its variants, the linear probe's, and those that fit in memory."""

import contextlib
import gzip
import hashlib
import json
import re
import tarfile
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from antiphase.data.folders import choose_split, class_folder, list_classes, refuse_missing, sub_folders
from antiphase.data.images import ArrayImages, FileImages
from antiphase.errors import UserError, one_line, shown

CLASSES = 1000
WNID = re.compile(r"n\d{8}")  # of WordNet
_NUMBERED = re.compile(r"(?:n\d{8}|\d+)[-_. ]+([^\W\d].*)")  # a folder's number or wnid before its name
_PLACE = re.compile(r"(?i)^(class|label)[ -]?(?=\d+$)")  # class_0
_TRAIN_IMAGES = 30  # of a class of Caltech-101, as in Fei-Fei et al.
_SUN_PARTITIONS = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_FASHION = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle boot"
FASHION_MNIST_CLASSES = tuple(_FASHION.split(" ", 9))
RANDOM_IMAGES = 1000
Given = int | None  # None: by the caller of load_data
SPECIMEN_FILE = "fashion-mnist-test-1000.png"
SPECIMEN_CHUNK = "antiphase"  # PNG text chunk with {"ids": [...], "labels": [...]} as JSON


def downloaded(name: str, dataset: str, root: Path, fix: str, **settings: Any) -> Any:
    """Return a data set of torchvision, which downloads what is missing; ``fix`` says how to get it otherwise."""
    from torchvision import datasets

    try:
        return getattr(datasets, dataset)(root, download=True, **settings)
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, tarfile.TarError) as error:
        fault = f"missing or incomplete in {root}, and the download failed ({one_line(error)})"
        raise UserError(f"{name} is {fault}: {fix}, or set ANTIPHASE_DATA") from error


def imagenet(split: str, root: Path) -> FileImages:
    """List ImageNet-1k in torchvision's layout, with classes sorted by wnid and named by open_clip's prompt names."""
    folder = root if any(sub_folders(root / part) for part in ("train", "val")) else root / "imagenet"
    if not sub_folders(folder / split):
        fix = f"sign up at https://image-net.org/download.php and unpack it as {folder / split}/<wnid>/*.JPEG"
        raise UserError(f"imagenet has no class folders in {folder / split}: {fix}, or set ANTIPHASE_DATA")
    images = class_folder("imagenet", folder, split)
    names = prompt_names()
    return images.altered(class_names=tuple(names.get(wnid, wnid) for wnid in images.class_names))


def imagenet_variant(name: str, split: str, root: Path, folders: Sequence[str], page: str) -> FileImages:
    """List a test set of ImageNet's classes under distribution shift, classes sorted by wnid, with open_clip's names.

    A classifier bound to the classes chooses among these only, as if the other logits were masked.
    """
    split = choose_split(name, "test" if split == "val" else split, ("test",))
    numbered = name == "imagenet-v2"  # its class folders are named by index in place of wnid
    # not the archive's top folder; numbers may have leading zeros, and as text 10 would come before 2
    pattern = re.compile(r"0*(\d+)" if numbered else r"(n\d+)")
    for folder in (root / below for below in folders):
        below = sub_folders(folder)
        if entries := {match[1]: match[0] for match in map(pattern.fullmatch, below) if match}:
            break
    else:
        raise UserError(f"{name} has no class folders in {root}: unpack {page} there, or set ANTIPHASE_DATA")
    wnids = published_wnids(name) or ()
    labels = [*map(str, range(CLASSES))] if numbered else wnids
    # a folder may also have another name, or the number of another folder
    if odd := set(labels) ^ entries.keys() or {*below} - {*entries.values()}:
        fault = f"{folder} lacks the class {min(odd)}, or has a folder of no class"
        raise UserError(f"{name}: {fault}: unpack {page} again")
    names = [prompt_names()[wnid] for wnid in wnids]
    return list_classes(name, split, folder, [entries[label] for label in labels], names)


def tiny_imagenet(split: str, root: Path) -> FileImages:
    """List Tiny ImageNet from its archive, classes sorted by wnid and named by the first synonym in ``words.txt``."""
    folder = root if (root / "wnids.txt").is_file() else root / "tiny-imagenet-200"
    try:
        wnids = sorted((folder / "wnids.txt").read_text().split())
        words = dict(line.split("\t") for line in (folder / "words.txt").read_text().splitlines())
        listed = (folder / "val/val_annotations.txt").read_text() if split == "val" else ""
        notes = [line.split("\t") for line in listed.splitlines()]
        if split == "val" and not notes:
            raise ValueError("val/val_annotations.txt is empty")
        images, labels = [f"images/{note[0]}" for note in notes], [wnids.index(note[1]) for note in notes]
    except (OSError, ValueError, IndexError) as error:
        fix = f"unzip http://cs231n.stanford.edu/tiny-imagenet-200.zip in {root}, or set ANTIPHASE_DATA"
        raise UserError(f"tiny-imagenet: {folder} is incomplete ({error}): {fix}") from error
    class_names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    if split == "train":
        return list_classes("tiny-imagenet", split, folder / "train", wnids, class_names)
    return FileImages.whole("tiny-imagenet", split, class_names, labels, root=folder / "val", files=tuple(images))


def published_wnids(name: str, classes: int = CLASSES) -> tuple[str, ...] | None:
    """Return the wnids of the labels of ImageNet or a variant in order; None for other sets."""
    if name in ("imagenet-a", "imagenet-r"):
        return tuple((files("timm.data") / f"_info/{name.replace('-', '_')}_synsets.txt").read_text().split())
    whole = name in ("imagenet-v2", "imagenet-sketch") or (name == "imagenet" and classes == CLASSES)
    return _wnids() if whole else None


def class_words(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return class names as words: ImageNet's or WordNet's for wnids, underscores as spaces; warn of what is no word.

    A number or wnid before every name, as of folders, is left out if the rest tells the classes apart.
    """
    known: dict[str, str] = {}
    numbered = [_NUMBERED.match(name) for name in class_names]
    bare = [one[1] for one in numbered if one]
    class_names = bare if len(set(bare)) == len(class_names) else class_names  # else numbers alone tell some apart
    if wnids := list(filter(WNID.fullmatch, class_names)):
        from timm.data.imagenet_info import ImageNetInfo

        synonyms = ImageNetInfo().label_name_to_description
        for wnid in wnids:
            with contextlib.suppress(KeyError):
                known[wnid] = synonyms(wnid).partition(",")[0]
        known |= prompt_names()
    words = tuple(known.get(name, name).replace("_", " ") for name in class_names)
    odd = [word for word in words if WNID.fullmatch(word) or not re.search(r"[^\W\d]", _PLACE.sub("", word))]
    if len({re.sub(r"[\W_]*\d+$", "", word) for word in words}) == 1 < len(set(words)):  # such as c0 to c9
        odd = [*words]
    if odd:
        reason = "are no words, but prompts are made of them; if they only number the classes, give names"
        warnings.warn(f"class names {shown(', '.join(odd))} {reason}", stacklevel=3)
    published = {*prompt_names().values()} if wnids else set[str]()  # some are called alike
    if twice := [word for word, count in Counter(words).items() if count > 1 and word not in published]:
        reason = "are the same words for several classes, which prompts cannot tell apart; give names"
        warnings.warn(f"class names {shown(', '.join(twice))} {reason}", stacklevel=3)
    return words


def prompt_names() -> dict[str, str]:
    """Return open_clip's prompt name of each wnid, in the order of ImageNet's classes."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES  # seconds to import

    return dict(zip(_wnids(), IMAGENET_CLASSNAMES, strict=True))


@cache
def _wnids() -> tuple[str, ...]:
    from timm.data.imagenet_info import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def probe_set(name: str, split: str, root: Path, dataset: str, folder: str, archives: str) -> FileImages:
    """List a set of the linear probe in the order of its published lists; ``trainval`` of the pets is our ``train``."""
    place, sun = root / folder, name == "sun397"
    title, fix = f"{name} ({split})", f"unpack {archives} as {place}"
    # by default, FGVC-Aircraft has its variants as classes, and DTD is partition 1; SUN397 has no splits
    published_split = "trainval" if (name, split) == ("pets", "train") else split
    data = downloaded(title, dataset, root, fix, **({} if sun else {"split": published_split}))
    files, labels = data._images if name == "pets" else data._image_files, data._labels
    if sun:
        files, labels = _sun397(place, split, data.classes)
    if not (files := tuple(Path(file).relative_to(place).as_posix() for file in files)):
        raise UserError(f"{title}: its list in {place} is empty: {fix}")
    refuse_missing(title, place, files, fix)
    spaces = str.maketrans("_/" if sun else "_", "  " if sun else " ", "?")
    names = [" ".join(label.translate(spaces).split()) for label in data.classes]
    return FileImages.whole(name, split, names, labels, root=place, files=files)


def _sun397(folder: Path, split: str, classes: list[str]) -> tuple[list[Path], list[int]]:
    """List the first of the ten published partitions, with 50 images per class in each half."""
    name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    if (partition := next(filter(Path.is_file, (folder / name, folder / "Partitions" / name)), None)) is None:
        raise UserError(f"sun397 ({split}): no partition {name} in {folder}: unzip {_SUN_PARTITIONS} there")
    files = [line.lstrip("/") for line in map(str.strip, partition.read_text(encoding="utf-8").split("\n")) if line]
    numbers = {label: number for number, label in enumerate(classes)}
    # a/abbey/sun_x.jpg: without the initial letter
    labels = [numbers.get("/".join(Path(file).parts[1:-1]), -1) for file in files]
    if -1 in labels:
        odd = files[labels.index(-1)]
        raise UserError(f"sun397: {odd} of {partition} is of no class: unzip {_SUN_PARTITIONS} again")
    return [folder / file for file in files], labels


def caltech101(split: str, root: Path, names: Mapping[str, str]) -> FileImages:
    """List Caltech-101 with its background class, sorted by folder; ``names`` are those of classes not called like it.

    In each class, the 30 files with the smallest SHA-256 of ``class/file`` are ``train``, the others ``test``: 3,060
    and 6,084 images, as in tensorflow_datasets, whose split is not published as a list.
    """
    below = ("caltech101", "caltech-101", "")  # torchvision's folder, the archive's, or none
    places = [root / folder / "101_ObjectCategories" for folder in below]
    if (folder := next(filter(sub_folders, places), None)) is None:
        folder, archive = places[0], "caltech-101.zip from https://data.caltech.edu/records/mzrjq-6wc02"
        fix = f"unpack {archive}, and 101_ObjectCategories.tar.gz in it, as {folder}"
        downloaded("caltech101", "Caltech101", root, fix)
    classes = sub_folders(folder)
    class_names = [names.get(name, name.replace("_", " ").strip()) for name in classes]
    images = list_classes("caltech101", split, folder, classes, class_names)
    splits = split_by_digest(images.files)
    rows = [row for row, file in enumerate(images.files) if splits[file] == split]
    return images.take(rows).altered(ids=torch.arange(len(rows)))


def split_by_digest(files: Sequence[str]) -> dict[str, str]:
    """Return ``train`` or ``test`` for each ``class/file``, independent of their order."""
    seen: Counter[str] = Counter()
    splits = {}
    for file in sorted(files, key=lambda file: hashlib.sha256(file.encode()).hexdigest()):
        seen[folder := file.partition("/")[0]] += 1
        splits[file] = "train" if seen[folder] <= _TRAIN_IMAGES else "test"
    return {file: splits[file] for file in files}


def digits(split: str) -> ArrayImages:
    """Return scikit-learn's 1,797 digits, 8×8 pixels in [0, 1]; a fixed fifth of each class is ``test``."""
    from sklearn.datasets import load_digits  # seconds to import

    values, labels = load_digits(return_X_y=True)
    pixels = np.asarray(values, dtype=np.float32).reshape(-1, 1, 8, 8) / 16
    held_out = np.zeros(len(labels), dtype=bool)
    generator = np.random.default_rng(0)
    for label in range(10):
        members = generator.permutation(np.flatnonzero(labels == label))
        held_out[members[: round(len(members) / 5)]] = True
    rows = held_out == (split == "test")
    return ArrayImages.whole("digits", split, map(str, range(10)), labels[rows], pixels=pixels[rows])


def fashion_mnist(split: str, root: Path) -> ArrayImages:
    """Return Fashion-MNIST from Debian's package or a download."""
    prefix = {"train": "train", "test": "t10k"}[split]
    names = (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
    folder = root / "FashionMNIST" / "raw"
    if all((DEBIAN_FASHION_MNIST / name).is_file() for name in names):
        folder = DEBIAN_FASHION_MNIST
    elif not all((folder / name).is_file() for name in names):
        fix = f"apt-get install dataset-fashion-mnist, for {DEBIAN_FASHION_MNIST}"
        downloaded("fashion-mnist", "FashionMNIST", root, fix, train=split == "train")
    try:
        contents = [gzip.decompress((folder / name).read_bytes()) for name in names]
        # IDX: a header of 4 bytes and 4 for each axis, then the bytes
        images = np.frombuffer(contents[0], np.uint8, offset=16).reshape(-1, 1, 28, 28)
        labels = np.frombuffer(contents[1], np.uint8, offset=8).reshape(len(images))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        fix = f"delete {' and '.join(names)} in {folder}, and download them again"
        raise UserError(f"fashion-mnist: damaged files ({one_line(error)}): {fix}") from error
    return ArrayImages.whole("fashion-mnist", split, FASHION_MNIST_CLASSES, labels.copy(), pixels=images.copy())


def specimens(file: Path | None = None) -> ArrayImages:
    """Return the 1,000 Fashion-MNIST test images in the package, or those in a file like it."""
    file = file or Path(str(files("antiphase") / "specimens" / SPECIMEN_FILE))
    try:
        with Image.open(file) as image:
            notes = json.loads(image.info[SPECIMEN_CHUNK])
            pixels = np.array(image).reshape(-1, 1, 28, 28)
    except (OSError, SyntaxError, KeyError, ValueError) as error:
        raise UserError(f"{file} is not a valid file of specimen images ({error}): reinstall antiphase") from error
    about = ("specimen-fashion-mnist", "test", FASHION_MNIST_CLASSES, notes["labels"])
    return ArrayImages.whole(*about, pixels=pixels, ids=torch.tensor(notes["ids"]))


def cifar(name: str, split: str, root: Path) -> ArrayImages:
    """Return CIFAR-10 or CIFAR-100, downloaded by torchvision."""
    archive = f"cifar-{name.removeprefix('cifar')}-python.tar.gz"
    fix = f"put {archive} from https://www.cs.toronto.edu/~kriz/cifar.html into {root}"
    data = downloaded(name, name.upper(), root, fix, train=split == "train")
    class_names = tuple(label.replace("_", " ") for label in data.classes)  # for prompts
    pixels = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return ArrayImages.whole(name, split, class_names, data.targets, pixels=pixels)


def random_images(
    split: str, image_size: Given, channels: Given, num_classes: Given, limit: Given, seed: Given
) -> ArrayImages:
    """Return uniform 8-bit noise with uniform labels: other draws for each split, of which ``limit`` takes a prefix."""
    if image_size is None or channels is None or num_classes is None:
        known = {"image_size": image_size, "channels": channels, "num_classes": num_classes}
        lacking = ", ".join(name for name, value in known.items() if value is None)
        raise UserError(f"random: has no {lacking} of its own; expected a model that has, or other data")
    count, stream = limit or RANDOM_IMAGES, [seed or 0, ("train", "test").index(split)]
    noise, classes = (np.random.default_rng([*stream, number]) for number in (0, 1))
    pixels = noise.integers(0, 256, size=(count, channels, image_size, image_size), dtype=np.uint8)
    labels = classes.integers(0, num_classes, size=count, dtype=np.int64)
    return ArrayImages.whole("random", split, map(str, range(num_classes)), labels, pixels=pixels)
