"""Image files with captions from published lists: COCO, Karpathy's splits, or any CSV file."""

import csv
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from antiphase.data.folders import SPLITS, choose_split, refuse_missing
from antiphase.data.images import FilePairs, ImageObjects, region_of
from antiphase.errors import UserError
from antiphase.files import read_json, read_text

_CAPTION_LISTS = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
_COCO_LISTS = "http://images.cocodataset.org/annotations/annotations_trainval2014.zip"
Row = tuple[str, tuple[str, ...], int | None]  # file, captions, label
# the names that the columns of a table may have, open_clip's among them
_IMAGE_COLUMNS = ("image", "file", "filepath", "path", "image_path")
_CAPTION_COLUMNS = ("caption", "title", "text")


def row_pairs(
    name: str, split: str, root: Path, rows: Sequence[Row], names: Sequence[str] = (), lack: str = "has no caption"
) -> FilePairs:
    """Return the rows that have captions as pairs; ids are row numbers, other rows are ``skipped``."""
    kept = [(number, *row) for number, row in enumerate(rows) if row[1]]
    ids, files, captions, labels = zip(*kept, strict=True) if kept else ((),) * 4
    skipped = tuple(f"{file} {lack}" for file, captions, _ in rows if not captions)
    about = {"ids": torch.tensor(ids, dtype=torch.int64), "captions": captions, "skipped": skipped}
    return FilePairs.whole(name, split, names, labels if names else None, root=root, files=files, **about)


def listed_pairs(
    name: str, split: str, places: Sequence[Path], rows: Sequence[Row], *more: Any, fix: str = "move them there"
) -> FilePairs:
    """Return :func:`row_pairs` of the first of ``places`` with the images; single training images may be missing."""
    files = [file for file, captions, _ in rows if captions]
    some = files[:100]  # since single files may be missing
    for root in places:
        if not files or any(os.path.isfile(root / file) for file in some):
            if split != "train":
                refuse_missing(f"{name} ({split})", root, files, fix)
            return row_pairs(name, split, root, rows, *more)
    searched = ", ".join(dict.fromkeys(map(str, places)))
    raise UserError(f"{name}: {some[0]} and the next images not found in {searched}: {fix}")


def read_list(path: Path) -> Any:
    """Read a JSON file of any size."""
    return read_json(path, None, "download it again, or give an existing file", most=2**40)


