"""Sources of images and of image–caption pairs by name, and the functions that load them."""

import difflib
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
_KINDS = {  # of sources that read a file, by its suffix
    ".npz": ("npz",),
    ".parquet": ("parquet",),
    ".csv": ("csv",),
    ".tsv": ("csv",),
    ".json": ("karpathy", "llava"),
    ".tar": ("shards",),
}


@dataclass(frozen=True)
class Request:
    """What a caller asked of a source; ``path`` follows the colon of ``name``. A source uses what applies to it."""

    name: str
    split: str
    root: Path
    image_size: int | None = None
    channels: int | None = None
    num_classes: int | None = None
    limit: int | None = None
    seed: int | None = None
    samples: int | None = None
    lanes: int | None = None
    progress: bool = True

    @property
    def path(self) -> str:
        return self.name.partition(":")[2]

    @property
    def place(self) -> Path:
        return Path(self.path).expanduser()


@dataclass(frozen=True)
class Source:
    """A source of images or pairs, and what is known of it without reading it.

    Attributes:
        description: what it is, in one line.
        load: returns what was asked for.
        splits: splits of images; None if ``load`` decides.
        image_size: height and width in pixels, of files the size that they are resized to by default.
        channels: of the images.
        classes: number of classes; None if only reading tells.
        train_images: number of images in the train split; None if only reading tells.
    """

    description: str
    load: Callable[[Request], Any]
    splits: tuple[str, ...] | None = ("train", "test")
    image_size: int = 224
    channels: int = 3
    classes: int | None = None
    train_images: int | None = None


def _labelled(pairs: ArrayPairs | FilePairs, name: str) -> ImageSet:
    """Return pairs that have labels as labelled images."""
    shared = ("split", "class_names", "ids", "labels", "skipped", "prompts")
    fields: dict[str, Any] = {"name": name, **{field: getattr(pairs, field) for field in shared}}
    if isinstance(pairs, ArrayPairs):
        return ArrayImages(pixels=pairs.array, **fields)
    return FileImages(root=pairs.root, files=pairs.files, image_size=224, channels=3, **fields)


def _emoji_images(ask: Request) -> ImageSet:
    return _labelled(emoji.emoji_pairs(ask.name, ask.split, ask.root), ask.name)


def _random(ask: Request) -> ImageSet:
    shape = ask.image_size, ask.channels, ask.num_classes
    return small_sets.random_images(ask.split, *shape, ask.limit, ask.seed)


def _in_root(function: Callable[..., T]) -> Callable[[Request], T]:
    """Return what loads a data set that is always at the same place of the data folder."""
    return lambda ask: function(split=ask.split, root=ask.root)


def _named(function: Callable[..., T]) -> Callable[[Request], T]:
    """Return what loads one of several such data sets."""
    return lambda ask: function(ask.name, split=ask.split, root=ask.root)


