"""COCO's images with two kinds of objects and their masks."""

from dataclasses import replace
from pathlib import Path

from antiphase.data.captions import coco_files, coco_folder
from antiphase.data.folders import choose_split
from antiphase.data.listed_pairs import Row, damaged, listed_pairs, read_json
from antiphase.data.objects import ImageObjects, region_of
from antiphase.data.pairs import FilePairs
from antiphase.errors import UserError

NAME = "coco-objects"
QUERIES = 2
"""Kinds of objects of an image that are kept, as many as there are queries in DiffCLIP's Figure 2."""


def coco_objects(root: Path, split: str) -> FilePairs:
    """List COCO's images that show at least two categories, with the two of the largest total area.

    The captions of an image are the names of the two, and ``objects`` holds the masks of all their objects. The area of
    a category is summed over its annotations that are not crowds; crowds belong to its mask. Ties go to the lower
    category id.

    Source of the data: "Microsoft COCO: Common Objects in Context", Lin et al., 2014.

    Args:
        root: folder with ``annotations/instances_*.json`` and ``train2014`` or similar, or with a sub-folder ``coco``
            that has them.
        split: ``train`` or ``val``; ``test`` means ``val``.

    Raises:
        UserError: if the annotations or the images are missing or damaged.
    """
    split = choose_split(NAME, split, ("train", "val"))
    folder, year = coco_folder(root, f"instances_{split}")
    instances = folder / f"annotations/instances_{split}{year}.json"
    told = read_json(instances)
    try:
        files = coco_files(told, split, year)
        sizes = {entry["id"]: (entry["height"], entry["width"]) for entry in told["images"]}
        names = {entry["id"]: entry["name"] for entry in told["categories"]}
        areas: dict[int, dict[int, float]] = {}
        parts: dict[tuple[int, int], list[object]] = {}
        for note in sorted(told["annotations"], key=lambda note: note["id"]):
            image, category = note["image_id"], note["category_id"]
            parts.setdefault((image, category), []).append(note["segmentation"])
            if not note["iscrowd"]:
                own = areas.setdefault(image, {})
                own[category] = own.get(category, 0.0) + note["area"]
        found: list[tuple[ImageObjects, ...]] = []
        rows: list[Row] = []
        for image, file in files.items():
            own = areas.get(image, {})
            largest = sorted(own, key=lambda category: (-own[category], category))[:QUERIES]
            enough = largest if len(largest) == QUERIES else []
            rows.append((file, tuple(names[category] for category in enough), None))
            if enough:
                height, width = sizes[image]
                found.append(
                    tuple(
                        ImageObjects(
                            names[category],
                            tuple(region_of(part, height, width) for part in parts[image, category]),
                            height,
                            width,
                        )
                        for category in enough
                    )
                )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged(instances, "objects of COCO", error) from error
    pairs = listed_pairs(NAME, split, [folder], rows, lack="has fewer than two categories")
    return replace(pairs, objects=tuple(found))
