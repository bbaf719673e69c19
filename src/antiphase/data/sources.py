"""Sources of images, pairs and conversations by name, as listed in ``sources.toml``, and functions that load them."""

import inspect
import os
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antiphase.arguments import OWN_WORDS, Count, Must, Seed, validated
from antiphase.data import folders, in_memory
from antiphase.data.images import ArrayImages, FileImages, ImageSet, PairSet
from antiphase.data.shards import ShardStream
from antiphase.errors import UserError, shown

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A source of data, and what is known of it without reading it.

    Parameters of the function ``read`` are any of ``name``, ``split``, ``root`` (the data folder), ``path`` (what
    follows the colon of the name), ``place`` (that as a path), the arguments of ``load_data`` and the like, and
    ``more``. ``splits``, ``classes`` and ``train_images`` are None if only reading tells.
    """

    description: str
    read: str | Callable[..., Any]
    splits: Sequence[str] | None = None
    image_size: int = 224
    channels: int = 3
    classes: int | None = None
    train_images: int | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any]:
        if not isinstance(self.read, str):
            return self.read
        module, _, name = self.read.partition(".")
        return getattr(import_module(f"antiphase.data.{module}"), name)

    @property
    def settings(self) -> list[str]:
        """Names of the function's parameters that have a default."""
        parameters = inspect.signature(self.function).parameters.values()
        return [one.name for one in parameters if one.default is not one.empty]

    def load(self, name: str, split: str, root: str | os.PathLike[str] | None, **settings: Any) -> Any:
        known = {"name": name, "split": split, "root": folders.data_root(root), "path": name.partition(":")[2]}
        known |= self.more | settings
        known["place"] = Path(os.path.expanduser(known["path"]))
        parameters = inspect.signature(self.function).parameters
        return self.function(**{name: known[name] for name in parameters if name in known})


_LISTED = tomllib.loads((files("antiphase.data") / "sources.toml").read_text(encoding="utf-8"))
_PUBLISHED: dict[str, dict[str, int]] = _LISTED["published"]
_FIELDS = {known.name for known in fields(Source)}


def listed_sources(kind: str) -> dict[str, Source]:
    """Return the sources of ``images``, ``pairs`` or ``conversations`` by name."""
    sources: dict[str, Source] = {}
    for name, facts in _LISTED[kind].items():
        known = {key: facts[key] for key in facts if key in _FIELDS}
        sources[name] = Source(**known, more={key: facts[key] for key in facts if key not in _FIELDS})
    return sources


_SOURCES, _PAIR_SOURCES = listed_sources("images"), listed_sources("pairs")

SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
PAIR_SOURCES: dict[str, str] = {name: source.description for name, source in _PAIR_SOURCES.items()}
"""Name of each source of images or of pairs, and what it is in one line."""

# of the DiffCLIP paper, see sources.toml
_SUITES = {name: tuple(sets) for name, sets in _LISTED["suites"].items()}
PROBE_SETS, IMAGENET_SETS, RETRIEVAL_SETS = (_SUITES[name] for name in ("probe", "imagenet", "retrieval"))
MEAN_PER_CLASS = frozenset(_SUITES["mean_per_class"])
EMOJI_SETS = _SUITES["emoji"]  # drawings on white, by artist


def _warn_of_other_counts(name: str, split: str, images: int, classes: int = 0) -> None:
    known = _PUBLISHED.get(name, {})
    published = known.get(split, images), known.get("classes", classes)
    if published != (images, classes):
        counts = f"images {images:,}, classes {classes:,}; {published[0]:,} and {published[1]:,}"
        advice = "were published: results are not comparable, download it again"
        warnings.warn(f"{name} ({split}): {counts} {advice}", stacklevel=4)  # the caller of load_data


def find_named(name: str, sources: Mapping[str, T], noun: str) -> T:
    """Return the source of a name: a key of ``sources`` with a path in place of what follows its colon."""
    kind, _, path = name.partition(":")
    for key, source in sources.items():
        if key == name if ":" not in key else path and key.startswith(f"{kind}:"):
            return source
    kinds = {".npz": "npz", ".parquet": "parquet", ".csv": "csv", "": "folder"}
    kind = kinds.get(Path(name).suffix, "") if os.path.exists(name) else ""
    if any(key.startswith(f"{kind}:") for key in sources):
        raise UserError(f"unknown {noun} {shown(name)}: did you mean {kind}:{name}?")
    raise UserError(f"unknown {noun} {shown(name)}: expected one of {', '.join(sources)}")


