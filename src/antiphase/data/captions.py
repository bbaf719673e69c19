"""Image files with captions from the lists that others publish: COCO, any CSV."""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from antiphase.data.folders import SPLITS, choose_split
from antiphase.data.listed_pairs import Row, damaged, listed_pairs, read_json
from antiphase.data.pairs import FilePairs
from antiphase.errors import UserError

COCO_YEARS = (2014, 2017)
_IMAGE_COLUMNS = ("image", "file", "filepath", "path", "image_path")
_CAPTION_COLUMNS = ("caption", "title", "text")


def coco_captions(root: Path, split: str, year: int | None = None) -> FilePairs:
    """List COCO's images with all their captions, about five each, in order of image and caption id.

    Source: "Microsoft COCO Captions: Data Collection and Evaluation Server", Chen et al., 2015.

    Args:
        root: the folder with ``annotations`` and ``train2014`` or the like, or the one above, as ``coco``.
        split: ``train`` or ``val``; ``test`` means ``val``, as the test images' captions are not published.
        year: 2014 (82,783 train, 40,504 val) or 2017 (118,287 and 5,000); else the one that is there, 2014
            where both are.

    Raises:
        UserError: the annotations or the images are not there, or are damaged.
    """
    split = choose_split("coco", split, ("train", "val"))
    folder, year = _coco(root, f"captions_{split}", year)
    annotations = folder / f"annotations/captions_{split}{year}.json"
    told = read_json(annotations)
    try:
        files = _coco_files(told, split, year)
        captions = _coco_captions(told)
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(annotations, "captions of COCO", error) from error
    rows = [(file, captions.get(image, ()), None) for image, file in files.items()]
    return listed_pairs("coco", split, [folder], rows)


def coco_single_label(root: Path, split: str, year: int | None = None) -> FilePairs:
    """List COCO's images, each with one label: the category of its largest object.

    The label of image i is that of argmax_j area(i, j) over its annotated objects j that are no crowds; of
    objects of equal area the one of lower annotation id counts. Images without such an object are left out.
    This rule makes COCO a set on which a zero-shot classifier can be attacked.

    Source of the data: "Microsoft COCO: Common Objects in Context", Lin et al., 2014.

    Args:
        root: as for :func:`coco_captions`.
        split: ``train`` or ``val``; ``test`` means ``val``.
        year: as for :func:`coco_captions`.

    Returns:
        The images in order of their COCO ids; the 80 category names in order of theirs. Captions are those
        of ``captions_*.json`` where that is there, else the class name.

    Raises:
        UserError: the annotations or the images are not there, or are damaged.
    """
    split = choose_split("coco-single-label", split, ("train", "val"))
    folder, year = _coco(root, f"instances_{split}", year)
    instances = folder / f"annotations/instances_{split}{year}.json"
    told = read_json(instances)
    try:
        files = _coco_files(told, split, year)
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
    """List the image files and captions of a table with a header line; a row is one caption of one image.

    Its columns, in any order and case: ``image``, ``file``, ``filepath``, ``path`` or ``image_path`` (relative
    to the table's folder); ``caption``, ``title`` or ``text``; if it likes ``label`` (the name of a class) and
    ``split`` (the whole table is one split where there is none). Rows of the same image are captions of one
    pair; the pairs are in the order of their first rows. Classes are in sorted order, over all splits.

    Args:
        path: commas, or tabs where the header line has one; UTF-8.
        split: ``train``, ``val`` or ``test``; ``test`` means ``val`` where the table has only that.

    Raises:
        UserError: the table or the images are not there, a column is missing, a row has no label or another
            one than the row before of the same image.
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
                f"{name}: line {line} labels {file} {row[label_column]!r}, an earlier line "
                f"{labels[file]!r}: give an image one label"
            )
    files = [file for file in captions if captions[file]]
    unlabelled = next((file for file in files if label_column is not None and not labels[file]), None)
    if unlabelled is not None:
        raise UserError(f"{name}: {unlabelled} has no label: fill the column, or take it out")
    if files and files[0].startswith(("http://", "https://")):
        raise UserError(
            f"{name}: its images are URLs, the first {files[0]}: fetch them with img2dataset, and use shards:"
        )
    numbers = {label: number for number, label in enumerate(class_names)}
    rows = [(file, tuple(said), numbers.get(labels.get(file, ""))) for file, said in captions.items()]
    return replace(listed_pairs(name, split, [path.parent], rows, class_names), skipped=tuple(skipped))


def _coco(root: Path, annotations: str, year: int | None) -> tuple[Path, int]:
    """Return the folder of COCO and the year of its annotations."""
    if year not in (None, *COCO_YEARS):
        raise UserError(f"COCO of {year}: choose one of {', '.join(map(str, COCO_YEARS))}")
    years = COCO_YEARS if year is None else (year,)
    for folder, found in itertools.product((root, root / "coco"), years):
        if (folder / f"annotations/{annotations}{found}.json").is_file():
            return folder, found
    raise UserError(
        f"COCO's annotations/{annotations}{years[0]}.json is neither in {root} nor in {root / 'coco'}: unzip "
        f"http://images.cocodataset.org/annotations/annotations_trainval{years[0]}.zip and the images there, "
        "or name another folder in ANTIPHASE_DATA"
    )


def _coco_files(told: dict[str, Any], split: str, year: int) -> dict[int, str]:
    """Return each image's file by its id, in order of ids."""
    return {
        entry["id"]: f"{split}{year}/{entry['file_name']}" for entry in sorted(told["images"], key=_number)
    }


def _coco_captions(told: dict[str, Any]) -> dict[int, tuple[str, ...]]:
    """Return the captions of each image that has some, in order of their ids."""
    captions: dict[int, list[str]] = {}
    for note in sorted(told["annotations"], key=_number):
        if caption := note["caption"].strip():
            captions.setdefault(note["image_id"], []).append(caption)
    return {image: tuple(several) for image, several in captions.items()}


def _number(entry: dict[str, Any]) -> int:
    return entry["id"]


def _read_table(name: str, path: Path) -> tuple[dict[str, int], list[tuple[int, list[str]]]]:
    """Return the columns' positions by name, and the rows with their line numbers, all cells stripped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            reader = csv.reader(itertools.chain([first], file), delimiter="\t" if "\t" in first else ",")
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except OSError as error:
        raise UserError(
            f"{name}: cannot read {path} ({error.strerror}): name a file that is there"
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{name}: {path} is no table in UTF-8 ({error}): save it as CSV again") from error
    if len(lines) < 2:
        raise UserError(f"{name}: {path} has no rows: expected a header line and a line for each caption")
    header = {cell.lower(): place for place, cell in enumerate(lines[0][1])}
    ragged = next((number for number, row in lines if len(row) != len(lines[0][1])), None)
    if ragged is not None:
        raise UserError(
            f"{name}: line {ragged} of {path} has not the {len(lines[0][1])} cells of the header: mend it "
            "(a caption with commas stands in double quotes)"
        )
    return header, lines[1:]


def _column(name: str, header: dict[str, int], names: Sequence[str], what: str) -> int:
    for column in names:
        if column in header:
            return header[column]
    raise UserError(
        f"{name} has no column for {what}: expected one called {', '.join(names)}, found {', '.join(header)}"
    )


def _sorted_names(names: set[str]) -> tuple[str, ...]:
    """Return class names in order: numbers by value, others as text; an empty cell is none."""
    given = names - {""}
    return tuple(sorted(given, key=int) if all(name.isdecimal() for name in given) else sorted(given))
