"""Karpathy's splits of Flickr8k, Flickr30k and COCO, used to measure retrieval."""

from dataclasses import dataclass
from pathlib import Path

from antiphase.data.folders import SPLITS, choose_split
from antiphase.data.listed_pairs import Row, damaged, listed_pairs, read_json
from antiphase.data.pairs import FilePairs
from antiphase.errors import UserError

KARPATHY_PAGE = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
_FOLDERS = ("flickr8k", "flickr30k", "coco", "karpathy")


@dataclass(frozen=True)
class _KarpathySet:
    """One of the three sets.

    Attributes:
        title: name for display.
        json_name: file name of its list.
        folder: its usual folder below the data folder.
        image_folders: possible folders of its images.
        images_page: where to download the images.
    """

    title: str
    json_name: str
    folder: str
    image_folders: tuple[str, ...]
    images_page: str


_SETS = {
    "flickr8k": _KarpathySet(
        "Flickr8k",
        "dataset_flickr8k.json",
        "flickr8k",
        ("Flicker8k_Dataset", "Flickr8k_Dataset", "Flickr8k_Dataset/Flicker8k_Dataset", "Images"),
        "https://forms.illinois.edu/sec/1713398",
    ),
    "flickr30k": _KarpathySet(
        "Flickr30k",
        "dataset_flickr30k.json",
        "flickr30k",
        ("flickr30k-images", "flickr30k_images", "flickr30k"),
        "https://shannon.cs.illinois.edu/DenotationGraph/",
    ),
    "coco-karpathy": _KarpathySet(
        "COCO",
        "dataset_coco.json",
        "coco",
        (),  # paths in its list include train2014 and val2014
        "https://cocodataset.org/#download (train2014.zip and val2014.zip)",
    ),
}

KARPATHY_SETS = {
    name: f"{known.title} with five captions per image in Karpathy's splits; needs {known.json_name} and the images "
    "below the data folder"
    for name, known in _SETS.items()
}
"""One-line description of each of Karpathy's sets."""


def karpathy(json_path: Path, root: Path, split: str) -> FilePairs:
    """List the images and captions of one of Karpathy's splits, in the order of the file.

    COCO: 113,287 train (``restval`` counts as train), 5,000 val, 5,000 test. Flickr30k: 29,000 train, 1,014
    val, 1,000 test. Flickr8k: 6,000 train, 1,000 val, 1,000 test.

    Source: "Deep Visual-Semantic Alignments for Generating Image Descriptions", Karpathy and Fei-Fei, 2015.

    Args:
        json_path: ``dataset_coco.json``, ``dataset_flickr30k.json`` or ``dataset_flickr8k.json``.
        root: folder searched for the images, including sub-folders with the usual names; the folder of ``json_path``
            is searched next.
        split: ``train``, ``val`` or ``test``.

    Raises:
        UserError: if the list or the images are missing, or the list is damaged.
    """
    name = f"karpathy:{json_path}"
    split = choose_split(name, split, SPLITS)
    several = (_SETS[key] for key in ("flickr30k", "flickr8k"))
    usual = [folder for known in several for folder in known.image_folders]
    below = ("", "coco", *usual, "images")
    places = [place / folder for place in (root, json_path.parent) for folder in below]
    return listed_pairs(name, split, places, _read_split(json_path, split))


def karpathy_set(name: str, root: Path, split: str) -> FilePairs:
    """List one of Karpathy's sets; its list and images are searched in the usual folders.

    Args:
        name: one of ``KARPATHY_SETS``.
        root: data folder. The list is in it, or in its sub-folder ``flickr8k``, ``flickr30k``, ``coco`` or
            ``karpathy``; the images are next to the list, in the set's own folder, or in a folder with the usual name
            in one of these.
        split: ``train``, ``val`` or ``test``.

    Raises:
        UserError: if the list or the images are missing, or the list is damaged.
    """
    known = _SETS[name]
    split = choose_split(name, split, SPLITS)
    folders = [root, *(root / below for below in dict.fromkeys((known.folder, *_FOLDERS)))]
    lists = [folder / known.json_name for folder in folders]
    found = next((path for path in lists if path.is_file()), None)
    if found is None:
        raise UserError(
            f"{name}: {known.json_name} not found in {root} or its {', '.join(_FOLDERS)}: unzip {KARPATHY_PAGE} in "
            f"{root / known.folder}, and the images from {known.images_page}"
        )
    places = [
        place / below
        for place in dict.fromkeys((root / known.folder, found.parent, root))
        for below in (*known.image_folders, "images", "")
    ]
    fix = f"unpack the images from {known.images_page} in {root / known.folder}"
    return listed_pairs(name, split, places, _read_split(found, split), fix=fix)


def _read_split(json_path: Path, split: str) -> list[Row]:
    told = read_json(json_path)
    rows: list[Row] = []
    try:
        for entry in told["images"]:
            if {"restval": "train"}.get(entry["split"], entry["split"]) == split:
                file = "/".join(part for part in (entry.get("filepath"), entry["filename"]) if part)
                said = [sentence["raw"].strip() for sentence in entry["sentences"]]
                rows.append((file, tuple(filter(None, said)), None))
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(json_path, "Karpathy's splits", error) from error
    return rows