def source_of(name: str) -> Source:
    """Return the source of images of a name, with its facts; nothing is read."""
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
    """Return the images of a named source, or images of your own; a ``UserError`` if they are not as expected.

    Args:
        source: one of ``SOURCES``, with a path in the place of PATH; an array or tensor of images ``(images, channels,
            height, width)``, uint8 or floating point in [0, 1], alone or in a pair with its labels; a map-style
            ``Dataset`` or a ``DataLoader`` of torch, which is read into memory; or an ``ImageSet``.
        labels: class numbers from 0 of an array or tensor of images.
        class_names: of your own images; else the data set's ``classes``, or the numbers.
        split: ``train``, ``test`` or ``val``; ``test`` means ``val`` where that is what is held out.
        image_size: height and width in pixels, to which image files are resized (224, Tiny ImageNet 64, unless given).
        channels: 1 or 3, to which image files are converted (3 unless given).
        num_classes: must be the source's own; ``random`` draws its labels from it.
        root: folder of the data sets; else the environment variable ANTIPHASE_DATA, else ~/.cache/antiphase.
        limit: at most this many (readable) images, which ``seed`` draws, see ``ImageSet.subset``.
        skip_bad: decode the files now and leave out those that fail, listed in the result's ``skipped``.

    >>> images = load_data("digits", limit=3)
    >>> images.image_shape, images.ids.tolist()
    ((1, 8, 8), [0, 1, 2])
    >>> load_data(np.zeros((2, 3, 5, 5)), [1, 0])
    <ArrayImages array (test): 2 images>
    """
    if not isinstance(source, str):
        images = _own_images(source, labels, class_names, limit, seed)
        if split not in ("test", images.split):
            raise UserError(f"split {shown(split)}: {images.name} is given as images of one split; leave it out")
    elif labels is not None or class_names is not None:
        raise UserError(f"{source}: has its own labels and class names; leave them out")
    else:
        facts = source_of(source)
        split = split if facts.splits is None else folders.choose_split(source, split, facts.splits)
        shape = {"image_size": image_size, "channels": channels, "num_classes": num_classes}
        images = facts.load(source, split, root, **shape, limit=limit, seed=seed)
        if isinstance(images, PairSet):  # with labels
            values = dict(vars(images), name=source)
            del values["captions"], values["objects"]
            memory = values.pop("array", None)
            images = FileImages(**values) if memory is None else ArrayImages(pixels=memory, **values)
        if isinstance(images, FileImages):
            images = images.altered(image_size=image_size or facts.image_size, channels=channels or 3)
        _warn_of_other_counts(source, images.split, len(images), len(images.class_names))
    shape = images.image_shape
    expected = (channels or shape[0], image_size or shape[1], image_size or shape[2])
    if expected != shape:
        raise UserError(f"{images.name} has images of {shape}, not {expected}, and arrays are not resized")
    if num_classes not in (None, len(images.class_names)):
        raise UserError(f"{images.name} has {len(images.class_names)} classes, not {num_classes}")
    return images.without_unreadable(limit, seed, progress=progress) if skip_bad else images.subset(limit, seed)


def _own_images(source: Any, labels: Any, names: in_memory.Names, limit: int | None, seed: int | None) -> ImageSet:
    if isinstance(source, ImageSet | Dataset | DataLoader) and labels is not None:
        raise UserError(f"labels: {shown(source)} has its own; leave them out")
    if isinstance(source, ImageSet):
        if names is not None:
            raise UserError(f"class_names: {shown(source)} has its own; leave them out")
        return source
    if isinstance(source, tuple) and len(source) == 2 and labels is None:
        source, labels = source
    if isinstance(source, Tensor | np.ndarray):
        return in_memory.array_images("array", source, labels, class_names=names)
    if isinstance(source, DataLoader) or (isinstance(source, Dataset) and hasattr(source, "__len__")):
        return in_memory.dataset_images(source, limit, seed, names)
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
    skip_bad: bool = False,
    progress: bool = True,
) -> PairSet | ShardStream:
    """Load image–caption pairs from a named source.

    Args:
        name: one of ``PAIR_SOURCES``, with a path in place of PATTERN, JSON or PATH.
        split: as in :func:`load_data`; shards have only ``train``.
        limit: load only the first ``limit`` pairs; not for shards.
        root: as in :func:`load_data`.
        samples: samples per epoch of shards; None: count them.
        lanes: lanes of shards, see :class:`~antiphase.data.ShardStream`; a multiple of the number of processes.
        skip_bad: decode the files now and leave out those that fail. Shards leave them out as they come.
        progress: show a progress bar while data are counted or prepared.
    """
    source = find_named(name, _PAIR_SOURCES, "source of pairs")
    if (streamed := name.startswith("shards:")) and limit is not None:
        raise UserError(f"{name}: limit {limit} does not apply to shards; use --samples {limit}")
    if not streamed and (samples, lanes) != (None, None):
        raise UserError(f"{name}: --samples and --lanes only apply to shards; leave them out, or use --limit")
    pairs = source.load(name, split, root, samples=samples, lanes=lanes, progress=progress)
    if isinstance(pairs, ShardStream):
        return pairs
    _warn_of_other_counts(name, pairs.split, len(pairs) + len(pairs.skipped))
    return pairs.without_unreadable(limit, progress=progress) if skip_bad else pairs.subset(limit)
