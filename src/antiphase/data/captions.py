"""Image files with captions from published lists: COCO, Karpathy's splits, or any CSV file."""

import csv
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from antiphase import reading
from antiphase.data.archives import regular
from antiphase.data.folders import SPLITS, SUFFIXES, choose_split, refuse_missing
from antiphase.data.objects import ImageObjects, region_of
from antiphase.data.pairs import FilePairs
from antiphase.errors import UserError

QUERIES = 2  # kinds of objects of an image in coco-objects, as in DiffCLIP's Figure 2

_COLUMNS = {
    "the image's path": ("image", "file", "filepath", "path", "image_path"),
    "the caption": ("caption", "title", "text"),
}
_CAPTION_LISTS = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
_LIST_FOLDERS = ("flickr8k", "flickr30k", "coco", "karpathy")
Row = tuple[str, tuple[str, ...], int | None]
"""File, captions, label."""


def row_pairs(
    name: str,
    split: str,
    root: Path,
    rows: Sequence[Row],
    class_names: tuple[str, ...] = (),
    lack: str = "has no caption",
) -> FilePairs:
    """Return the rows that have captions as pairs; ids are row numbers, other rows are ``skipped``."""
    kept = [number for number, (_, captions, _) in enumerate(rows) if captions]
    return FilePairs(
        name=name,
        split=split,
        ids=torch.tensor(kept, dtype=torch.int64),
        captions=tuple(rows[number][1] for number in kept),
        labels=torch.tensor([rows[number][2] for number in kept], dtype=torch.int64) if class_names else None,
        class_names=class_names,
        skipped=tuple(f"{file} {lack}" for file, captions, _ in rows if not captions),
        root=root,
        files=tuple(rows[number][0] for number in kept),
    )


def listed_pairs(
    name: str,
    split: str,
    places: Sequence[Path],
    rows: Sequence[Row],
    *more: Any,
    fix: str = "move them there",
) -> FilePairs:
    """Return :func:`row_pairs` of the first of ``places`` with the images; single training images may be missing."""
    files = [file for file, captions, _ in rows if captions]
    some = files[:100]  # since single files may be missing
    for root in places:
        if not files or any((root / file).is_file() for file in some):
            if split != "train":
                refuse_missing(f"{name} ({split})", root, files, fix)
            return row_pairs(name, split, root, rows, *more)
    searched = ", ".join(dict.fromkeys(map(str, places)))
    raise UserError(f"{name}: {some[0]} and the next images not found in {searched}: {fix}")


def read_json(path: Path) -> Any:
    """Read a JSON file of any size."""
    return reading.read_json(path, None, "download it again, or give an existing file", most=2**40)


