"""Data sets in the layouts of the Hugging Face hub: CLIP_benchmark's tar files, and Parquet files of images."""

import glob
import os
import re
import socket
import urllib.request
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
from huggingface_hub import constants, snapshot_download
from huggingface_hub import errors as hub_errors
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from antiphase.data import archives, captions, folders, in_memory
from antiphase.data.images import FileImages, FilePairs
from antiphase.errors import UserError, refusing, shown
from antiphase.files import parse_json, read_text

# exceptions of huggingface_hub for a missing network, an unknown name, or no permission
OFFLINE = (hub_errors.HfHubHTTPError, hub_errors.HFValidationError, OSError, RuntimeError)
_LABELS = ("label", "labels", "fine_label")


@contextmanager
def offline_at_once() -> Iterator[None]:
    """Ask the hub, or only its cache if its host has no address; by itself its client retries for 20 seconds."""
    host, asked_for = urlsplit(constants.ENDPOINT).hostname, constants.HF_HUB_OFFLINE
    try:
        if not asked_for and not urllib.request.getproxies():  # a proxy looks it up itself
            socket.getaddrinfo(host, 443)
    except OSError:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        if asked_for:
            raise
        raise OSError(f"{host} cannot be reached, and its cache has no copy") from None
    finally:
        constants.HF_HUB_OFFLINE = asked_for


def _local_or_hub(path: Path) -> Path:
    if path.is_dir() or len(path.parts) != 2 or path.is_absolute():
        return path
    fault = f"wds:{path}: not a local folder, and not available from the hub"
    fix = f"'hf download --repo-type dataset {path.as_posix()} --local-dir {path.name}'"
    with refusing(fault, f": download it with network access: {fix}", *OFFLINE), offline_at_once():
        return Path(snapshot_download(path.as_posix(), repo_type="dataset"))


def wds_images(place: Path, split: str) -> FileImages:
    """List a classification set of CLIP_benchmark: ``SPLIT/0.tar``, … with an image and KEY.cls, its class number.

    ``place`` is a folder with ``SPLIT/nshards.txt``, or a name on the hub. ``classnames.txt`` and
    ``zeroshot_classification_templates.txt`` may be in it.
    """
    name, path, split, samples = _samples(place, split, "cls")
    names = _lines(path / "classnames.txt", counted=True)
    most = len(names) or in_memory.MOST_CLASSES
    for key, text in samples:
        if not text.isdecimal() or len(text) > 20 or int(text) >= most:
            expected = f"expected a class number from 0 to {most - 1}: correct it, or download the set again"
            raise UserError(f"{name}: {key} has the label {shown(text)}; {expected}")
    labels = [int(text) for _, text in samples]
    names = names or list(map(str, range(max(labels) + 1)))
    templates = _lines(listed := path / "zeroshot_classification_templates.txt")
    if odd := [template for template in templates if "{c}" not in template]:
        raise UserError(f"{name}: template {odd[0]!r} of {listed} has no {{c}} for the class name")
    prompts = tuple(tuple(template.replace("{c}", label) for template in templates) for label in names)
    files, about = tuple(file for file, _ in samples), prompts if templates else None
    return FileImages.whole(name, split, names, labels, root=path / split, files=files, prompts=about)


def wds_pairs(place: Path, split: str) -> FilePairs:
    """List a retrieval set, such as clip-benchmark/wds_flickr8k: as :func:`wds_images`, with captions in KEY.txt."""
    name, path, split, samples = _samples(place, split, "txt")
    rows = [(file, tuple(filter(None, map(str.strip, text.splitlines()))), None) for file, text in samples]
    return captions.row_pairs(name, split, path / split, rows)


def has_captions(path: Path) -> bool:
    """Return whether ``dataset_type.txt`` marks a set as one for retrieval."""
    return " ".join(_lines(_local_or_hub(path) / "dataset_type.txt")).lower() == "retrieval"


