"""ImageNet-1k, test sets of its classes under distribution shift, Tiny ImageNet, and words for their classes."""

import contextlib
import re
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from antiphase.data.folders import choose_split, class_folder, list_classes, sub_folders
from antiphase.data.images import FileImages, file_set
from antiphase.errors import UserError, shown

CLASSES = 1000
WNID = re.compile(r"n\d{8}")
"""Pattern of a WordNet id."""


_VARIANTS = ("imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch")


def imagenet(split: str, root: Path) -> FileImages:
    """List ImageNet-1k in torchvision's layout, ``{train,val}/<wnid>/*.JPEG``, with classes sorted by wnid.

    Class names are open_clip's prompt names, or the wnid if there is none.

    Source: "ImageNet Large Scale Visual Recognition Challenge", Russakovsky et al., 2015.
    """
    folder = root if any(sub_folders(root / part) for part in ("train", "val")) else root / "imagenet"
    if not sub_folders(folder / split):
        fix = f"sign up at https://image-net.org/download.php and unpack it as {folder / split}/<wnid>/*.JPEG"
        raise UserError(f"imagenet has no class folders in {folder / split}: {fix}, or set ANTIPHASE_DATA")
    images = class_folder("imagenet", folder, split)
    names = prompt_names()
    return images.altered(class_names=tuple(names.get(wnid, wnid) for wnid in images.class_names))


def imagenet_variant(name: str, split: str, root: Path, folders: Sequence[str], page: str) -> FileImages:
    """List a test set of ImageNet's classes under distribution shift.

    Its classes are the subset of ImageNet's that it contains, sorted by wnid, with open_clip's prompt names. A
    classifier bound to them chooses among these classes only, which is equivalent to masking the other logits.

    Sources: "Do ImageNet Classifiers Generalize to ImageNet?", Recht et al., 2019 (V2); "Natural Adversarial
    Examples", Hendrycks et al., 2021 (A); "The Many Faces of Robustness", Hendrycks et al., 2021 (R); "Learning
    Robust Global Representations by Penalizing Local Predictive Power", Wang et al., 2019 (Sketch).
    """
    split = choose_split(name, "test" if split == "val" else split, ("test",))
    numbered = name == "imagenet-v2"  # its class folders are named by index in place of wnid
    # not the archive's top folder; numbers may have leading zeros, and as text 10 would come before 2
    pattern = re.compile(r"0*(\d+)" if numbered else r"(n\d+)")
    for folder in (root / below for below in folders):
        if entries := {match[1]: match[0] for match in map(pattern.fullmatch, sub_folders(folder)) if match}:
            break
    else:
        fix = f"unpack {page} in {root}, or set ANTIPHASE_DATA"
        raise UserError(f"{name} has no class folders in {root}: {', '.join(folders)}: {fix}")
    wnids = variant_wnids(name)
    labels = list(map(str, range(CLASSES))) if numbered else wnids
    if odd := set(labels) ^ entries.keys():
        raise UserError(
            f"{name}: {folder} lacks the class {min(odd)}, or has a folder of no class: unpack {page} again"
        )
    names = [prompt_names()[wnid] for wnid in wnids]
    return list_classes(name, split, folder, [entries[label] for label in labels], names)


def tiny_imagenet(split: str, root: Path) -> FileImages:
    """List Tiny ImageNet (200 classes, 64×64; 100,000 train, 10,000 val) from its unpacked archive.

    Classes are sorted by wnid and named by their first synonym in ``words.txt``. The archive's ``test`` images have
    no labels, so ``test`` means ``val``.
    """
    folder = root if (root / "wnids.txt").is_file() else root / "tiny-imagenet-200"
    try:
        wnids = sorted((folder / "wnids.txt").read_text().split())
        words = dict(line.split("\t") for line in (folder / "words.txt").read_text().splitlines())
        notes = [line.split("\t") for line in (folder / "val/val_annotations.txt").read_text().splitlines()]
        images, labels = [f"images/{note[0]}" for note in notes], [wnids.index(note[1]) for note in notes]
    except (OSError, ValueError, IndexError) as error:
        fix = f"unzip http://cs231n.stanford.edu/tiny-imagenet-200.zip in {root}, or set ANTIPHASE_DATA"
        raise UserError(f"tiny-imagenet: {folder} is incomplete ({error}): {fix}") from error
    class_names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    if split == "train":
        return list_classes("tiny-imagenet", split, folder / "train", wnids, class_names)
    return file_set("tiny-imagenet", split, folder / "val", class_names, images, labels)


def variant_wnids(name: str) -> tuple[str, ...]:
    """Return the wnids of a variant's labels in order.

    >>> len(variant_wnids("imagenet-r")), variant_wnids("imagenet-a")[0]
    (200, 'n01498041')
    """
    if name not in ("imagenet-a", "imagenet-r"):
        return _wnids()
    return tuple((files("timm.data") / f"_info/{name.replace('-', '_')}_synsets.txt").read_text().split())


def published_wnids(name: str, classes: int) -> tuple[str, ...] | None:
    """Return the wnids of the labels of ImageNet or a variant in order; None for other sets."""
    if name == "imagenet" and classes == CLASSES:
        return _wnids()
    return variant_wnids(name) if name in _VARIANTS else None


def class_words(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return class names as words of a text: names for WordNet ids, ImageNet's where it has one; underscores as spaces.

    Names that are numbers, or ids that are not known, give a warning.

    >>> class_words(["ice_cream", "hot-dog"])
    ('ice cream', 'hot-dog')
    """
    known: dict[str, str] = {}
    if wnids := [name for name in class_names if WNID.fullmatch(name)]:
        from timm.data.imagenet_info import ImageNetInfo

        synonyms = ImageNetInfo().label_name_to_description
        for wnid in wnids:
            with contextlib.suppress(KeyError):
                known[wnid] = synonyms(wnid).partition(",")[0]
        known |= prompt_names()
    words = tuple(known.get(name, name).replace("_", " ") for name in class_names)
    odd = [word for word in words if WNID.fullmatch(word)]
    if odd or not any(map(str.isalpha, "".join(words))):
        reason = "are no words, but prompts are made of them; if they only number the classes, give names"
        warnings.warn(f"class names {shown(', '.join(odd or words))} {reason}", stacklevel=3)
    return words


def prompt_names() -> dict[str, str]:
    """Return open_clip's prompt name of each wnid, in the order of ImageNet's classes."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES  # seconds to import

    return dict(zip(_wnids(), IMAGENET_CLASSNAMES, strict=True))


@cache
def _wnids() -> tuple[str, ...]:
    """Return ImageNet's wnids in the order of its classes."""
    from timm.data.imagenet_info import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())
