"""Images of your own: NumPy arrays and tensors, data sets and loaders of torch, and ``.npz`` files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils import data as torch_data

from antiphase.data.decoding import flat
from antiphase.data.folders import SPLITS, choose_split
from antiphase.data.imagenets import prompt_names
from antiphase.data.images import ArrayImages
from antiphase.data.members import regular
from antiphase.data.pixels_and_labels import channels_last, checked_pixels, class_numbers
from antiphase.errors import UserError, first_line, shown
from antiphase.files import printable

_NAMES = (("images", "labels"), ("x", "y"))  # of the arrays in an .npz file


def array_images(
    name: str, images: Any, labels: Any, split: str = "test", class_names: Sequence[str] | None = None
) -> ArrayImages:
    """Return labelled images held in arrays.

    Args:
        name: name of the set, for messages and records.
        images: array or tensor, ``(images, channels, height, width)`` with 1 or 3 channels: uint8 in 0..255, or
            floating point in [0, 1].
        labels: class numbers from 0, see :func:`~antiphase.data.pixels_and_labels.class_numbers`.
        split: name of the split.
        class_names: one for each class; None: the numbers.

    Raises:
        UserError: naming the range, layout or type that is not as expected.
    """
    pixels = checked_pixels(name, images)
    numbers = class_numbers(name, labels, len(pixels))
    last = int(numbers.max())
    names = tuple(map(str, range(last + 1))) if class_names is None else ordered_names(class_names)
    if names is None:
        raise UserError(f"{name}: class names {shown(class_names)}; expected a name for each class in order")
    if last >= len(names):
        raise UserError(f"{name}: label {last}, but {len(names)} class names; expected one for each")
    return ArrayImages(
        name=name,
        split=split,
        class_names=names,
        ids=torch.arange(len(pixels)),
        labels=numbers,
        pixels=pixels,
    )


def dataset_images(
    data: Any, limit: int | None = None, seed: int | None = None, class_names: Sequence[str] | None = None
) -> ArrayImages:
    """Read a data set or loader of torch into memory.

    Args:
        data: a map-style ``Dataset`` whose items begin with (image, label), or a ``DataLoader`` of such batches that
            does not shuffle.
        limit: at most this many images; others are not read.
        seed: which images of a ``Dataset`` are taken, see ``ImageSet.subset``. A ``DataLoader`` gives the first.
        class_names: one for each class; None: the data set's ``classes``, or the numbers.

    Raises:
        UserError: if a loader shuffles, an item is no pair, images differ in size, or as :func:`array_images`.
    """
    name = f"dataset:{type(data).__name__}"
    if isinstance(data, torch_data.DataLoader):
        if "Random" in type(data.sampler).__name__:  # torch has three such samplers
            raise UserError(f"{name}: shuffles; expected shuffle=False, so that each image keeps its number")
        pairs = _from_loader(name, data, limit)
        rows = torch.arange(len(pairs))
    else:
        count = len(data)
        rows = torch.arange(count if limit is None else min(limit, count))
        if limit is not None and seed is not None:
            rows = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(count)[:limit]))
        pairs = [_two(name, data[row]) for row in rows.tolist()]
    images = [_image(name, image) for image, _ in pairs]
    if len({image.shape for image in images}) > 1:
        shapes = ", ".join(str(tuple(shape)) for shape in sorted({image.shape for image in images})[:3])
        raise UserError(
            f"{name}: images of different shapes, {shapes}; expected one; resize them in the transform"
        )
    if not images:
        raise UserError(f"{name}: no images; expected at least one")
    names = dataset_class_names(data) if class_names is None else class_names
    found = array_images(name, torch.stack(images), [label for _, label in pairs], class_names=names)
    return replace(found, ids=rows)


def dataset_class_names(data: Any) -> tuple[str, ...] | None:
    """Return the class names of a data set of torch, also of a subset, a concatenation or a loader of it.

    Returns:
        None if they are not known: the data set has none, changes its targets, or is a wrapper of another library.

    Raises:
        UserError: if the parts of a concatenation have different classes.
    """
    if isinstance(data, torch_data.Subset | torch_data.DataLoader):
        return dataset_class_names(data.dataset)
    if isinstance(data, torch_data.ConcatDataset):
        several = {dataset_class_names(part) for part in data.datasets}
        if len(several - {None}) > 1:
            both = " and ".join(map(shown, sorted(filter(None, several))[:2]))
            raise UserError(
                f"ConcatDataset: parts of different classes, {both}; expected the same, or class_names="
            )
        return several.pop() if len(several) == 1 else None
    if getattr(data, "target_transform", None) is not None:  # labels need not count the classes any more
        return None
    if wnids := ordered_names(
        getattr(data, "wnids", None)
    ):  # torchvision's ImageNet, with two classes called crane
        return tuple(prompt_names().get(wnid, wnid) for wnid in wnids)
    return ordered_names(getattr(data, "classes", None)) or ordered_names(getattr(data, "class_to_idx", None))


def ordered_names(classes: Any) -> tuple[str, ...] | None:
    """Return class names in the order of their numbers; None if they are in no form that is known.

    >>> ordered_names([("tench", "Tinca tinca"), b"goldfish"]), ordered_names({"dog": 1, "cat": 0}), ordered_names(2)
    (('tench', 'goldfish'), ('cat', 'dog'), None)
    """
    if isinstance(classes, Mapping):
        to_number = all(isinstance(value, int) for value in classes.values())
        named = {value: key for key, value in classes.items()} if to_number else classes
        classes = [named.get(number) for number in range(len(classes))]
    classes = classes.tolist() if isinstance(classes, np.ndarray) else classes
    if not isinstance(classes, Sequence) or isinstance(classes, str | bytes) or not len(classes):
        return None
    names = [one[0] if isinstance(one, list | tuple) and one else one for one in classes]
    names = [one.decode(errors="replace") if isinstance(one, bytes) else one for one in names]
    return tuple(map(str, names)) if all(isinstance(one, str | int) for one in names) else None


def npz_images(path: str, split: str) -> ArrayImages:
    """Return the images of a NumPy archive.

    Its arrays are ``images`` and ``labels`` (also ``x`` and ``y``), or one pair for each split with its name before or
    behind: ``train_images``, ``x_test``. Images may also be ``(images, height, width)``, or have their channels last.
    ``class_names`` is optional. Nothing is unpickled.

    Args:
        path: the file.
        split: ``train``, ``val`` or ``test``; without split names all images are ``test``.

    Raises:
        UserError: if the file is missing or damaged, or lacks an array, or as :func:`array_images`.
    """
    name, file = f"npz:{printable(path)}", Path(path).expanduser()
    try:
        with regular(file).open("rb") as raw:  # NumPy itself would leave a damaged file open
            held = np.load(raw, allow_pickle=False)
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise UserError(
                    f"{name}: holds one array; expected an archive with images and labels, by numpy.savez"
                )
            keys = _by_split(name, held.files)
            split = choose_split(name, split, tuple(part for part in SPLITS if part in keys))
            images, labels = (held[key] for key in keys[split])
            names = held["class_names"].tolist() if "class_names" in held.files else None
    except FileNotFoundError:
        raise UserError(f"{name}: no such file") from None
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        reason = first_line(error)
        why = "" if "pickle" in reason else f" ({reason})"  # NumPy advises to execute the file
        raise UserError(f"{name}: cannot be read{why}; expected a file written by numpy.savez") from None
    if images.ndim == 3:
        images = images[:, None]
    elif channels_last(images.shape):
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return array_images(name, images, labels, split, names)


def _by_split(name: str, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the names of images and labels of each split in an archive."""
    known, found = set(keys), dict[str, tuple[str, str]]()
    for one, two in _NAMES:
        for split in SPLITS:
            for pair in ((f"{split}_{one}", f"{split}_{two}"), (f"{one}_{split}", f"{two}_{split}")):
                if known.issuperset(pair):
                    found.setdefault(split, pair)
        if known.issuperset((one, two)):
            found.setdefault("test", (one, two))
    if not found:
        raise UserError(
            f"{name}: has the arrays {', '.join(sorted(known)) or 'none'}; expected images and labels"
        )
    return found


