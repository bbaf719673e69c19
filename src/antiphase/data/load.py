"""Load images of a named source, or of one's own."""

import os
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antiphase.arguments import OWN_WORDS, Count, Must, Seed, validated
from antiphase.data.folders import choose_split
from antiphase.data.given import array_images, dataset_images
from antiphase.data.images import FileImages, ImageSet
from antiphase.data.published import warn_of_other_counts
from antiphase.data.root import data_root
from antiphase.data.source import Request
from antiphase.data.sources import source_of
from antiphase.errors import UserError, shown


@validated
def load_data(
    source: Any,
    labels: Any = None,
    *,
    class_names: Annotated[Sequence[str] | None, OWN_WORDS] = None,
    split: str = "test",
    image_size: Count | None = None,
    channels: Annotated[int, Must("equal to 1 or 3", lambda channels: channels in (1, 3))] | None = None,
    num_classes: Count | None = None,
    root: str | os.PathLike[str] | None = None,
    limit: Count | None = None,
    seed: Seed | None = None,
    skip_bad: bool = False,
    progress: bool = True,
) -> ImageSet:
    """Return the images of a named source, or images of your own.

    Args:
        source: one of ``SOURCES``, such as ``folder:PATH`` with a path in the place of PATH; or an array or tensor of
            images ``(images, channels, height, width)``, uint8 or floating point in [0, 1], alone or in a pair with
            its labels; or a map-style ``Dataset`` or a ``DataLoader`` of torch, which is read into memory; or an
            ``ImageSet``.
        labels: class numbers from 0 of an array or tensor of images.
        class_names: names of the classes of your own images. If not given: the data set's ``classes``, or the numbers.
        split: ``train``, ``test`` or ``val``; ``test`` means ``val`` where that is what is held out.
        image_size: height and width in pixels. Image files are resized to it (224, Tiny ImageNet 64, unless
            given); arrays are not resized, so for them it must be their own.
        channels: 1 or 3. Image files are converted to it (3 unless given); for arrays it must be their own.
        num_classes: must be the source's own; ``random`` draws its labels from it.
        root: folder of the data sets; else the environment variable ANTIPHASE_DATA, else ~/.cache/antiphase.
        limit: at most this many images, see ``ImageSet.subset``.
        seed: which images ``limit`` takes, see ``ImageSet.subset``; for ``random`` the generator's seed.
        skip_bad: decode every file now and leave out those that fail, listed in the result's ``skipped``.
        progress: show a bar on stderr while files are checked.

    Raises:
        UserError: the source is unknown, missing or invalid, or range, layout or type of the images are not as
            expected; the message says how to fix it.

    >>> images = load_data("digits", limit=3)
    >>> images.image_shape, images.ids.tolist()
    ((1, 8, 8), [0, 1, 2])
    >>> load_data(np.zeros((2, 3, 5, 5)), [1, 0])
    <ArrayImages array (test): 2 images of 3×5×5, 2 classes>
    """
    if isinstance(source, str):
        if labels is not None or class_names is not None:
            raise UserError(f"{source}: has its own labels and class names; leave them out")
        images = _named(source, split, image_size, channels, num_classes, root, limit, seed)
        warn_of_other_counts(source, images.split, len(images), len(images.class_names))
    else:
        images = _given(source, labels, class_names, limit, seed)
    _check_agreement(images, image_size, channels, num_classes)
    images = images.subset(limit, seed)
    if not skip_bad:
        return images
    if not isinstance(images, FileImages):
        raise UserError(
            f"{images.name}: --skip-bad leaves out files that cannot be read, and it has no files; leave it out"
        )
    return images.without_unreadable(progress=progress)


def _named(
    name: str,
    split: str,
    image_size: int | None,
    channels: int | None,
    num_classes: int | None,
    root: str | os.PathLike[str] | None,
    limit: int | None,
    seed: int | None,
) -> ImageSet:
    source, path = source_of(name), name.partition(":")[2]
    if source.splits is not None:
        split = choose_split(name, split, source.splits)
    return source.load(
        Request(split, image_size, channels, num_classes, data_root(root), limit, seed, name, path)
    )


def _given(
    source: Any, labels: Any, class_names: Sequence[str] | None, limit: int | None, seed: int | None
) -> ImageSet:
    """Return images that are not named: arrays, data sets and loaders."""
    if isinstance(source, ImageSet | Dataset | DataLoader) and labels is not None:
        raise UserError(f"labels: {shown(source)} has its own; leave them out")
    if isinstance(source, ImageSet):
        if class_names is not None:
            raise UserError(f"class_names: {shown(source)} has its own; leave them out")
        return source
    if isinstance(source, tuple) and len(source) == 2 and labels is None:
        source, labels = source
    if isinstance(source, Tensor | np.ndarray):
        return array_images("array", source, labels, class_names=class_names)
    if isinstance(source, DataLoader) or (isinstance(source, Dataset) and hasattr(source, "__len__")):
        return dataset_images(source, limit, seed, class_names)
    raise UserError(
        f"data {shown(source)}: expected the name of a source, such as 'digits' or 'folder:PATH', or images: an array, "
        "a tensor, a map-style Dataset or a DataLoader"
    )


def _check_agreement(
    images: ImageSet, image_size: int | None, channels: int | None, num_classes: int | None
) -> None:
    own = images.image_shape
    wanted = (channels or own[0], image_size or own[1], image_size or own[2])
    if wanted != own:
        raise UserError(
            f"{images.name} has images of shape {own} (channels, height, width), not {wanted}, and arrays are not "
            f"resized: use image_size {own[1]} and channels {own[0]}, or other data"
        )
    if num_classes is not None and num_classes != len(images.class_names):
        raise UserError(
            f"{images.name} has {len(images.class_names)} classes, not {num_classes}: use a source "
            "and a model with the same classes"
        )
