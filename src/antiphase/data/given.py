"""Images of your own: NumPy arrays and tensors, data sets and loaders of torch, and ``.npz`` files."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphase.data.decoding import pil_to_tensor
from antiphase.data.folders import SPLITS, choose_split
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError, first_line
from antiphase.files import printable

_NAMES = (("images", "labels"), ("x", "y"))  # of the arrays in an .npz file
_LAYOUT = "(images, channels, height, width)"


def array_images(
    name: str, images: Any, labels: Any, split: str = "test", class_names: Sequence[str] | None = None
) -> ArrayImages:
    """Return labelled images held in arrays.

    Args:
        name: name of the set, for messages and records.
        images: array or tensor, ``(images, channels, height, width)`` with 1 or 3 channels: uint8 in 0..255, or
            floating point in [0, 1].
        labels: array, tensor or list of class numbers from 0.
        split: name of the split.
        class_names: one for each class; None: the numbers.

    Raises:
        UserError: naming the range, layout or type that is not as expected.
    """
    pixels = _pixels(name, torch.as_tensor(images))
    numbers = _labels(name, labels, len(pixels))
    if class_names is None:
        class_names = [str(number) for number in range(int(numbers.max()) + 1)]
    if int(numbers.max()) >= len(class_names):
        raise UserError(
            f"{name}: label {int(numbers.max())}, but {len(class_names)} class names; expected one for each"
        )
    return ArrayImages(
        name=name, split=split, class_names=tuple(map(str, class_names)), ids=torch.arange(len(pixels)), labels=numbers,
        pixels=pixels,
    )  # fmt: skip


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
    if isinstance(data, torch.utils.data.DataLoader):
        if isinstance(data.sampler, torch.utils.data.RandomSampler):
            raise UserError(f"{name}: shuffles; expected shuffle=False, so that each image keeps its number")
        images, labels = _from_loader(name, data, limit)
        rows = torch.arange(len(labels))
        owner = data.dataset
    else:
        count = len(data)
        rows = torch.arange(count if limit is None else min(limit, count))
        if limit is not None and seed is not None:
            rows = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(count)[:limit]))
        pairs = [_pair(name, data[row]) for row in rows.tolist()]
        images, labels = [image for image, _ in pairs], [label for _, label in pairs]
        owner = data
    if len({image.shape for image in images}) > 1:
        shapes = ", ".join(str(tuple(shape)) for shape in sorted({image.shape for image in images})[:3])
        raise UserError(
            f"{name}: images of different shapes, {shapes}; expected one; resize them in the transform"
        )
    if not images:
        raise UserError(f"{name}: no images; expected at least one")
    names = class_names or getattr(owner, "classes", None)
    return replace(array_images(name, torch.stack(images), labels, class_names=names), ids=rows)


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
        with file.open("rb") as raw:  # NumPy itself would leave a damaged file open
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
    elif _channels_last(images.shape):
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


def _pixels(name: str, images: Tensor) -> Tensor:
    """Return images as ``ArrayImages`` holds them, after checks of type, layout and range."""
    shape = tuple(images.shape)
    if images.ndim != 4 or shape[1] not in (1, 3):
        if _channels_last(shape):
            raise UserError(
                f"{name}: images of shape {shape} have their channels last; expected {_LAYOUT}: images.transpose(0, 3, "
                "1, 2) in NumPy, images.permute(0, 3, 1, 2) in torch"
            )
        hint = ": add the channel, images[:, None]" if images.ndim == 3 else ""
        raise UserError(f"{name}: images of shape {shape}; expected {_LAYOUT} with 1 or 3 channels{hint}")
    if not len(images):
        raise UserError(f"{name}: no images; expected at least one")
    if images.dtype == torch.uint8:
        return images.detach().cpu()
    kind = str(images.dtype).removeprefix("torch.")
    if not images.is_floating_point():
        raise UserError(
            f"{name}: images of type {kind}; expected uint8 in 0..255, or floating point in [0, 1]"
        )
    pixels = images.detach().cpu().float()
    low, high = (float(value) for value in torch.aminmax(pixels))
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"{name}: images of type {kind} in [{low:.4g}, {high:.4g}]; expected [0, 1]: {_fix(low, high)}"
        )
    return pixels


def _fix(low: float, high: float) -> str:
    if low >= 0 and high <= 255:
        return "divide them by 255"
    if low < 0:
        return "leave out the normalisation, which belongs into the model"
    return "scale them to [0, 1], without NaN"


def _channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)


def _labels(name: str, labels: Any, count: int) -> Tensor:
    if labels is None:
        raise UserError(f"{name}: no labels; give them as the second argument, load_data(images, labels)")
    found = torch.as_tensor(labels).detach().cpu()
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1 or len(found) != count:
        hint = ": labels.argmax(1), if they are one-hot" if found.ndim == 2 else ""
        raise UserError(
            f"{name}: labels of shape {tuple(found.shape)}; expected ({count},), one for each image{hint}"
        )
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        kind = str(found.dtype).removeprefix("torch.")
        raise UserError(f"{name}: labels of type {kind}; expected integers, the number of each class from 0")
    if int(found.min()) < 0:
        raise UserError(f"{name}: label {int(found.min())}; expected the number of each class from 0")
    return found.long()


def _from_loader(name: str, loader: Iterable[Any], limit: int | None) -> tuple[list[Tensor], list[int]]:
    images: list[Tensor] = []
    labels: list[int] = []
    for batch in loader:
        some, theirs = _two(name, batch)
        images += list(torch.as_tensor(some))
        labels += torch.as_tensor(theirs).tolist()
        if limit is not None and len(labels) >= limit:
            return images[:limit], labels[:limit]
    return images, labels


def _pair(name: str, item: Any) -> tuple[Tensor, Any]:
    image, label = _two(name, item)
    if hasattr(image, "convert"):  # a picture of Pillow, from a data set without a transform
        grey = image.mode in ("L", "1")
        image = (
            torch.from_numpy(np.array(image.convert("L")))[None]
            if grey
            else pil_to_tensor(image.convert("RGB"))
        )
    return torch.as_tensor(image), int(label)


def _two(name: str, item: Any) -> tuple[Any, Any]:
    if not isinstance(item, list | tuple) or len(item) < 2:
        raise UserError(f"{name}: gives a {type(item).__name__}; expected (image, label)")
    return item[0], item[1]
