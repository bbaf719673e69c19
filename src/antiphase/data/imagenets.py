"""ImageNet-1k, test sets of its classes under distribution shift, Tiny ImageNet, and words for their classes."""

import contextlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from antiphase.data.folders import choose_split, class_folder, file_images, list_classes, sub_folders
from antiphase.data.images import FileImages
from antiphase.errors import UserError, shown

CLASSES = 1000
WNID = re.compile(r"n\d{8}")
"""Pattern of a WordNet id."""


@dataclass(frozen=True)
class _Variant:
    """A test set under distribution shift.

    Attributes:
        places: possible folders below the data folder, the archive's own first.
        page: where to download it.
        classes: indices of its classes among ImageNet's; all if empty.
        numbered: whether class folders are named by class index instead of wnid.
    """

    places: tuple[str, ...]
    page: str
    classes: str = ""
    numbered: bool = False


# indices of the 200 classes among ImageNet's 1,000, from the authors' lists
_A_CLASSES = (
    "6 11 13 15 17 22 23 27 30 37 39 42 47 50 57 70 71 76 79 89 90 94 96 97 99 105 107 108 110 113 124 "
    "125 130 132 143 144 150 151 207 234 235 254 277 283 287 291 295 298 301 306 307 308 309 310 311 313 "
    "314 315 317 319 323 324 326 327 330 334 335 336 347 361 363 372 378 386 397 400 401 402 404 407 411 "
    "416 417 420 425 428 430 437 438 445 456 457 461 462 470 472 483 486 488 492 496 514 516 528 530 539 "
    "542 543 549 552 557 561 562 569 572 573 575 579 589 606 607 609 614 626 627 640 641 642 643 658 668 "
    "677 682 684 687 701 704 719 736 746 749 752 758 763 765 768 773 774 776 779 780 786 792 797 802 803 "
    "804 813 815 820 823 831 833 835 839 845 847 850 859 862 870 879 880 888 890 897 900 907 913 924 932 "
    "933 934 937 943 945 947 951 954 956 957 959 971 972 980 981 984 986 987 988 "
)
_R_CLASSES = (
    "1 2 4 6 8 9 11 13 22 23 26 29 31 39 47 63 71 76 79 84 90 94 96 97 99 100 105 107 113 122 125 130 132 "
    "144 145 147 148 150 151 155 160 161 162 163 171 172 178 187 195 199 203 207 208 219 231 232 234 235 "
    "242 245 247 250 251 254 259 260 263 265 267 269 276 277 281 288 289 291 292 293 296 299 301 308 309 "
    "310 311 314 315 319 323 327 330 334 335 337 338 340 341 344 347 353 355 361 362 365 366 367 368 372 "
    "388 390 393 397 401 407 413 414 425 428 430 435 437 441 447 448 457 462 463 469 470 471 472 476 483 "
    "487 515 546 555 558 570 579 583 587 593 594 596 609 613 617 621 629 637 657 658 701 717 724 763 768 "
    "774 776 779 780 787 805 812 815 820 824 833 847 852 866 875 883 889 895 907 928 931 932 933 934 936 "
    "937 943 945 947 948 949 951 953 954 957 963 965 967 980 981 983 988 "
)
_V2_FOLDER = "imagenetv2-matched-frequency-format-val"
_VARIANTS = {
    "imagenet-v2": _Variant(
        (_V2_FOLDER, f"imagenet-v2/{_V2_FOLDER}", "imagenet-v2"),
        "imagenetv2-matched-frequency.tar.gz of https://huggingface.co/datasets/vaishaal/ImageNetV2 "
        "(https://imagenetv2.org)",
        numbered=True,
    ),
    "imagenet-a": _Variant(
        ("imagenet-a",), "imagenet-a.tar of https://github.com/hendrycks/natural-adv-examples", _A_CLASSES
    ),
    "imagenet-r": _Variant(
        ("imagenet-r",), "imagenet-r.tar of https://github.com/hendrycks/imagenet-r", _R_CLASSES
    ),
    "imagenet-sketch": _Variant(
        ("sketch", "imagenet-sketch", "imagenet-sketch/sketch"),
        "ImageNet-Sketch.zip of https://github.com/HaohanWang/ImageNet-Sketch",
    ),
}

IMAGENET_VARIANTS = {
    "imagenet-v2": "ImageNet-V2 (matched frequency), RGB, 1,000 classes in numbered folders",
    "imagenet-a": "ImageNet-A, RGB, 200 of ImageNet's classes, photographs that a ResNet-50 gets wrong",
    "imagenet-r": "ImageNet-R, RGB, 200 of ImageNet's classes in art, cartoons, toys and other renditions",
    "imagenet-sketch": "ImageNet-Sketch, RGB, 1,000 classes in black and white sketches",
}
"""One-line description of each test set under distribution shift."""


def imagenet(split: str, root: Path) -> FileImages:
    """List ImageNet-1k in torchvision's layout, ``{train,val}/<wnid>/*.JPEG``, with classes sorted by wnid.

    Class names are open_clip's prompt names, or the wnid if there is none.

    Source: "ImageNet Large Scale Visual Recognition Challenge", Russakovsky et al., 2015.

    Raises:
        UserError: if it is not in ``root`` in that layout.
    """
    folder = root if any(sub_folders(root / part) for part in ("train", "val")) else root / "imagenet"
    if not sub_folders(folder / split):
        raise UserError(
            f"imagenet has no class folders in {folder / split}: sign up at https://image-net.org/download.php and "
            f"unpack it as {folder / split}/<wnid>/*.JPEG, or set ANTIPHASE_DATA to another folder"
        )
    images = class_folder("imagenet", folder, split)
    names = prompt_names()
    return replace(images, class_names=tuple(names.get(wnid, wnid) for wnid in images.class_names))