@contextmanager
def _layout(path: Path, expected: str) -> Iterator[None]:
    """Turn what an unexpected structure of a JSON list raises into a UserError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: expected {expected} ({reason}): download it again") from error


def coco_captions(root: Path, split: str) -> FilePairs:
    """List COCO's images with all their captions, about five each, sorted by image and caption id.

    The files are those of 2014 (82,783 train, 40,504 val) if they are there, otherwise of 2017 (118,287 and 5,000).

    Source: "Microsoft COCO Captions: Data Collection and Evaluation Server", Chen et al., 2015.
    """
    split, path, told = _coco("coco", root, split, "captions")
    with _layout(path, "captions of COCO"):
        files, captions = _coco_files(path, told), _coco_captions(told)
    rows = [(file, captions.get(image, ()), None) for image, file in files.items()]
    return listed_pairs("coco", split, [path.parent.parent], rows)


def coco_single_label(root: Path, split: str) -> FilePairs:
    """List COCO's images, each labelled with the category of its largest object.

    The label of image i is the category of argmax_j area(i, j) over its annotated objects j that are not crowds; ties
    go to the lower annotation id. Images without such an object are skipped. Without ``captions_*.json``, the captions
    are the class names. With one label per image, a zero-shot classifier can be attacked on COCO.

    Source of the data: "Microsoft COCO: Common Objects in Context", Lin et al., 2014.
    """
    split, path, told = _coco("coco-single-label", root, split, "instances")
    with _layout(path, "objects of COCO"):
        files = _coco_files(path, told)
        categories = sorted(told["categories"], key=itemgetter("id"))
        class_names = tuple(entry["name"] for entry in categories)
        numbers = {entry["id"]: number for number, entry in enumerate(categories)}
        largest: dict[int, tuple[float, int, int]] = {}
        for note in told["annotations"]:
            if not note["iscrowd"]:
                rank = (note["area"], -note["id"], numbers[note["category_id"]])
                largest[note["image_id"]] = max(largest.get(note["image_id"], rank), rank)
    captions: dict[int, tuple[str, ...]] = {}
    listed = path.with_name(path.name.replace("instances", "captions"))
    if listed.is_file():
        with _layout(listed, "captions of COCO"):
            captions = _coco_captions(read_json(listed))
    rows: list[Row] = []
    for image, file in files.items():
        label = largest[image][2] if image in largest else None
        named = () if label is None else captions.get(image, (class_names[label],))
        rows.append((file, named, label))
    lack = "has no object but crowds"
    return listed_pairs("coco-single-label", split, [path.parent.parent], rows, class_names, lack)


def coco_objects(root: Path, split: str) -> FilePairs:
    """List COCO's images that show at least two categories, with the two of the largest total area.

    The captions of an image are the names of the two, and ``objects`` holds the masks of all their objects. The area of
    a category is summed over its annotations that are not crowds; crowds belong to its mask. Ties go to the lower
    category id.
    """
    split, path, told = _coco("coco-objects", root, split, "instances")
    rows: list[Row] = []
    objects: list[tuple[ImageObjects, ...]] = []
    with _layout(path, "objects of COCO"):
        sizes = {entry["id"]: (entry["height"], entry["width"]) for entry in told["images"]}
        names = {entry["id"]: entry["name"] for entry in told["categories"]}
        areas: dict[int, dict[int, float]] = {}
        parts: dict[tuple[int, int], list[Any]] = {}
        for note in sorted(told["annotations"], key=itemgetter("id")):
            image, category = note["image_id"], note["category_id"]
            parts.setdefault((image, category), []).append(note["segmentation"])
            if not note["iscrowd"]:
                area = areas.setdefault(image, {})
                area[category] = area.get(category, 0.0) + note["area"]
        for image, file in _coco_files(path, told).items():
            area = areas.get(image, {})
            largest = sorted(area, key=lambda category: (-area[category], category))[:QUERIES]
            if len(largest) < QUERIES:
                rows.append((file, (), None))
                continue
            rows.append((file, tuple(names[category] for category in largest), None))
            regions = [[region_of(part, *sizes[image]) for part in parts[image, kind]] for kind in largest]
            seen = zip(largest, regions, strict=True)
            objects.append(tuple(ImageObjects(names[kind], tuple(of), *sizes[image]) for kind, of in seen))
    pairs = listed_pairs(
        "coco-objects", split, [path.parent.parent], rows, (), "has fewer than two categories"
    )
    return pairs.altered(objects=tuple(objects))


def _coco(name: str, root: Path, split: str, kind: str) -> tuple[str, Path, Any]:
    """Return the split, and path and content of COCO's annotations of a kind, of 2014 before 2017."""
    split = choose_split(name, split, ("train", "val"))
    for folder, year in itertools.product((root, root / "coco"), (2014, 2017)):
        path = folder / f"annotations/{kind}_{split}{year}.json"
        if path.is_file():
            return split, path, read_json(path)
    where = f"annotations/{kind}_{split}2014.json not found in {root} or {root / 'coco'}"
    page = "http://images.cocodataset.org/annotations/annotations_trainval2014.zip"
    raise UserError(f"COCO's {where}: unzip {page} and the images there, or set ANTIPHASE_DATA")


def _coco_files(annotations: Path, told: Any) -> dict[int, str]:
    """Return the file of each image by id, sorted by id."""
    folder = annotations.stem.rpartition("_")[2]
    entries = sorted(told["images"], key=itemgetter("id"))
    return {entry["id"]: f"{folder}/{entry['file_name']}" for entry in entries}