def _from_loader(name: str, loader: Iterable[Any], limit: int | None) -> list[tuple[Any, Any]]:
    pairs: list[tuple[Any, Any]] = []
    for batch in loader:
        images, labels = _two(name, batch)
        if not isinstance(labels, Sequence) and np.ndim(labels) == 0:  # batch_size=None: single items
            pairs.append((images, labels))
        elif len(images) != len(labels):
            raise UserError(f"{name}: {len(images)} images with {len(labels)} labels; expected one for each")
        else:
            pairs += zip(images, labels, strict=True)
        if limit is not None and len(pairs) >= limit:
            return pairs[:limit]
    return pairs


def _image(name: str, image: Any) -> Tensor:
    try:
        if isinstance(image, Image.Image):  # from a data set without a transform
            grey = image.mode in ("1", "L") or image.mode.startswith("I")
            pixels = np.array(flat(image, "L" if grey else "RGB"))
            return torch.from_numpy(pixels[None] if grey else pixels.transpose(2, 0, 1))
        return torch.as_tensor(image)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = first_line(error)
        raise UserError(f"{name}: gives {shown(image)} as an image ({reason}); expected a tensor") from None


def _two(name: str, item: Any) -> tuple[Any, Any]:
    if not isinstance(item, list | tuple) or len(item) < 2:
        raise UserError(f"{name}: gives a {type(item).__name__}; expected (image, label)")
    return item[0], item[1]
