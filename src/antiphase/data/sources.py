"""Sources of images by name."""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from antiphase.data.arrays import cifar, digits, fashion_mnist, random_images
from antiphase.data.captions import coco_single_label
from antiphase.data.folders import Listing, choose_split, class_folder, tiny_imagenet
from antiphase.data.imagenets import IMAGENET_VARIANTS, imagenet, imagenet_variant
from antiphase.data.images import ArrayImages, FileImages, ImageSet
from antiphase.data.probe_sets import PROBE_FILE_SETS, probe_set
from antiphase.data.published import warn_of_other_counts
from antiphase.data.root import data_root
from antiphase.data.specimens import specimen_images
from antiphase.data.wds import wds_images
from antiphase.errors import UserError, shown
from antiphase.files import printable


@dataclass(frozen=True)
class _Request:
    """What a caller asked of a source."""

    split: str
    image_size: int | None
    channels: int | None
    num_classes: int | None
    root: Path
    limit: int | None
    seed: int | None
    name: str
    path: str


@dataclass(frozen=True)
class _Source:
    description: str
    load: Callable[[_Request], ImageSet]
    splits: tuple[str, ...] | None = ("train", "test")  # None: the source itself decides


def _open_files(name: str, listing: Listing, ask: _Request, image_size: int = 224) -> FileImages:
    return FileImages(
        name=name,
        split=listing.split,
        class_names=listing.class_names,
        ids=torch.arange(len(listing.files)),
        labels=torch.tensor(listing.labels),
        root=listing.root,
        files=tuple(listing.files),
        image_size=ask.image_size or image_size,
        channels=ask.channels or 3,
    )


def _open_emoji(ask: _Request, name: str) -> ArrayImages:
    from antiphase.data.openmoji import noto_pairs, openmoji_pairs  # of an extra

    pairs = {"openmoji": openmoji_pairs, "noto-emoji": noto_pairs}[name](ask.split, ask.root)
    assert pairs.labels is not None
    return ArrayImages(
        name=name, split=ask.split, class_names=pairs.class_names, ids=pairs.ids, labels=pairs.labels,
        pixels=pairs.array, prompts=pairs.prompts,
    )  # fmt: skip


def _open_coco(ask: _Request) -> FileImages:
    """COCO's objects, each image under the class of its largest one: how the robustness paper's CLIPs are attacked."""
    pairs = coco_single_label(ask.root / "coco", ask.split)
    assert pairs.labels is not None
    return FileImages(
        name="coco", split=pairs.split, class_names=pairs.class_names, ids=pairs.ids, labels=pairs.labels,
        skipped=pairs.skipped, root=pairs.root, files=pairs.files, image_size=ask.image_size or 224,
        channels=ask.channels or 3,
    )  # fmt: skip


def _open_folder(ask: _Request) -> FileImages:
    name = f"folder:{printable(ask.path)}"
    return _open_files(name, class_folder(name, Path(ask.path).expanduser(), ask.split), ask)


_SOURCES = {
    "digits": _Source("scikit-learn's 1,797 digits, 8×8 grey, 10 classes", lambda ask: digits(ask.split)),
    "fashion-mnist": _Source(
        "Fashion-MNIST, 28×28 grey, 10 classes (Debian's dataset-fashion-mnist, else downloaded)",
        lambda ask: fashion_mnist(ask.split, ask.root),
    ),
    "specimen-fashion-mnist": _Source(
        "1,000 Fashion-MNIST test images that ship with antiphase",
        lambda ask: specimen_images(),
        splits=("test",),
    ),
    "cifar10": _Source(
        "CIFAR-10, 32×32 RGB, 10 classes (downloaded)",
        lambda ask: cifar(10, ask.split, ask.root),
    ),
    "cifar100": _Source(
        "CIFAR-100, 32×32 RGB, 100 classes (downloaded)",
        lambda ask: cifar(100, ask.split, ask.root),
    ),
    "tiny-imagenet": _Source(
        "Tiny ImageNet, 64×64 RGB, 200 classes, unpacked below the data folder",
        lambda ask: _open_files("tiny-imagenet", tiny_imagenet(ask.split, ask.root), ask, image_size=64),
        splits=("train", "val"),
    ),
    "imagenet": _Source(
        "ImageNet-1k, RGB, 1,000 classes, in {train,val}/<wnid> below the data folder",
        lambda ask: _open_files("imagenet", imagenet(ask.split, ask.root), ask),
        splits=("train", "val"),
    ),
    **{
        name: _Source(
            description,
            lambda ask: _open_files(ask.name, imagenet_variant(ask.name, ask.split, ask.root), ask),
            splits=None,
        )
        for name, description in IMAGENET_VARIANTS.items()
    },
    **{
        name: _Source(
            description,
            lambda ask: _open_files(ask.name, probe_set(ask.name, ask.split, ask.root), ask),
            splits=None,
        )
        for name, description in PROBE_FILE_SETS.items()
    },
    "openmoji": _Source(
        "OpenMoji's drawings, 64×64 RGB, nine Unicode groups (the extra openmoji)",
        lambda ask: _open_emoji(ask, "openmoji"),
    ),
    "noto-emoji": _Source(
        "the same emoji by another artist: Noto Color Emoji, from Debian's fonts-noto-color-emoji",
        lambda ask: _open_emoji(ask, "noto-emoji"),
    ),
    "coco": _Source(
        "COCO, RGB, 80 classes, an image under the class of its largest object, below the data folder's coco/",
        _open_coco,
        splits=("train", "val"),
    ),
    "folder:PATH": _Source(
        "any folder with a sub-folder for each class, or such folders in PATH/train, PATH/val, PATH/test",
        _open_folder,
        splits=None,
    ),
    "wds:PATH": _Source(
        "a classification set of the hub's clip-benchmark/wds_*, PATH is their name on the hub or a local folder",
        lambda ask: wds_images(
            Path(ask.path).expanduser(), ask.split, ask.image_size or 224, ask.channels or 3
        ),
        splits=None,
    ),
    "random": _Source(
        "uniform noise and random labels, for smoke runs; needs image_size, channels and num_classes",
        lambda ask: random_images(
            ask.split, ask.image_size, ask.channels, ask.num_classes, ask.limit, ask.seed
        ),
    ),
}

