"""Published numbers of images and classes of the evaluation sets."""

import warnings

PROBE_SETS = tuple(
    ["caltech101", "dtd", "pets", "flowers102", "sun397", "aircraft", "cifar10", "cifar100", "food101"]
)
"""The nine sets of the linear probe and of few-shot learning, in the paper's order."""

MEAN_PER_CLASS = frozenset({"aircraft", "pets", "caltech101", "flowers102"})
"""The probe sets scored by mean per-class accuracy; the others are scored by accuracy."""

IMAGENET_SETS = ("imagenet", "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch")
"""ImageNet, and test sets of its classes under distribution shift."""

RETRIEVAL_SETS = ("flickr8k", "flickr30k", "coco-karpathy")
"""The image–caption sets for retrieval, in Karpathy's splits."""

_PUBLISHED: dict[str, tuple[int | None, dict[str, int]]] = {
    "caltech101": (102, {"train": 3_060, "test": 6_084}),  # 9,144 images, 30 per class for training
    "dtd": (47, {"train": 1_880, "val": 1_880, "test": 1_880}),
    "pets": (37, {"train": 3_680, "test": 3_669}),
    "flowers102": (102, {"train": 1_020, "val": 1_020, "test": 6_149}),
    "sun397": (397, {"train": 19_850, "test": 19_850}),
    "aircraft": (100, {"train": 3_334, "val": 3_333, "test": 3_333}),
    "cifar10": (10, {"train": 50_000, "test": 10_000}),
    "cifar100": (100, {"train": 50_000, "test": 10_000}),
    "food101": (101, {"train": 75_750, "test": 25_250}),
    "imagenet-v2": (1_000, {"test": 10_000}),
    "imagenet-a": (200, {"test": 7_500}),
    "imagenet-r": (200, {"test": 30_000}),
    "imagenet-sketch": (1_000, {"test": 50_889}),
    "flickr8k": (None, {"train": 6_000, "val": 1_000, "test": 1_000}),
    "flickr30k": (None, {"train": 29_000, "val": 1_014, "test": 1_000}),
    "coco-karpathy": (None, {"train": 113_287, "val": 5_000, "test": 5_000}),
}


def warn_of_other_counts(name: str, split: str, images: int, classes: int = 0) -> None:
    """Warn if a known split differs from the published number of images or classes."""
    known_classes, splits = _PUBLISHED.get(name, (None, {}))
    known = splits.get(split)
    if known is None or (images, classes) == (known, known_classes or classes):
        return
    found, published = f"{images:,} images", f"{known:,}"
    if known_classes is not None:
        found, published = f"{found} of {classes:,} classes", f"{published} of {known_classes:,}"
    reason = f"{found}, but {published} were published: results are not comparable, download it again"
    warnings.warn(f"{name} ({split}): {reason}", stacklevel=4)  # the caller of load_data, which is checked