@contextmanager
def _layout(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: expected the published layout ({error!r}): download it again") from error


def _coco(name: str, root: Path, split: str, kind: str) -> tuple[Path, str, Any]:
    """Return path, split and content of COCO's annotations of a kind, of 2014 before 2017."""
    split = choose_split(name, split, ("train", "val"))
    for folder, year in itertools.product((root, root / "coco"), (2014, 2017)):
        path = folder / f"annotations/{kind}_{split}{year}.json"
        if path.is_file():
            return path, split, read_list(path)
    where = f"annotations/{kind}_{split}2014.json not found in {root} or {root / 'coco'}"
    raise UserError(f"COCO's {where}: unzip {_COCO_LISTS} and the images there, or set ANTIPHASE_DATA")


def _coco_images(path: Path, content: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    notes: defaultdict[int, list[Any]] = defaultdict(list)
    for note in sorted(content["annotations"], key=itemgetter("id")):
        notes[note["image_id"]].append(note)
    folder = path.stem.rpartition("_")[2]
    for entry in sorted(content["images"], key=itemgetter("id")):
        yield f"{folder}/{entry['file_name']}", entry, notes[entry["id"]]


def _coco_texts(path: Path, content: Any) -> dict[str, tuple[str, ...]]:
    with _layout(path):
        texts = {file: [note["caption"].strip() for note in notes] for file, _, notes in _coco_images(path, content)}
    return {file: tuple(filter(None, several)) for file, several in texts.items()}


def coco_captions(root: Path, split: str) -> FilePairs:
    """List COCO's images of 2014, else of 2017, with their captions, about five each, sorted by image and caption."""
    path, split, content = _coco("coco", root, split, "captions")
    rows: list[Row] = [(file, captions, None) for file, captions in _coco_texts(path, content).items()]
    return listed_pairs("coco", split, [path.parent.parent], rows)


def coco_single_label(root: Path, split: str) -> FilePairs:
    """List COCO's images, each labelled with the category of its largest object, for attacks on a zero-shot classifier.

    Crowds do not count; ties go to the lower annotation id. Images without an object are skipped. Without
    ``captions_*.json``, the captions are the class names.
    """
    path, split, content = _coco("coco-single-label", root, split, "instances")
    listed = path.with_name(path.name.replace("instances", "captions"))
    captions = _coco_texts(listed, read_list(listed)) if listed.is_file() else {}
    rows: list[Row] = []
    with _layout(path):
        names = {entry["id"]: entry["name"] for entry in content["categories"]}
        numbers = {category: number for number, category in enumerate(sorted(names))}
        for file, _, notes in _coco_images(path, content):
            objects = [note for note in notes if not note["iscrowd"]]
            category = max(objects, key=itemgetter("area"))["category_id"] if objects else None
            texts = captions.get(file) or (names[category],) if objects else ()
            rows.append((file, texts, numbers[category] if objects else None))
    class_names = tuple(names[category] for category in numbers)
    place, lack = [path.parent.parent], "has no object but crowds"
    return listed_pairs("coco-single-label", split, place, rows, class_names, lack)


def coco_objects(root: Path, split: str) -> FilePairs:
    """List COCO's images that show at least two categories, with the two of the largest total area.

    The captions of an image are the names of the two, and ``objects`` holds the masks of all their objects. Crowds
    belong to the mask of a category but not to its area. Ties go to the lower category id.
    """
    path, split, content = _coco("coco-objects", root, split, "instances")
    rows: list[Row] = []
    objects: list[tuple[ImageObjects, ...]] = []
    with _layout(path):
        names = {entry["id"]: entry["name"] for entry in content["categories"]}
        for file, entry, notes in _coco_images(path, content):
            areas = Counter[int]()
            for note in notes:
                if not note["iscrowd"]:
                    areas[note["category_id"]] += note["area"]
            size, shown = (entry["height"], entry["width"]), []
            for kind in sorted(areas, key=lambda kind: (-areas[kind], kind))[:2] if len(areas) > 1 else ():
                segmentations = (note["segmentation"] for note in notes if note["category_id"] == kind)
                shown.append(ImageObjects(names[kind], tuple(region_of(part, *size) for part in segmentations), *size))
            rows.append((file, tuple(thing.name for thing in shown), None))
            objects += [tuple(shown)] if shown else []
    place, lack = [path.parent.parent], "has fewer than two categories"
    return listed_pairs("coco-objects", split, place, rows, (), lack).altered(objects=tuple(objects))


def karpathy(
    name: str, place: Path, root: Path, split: str, image_folders: Sequence[str], page: str, folder: str = ""
) -> FilePairs:
    """List one of Karpathy's splits in the order of the file; restval is train.

    The file is ``place``, or ``dataset_FOLDER.json`` in the data folder's ``folder``; ``image_folders`` are beside it.
    """
    split = choose_split(name, split, SPLITS)
    if folder:
        root = root / folder
        place = root / f"dataset_{folder}.json"
    fix = f"unpack {_CAPTION_LISTS} in {place.parent}, and the images from {page}"
    if folder and not place.is_file():
        raise UserError(f"{name}: {place} not found: {fix}")
    rows: list[Row] = []
    content = read_list(place)
    with _layout(place):
        for entry in content["images"]:
            if entry["split"] == split or (entry["split"] == "restval" and split == "train"):
                file = "/".join(filter(None, (entry.get("filepath"), entry["filename"])))
                captions = (sentence["raw"].strip() for sentence in entry["sentences"])
                rows.append((file, tuple(filter(None, captions)), None))
    places = [parent / below for parent in (root, place.parent) for below in image_folders]
    return listed_pairs(name, split, places, rows, fix=fix)


def csv_pairs(place: Path, split: str) -> FilePairs:
    """List the images and captions of a table, described in docs/data.md; the rows of an image become one pair."""
    name = f"csv:{place}"
    (_, header), *lines = table_rows(place) or [(0, [])]
    columns = [cell.lower() for cell in header]
    chosen = [next(filter(columns.__contains__, names), "") for names in (_IMAGE_COLUMNS, _CAPTION_COLUMNS)]
    if not all(chosen) or not lines:
        known = " and one of ".join(", ".join(names) for names in (_IMAGE_COLUMNS, _CAPTION_COLUMNS))
        expected = f"expected a header with one of {known}, then rows"
        raise UserError(f"{name}: columns {', '.join(columns)}, {len(lines)} rows: {expected}")
    if odd := [line for line, row in lines if len(row) != len(columns)]:
        expected = f"expected {len(columns)} cells, like the header: put cells with commas in double quotes"
        raise UserError(f"{name}: line {odd[0]} of {place}: {expected}")
    for column in {"split", "set", "subset", "partition"} & {*columns}:
        if len({row[columns.index(column)] for _, row in lines}) > 1 or column == "split":
            raise UserError(f"{name}: has a column {column}; expected one split, put each into a table of its own")
    if twice := [column for column in {*chosen} if columns.count(column) > 1]:
        raise UserError(f"{name}: has the column {twice[0]} twice; put the captions of an image into rows of their own")
    split = choose_split(name, split, SPLITS)
    captions: dict[str, list[str]] = {}
    skipped: list[str] = []
    for line, row in lines:
        file, caption = (row[columns.index(column)] for column in chosen)
        if not file or not caption:
            skipped.append(f"line {line} has no {'caption' if file else 'image'}")
        if file:
            captions.setdefault(file, []).extend(filter(None, [caption]))
    if (first := next(iter(captions), "")).startswith(("http://", "https://")):
        raise UserError(f"{name}: its images are URLs, such as {first}: download them with img2dataset")
    listed: list[Row] = [(file, tuple(several), None) for file, several in captions.items()]
    return listed_pairs(name, split, [place.parent], listed).altered(skipped=tuple(skipped))


def table_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the rows of a table in UTF-8 that are not empty, one a line, with line numbers and stripped cells.

    Cells are separated by tabs if the header line has one, without quotes, else by commas, perhaps in double quotes.
    """
    lines = re.split("\r\n?|\n", read_text(path, "give a table in UTF-8", most=2**40).removeprefix("\ufeff"))
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines, 1):
        try:
            quoted = csv.reader([line], strict=True, skipinitialspace=True)
            cells = line.split("\t") if "\t" in lines[0] else next(quoted, [])
        except csv.Error as error:
            fix = "put a whole cell in double quotes, and double those in it; one row a line"
            raise UserError(f"line {number} of {path} is no row of a table ({error}): {fix}") from error
        if any(cells):
            rows.append((number, [cell.strip() for cell in cells]))
    return rows