def _samples(place: Path, split: str, suffix: str) -> tuple[str, Path, str, list[tuple[str, str]]]:
    """Return name, folder and split, and of each sample the image, such as ``0.tar/s1.webp``, and the text."""
    name, path = f"wds:{place}", _local_or_hub(place)
    splits = [part for part in folders.SPLITS if (path / part / "nshards.txt").is_file()]
    if not splits:
        fix = f"'hf download --repo-type dataset clip-benchmark/NAME --local-dir {path}'"
        where = f"no nshards.txt in {path}/train, /val or /test"
        raise UserError(f"{name}: {where}: get a set of https://huggingface.co/clip-benchmark with {fix}")
    split = folders.choose_split(name, split, splits)
    if has_captions(path) != (suffix == "txt"):
        kinds = "labels, not captions" if suffix == "txt" else "captions, not labels"
        raise UserError(f"{name} has {kinds} (see dataset_type.txt): use it for what it is")
    shards = " ".join(_lines(path / split / "nshards.txt"))
    if not shards.isdecimal() or not int(shards):
        raise UserError(f"{path / split}/nshards.txt: {shards!r}: expected a number of shards: get it again")
    samples: list[tuple[str, str]] = []
    for tar in (path / split / f"{number}.tar" for number in range(int(shards))):
        for key, kinds, content in archives.read_samples(tar, suffix):
            image = next((kinds[kind] for kind in ("webp", "png", "jpg", "jpeg") if kind in kinds), None)
            if image is None or content is None:
                lack = f".{suffix}" if image else f"image (.{', .'.join(archives.IMAGE_SUFFIXES)})"
                raise UserError(f"{name}: {key} in {tar} has no {lack}: download it again")
            samples.append((f"{tar.name}/{image}", content.decode(errors="replace").strip()))
    if not samples:
        raise UserError(f"{name} ({split}): no images in its {shards} shards: download them again")
    return name, path, split, samples


def _lines(path: Path, counted: bool = False) -> list[str]:
    lines = [*map(str.strip, read_text(path, "download it again").strip().splitlines())] if path.exists() else []
    if counted and "" in lines:
        raise UserError(f"{path}: has a blank line, so that lines cannot be counted: download it again")
    return list(filter(None, lines))


def parquet_images(path: str, split: str) -> FileImages:
    """List the images of the Parquet files in a path or glob, in the hub's layout, described in docs/data.md."""
    name, place = f"parquet:{path}", Path(os.path.expanduser(path))
    below = place.rglob("*.parquet") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))
    candidates = [place] if place.is_file() else below
    paths = sorted(Path(os.path.abspath(path)) for path in candidates if path.is_file())  # links keep their names
    if not paths:
        expected = "a Parquet file, a folder with Parquet files or a pattern such as data/test-*.parquet"
        raise UserError(f"{name}: no such file; give {expected}")
    split, paths = _of_split(name, split, paths)
    shards = [match.groups() for path in paths if (match := re.search(r"-(\d+)-of-(\d+)", path.stem))]
    counts = {int(count) for _, count in shards}
    if shards and place.is_dir() and not counts == {len(paths)} == {len({number for number, _ in shards})}:
        expected = f"expected all of {max(counts):,}, of one version: download the others or remove the old ones"
        raise UserError(f"{name} ({split}): {len(paths):,} files, such as {paths[0].name}; {expected}")
    root = Path(os.path.commonpath([path.parent for path in paths]))
    labels_of = {file.relative_to(root).as_posix(): _labels(name, file) for file in paths}
    labels = [number for numbers in labels_of.values() for number in numbers]
    files = [f"{file}/{row}" for file, numbers in labels_of.items() for row in range(len(numbers))]
    if not files:
        raise UserError(f"{name} ({split}): no rows; download the files again")
    several = set(map(_class_names, paths))
    if len(several) > 1:
        raise UserError(f"{name} ({split}): files with different class names; give those of one data set")
    names = several.pop() or list(map(str, range(max(labels) + 1)))
    return FileImages.whole(name, split, names, labels, root=root, files=tuple(files))