_VAL = ("train", "val")
_SOURCES = {
    "digits": Source(
        "scikit-learn's 1,797 digits, 8×8 grey, 10 classes",
        lambda ask: small_sets.digits(ask.split),
        image_size=8,
        channels=1,
        classes=10,
        train_images=1_438,
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST, 28×28 grey, 10 classes (Debian's dataset-fashion-mnist, else downloaded)",
        _in_root(small_sets.fashion_mnist),
        image_size=28,
        channels=1,
        classes=10,
        train_images=60_000,
    ),
    "specimen-fashion-mnist": Source(
        "1,000 Fashion-MNIST test images that ship with antiphase",
        lambda ask: small_sets.specimen_images(),
        splits=("test",),
        image_size=28,
        channels=1,
        classes=10,
    ),
    **{
        f"cifar{classes}": Source(
            f"CIFAR-{classes}, 32×32 RGB, {classes} classes (downloaded)",
            _named(small_sets.cifar),
            image_size=32,
            classes=classes,
            train_images=50_000,
        )
        for classes in (10, 100)
    },
    "tiny-imagenet": Source(
        "Tiny ImageNet, 64×64 RGB, 200 classes, unpacked below the data folder",
        _in_root(imagenets.tiny_imagenet),
        splits=_VAL,
        image_size=64,
        classes=200,
        train_images=100_000,
    ),
    "imagenet": Source(
        "ImageNet-1k, RGB, 1,000 classes, in {train,val}/<wnid> below the data folder",
        _in_root(imagenets.imagenet),
        splits=_VAL,
        classes=1_000,
        train_images=1_281_167,
    ),
    **{
        name: Source(description, _named(imagenets.imagenet_variant), splits=None)
        for name, description in imagenets.IMAGENET_VARIANTS.items()
    },
    **{
        name: Source(description, _named(probe_sets.probe_set), splits=splits)
        for name, (description, splits) in probe_sets.PROBE_FILE_SETS.items()
    },
    "openmoji": Source(
        "OpenMoji's drawings, 64×64 RGB, nine Unicode groups (the extra openmoji)",
        _emoji_images,
        image_size=64,
        classes=9,
        train_images=3_362,
    ),
    "noto-emoji": Source(
        "the same emoji by another artist: Noto Color Emoji, from Debian's fonts-noto-color-emoji",
        _emoji_images,
        image_size=64,
        classes=9,
    ),
    "coco": Source(  # as the robustness paper's CLIPs are attacked
        "COCO, RGB, 80 classes, an image under the class of its largest object, below the data folder's coco/",
        lambda ask: _labelled(captions.coco_single_label(ask.root / "coco", ask.split), "coco"),
        splits=_VAL,
        classes=80,
    ),
    "folder:PATH": Source(
        "any folder with a sub-folder for each class, or such folders in PATH/train, PATH/val, PATH/test",
        lambda ask: class_folder(f"folder:{printable(ask.path)}", ask.place, ask.split),
        splits=None,
    ),
    "wds:PATH": Source(
        "a classification set of the hub's clip-benchmark/wds_*, PATH is their name on the hub or a local folder",
        lambda ask: hub.wds_images(ask.place, ask.split),
        splits=None,
    ),
    "npz:FILE": Source(
        "a NumPy archive with the arrays images and labels, also one pair for each split: train_images, test_labels",
        lambda ask: in_memory.npz_images(ask.path, ask.split),
        splits=None,
    ),
    "parquet:PATTERN": Source(
        "Parquet files in the layout of the hub's image data sets: a file, a folder or a pattern",
        lambda ask: hub.parquet_images(ask.path, ask.split),
        splits=None,
    ),
    "random": Source(
        "uniform noise and random labels, for smoke runs; needs image_size, channels and num_classes",
        _random,
        classes=10,
    ),
}

SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
"""Name of each source of images and what it is, in one line."""


def _named_emoji(ask: Request) -> PairSet:
    return emoji.emoji_pairs(ask.name, ask.split, ask.root, ask.progress)


def _shards(ask: Request) -> ShardStream:
    if ask.split != "train":
        raise UserError(
            f"{ask.name} has no split {ask.split!r}: shards are for training only; for evaluation use one of coco, "
            "karpathy:JSON, csv:PATH"
        )
    return open_shards(ask.path, samples=ask.samples, lanes=ask.lanes, root=ask.root, progress=ask.progress)


_PAIR_SOURCES = {
    "openmoji": Source("OpenMoji's emoji with their names", _named_emoji),
    "noto-emoji": Source("the emoji of the Noto font with their names", _named_emoji),
    "emoji-scenes": Source(
        "two emoji of OpenMoji in each image, with their names and masks",
        lambda ask: emoji.emoji_scenes(ask.split, ask.root, ask.progress),
    ),
    "emoji-objects": Source(
        "scenes of two to four common objects, with their names and masks",
        lambda ask: emoji.emoji_objects(ask.split, ask.root, ask.progress),
    ),
    "shards:PATTERN": Source(
        "tar files in img2dataset's layout, as a stream: PATTERN is a path or URL with braces, such as "
        "cc3m/{00000..00331}.tar, in the working directory or the data folder",
        _shards,
    ),
    "coco": Source(
        "COCO 2014 or 2017 with five captions per image, unpacked below the data folder",
        _in_root(captions.coco_captions),
    ),
    "coco-single-label": Source(
        "COCO labelled with one of 80 classes per image, that of its largest object",
        _in_root(captions.coco_single_label),
    ),
    "coco-objects": Source(
        "COCO's images of at least two categories, with the masks of the two largest",
        _in_root(captions.coco_objects),
    ),
    **{
        name: Source(description, _named(captions.karpathy_set))
        for name, description in captions.KARPATHY_SETS.items()
    },
    "karpathy:JSON": Source(
        "Karpathy's splits of COCO or Flickr, JSON is his dataset_coco.json, dataset_flickr30k.json or similar",
        lambda ask: captions.karpathy(ask.place, ask.root, ask.split),
    ),
    "wds:PATH": Source(
        "a retrieval set of CLIP_benchmark, PATH is its name on the hub (clip-benchmark/wds_*) or a local folder",
        lambda ask: hub.wds_pairs(ask.place, ask.split),
    ),
    "csv:PATH": Source(
        "image files and captions listed in a CSV or TSV, PATH, with columns image and caption",
        lambda ask: captions.csv_pairs(ask.place, ask.split),
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
    for suited in _KINDS.get(Path(name).suffix.lower(), ()) if ":" not in name else ():
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
        source: one of ``SOURCES``, such as ``folder:PATH`` with a path in the place of PATH; or an array or tensor of
            images ``(images, channels, height, width)``, uint8 or floating point in [0, 1], alone or in a pair with
            its labels; or a map-style ``Dataset`` or a ``DataLoader`` of torch, which is read into memory; or an
            ``ImageSet``.
        labels: class numbers from 0 of an array or tensor of images.
        class_names: names of the classes of your own images. If not given: the data set's ``classes``, or the numbers.
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
        UserError: the source is unknown, missing or invalid, or range, layout or type of the images are not as
            expected; the message says how to fix it.

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
        ask = Request(source, split, data_root(root), image_size, channels, num_classes, limit, seed)
        images = facts.load(ask)
        if isinstance(images, FileImages):
            images = images.altered(image_size=image_size or facts.image_size, channels=channels or 3)
        warn_of_other_counts(source, images.split, len(images), len(images.class_names))
    else:
        images = _own_images(source, labels, class_names, limit, seed)
    shape = images.image_shape
    expected = (channels or shape[0], image_size or shape[1], image_size or shape[2])
    if expected != shape:
        raise UserError(
            f"{images.name} has images of shape {shape} (channels, height, width), not {expected}, and arrays are not "
            f"resized: use image_size {shape[1]} and channels {shape[0]}, or other data"
        )
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
    """Return images that are not named: arrays, data sets and loaders."""
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
    raise UserError(
        f"data {shown(source)}: expected the name of a source, such as 'digits' or 'folder:PATH', or images: an array, "
        "a tensor, a map-style Dataset or a DataLoader"
    )


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
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` if a source has only that. Shards have only
            ``train``.
        limit: load only the first ``limit`` pairs; not for shards.
        root: data folder; None: the environment variable ANTIPHASE_DATA, or ~/.cache/antiphase.
        samples: samples per epoch of shards; None: count them. Only for shards.
        lanes: lanes of shards, see :class:`~antiphase.data.ShardStream`; a multiple of the number of processes.
        progress: show a progress bar on stderr while data are counted or prepared.

    Raises:
        UserError: for an unknown source or split, missing or damaged data, or an argument out of range.
    """
    source = find_named(name, _PAIR_SOURCES, "source of pairs")
    streamed = name.startswith("shards:")
    if streamed and limit is not None:
        raise UserError(f"{name}: limit {limit} does not apply to shards; use --samples {limit}")
    if not streamed and samples is not None:
        raise UserError(f"{name}: --samples only applies to shards; leave it out, or use --limit {samples}")
    if not streamed and lanes is not None:
        raise UserError(f"{name}: --lanes only applies to shards; leave out --lanes {lanes}")
    ask = Request(name, split, data_root(root), samples=samples, lanes=lanes, progress=progress)
    pairs = source.load(ask)
    if streamed:
        return pairs
    warn_of_other_counts(name, pairs.split, len(pairs) + len(pairs.skipped))
    return pairs.subset(limit)
