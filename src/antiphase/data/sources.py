"""Sources of images and of image–caption pairs by name, and the functions that load them."""

import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antiphase.arguments import OWN_WORDS, Count, Must, Seed, validated
from antiphase.data import captions, emoji, hub, imagenets, in_memory, probe_sets, small_sets
from antiphase.data.expected_counts import warn_of_other_counts
from antiphase.data.folders import choose_split, class_folder, data_root
from antiphase.data.images import ArrayImages, FileImages, ImageSet
from antiphase.data.pairs import ArrayPairs, FilePairs, PairSet
from antiphase.data.shards import ShardStream, open_shards
from antiphase.errors import UserError, shown
from antiphase.files import printable

T = TypeVar("T")
# sources that read a file, by its suffix
_KINDS = {".npz": "npz", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".tar": "shards"}
_KINDS |= {".json": "karpathy llava"}


@dataclass(frozen=True)
class Source:
    """A source of images or pairs, and what is known of it without reading it.

    Attributes:
        description: what it is, in one line.
        function: returns the data. Its parameters are any of ``name``, ``split``, ``root`` (the data folder), ``path``
            (what follows the colon of the name), ``place`` (that as a path), and the arguments of ``load_data`` or
            ``load_pairs``.
        splits: splits of images; None if ``function`` decides.
        image_size: height and width in pixels, of files the size that they are resized to by default.
        channels: of the images.
        classes: number of classes; None if only reading tells.
        train_images: number of images in the train split; None if only reading tells.
    """

    description: str
    function: Callable[..., Any]
    splits: tuple[str, ...] | None = ("train", "test")
    image_size: int = 224
    channels: int = 3
    classes: int | None = None
    train_images: int | None = None

    def load(self, name: str, split: str, root: str | os.PathLike[str] | None, **settings: Any) -> Any:
        known = {
            "name": name,
            "split": split,
            "root": data_root(root),
            "path": name.partition(":")[2],
        } | settings
        known["place"] = Path(known["path"]).expanduser()
        parameters = inspect.signature(self.function).parameters
        return self.function(**{name: known[name] for name in parameters if name in known})


def _labelled(pairs: ArrayPairs | FilePairs, name: str) -> ImageSet:
    """Return pairs that have labels as labelled images."""
    shared = ("split", "class_names", "ids", "labels", "skipped", "prompts")
    fields: dict[str, Any] = {"name": name, **{field: getattr(pairs, field) for field in shared}}
    if isinstance(pairs, ArrayPairs):
        return ArrayImages(pixels=pairs.array, **fields)
    return FileImages(root=pairs.root, files=pairs.files, image_size=224, channels=3, **fields)


def _emoji_images(name: str, split: str, root: Path) -> ImageSet:
    return _labelled(emoji.emoji_pairs(name, split, root), name)


def _coco_images(split: str, root: Path) -> ImageSet:  # as the robustness paper's CLIPs are attacked
    return _labelled(captions.coco_single_label(root / "coco", split), "coco")


def _folder(path: str, place: Path, split: str) -> ImageSet:
    return class_folder(f"folder:{printable(path)}", place, split)