def _coco_captions(told: Any) -> dict[int, tuple[str, ...]]:
    """Return the captions of each image that has any, sorted by caption id."""
    captions: dict[int, tuple[str, ...]] = {}
    for note in sorted(told["annotations"], key=itemgetter("id")):
        if caption := note["caption"].strip():
            captions[note["image_id"]] = (*captions.get(note["image_id"], ()), caption)
    return captions


_FLICKR8K = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Flickr8k_Dataset/Flicker8k_Dataset", "Images")
_FLICKR30K = ("flickr30k-images", "flickr30k_images", "flickr30k")
# title, usual folder, possible folders of the images, page to get them; COCO's list has paths with train2014
_KARPATHY = {
    "flickr8k": ("Flickr8k", "flickr8k", _FLICKR8K, "https://forms.illinois.edu/sec/1713398"),
    "flickr30k": (
        *("Flickr30k", "flickr30k", _FLICKR30K, "https://shannon.cs.illinois.edu/DenotationGraph/"),
    ),
    "coco-karpathy": (
        *("COCO", "coco", (), "https://cocodataset.org/#download (train2014.zip and val2014.zip)"),
    ),
}

KARPATHY_SETS = {
    name: f"{title} with five captions per image in Karpathy's splits; needs dataset_{folder}.json and the images "
    "below the data folder"
    for name, (title, folder, *_) in _KARPATHY.items()
}
"""One-line description of each of Karpathy's sets."""


def karpathy(place: Path, root: Path, split: str) -> FilePairs:
    """List the images and captions of one of Karpathy's splits, in the order of the file.

    In COCO, ``restval`` counts as train. Images are searched in ``root`` and in the folder of the list, including
    sub-folders with the usual names.

    Source: "Deep Visual-Semantic Alignments for Generating Image Descriptions", Karpathy and Fei-Fei, 2015.
    """
    name = f"karpathy:{place}"
    split = choose_split(name, split, SPLITS)
    below = ("", "coco", *_FLICKR30K, *_FLICKR8K, "images")
    places = [parent / folder for parent in (root, place.parent) for folder in below]
    return listed_pairs(name, split, places, _karpathy_rows(place, split))


def karpathy_set(name: str, root: Path, split: str) -> FilePairs:
    """List one of ``KARPATHY_SETS``; its list and images are searched in the usual folders below ``root``."""
    _, usual, image_folders, page = _KARPATHY[name]
    split = choose_split(name, split, SPLITS)
    own_folder, listed = root / usual, f"dataset_{usual}.json"
    folders = [root, own_folder, *(root / folder for folder in _LIST_FOLDERS)]
    path = next((folder / listed for folder in folders if (folder / listed).is_file()), None)
    if path is None:
        where = f"{listed} not found in {root} or its {', '.join(_LIST_FOLDERS)}"
        raise UserError(
            f"{name}: {where}: unzip {_CAPTION_LISTS} in {own_folder}, and the images from {page}"
        )
    parents, below = dict.fromkeys((own_folder, path.parent, root)), (*image_folders, "images", "")
    places = [parent / folder for parent in parents for folder in below]
    fix = f"unpack the images from {page} in {own_folder}"
    return listed_pairs(name, split, places, _karpathy_rows(path, split), fix=fix)


def _karpathy_rows(path: Path, split: str) -> list[Row]:
    rows: list[Row] = []
    with _layout(path, "Karpathy's splits"):
        for entry in read_json(path)["images"]:
            if {"restval": "train"}.get(entry["split"], entry["split"]) == split:
                file = "/".join(part for part in (entry.get("filepath"), entry["filename"]) if part)
                captions = [sentence["raw"].strip() for sentence in entry["sentences"]]
                rows.append((file, tuple(filter(None, captions)), None))
    return rows


