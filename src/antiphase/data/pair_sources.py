"""Sources of image–caption pairs by name."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antiphase.arguments import Count, validated
from antiphase.data.captions import coco_captions, coco_single_label, csv_pairs
from antiphase.data.coco_objects import coco_objects
from antiphase.data.karpathy import KARPATHY_SETS, karpathy, karpathy_set
from antiphase.data.named import find_named
from antiphase.data.pairs import PairSet
from antiphase.data.published import warn_of_other_counts
from antiphase.data.root import data_root
from antiphase.data.shards import ShardStream, open_shards
from antiphase.data.wds import wds_pairs
from antiphase.errors import UserError


@dataclass(frozen=True)
class _Request:
    """Arguments for a source."""

    split: str
    root: Path
    name: str
    path: str
    samples: int | None
    lanes: int | None
    progress: bool


@dataclass(frozen=True)
class _Source:
    description: str
    load: Callable[[_Request], PairSet | ShardStream]


def _shards(ask: _Request) -> ShardStream:
    if ask.split != "train":
        raise UserError(
            f"shards:{ask.path} has no split {ask.split!r}: shards are for training only; for evaluation use one of "
            "coco, karpathy:JSON, csv:PATH"
        )
    return open_shards(ask.path, samples=ask.samples, lanes=ask.lanes, root=ask.root, progress=ask.progress)


def _openmoji(ask: _Request) -> PairSet:
    from antiphase.data.openmoji import openmoji_pairs  # optional dependencies

    return openmoji_pairs(ask.split, ask.root, ask.progress)


def _noto(ask: _Request) -> PairSet:
    from antiphase.data.openmoji import noto_pairs

    return noto_pairs(ask.split, ask.root, ask.progress)


def _scenes(ask: _Request) -> PairSet:
    from antiphase.data.emoji_scenes import emoji_scenes

    return emoji_scenes(ask.split, ask.root, ask.progress)


def _objects(ask: _Request) -> PairSet:
    from antiphase.data.emoji_objects import emoji_objects

    return emoji_objects(ask.split, ask.root, ask.progress)


_SOURCES = {
    "openmoji": _Source("OpenMoji's emoji with their names", _openmoji),
    "noto-emoji": _Source("the emoji of the Noto font with their names", _noto),
    "emoji-scenes": _Source("two emoji of OpenMoji in each image, with their names and masks", _scenes),
    "emoji-objects": _Source("scenes of two to four common objects, with their names and masks", _objects),
    "shards:PATTERN": _Source(
        "tar files in img2dataset's layout, as a stream: PATTERN is a path or URL with braces, such as "
        "cc3m/{00000..00331}.tar, in the working directory or the data folder",
        _shards,
    ),
    "coco": _Source(
        "COCO 2014 or 2017 with five captions per image, unpacked below the data folder",
        lambda ask: coco_captions(ask.root, ask.split),
    ),
    "coco-single-label": _Source(
        "COCO labelled with one of 80 classes per image, that of its largest object",
        lambda ask: coco_single_label(ask.root, ask.split),
    ),
    "coco-objects": _Source(
        "COCO's images of at least two categories, with the masks of the two largest",
        lambda ask: coco_objects(ask.root, ask.split),
    ),
    **{
        name: _Source(description, lambda ask: karpathy_set(ask.name, ask.root, ask.split))
        for name, description in KARPATHY_SETS.items()
    },
    "karpathy:JSON": _Source(
        "Karpathy's splits of COCO or Flickr, JSON is his dataset_coco.json, dataset_flickr30k.json or similar",
        lambda ask: karpathy(Path(ask.path).expanduser(), ask.root, ask.split),
    ),
    "wds:PATH": _Source(
        "a retrieval set of CLIP_benchmark, PATH is its name on the hub (clip-benchmark/wds_*) or a local folder",
        lambda ask: wds_pairs(Path(ask.path).expanduser(), ask.split),
    ),
    "csv:PATH": _Source(
        "image files and captions listed in a CSV or TSV, PATH, with columns image and caption",
        lambda ask: csv_pairs(Path(ask.path).expanduser(), ask.split),
    ),
}

PAIR_SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
"""One-line description of each source of pairs."""


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
    kind, _, path = name.partition(":")
    source = find_named(name, _SOURCES, "source of pairs")
    streamed = kind == "shards"
    if streamed and limit is not None:
        raise UserError(
            f"{name}: limit {limit} does not apply to shards; for a shorter epoch use --samples {limit}"
        )
    if not streamed and samples is not None:
        raise UserError(f"{name}: --samples only applies to shards; leave it out, or use --limit {samples}")
    if not streamed and lanes is not None:
        raise UserError(f"{name}: --lanes only applies to shards; leave out --lanes {lanes}")
    loaded = source.load(_Request(split, data_root(root), name, path, samples, lanes, progress))
    if not isinstance(loaded, PairSet):
        return loaded
    warn_of_other_counts(name, loaded.split, len(loaded) + len(loaded.skipped))
    return loaded.subset(limit)
