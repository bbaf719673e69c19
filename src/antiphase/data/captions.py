"""Image files with captions from published lists: COCO, or any CSV file."""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from antiphase.data.folders import SPLITS, SUFFIXES, choose_split
from antiphase.data.listed_pairs import Row, damaged, listed_pairs, read_json
from antiphase.data.members import regular
from antiphase.data.pairs import FilePairs
from antiphase.errors import UserError

COCO_YEARS = (2014, 2017)
_IMAGE_COLUMNS = ("image", "file", "filepath", "path", "image_path")
_CAPTION_COLUMNS = ("caption", "title", "text")


def coco_captions(root: Path, split: str) -> FilePairs:
    """List COCO's images with all their captions, about five each, sorted by image and caption id.

    The files are those of 2014 (82,783 train, 40,504 val) if they are there, otherwise of 2017 (118,287 and 5,000).

    Source: "Microsoft COCO Captions: Data Collection and Evaluation Server", Chen et al., 2015.

    Args:
        root: folder with ``annotations`` and ``train2014`` or similar, or with a sub-folder ``coco`` that has them.
        split: ``train`` or ``val``; ``test`` means ``val``, because the captions of the test images are not public.

    Raises:
        UserError: if the annotations or the images are missing or damaged.
    """
    split = choose_split("coco", split, ("train", "val"))
    folder, year = coco_folder(root, f"captions_{split}")
    annotations = folder / f"annotations/captions_{split}{year}.json"
    told = read_json(annotations)
    try:
        files = coco_files(told, split, year)
        captions = _coco_captions(told)
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(annotations, "captions of COCO", error) from error
    rows = [(file, captions.get(image, ()), None) for image, file in files.items()]
    return listed_pairs("coco", split, [folder], rows)