def _labels(name: str, path: Path) -> list[int]:
    rows = pl.scan_parquet(path, glob=False)
    with archives.whole_parquet(path):
        schema = rows.collect_schema()
    image = next((schema[column] for column in archives.IMAGE_COLUMNS if column in schema), None)
    label = next((column for column in _LABELS if column in schema), None)
    encoded = image == pl.Binary or (isinstance(image, pl.Struct) and "bytes" in image.to_schema())
    if not encoded or label is None or not (schema[label].is_numeric() or schema[label] == pl.Boolean):
        columns = ", ".join(f"{column} ({kind})" for column, kind in schema.items())
        expected = "expected image, of bytes and path, and label, of integers"
        raise UserError(f"{name}: {path} has the columns {columns}; {expected}")
    with archives.whole_parquet(path):
        labels = rows.select(label).collect().to_series()
    if empty := labels.null_count():
        raise UserError(f"{name}: column {label} of {path}: {empty:,} rows without a label; remove them")
    return in_memory.class_numbers(f"{name}: column {label} of {path}", labels.to_numpy(), len(labels)).tolist()


def _class_names(path: Path) -> tuple[str, ...] | None:
    try:
        label = next(filter(pl.read_parquet_schema(path).__contains__, _LABELS))
        features = parse_json(pl.read_parquet_metadata(path).get("huggingface", "{}"))["info"]["features"]
        names = features[label].get("names")
    except (KeyError, TypeError, StopIteration, AttributeError, ValueError, pl.exceptions.PolarsError):
        return None
    if isinstance(names, Mapping):  # by number, as text
        names = [names.get(str(number)) for number in range(len(names))]
    if names and in_memory.ordered_names(names) is None:
        raise UserError(f"{path}: the class names of {label} are {shown(names)}; expected a list of texts")
    return in_memory.ordered_names(names) if names else None


def _of_split(name: str, split: str, paths: list[Path]) -> tuple[str, list[Path]]:
    top = Path(os.path.commonpath([path.parent for path in paths]))
    groups: defaultdict[str | None, defaultdict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        part, rest = _split_and_rest(path.relative_to(top))
        groups[part][rest].append(path)
    unnamed = groups.pop(None, {})
    if groups and unnamed:
        left = f"left out the files that name no known split: {', '.join(unnamed)}"
        warnings.warn(f"{name}: {left}; to use them, give them alone", stacklevel=2)
    above = folders.split_named(top.parent.name) if top.parent.name != "dev" else None  # of development
    named = groups or {_split_and_rest(Path(top.name))[0] or above or "test": unnamed}
    split = folders.choose_split(name, split, [part for part in folders.SPLITS if part in named])
    first, *others = named[split].values()
    if others:
        listed = ", ".join(rest or "(unnamed)" for rest in sorted(named[split]))
        several = f"{len(others) + 1} configurations or splits, {listed}"
        alone = first[0].parent if all(first[0].parent != one[0].parent for one in others) else first[0]
        raise UserError(f"{name} ({split}): {several}; give one, such as parquet:{alone}")
    return split, first


def _split_and_rest(path: Path) -> tuple[str | None, str]:
    """Return the split that the words of a path name, and its other words but shards' numbers in the file's name."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-", "", path.stem.lower())  # of a UUID
    words = [word for word in re.split(r"[-_. ]+", text) if not re.fullmatch(r"\d+|of|[0-9a-f]{8,}", word)]
    words = [*filter(None, re.split(r"[-_. /]+", path.parent.as_posix().lower())), *words]
    splits = [folders.split_named(word.rstrip("0123456789")) for word in words]
    place = max((place for place, split in enumerate(splits) if split), default=-1)
    rest = (word for index, word in enumerate(words) if index != place)  # dev/train is no part of test/train
    return (splits[place] if place >= 0 else None), " ".join(rest)