_TWO, _VAL = ("train", "test"), ("train", "val")
_SOURCES = {
    "digits": Source(
        "scikit-learn's 1,797 digits, 8×8 grey, 10 classes", small_sets.digits, _TWO, 8, 1, 10, 1_438
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST, 28×28 grey, 10 classes (Debian's dataset-fashion-mnist, else downloaded)",
        *(small_sets.fashion_mnist, _TWO, 28, 1, 10, 60_000),
    ),
    "specimen-fashion-mnist": Source(
        "1,000 Fashion-MNIST test images that ship with antiphase",
        *(lambda: small_sets.specimen_images(), ("test",), 28, 1, 10),
    ),
    **{
        f"cifar{classes}": Source(
            f"CIFAR-{classes}, 32×32 RGB, {classes} classes (downloaded)",
            *(small_sets.cifar, _TWO, 32, 3, classes, 50_000),
        )
        for classes in (10, 100)
    },
    "tiny-imagenet": Source(
        "Tiny ImageNet, 64×64 RGB, 200 classes, unpacked below the data folder",
        *(imagenets.tiny_imagenet, _VAL, 64, 3, 200, 100_000),
    ),
    "imagenet": Source(
        "ImageNet-1k, RGB, 1,000 classes, in {train,val}/<wnid> below the data folder",
        *(imagenets.imagenet, _VAL, 224, 3, 1_000, 1_281_167),
    ),
    **{
        name: Source(description, imagenets.imagenet_variant, None)
        for name, description in imagenets.IMAGENET_VARIANTS.items()
    },
    **{
        name: Source(description, probe_sets.probe_set, splits)
        for name, (description, splits) in probe_sets.PROBE_FILE_SETS.items()
    },
    "openmoji": Source(
        "OpenMoji's drawings, 64×64 RGB, nine Unicode groups (the extra openmoji)",
        *(_emoji_images, _TWO, 64, 3, 9, 3_362),
    ),
    "noto-emoji": Source(
        "the same emoji by another artist: Noto Color Emoji, from Debian's fonts-noto-color-emoji",
        *(_emoji_images, _TWO, 64, 3, 9),
    ),
    "coco": Source(
        "COCO, RGB, 80 classes, an image under the class of its largest object, below the data folder's coco/",
        *(_coco_images, _VAL, 224, 3, 80),
    ),
    "folder:PATH": Source(
        "any folder with a sub-folder for each class, or such folders in PATH/train, PATH/val, PATH/test",
        *(_folder, None),
    ),
    "wds:PATH": Source(
        "a classification set of the hub's clip-benchmark/wds_*, PATH is their name on the hub or a local folder",
        *(hub.wds_images, None),
    ),
    "npz:FILE": Source(
        "a NumPy archive with the arrays images and labels, also one pair for each split: train_images, test_labels",
        *(in_memory.npz_images, None),
    ),
    "parquet:PATTERN": Source(
        "Parquet files in the layout of the hub's image data sets: a file, a folder or a pattern",
        *(hub.parquet_images, None),
    ),
    "random": Source(
        "uniform noise and random labels, for smoke runs; needs image_size, channels and num_classes",
        *(small_sets.random_images, _TWO, 224, 3, 10),
    ),
}

SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
"""Name of each source of images and what it is, in one line."""


def _shards(
    name: str, split: str, path: str, root: Path, samples: int | None, lanes: int | None, progress: bool
) -> ShardStream:
    if split != "train":
        expected = "shards are for training only; else use one of coco, karpathy:JSON, csv:PATH"
        raise UserError(f"{name} has no split {split!r}: {expected}")
    return open_shards(path, samples=samples, lanes=lanes, root=root, progress=progress)


_PAIR_SOURCES = {
    "openmoji": Source("OpenMoji's emoji with their names", emoji.emoji_pairs),
    "noto-emoji": Source("the emoji of the Noto font with their names", emoji.emoji_pairs),
    "emoji-scenes": Source(
        "two emoji of OpenMoji in each image, with their names and masks", emoji.emoji_scenes
    ),
    "emoji-objects": Source(
        "scenes of two to four common objects, with their names and masks", emoji.emoji_objects
    ),
    "shards:PATTERN": Source(
        "tar files in img2dataset's layout, as a stream: PATTERN is a path or URL with braces, such as "
        "cc3m/{00000..00331}.tar, in the working directory or the data folder",
        _shards,
    ),
    "coco": Source(
        "COCO 2014 or 2017 with five captions per image, unpacked below the data folder",
        captions.coco_captions,
    ),
    "coco-single-label": Source(
        "COCO labelled with one of 80 classes per image, that of its largest object",
        captions.coco_single_label,
    ),
    "coco-objects": Source(
        "COCO's images of at least two categories, with the masks of the two largest", captions.coco_objects
    ),
    **{name: Source(text, captions.karpathy_set) for name, text in captions.KARPATHY_SETS.items()},
    "karpathy:JSON": Source(
        "Karpathy's splits of COCO or Flickr, JSON is his dataset_coco.json, dataset_flickr30k.json or similar",
        captions.karpathy,
    ),
    "wds:PATH": Source(
        "a retrieval set of CLIP_benchmark, PATH is its name on the hub (clip-benchmark/wds_*) or a local folder",
        hub.wds_pairs,
    ),
    "csv:PATH": Source(
        "image files and captions listed in a CSV or TSV, PATH, with columns image and caption",
        captions.csv_pairs,
    ),
}

PAIR_SOURCES: dict[str, str] = {name: source.description for name, source in _PAIR_SOURCES.items()}
"""One-line description of each source of pairs."""


def find_named(name: str, sources: Mapping[str, T], what: str) -> T:
    """Return the source of a name: a key of ``sources`` with a path in place of what follows its colon.

    >>> find_named("csv:pairs.csv", {"coco": 1, "csv:PATH": 2}, "source of pairs")
    2
    >>> find_named("cocos", {"coco": 1, "wds:PATH": 2}, "source of pairs")
    Traceback (most recent call last):
    antiphase.errors.UserError: unknown source of pairs 'cocos': did you mean coco? Expected one of coco, wds:PATH
    """
    kind, _, path = name.partition(":")
    for key, source in sources.items():
        if key == name if ":" not in key else path and key.startswith(f"{kind}:"):
            return source
    keys = {key.partition(":")[0]: key for key in sources}
    near = [keys[other] for other in difflib.get_close_matches(kind.lower(), keys, n=2, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? Expected" if near else "expected"
    hint += f" one of {', '.join(sources)}"
    if "folder" in keys and name and os.path.isdir(os.path.expanduser(name)):
        hint = f"for that folder of images say 'folder:{name}'"
    for suited in _KINDS.get(Path(name).suffix.lower(), "").split() if ":" not in name else ():
        if suited in keys:
            hint = f"for that file use '{suited}:{name}'"
    raise UserError(f"unknown {what} {shown(name)}: {hint}")


def source_of(name: str) -> Source:
    """Return the source of images of a name, with its facts; nothing is read.

    >>> source_of("cifar100").classes
    100
    """
    return find_named(name, _SOURCES, "data source")


@validated
def load_data(
    source: Any,
    labels: Any = None,
    *,
    class_names: Annotated[Sequence[str] | None, OWN_WORDS] = None,
    split: str = "test",
    image_size: Count | None = None,
    channels: Annotated[int, Must("equal to 1 or 3", lambda channels: channels in (1, 3))] | None = None,
    num_classes: Count | None = None,
    root: str | os.PathLike[str] | None = None,
    limit: Count | None = None,
    seed: Seed | None = None,
    skip_bad: bool = False,
    progress: bool = True,
) -> ImageSet:
    """Return the images of a named source, or images of your own.

    Args:
        source: one of ``SOURCES``, with a path in the place of PATH; an array or tensor of images ``(images, channels,
            height, width)``, uint8 or floating point in [0, 1], alone or in a pair with its labels; a map-style
            ``Dataset`` or a ``DataLoader`` of torch, which is read into memory; or an ``ImageSet``.
        labels: class numbers from 0 of an array or tensor of images.
        class_names: of your own images; else the data set's ``classes``, or the numbers.
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
        UserError: the source is unknown, missing or invalid, or the images are not as expected.

    >>> images = load_data("digits", limit=3)
    >>> images.image_shape, images.ids.tolist()
    ((1, 8, 8), [0, 1, 2])
    >>> load_data(np.zeros((2, 3, 5, 5)), [1, 0])
    <ArrayImages array (test): 2 images of 3×5×5, 2 classes>
    """
    if isinstance(source, str):
        if labels is not None or class_names is not None:
            raise UserError(f"{source}: has its own labels and class names; leave them out")
        facts = source_of(source)
        if facts.splits is not None:
            split = choose_split(source, split, facts.splits)
        shape = {"image_size": image_size, "channels": channels, "num_classes": num_classes}
        images = facts.load(source, split, root, **shape, limit=limit, seed=seed)
        if isinstance(images, FileImages):
            images = images.altered(image_size=image_size or facts.image_size, channels=channels or 3)
        warn_of_other_counts(source, images.split, len(images), len(images.class_names))
    else:
        images = _own_images(source, labels, class_names, limit, seed)
    shape = images.image_shape
    expected = (channels or shape[0], image_size or shape[1], image_size or shape[2])
    if expected != shape:
        reason = f"(channels, height, width), not {expected}, and arrays are not resized"
        fix = f"use image_size {shape[1]} and channels {shape[0]}, or other data"
        raise UserError(f"{images.name} has images of shape {shape} {reason}: {fix}")
    if num_classes not in (None, len(images.class_names)):
        raise UserError(f"{images.name} has {len(images.class_names)} classes, not {num_classes}")
    images = images.subset(limit, seed)
    if not skip_bad:
        return images
    if not isinstance(images, FileImages):
        raise UserError(f"{images.name}: --skip-bad leaves out files, and it has none; remove the option")
    return images.without_unreadable(progress=progress)


def _own_images(
    source: Any, labels: Any, class_names: Sequence[str] | None, limit: int | None, seed: int | None
) -> ImageSet:
    if isinstance(source, ImageSet | Dataset | DataLoader) and labels is not None:
        raise UserError(f"labels: {shown(source)} has its own; leave them out")
    if isinstance(source, ImageSet):
        if class_names is not None:
            raise UserError(f"class_names: {shown(source)} has its own; leave them out")
        return source
    if isinstance(source, tuple) and len(source) == 2 and labels is None:
        source, labels = source
    if isinstance(source, Tensor | np.ndarray):
        return in_memory.array_images("array", source, labels, class_names=class_names)
    if isinstance(source, DataLoader) or (isinstance(source, Dataset) and hasattr(source, "__len__")):
        return in_memory.dataset_images(source, limit, seed, class_names)
    expected = "the name of a source, such as 'digits' or 'folder:PATH', or images: an array, a tensor"
    raise UserError(f"data {shown(source)}: expected {expected}, a map-style Dataset or a DataLoader")


@validated
def load_pairs(
    name: str,
    *,
    split: str = "train",
    limit: Count | None = None,
    root: str | os.PathLike[str] | None = None,
    samples: Count | None = None,
    lanes: Count | None = None,
    progress: bool = True,
) -> PairSet | ShardStream:
    """Load image–caption pairs from a named source.

    Args:
        name: one of ``PAIR_SOURCES``, with a path in place of PATTERN, JSON or PATH.
        split: ``train``, ``val`` or ``test``, which means ``val`` if a source has only that. Shards have ``train``.
        limit: load only the first ``limit`` pairs; not for shards.
        root: data folder; None: the environment variable ANTIPHASE_DATA, or ~/.cache/antiphase.
        samples: samples per epoch of shards; None: count them. Only for shards.
        lanes: lanes of shards, see :class:`~antiphase.data.ShardStream`; a multiple of the number of processes.
        progress: show a progress bar on stderr while data are counted or prepared.
    """
    source = find_named(name, _PAIR_SOURCES, "source of pairs")
    streamed = name.startswith("shards:")
    if streamed and limit is not None:
        raise UserError(f"{name}: limit {limit} does not apply to shards; use --samples {limit}")
    if not streamed and samples is not None:
        raise UserError(f"{name}: --samples only applies to shards; leave it out, or use --limit {samples}")
    if not streamed and lanes is not None:
        raise UserError(f"{name}: --lanes only applies to shards; leave out --lanes {lanes}")
    pairs = source.load(name, split, root, samples=samples, lanes=lanes, progress=progress)
    if streamed:
        return pairs
    warn_of_other_counts(name, pairs.split, len(pairs) + len(pairs.skipped))
    return pairs.subset(limit)