def coco_single_label(root: Path, split: str) -> FilePairs:
    """List COCO's images, each labelled with the category of its largest object.

    The label of image i is the category of argmax_j area(i, j) over its annotated objects j that are not crowds; ties
    go to the lower annotation id. Images without such an object are skipped. With one label per image, a zero-shot
    classifier can be attacked on COCO.

    Source of the data: "Microsoft COCO: Common Objects in Context", Lin et al., 2014.

    Args:
        root: as for :func:`coco_captions`.
        split: ``train`` or ``val``; ``test`` means ``val``.

    Returns:
        The images sorted by COCO id, with the 80 category names sorted by category id. Captions come from
        ``captions_*.json`` if present; otherwise they are the class names.

    Raises:
        UserError: if the annotations or the images are missing or damaged.
    """
    split = choose_split("coco-single-label", split, ("train", "val"))
    folder, year = coco_folder(root, f"instances_{split}")
    instances = folder / f"annotations/instances_{split}{year}.json"
    told = read_json(instances)
    try:
        files = coco_files(told, split, year)
        categories = {entry["id"]: entry["name"] for entry in sorted(told["categories"], key=_number)}
        largest: dict[int, tuple[float, int, int]] = {}
        for note in told["annotations"]:
            if not note["iscrowd"]:
                rank = (note["area"], -note["id"], note["category_id"])
                largest[note["image_id"]] = max(largest.get(note["image_id"], rank), rank)
        label_of = {category: label for label, category in enumerate(categories)}
        labels = {image: label_of[category] for image, (_, _, category) in largest.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(instances, "objects of COCO", error) from error
    captions: dict[int, tuple[str, ...]] = {}
    listed = folder / f"annotations/captions_{split}{year}.json"
    if listed.is_file():
        try:
            captions = _coco_captions(read_json(listed))
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(listed, "captions of COCO", error) from error
    class_names = tuple(categories.values())
    rows: list[Row] = []
    for image, file in files.items():
        label = labels.get(image)
        said = () if label is None else captions.get(image, (class_names[label],))
        rows.append((file, said, label))
    return listed_pairs(
        "coco-single-label", split, [folder], rows, class_names, lack="has no object but crowds"
    )


def csv_pairs(path: Path, split: str) -> FilePairs:
    """List the image files and captions of a table with a header line; each row is one caption of one image.

    Columns, in any order and case: ``image``, ``file``, ``filepath``, ``path`` or ``image_path`` (relative to the
    table's folder); ``caption``, ``title`` or ``text``; optionally ``label`` (a class name) and ``split`` (without
    it, the table is one split). Rows of the same image become one pair with several captions. Pairs are in the order
    of their first rows; classes are sorted, over all splits.

    Args:
        path: UTF-8 file, separated by tabs if its header line contains one, otherwise by commas. With commas, cells may
            be in double quotes; with tabs, quotes are characters like any other.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` if the table has no ``test``.

    Raises:
        UserError: if the table or the images are missing, a column is missing, an image has no label or several, or a
            double quote is unpaired or within a cell that is not quoted.
    """
    name = f"csv:{path}"
    header, table = _read_table(name, path)
    image_column = _column(name, header, _IMAGE_COLUMNS, "the image's path")
    caption_column = _column(name, header, _CAPTION_COLUMNS, "the caption")
    split_column, label_column = (header.get(column) for column in ("split", "label"))
    named = set() if split_column is None else {row[split_column] for _, row in table} - {""}
    split = choose_split(name, split, tuple(sorted(named)) or SPLITS)
    class_names = () if label_column is None else _sorted_names({row[label_column] for _, row in table})
    captions: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    skipped: list[str] = []
    for line, row in table:
        if split_column is not None and row[split_column] != split:
            continue
        file, caption = row[image_column], row[caption_column]
        if not file:
            skipped.append(f"line {line} has no image")
            continue
        several = captions.setdefault(file, [])
        if caption:
            several.append(caption)
        else:
            skipped.append(f"line {line} has no caption")
        if label_column is not None and labels.setdefault(file, row[label_column]) != row[label_column]:
            raise UserError(
                f"{name}: line {line} labels {file} {row[label_column]!r}, but an earlier line "
                f"{labels[file]!r}: expected one label per image"
            )
    files = [file for file in captions if captions[file]]
    unlabelled = next((file for file in files if label_column is not None and not labels[file]), None)
    if unlabelled is not None:
        raise UserError(f"{name}: {unlabelled} has no label: add it, or remove the label column")
    if files and files[0].startswith(("http://", "https://")):
        raise UserError(
            f"{name}: its images are URLs, the first is {files[0]}: download them with img2dataset, and use shards:"
        )
    numbers = {label: number for number, label in enumerate(class_names)}
    rows = [(file, tuple(said), numbers.get(labels.get(file, ""))) for file, said in captions.items()]
    return replace(listed_pairs(name, split, [path.parent], rows, class_names), skipped=tuple(skipped))


def coco_folder(root: Path, annotations: str) -> tuple[Path, int]:
    """Find the folder of COCO and the year of its annotations, 2014 before 2017."""
    for folder, year in itertools.product((root, root / "coco"), COCO_YEARS):
        if (folder / f"annotations/{annotations}{year}.json").is_file():
            return folder, year
    raise UserError(
        f"COCO's annotations/{annotations}{COCO_YEARS[0]}.json not found in {root} or {root / 'coco'}: unzip "
        f"http://images.cocodataset.org/annotations/annotations_trainval{COCO_YEARS[0]}.zip and the images there, "
        "or set ANTIPHASE_DATA to another folder"
    )


def coco_files(told: dict[str, Any], split: str, year: int) -> dict[int, str]:
    """Return the file of each image by id, sorted by id."""
    return {
        entry["id"]: f"{split}{year}/{entry['file_name']}" for entry in sorted(told["images"], key=_number)
    }


def _coco_captions(told: dict[str, Any]) -> dict[int, tuple[str, ...]]:
    """Return the captions of each image that has any, sorted by caption id."""
    captions: dict[int, list[str]] = {}
    for note in sorted(told["annotations"], key=_number):
        if caption := note["caption"].strip():
            captions.setdefault(note["image_id"], []).append(caption)
    return {image: tuple(several) for image, several in captions.items()}


def _number(entry: dict[str, Any]) -> int:
    return entry["id"]


def _read_table(name: str, path: Path) -> tuple[dict[str, int], list[tuple[int, list[str]]]]:
    """Return the column positions by name, and the rows with line numbers and stripped cells."""
    try:
        with regular(path).open(encoding="utf-8-sig", newline="") as file:
            lines = _rows(name, path, list(file))
    except OSError as error:
        raise UserError(
            f"{name}: cannot read {path} ({error.strerror}): give an existing, readable file"
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{name}: {path} is not a UTF-8 table ({error}): save it as CSV in UTF-8") from error
    if len(lines) < 2:
        raise UserError(f"{name}: {path} has no rows: expected a header line and one line per caption")
    header = {cell.lower(): place for place, cell in enumerate(lines[0][1])}
    ragged = next((number for number, row in lines if len(row) != len(lines[0][1])), None)
    if ragged is not None:
        raise UserError(
            f"{name}: line {ragged} of {path}: expected {len(lines[0][1])} cells, like the header: correct it "
            "(put captions with commas in double quotes)"
        )
    return header, lines[1:]


def _rows(name: str, path: Path, text: list[str]) -> list[tuple[int, list[str]]]:
    """Return the rows of a table's lines that are not empty, with line numbers and stripped cells."""
    tabs = bool(text) and "\t" in text[0]
    quoting = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
    reader = csv.reader(text, delimiter="\t" if tabs else ",", quoting=quoting, strict=True)
    rows: list[tuple[int, list[str]]] = []
    end = 0
    try:
        for row in reader:
            start, end = end, reader.line_num
            if any(_names_image(line) for line in text[start + 1 : end]):
                end = start
                raise csv.Error("a quoted cell holds rows")
            if any(row):
                rows.append((end, [cell.strip() for cell in row]))
    except csv.Error as error:
        if '"' not in text[end]:
            raise
        raise UserError(
            f"{name}: line {end + 1} of {path}: unpaired double quote, or text outside of the quotes: put the whole "
            "cell in double quotes, and double those within it"
        ) from error
    return rows


def _names_image(line: str) -> bool:
    return any(cell.strip(' "\r\n').lower().endswith(SUFFIXES) for cell in line.split(","))


def _column(name: str, header: dict[str, int], names: Sequence[str], what: str) -> int:
    for column in names:
        if column in header:
            return header[column]
    raise UserError(
        f"{name} has no column for {what}: expected one of {', '.join(names)}, found {', '.join(header)}"
    )


def _sorted_names(names: set[str]) -> tuple[str, ...]:
    """Sort class names, numbers by value; empty cells are ignored."""
    given = names - {""}
    return tuple(sorted(given, key=int) if all(name.isdecimal() for name in given) else sorted(given))