def imagenet_variant(name: str, split: str, root: Path) -> FileImages:
    """List a test set of ImageNet's classes under distribution shift.

    Its classes are the subset of ImageNet's that it contains, sorted by wnid, with open_clip's prompt names. A
    classifier bound to them chooses among these classes only, which is equivalent to masking the other logits.

    Sources: "Do ImageNet Classifiers Generalize to ImageNet?", Recht et al., 2019 (V2); "Natural Adversarial
    Examples", Hendrycks et al., 2021 (A); "The Many Faces of Robustness", Hendrycks et al., 2021 (R); "Learning
    Robust Global Representations by Penalizing Local Predictive Power", Wang et al., 2019 (Sketch).

    Raises:
        UserError: if it is not in ``root``, or its class folders differ from the published ones.
    """
    known = _VARIANTS[name]
    split = choose_split(name, "test" if split == "val" else split, ("test",))
    own_folder = re.compile(r"\d+" if known.numbered else r"n\d+")  # a class, not the archive's top folder
    places = [root / place for place in known.places]
    folder = next((place for place in places if any(map(own_folder.fullmatch, sub_folders(place)))), None)
    if folder is None:
        raise UserError(
            f"{name} has no class folders in {' or '.join(map(str, places))}: unpack {known.page} in {root}, or set "
            "ANTIPHASE_DATA to another folder"
        )
    wnids = variant_wnids(name)
    folders = _class_folders(name, folder, list(map(str, range(CLASSES))) if known.numbered else wnids)
    return list_classes(name, split, folder, folders, [prompt_names()[wnid] for wnid in wnids])


def _class_folders(name: str, folder: Path, labels: Sequence[str]) -> list[str]:
    """Return the folder of each class, in order; numbers may have leading zeros."""
    known, expected = _VARIANTS[name], set(labels)
    folders: dict[str, str] = {}
    fault = ""
    for entry in sub_folders(folder):
        # match by number, since sorting folder names as text would put 10 before 2
        label = str(int(entry)) if known.numbered and entry.isdecimal() else entry
        if label in folders:
            fault = fault or f"has two folders of one class, {folders[label]} and {entry}"
        folders[label] = entry
    odd = next((entry for label, entry in folders.items() if label not in expected), None)
    absent = [label for label in labels if label not in folders]
    if odd is not None:
        kind = "a number from 0 to 999" if known.numbered else f"a wnid of its {len(labels):,} classes"
        fault = f"has a folder {odd}, which is not {kind}"
    elif absent:
        fault = f"lacks {len(absent):,} of {len(labels):,} class folders, the first is {absent[0]}"
    if fault:
        raise UserError(f"{name}: {folder} {fault}: unpack {known.page} again")
    return [folders[label] for label in labels]


def tiny_imagenet(split: str, root: Path) -> FileImages:
    """List Tiny ImageNet (200 classes, 64×64; 100,000 train, 10,000 val) from its unpacked archive.

    Classes are sorted by wnid and named by their first synonym in ``words.txt``. The archive's ``test`` images have
    no labels, so ``test`` means ``val``.

    Raises:
        UserError: if it is not in ``root``, or one of its lists is damaged.
    """
    folder = root if (root / "wnids.txt").is_file() else root / "tiny-imagenet-200"
    annotations = folder / "val" / "val_annotations.txt"
    try:
        wnids = sorted((folder / "wnids.txt").read_text().split())
        entries = [line.partition("\t") for line in (folder / "words.txt").read_text().splitlines()]
        notes = annotations.read_text().splitlines() if split == "val" else []
    except OSError as error:
        raise UserError(
            f"tiny-imagenet: {error.filename} is missing: unzip http://cs231n.stanford.edu/tiny-imagenet-200.zip in "
            f"{root}, or set ANTIPHASE_DATA to another folder"
        ) from error
    words = {wnid: synonyms.split(",")[0].strip() for wnid, _, synonyms in entries}
    class_names = [words.get(wnid, wnid) for wnid in wnids]
    if split == "train":
        return list_classes("tiny-imagenet", split, folder / "train", wnids, class_names)
    labels: dict[str, int] = {}
    for number, note in enumerate(notes, start=1):
        file, _, rest = note.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in wnids:
            raise UserError(
                f"tiny-imagenet: line {number} of {annotations}, {note!r}: expected a class of wnids.txt: unzip the "
                "archive again"
            )
        labels[f"images/{file}"] = wnids.index(wnid)
    if not labels:
        raise UserError(f"tiny-imagenet: {annotations} is empty: unzip the archive again")
    return file_images("tiny-imagenet", split, folder / "val", class_names, [*labels], [*labels.values()])


def variant_wnids(name: str) -> tuple[str, ...]:
    """Return the wnids of a variant's labels in order.

    >>> len(variant_wnids("imagenet-r")), variant_wnids("imagenet-a")[0]
    (200, 'n01498041')
    """
    wnids = _wnids()
    return tuple(wnids[int(number)] for number in _VARIANTS[name].classes.split()) or wnids


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
        warnings.warn(
            f"class names {shown(', '.join(odd or words))} are no words, but prompts are made of them; if they "
            "only number the classes, give names",
            stacklevel=3,
        )
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
