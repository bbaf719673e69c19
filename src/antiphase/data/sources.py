"""Sources of images by name."""

from pathlib import Path

import torch

from antiphase.data.arrays import cifar, digits, fashion_mnist, random_images
from antiphase.data.captions import coco_single_label
from antiphase.data.folders import Listing, class_folder, tiny_imagenet
from antiphase.data.given import npz_images
from antiphase.data.imagenets import IMAGENET_VARIANTS, imagenet, imagenet_variant
from antiphase.data.images import ArrayImages, FileImages
from antiphase.data.named import find_named
from antiphase.data.probe_sets import PROBE_FILE_SETS, probe_set
from antiphase.data.source import Request, Source
from antiphase.data.specimens import specimen_images
from antiphase.data.wds import wds_images
from antiphase.files import printable


def _open_files(name: str, listing: Listing, ask: Request) -> FileImages:
    return FileImages(
        name=name,
        split=listing.split,
        class_names=listing.class_names,
        ids=torch.arange(len(listing.files)),
        labels=torch.tensor(listing.labels),
        root=listing.root,
        files=tuple(listing.files),
        image_size=ask.image_size or source_of(ask.name).image_size,
        channels=ask.channels or 3,
    )


def _open_emoji(ask: Request, name: str) -> ArrayImages:
    from antiphase.data.openmoji import noto_pairs, openmoji_pairs  # of an extra

    pairs = {"openmoji": openmoji_pairs, "noto-emoji": noto_pairs}[name](ask.split, ask.root)
    assert pairs.labels is not None
    return ArrayImages(
        name=name,
        split=ask.split,
        class_names=pairs.class_names,
        ids=pairs.ids,
        labels=pairs.labels,
        pixels=pairs.array,
        prompts=pairs.prompts,
    )


def _open_coco(ask: Request) -> FileImages:
    """COCO's objects, each image under the class of its largest one: how the robustness paper's CLIPs are attacked."""
    pairs = coco_single_label(ask.root / "coco", ask.split)
    assert pairs.labels is not None
    return FileImages(
        name="coco",
        split=pairs.split,
        class_names=pairs.class_names,
        ids=pairs.ids,
        labels=pairs.labels,
        skipped=pairs.skipped,
        root=pairs.root,
        files=pairs.files,
        image_size=ask.image_size or 224,
        channels=ask.channels or 3,
    )


def _open_parquet(ask: Request) -> FileImages:
    from antiphase.data.parquet import parquet_images  # imports polars

    return parquet_images(ask.path, ask.split, ask.image_size or 224, ask.channels or 3)


def _open_folder(ask: Request) -> FileImages:
    name = f"folder:{printable(ask.path)}"
    return _open_files(name, class_folder(name, Path(ask.path).expanduser(), ask.split), ask)


_SOURCES = {
    "digits": Source(
        "scikit-learn's 1,797 digits, 8×8 grey, 10 classes",
        lambda ask: digits(ask.split),
        image_size=8,
        channels=1,
        classes=10,
        train_images=1_438,
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST, 28×28 grey, 10 classes (Debian's dataset-fashion-mnist, else downloaded)",
        lambda ask: fashion_mnist(ask.split, ask.root),
        image_size=28,
        channels=1,
        classes=10,
        train_images=60_000,
    ),
    "specimen-fashion-mnist": Source(
        "1,000 Fashion-MNIST test images that ship with antiphase",
        lambda ask: specimen_images(),
        splits=("test",),
        image_size=28,
        channels=1,
        classes=10,
    ),
    "cifar10": Source(
        "CIFAR-10, 32×32 RGB, 10 classes (downloaded)",
        lambda ask: cifar(10, ask.split, ask.root),
        image_size=32,
        classes=10,
        train_images=50_000,
    ),
    "cifar100": Source(
        "CIFAR-100, 32×32 RGB, 100 classes (downloaded)",
        lambda ask: cifar(100, ask.split, ask.root),
        image_size=32,
        classes=100,
        train_images=50_000,
    ),
    "tiny-imagenet": Source(
        "Tiny ImageNet, 64×64 RGB, 200 classes, unpacked below the data folder",
        lambda ask: _open_files("tiny-imagenet", tiny_imagenet(ask.split, ask.root), ask),
        splits=("train", "val"),
        image_size=64,
        classes=200,
        train_images=100_000,
    ),
    "imagenet": Source(
        "ImageNet-1k, RGB, 1,000 classes, in {train,val}/<wnid> below the data folder",
        lambda ask: _open_files("imagenet", imagenet(ask.split, ask.root), ask),
        splits=("train", "val"),
        classes=1_000,
        train_images=1_281_167,
    ),
    **{
        name: Source(
            description,
            lambda ask: _open_files(ask.name, imagenet_variant(ask.name, ask.split, ask.root), ask),
            splits=None,
        )
        for name, description in IMAGENET_VARIANTS.items()
    },
    **{
        name: Source(
            description,
            lambda ask: _open_files(ask.name, probe_set(ask.name, ask.split, ask.root), ask),
            splits=None,
        )
        for name, description in PROBE_FILE_SETS.items()
    },
    "openmoji": Source(
        "OpenMoji's drawings, 64×64 RGB, nine Unicode groups (the extra openmoji)",
        lambda ask: _open_emoji(ask, "openmoji"),
        image_size=64,
        classes=9,
        train_images=3_362,
    ),
    "noto-emoji": Source(
        "the same emoji by another artist: Noto Color Emoji, from Debian's fonts-noto-color-emoji",
        lambda ask: _open_emoji(ask, "noto-emoji"),
        image_size=64,
        classes=9,
    ),
    "coco": Source(
        "COCO, RGB, 80 classes, an image under the class of its largest object, below the data folder's coco/",
        _open_coco,
        splits=("train", "val"),
        classes=80,
    ),
    "folder:PATH": Source(
        "any folder with a sub-folder for each class, or such folders in PATH/train, PATH/val, PATH/test",
        _open_folder,
        splits=None,
    ),
    "wds:PATH": Source(
        "a classification set of the hub's clip-benchmark/wds_*, PATH is their name on the hub or a local folder",
        lambda ask: wds_images(
            Path(ask.path).expanduser(), ask.split, ask.image_size or 224, ask.channels or 3
        ),
        splits=None,
    ),
    "npz:FILE": Source(
        "a NumPy archive with the arrays images and labels, also one pair for each split: train_images, test_labels",
        lambda ask: npz_images(ask.path, ask.split),
        splits=None,
    ),
    "parquet:PATTERN": Source(
        "Parquet files in the layout of the hub's image data sets: a file, a folder or a pattern",
        _open_parquet,
        splits=None,
    ),
    "random": Source(
        "uniform noise and random labels, for smoke runs; needs image_size, channels and num_classes",
        lambda ask: random_images(
            ask.split, ask.image_size, ask.channels, ask.num_classes, ask.limit, ask.seed
        ),
        classes=10,
    ),
}

SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
"""Name of each source and what it is, in one line."""


def source_of(name: str) -> Source:
    """Return the source of a name, with its facts; nothing is read.

    Raises:
        UserError: there is no such source.

    >>> source_of("cifar100").classes
    100
    """
    return find_named(name, _SOURCES, "data source")