_WITH_PATH = {name.partition(":")[0]: name for name in _SOURCES if ":" in name}

SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
"""Name of each source and what it is, in one line."""


def load_data(
    name: str,
    *,
    split: str = "test",
    image_size: int | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    root: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    skip_bad: bool = False,
    progress: bool = True,
) -> ImageSet:
    """Return the images of a named source.

    Args:
        name: one of ``SOURCES``; ``folder:PATH`` and ``wds:PATH`` with a path in the place of PATH.
        split: ``train``, ``test`` or ``val``; ``test`` means ``val`` where that is what is held out.
        image_size: height and width in pixels. Image files are resized to it (224, Tiny ImageNet 64, unless
            given); arrays are not resized, so for them it must be their own.
        channels: 1 or 3. Image files are converted to it (3 unless given); for arrays it must be their own.
        num_classes: must be the source's own; ``random`` draws its labels from it.
        root: folder of the data sets; else the environment variable ANTIPHASE_DATA, else ~/.cache/antiphase.
        limit: at most this many images, see ``ImageSet.subset``.
        seed: which images ``limit`` takes, see ``ImageSet.subset``; for ``random`` the generator's seed.
        skip_bad: decode every file now and leave out those that fail, listed in the result's ``skipped``.
        progress: show a bar on stderr while files are checked.

    Raises:
        UserError: anything that cannot be served, in one line with the mend.

    >>> images = load_data("digits", limit=3)
    >>> images.image_shape, images.ids.tolist()
    ((1, 8, 8), [0, 1, 2])
    """
    if not isinstance(name, str):
        raise UserError(
            f"data {shown(name)}: expected the name of a source, such as 'digits' or 'folder:PATH'"
        )
    _check(image_size, channels, num_classes, limit, seed)
    kind, _, path = name.partition(":")
    source = _SOURCES.get(_WITH_PATH.get(kind, name) if path else name)
    if source is None:
        raise UserError(_unknown(name))
    if source.splits is not None:
        split = choose_split(name, split, source.splits)
    ask = _Request(split, image_size, channels, num_classes, data_root(root), limit, seed, name, path)
    images = source.load(ask)
    warn_of_other_counts(name, images.split, len(images), len(images.class_names))
    _check_agreement(images, image_size, channels, num_classes)
    images = images.subset(limit, seed)
    if skip_bad and isinstance(images, FileImages):
        return images.without_unreadable(progress=progress)
    return images


def _check(
    image_size: int | None, channels: int | None, num_classes: int | None, limit: int | None, seed: int | None
) -> None:
    for label, value in (("image_size", image_size), ("num_classes", num_classes), ("limit", limit)):
        if value is not None and value < 1:
            raise UserError(f"{label} {value} must be at least 1")
    if channels not in (None, 1, 3):
        raise UserError(f"channels {channels} must be 1 (grey) or 3 (RGB)")
    if seed is not None and seed < 0:
        raise UserError(f"seed {seed} must be 0 or more")


def _check_agreement(
    images: ImageSet, image_size: int | None, channels: int | None, num_classes: int | None
) -> None:
    own = images.image_shape
    wanted = (channels or own[0], image_size or own[1], image_size or own[2])
    if wanted != own:
        raise UserError(
            f"{images.name} has images of shape {own} (channels, height, width), not {wanted}, and "
            f"arrays are not resized: use image_size {own[1]} and channels {own[0]}, or another source"
        )
    if num_classes is not None and num_classes != len(images.class_names):
        raise UserError(
            f"{images.name} has {len(images.class_names)} classes, not {num_classes}: use a source "
            "and a model with the same classes"
        )


def _unknown(name: str) -> str:
    if name and os.path.isdir(os.path.expanduser(name)):
        return f"unknown data source {name!r}: for that folder of images say 'folder:{name}'"
    near = difflib.get_close_matches(name.lower(), SOURCES, n=2, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? Sources" if near else "sources"
    return f"unknown data source {shown(name)}: {guess} are {', '.join(SOURCES)}"