def csv_pairs(place: Path, split: str) -> FilePairs:
    """List the image files and captions of a table with a header line; each row is one caption of one image.

    Columns, in any order and case: ``image``, ``file``, ``filepath``, ``path`` or ``image_path`` (relative to the
    table's folder); ``caption``, ``title`` or ``text``; optionally ``label`` (a class name) and ``split`` (without
    it, the table is one split). Rows of the same image become one pair with several captions. Pairs are in the order
    of their first rows; classes are sorted, over all splits.
    """
    name = f"csv:{place}"
    table = table_rows(place, name)
    if len(table) < 2:
        raise UserError(f"{name}: {place} has no rows: expected a header line and one line per caption")
    (_, header), *lines = table
    for number, row in lines:
        if len(row) != len(header):
            expected = (
                f"expected {len(header)} cells, like the header: correct it (captions with commas in quotes)"
            )
            raise UserError(f"{name}: line {number} of {place}: {expected}")
    columns = [cell.lower() for cell in header]
    rows = [(number, dict(zip(columns, row, strict=True))) for number, row in lines]
    chosen: list[str] = []
    for what, names in _COLUMNS.items():
        if (known := next((column for column in names if column in columns), None)) is None:
            expected = f"expected one of {', '.join(names)}, found {', '.join(columns)}"
            raise UserError(f"{name} has no column for {what}: {expected}")
        chosen.append(known)
    splits, classes = ({row.get(column, "") for _, row in rows} - {""} for column in ("split", "label"))
    split = choose_split(name, split, sorted(splits) or SPLITS)
    class_names = tuple(sorted(classes, key=int if all(map(str.isdecimal, classes)) else str))
    captions: dict[str, list[str]] = {}
    labels: dict[str, str | None] = {}
    skipped: list[str] = []
    for number, row in rows:
        if row.get("split", split) != split:
            continue
        file, caption = (row[column] for column in chosen)
        if not file or not caption:
            skipped.append(f"line {number} has no {'caption' if file else 'image'}")
        if not file:
            continue
        captions.setdefault(file, []).extend([caption] if caption else [])
        label = row.get("label")
        if labels.setdefault(file, label) != label:
            fault = f"line {number} labels {file} {label!r}, but an earlier line {labels[file]!r}"
            raise UserError(f"{name}: {fault}: expected one label per image")
    files = [file for file in captions if captions[file]]
    if (unlabelled := next((file for file in files if labels[file] == ""), None)) is not None:
        raise UserError(f"{name}: {unlabelled} has no label: add it, or remove the label column")
    if files and files[0].startswith(("http://", "https://")):
        raise UserError(f"{name}: its images are URLs, such as {files[0]}: download them with img2dataset")
    numbers = {label: number for number, label in enumerate(class_names)}
    listed = [(file, tuple(several), numbers.get(labels[file] or "")) for file, several in captions.items()]
    return listed_pairs(name, split, [place.parent], listed, class_names).altered(skipped=tuple(skipped))


def table_rows(path: Path, name: str = "") -> list[tuple[int, list[str]]]:
    """Return the rows of a table in UTF-8 that are not empty, with line numbers and stripped cells.

    Cells are separated by tabs if the header line has one, without quotes, else by commas, perhaps in double quotes.
    """
    where = f"{name}: " if name else ""
    try:
        with regular(path).open(encoding="utf-8-sig", newline="") as file:
            text = list(file)
        tabs = bool(text) and "\t" in text[0]
        quoting = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
        reader = csv.reader(text, delimiter="\t" if tabs else ",", quoting=quoting, strict=True)
        rows: list[tuple[int, list[str]]] = []
        end = 0
        try:
            for row in reader:
                start, end = end, reader.line_num
                if any(map(_names_image, text[start + 1 : end])):
                    end = start
                    raise csv.Error("a quoted cell holds rows")
                if any(row):
                    rows.append((end, [cell.strip() for cell in row]))
        except csv.Error as error:
            if '"' not in text[end]:
                raise
            fault = f"line {end + 1} of {path}: unpaired double quote, or text outside of the quotes"
            fix = "put the whole cell in double quotes, and double those within it"
            raise UserError(f"{where}{fault}: {fix}") from error
    except OSError as error:
        raise UserError(f"{where}cannot read {path} ({error.strerror}): give a readable file") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{where}{path} is not a UTF-8 table ({error}): save it as CSV in UTF-8") from error
    return rows


def _names_image(line: str) -> bool:
    return any(cell.strip(' "\r\n').lower().endswith(SUFFIXES) for cell in line.split(","))
