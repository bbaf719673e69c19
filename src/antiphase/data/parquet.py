"""Image data sets in the hub's layout: Parquet files with a column of encoded images and one of labels."""

import glob
import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import torch

from antiphase.data.folders import SPLITS, choose_split
from antiphase.data.images import FileImages
from antiphase.data.parquet_cells import IMAGE_COLUMNS, scan
from antiphase.errors import UserError, first_line
from antiphase.reading import parse_json

_LABELS = ("label", "labels", "fine_label")
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|test)(?:[^a-z]|$)")
_OWN = {"validation": "val", "valid": "val"}


def parquet_images(pattern: str, split: str, image_size: int, channels: int) -> FileImages:
    """List the images of Parquet files with a column ``image`` (or ``img``) of ``{bytes, path}`` and one ``label``.

    The name of a file, or of its folder, tells its split: ``train``, ``test``, ``validation`` (``val``). Files that
    name none are ``test``. Class names come from the hub's own metadata, or are the numbers. Images are read when
    they are needed.

    Source: Hugging Face ``datasets``, features ``Image`` and ``ClassLabel`` in the schema's key ``huggingface``.

    Args:
        pattern: a file, a folder, or a glob such as ``data/test-*.parquet``.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` if there is only that.
        image_size: height and width of the images, in pixels.
        channels: 1 (grey) or 3 (RGB).

    Raises:
        UserError: if there is no such file, or a column is missing or has another type.
    """
    name = f"parquet:{pattern}"
    by_split: dict[str, list[Path]] = {}
    for path in _found(name, pattern):
        by_split.setdefault(_split_of(path), []).append(path)
    split = choose_split(name, split, tuple(part for part in SPLITS if part in by_split))
    paths = by_split[split]
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
    names = _class_names(paths[0]) or tuple(str(label) for label in range(max(labels) + 1))
    return FileImages(
        name=name, split=split, class_names=names, ids=torch.arange(len(files)), labels=torch.tensor(labels),
        root=root, files=tuple(files), image_size=image_size, channels=channels,
    )  # fmt: skip


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
    if not schema[label].is_integer():
        raise UserError(f"{name}: column {label} of {path} has type {schema[label]}; expected integers")
    found = rows.select(label).collect().to_series()
    if found.null_count() or (len(found) and int(found.min()) < 0):  # type: ignore[arg-type]
        raise UserError(
            f"{name}: column {label} of {path} has rows without a label (null or −1); use a labelled split"
        )
    return found.to_list()


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
    if place.is_dir():
        paths = sorted(filter(Path.is_file, place.rglob("*.parquet")))
    else:
        paths = [place] if place.is_file() else sorted(map(Path, glob.glob(str(place), recursive=True)))
    if not paths:
        raise UserError(
            f"{name}: no such file; give a Parquet file, a folder with Parquet files or a pattern such as "
            "parquet:data/test-*.parquet"
        )
    return paths


def _split_of(path: Path) -> str:
    for part in (path.name, path.parent.name):
        match = _SPLIT.search(part.lower())
        if match:
            return _OWN.get(match[1], match[1])
    return "test"
