"""Image data sets in the hub's layout: Parquet files with a column of encoded images and one of labels."""

import glob
import os
import re
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import torch

from antiphase.data.folders import SPLITS, choose_split, split_named
from antiphase.data.images import FileImages
from antiphase.data.parquet_cells import IMAGE_COLUMNS, scan
from antiphase.data.pixels_and_labels import class_numbers
from antiphase.errors import UserError, first_line
from antiphase.reading import parse_json

_LABELS = ("label", "labels", "fine_label")
_SHARD = re.compile(r"(^|[-_.])(\d+(-of-\d+)?|[0-9a-f]{8,})(?=$|[-_.])")  # its number, or a hash


def parquet_images(pattern: str, split: str, image_size: int, channels: int) -> FileImages:
    """List the images of Parquet files with a column ``image`` (or ``img``) of ``{bytes, path}`` and one ``label``.

    The name of a file, or of its folders, tells its split: ``train``, ``test``, ``validation`` (``val``). If no file
    names one, all are ``test``; otherwise those that name none, such as ``extra``, are left out with a warning. Class
    names come from the hub's own metadata, or are the numbers. Images are read when they are needed.

    Source: Hugging Face ``datasets``, features ``Image`` and ``ClassLabel`` in the schema's key ``huggingface``.

    Args:
        pattern: a file, a folder, or a glob such as ``data/test-*.parquet``.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` if there is only that.
        image_size: height and width of the images, in pixels.
        channels: 1 (grey) or 3 (RGB).

    Raises:
        UserError: if there is no such file, a column is missing or has another type, or the files are of several
            configurations or of several splits that are not known.
    """
    name = f"parquet:{pattern}"
    split, paths = _of_split(name, split, _found(name, pattern))
    root = Path(os.path.commonpath([path.resolve().parent for path in paths]))
    files: list[str] = []
    labels: list[int] = []
    for path in paths:
        own = _labels(name, path)
        labels += own
        place = path.resolve().relative_to(root).as_posix()
        files += [f"{place}/{row}" for row in range(len(own))]
    if not files:
        raise UserError(f"{name} ({split}): no rows; download the files again")
    several = {_class_names(path) for path in paths}
    if len(several) > 1:
        raise UserError(f"{name} ({split}): files with different class names; give those of one data set")
    names = several.pop() or tuple(map(str, range(max(labels) + 1)))
    return FileImages(
        name=name,
        split=split,
        class_names=names,
        ids=torch.arange(len(files)),
        labels=torch.tensor(labels),
        root=root,
        files=tuple(files),
        image_size=image_size,
        channels=channels,
    )


def _labels(name: str, path: Path) -> list[int]:
    """Return a file's labels, and check its columns."""
    try:
        rows = scan(str(path))
        schema = rows.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = first_line(error)
        raise UserError(f"{name}: {path} is no complete Parquet file ({reason}): download it again") from None
    image = next((column for column in IMAGE_COLUMNS if column in schema), None)
    label = next((column for column in _LABELS if column in schema), None)
    if image is None or label is None:
        raise UserError(
            f"{name}: {path} has the columns {', '.join(schema)}; expected image ({{bytes, path}}) and label"
        )
    kind: Any = schema[image]
    if kind != pl.Binary and not (
        isinstance(kind, pl.Struct) and any(field.name == "bytes" for field in kind.fields)
    ):
        raise UserError(
            f"{name}: column {image} of {path} has type {kind}; expected a struct of bytes and path"
        )
    if not (schema[label].is_numeric() or schema[label] == pl.Boolean):
        raise UserError(f"{name}: column {label} of {path} has type {schema[label]}; expected integers")
    found = rows.select(label).collect().to_series()
    if found.null_count() or found.min() == -1:
        raise UserError(
            f"{name}: column {label} of {path} has rows without a label (null or −1); use a labelled split"
        )
    return class_numbers(f"{name}: column {label} of {path}", found.to_numpy(), len(found)).tolist()


def _class_names(path: Path) -> tuple[str, ...] | None:
    """Return the names in the hub's metadata of the schema; None if there are none."""
    try:
        features = parse_json(pl.read_parquet_metadata(path).get("huggingface", "{}"))["info"]["features"]
        names = next(features[column].get("names") for column in _LABELS if column in features)
    except (KeyError, TypeError, StopIteration, ValueError, pl.exceptions.PolarsError):
        return None
    return tuple(map(str, names)) if names else None


def _found(name: str, pattern: str) -> list[Path]:
    place = Path(pattern).expanduser()
    found = place.rglob("*.parquet") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))
    paths = sorted(filter(Path.is_file, [place] if place.is_file() else found))
    if not paths:
        raise UserError(
            f"{name}: no such file; give a Parquet file, a folder with Parquet files or a pattern such as "
            "parquet:data/test-*.parquet"
        )
    return paths


def _of_split(name: str, split: str, paths: list[Path]) -> tuple[str, list[Path]]:
    """Return the split that is meant, and its files."""
    top = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    groups: dict[str | None, dict[str, list[Path]]] = {}
    for path in paths:
        part, rest = _split_and_rest(path.absolute().relative_to(top))
        groups.setdefault(part, {}).setdefault(rest, []).append(path)
    unnamed = groups.pop(None, {})
    if groups and unnamed:
        left = f"left out the files that name no known split: {_listed(unnamed)}"
        warnings.warn(f"{name}: {left}; to use them, give them alone", stacklevel=2)
    groups = groups or {_split_and_rest(Path(top.name))[0] or "test": unnamed}
    split = choose_split(name, split, tuple(part for part in SPLITS if part in groups))
    if len(groups[split]) > 1:
        raise UserError(
            f"{name} ({split}): {len(groups[split])} configurations or splits, {_listed(groups[split])}; give "
            f"one, such as parquet:{next(iter(groups[split].values()))[0].parent}"
        )
    return split, next(iter(groups[split].values()))


def _listed(groups: dict[str, list[Path]]) -> str:
    return ", ".join(rest or "(no name)" for rest in sorted(groups)[:5]) + ", …" * (len(groups) > 5)


def _split_and_rest(path: Path) -> tuple[str | None, str]:
    """Return the split that a file or one of its folders names, and what is left of its path without shards' numbers.

    >>> _split_and_rest(Path("160px/train-00000-of-00001.parquet")), _split_and_rest(Path("svhn/extra/0000.parquet"))
    (('train', '160px'), (None, 'svhn/extra'))
    """
    rest: list[str] = []
    split = None
    for part in (path.stem, *reversed(path.parent.parts)):
        words = re.split(r"([^a-z]+)", part.lower())
        at = next((place for place, word in enumerate(words) if split is None and split_named(word)), None)
        if at is not None:
            split, part = split_named(words[at]), "".join(words[:at])
        rest.append(_SHARD.sub("", part).strip("-_. "))
    return split, "/".join(filter(None, reversed(rest)))
