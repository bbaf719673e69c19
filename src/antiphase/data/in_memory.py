"""Images of your own: NumPy arrays and tensors, data sets and loaders of torch, and ``.npz`` files."""

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor
from torch.utils import data as torch_data

from antiphase.data import decoding, folders, image_sets
from antiphase.data.images import ArrayImages, subset_rows
from antiphase.errors import NoSuchSplit, UserError, first_line, refusing, shown
from antiphase.files import printable, regular_file

Names = Sequence[str] | None  # of the classes; None: as the data have them
MOST_CLASSES = 1_000_000  # larger labels are ids, for which there would be a class each
_EXPECTED = "uint8 in 0..255, or floating point in [0, 1], (images, channels, height, width), 1 or 3 channels"


def array_images(name: str, images: Any, labels: Any, split: str = "test", class_names: Names = None) -> ArrayImages:
    """Return labelled images held in arrays, see :func:`checked_pixels` and :func:`class_numbers`."""
    pixels = checked_pixels(name, images)
    numbers = class_numbers(name, labels, len(pixels))
    last = int(numbers.max())
    names = ordered_names([*map(str, range(last + 1))] if class_names is None else class_names)
    if names is None or last >= len(names):
        raise UserError(f"{name}: label {last}, class names {shown(class_names)}; expected a name for each class")
    return ArrayImages.whole(name, split, names, numbers, pixels=pixels)


def dataset_images(data: Any, limit: int | None = None, seed: int | None = None, names: Names = None) -> ArrayImages:
    """Read a ``Dataset`` of items that begin with (image, label), or a ``DataLoader`` of such batches, into memory.

    The loader must not shuffle. Only ``limit`` images are read: the first, or those of ``ImageSet.subset`` with a seed.
    """
    name = f"dataset:{type(data).__name__}"
    try:
        if isinstance(data, torch_data.DataLoader):
            samplers = (data.sampler, getattr(data.batch_sampler, "sampler", None))
            # torch has three random samplers, and one for several processes that may shuffle
            if any("Random" in type(one).__name__ or getattr(one, "shuffle", False) for one in samplers):
                raise UserError(f"{name}: shuffles; expected shuffle=False, so that each image keeps its number")
            if limit is not None and seed is not None:
                raise UserError(f"{name}: gives images in its order, without a seed; give its Dataset to draw some")
            items = list(itertools.islice(_from_loader(name, data), limit))
            rows = torch.arange(len(items))
        else:
            rows = subset_rows(len(data), limit, seed)
            items = [_pair(name, data[row]) for row in rows.tolist()]
        pixels = torch.stack([_image(image) for image, _ in items])
    except UserError:
        raise
    except Exception as error:  # a data set may fail in any way
        why = f"cannot be read ({type(error).__name__}: {first_line(error)})"
        raise UserError(f"{name}: {why}; expected images that are tensors of one shape") from error
    labels = [label for _, label in items]
    if names is None and not _renumbered(data, rows.tolist(), labels):
        names = dataset_class_names(data)
    return array_images(name, pixels, labels, class_names=names).altered(ids=rows)


def _renumbered(data: Any, rows: list[int], labels: list[Any]) -> bool:
    """Whether labels differ from those of the data set that a subset or loader is of, as far as they are numbers."""
    while isinstance(data, torch_data.Subset | torch_data.DataLoader):
        whole = isinstance(data, torch_data.DataLoader) and isinstance(data.sampler, torch_data.SequentialSampler)
        rows = [data.indices[row] for row in rows] if isinstance(data, torch_data.Subset) else rows if whole else []
        data = data.dataset
    targets: Any = getattr(data, "targets", None)
    with suppress(TypeError, ValueError):  # there may be none, or none that are numbers
        return any(int(targets[row]) != int(label) for row, label in zip(rows, labels, strict=False))
    return False


def _from_loader(name: str, loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for images, labels in (_pair(name, batch) for batch in loader):
        if not isinstance(labels, Sequence) and np.ndim(labels) == 0:  # batch_size=None: single items
            yield images, labels
            continue
        if len(images) != len(labels):
            raise UserError(f"{name}: {len(images)} images with {len(labels)} labels; expected one for each")
        yield from zip(images, labels, strict=True)


def _pair(name: str, item: Any) -> tuple[Any, Any]:
    if not isinstance(item, list | tuple) or len(item) < 2:
        raise UserError(f"{name}: gives a {type(item).__name__}; expected (image, label)")
    return item[0], item[1]


def _image(image: Any) -> Tensor:
    if not isinstance(image, Image.Image):
        return torch.as_tensor(image)
    grey = image.mode in ("1", "L") or image.mode.startswith("I")  # from a data set without a transform
    return decoding.pil_to_tensor(decoding.flat(image, "L" if grey else "RGB"))


def dataset_class_names(data: Any) -> tuple[str, ...] | None:
    """Return the class names of a data set of torch, also of a subset, concatenation or loader; None: not known."""
    if isinstance(data, torch_data.Subset | torch_data.DataLoader):
        return dataset_class_names(data.dataset)
    if isinstance(data, torch_data.ConcatDataset):
        several = set(map(dataset_class_names, data.datasets))
        if len(several) > 1:
            raise UserError(f"ConcatDataset: parts of different classes, {shown(several)}; give class_names")
        return several.pop()
    if getattr(data, "target_transform", None) is not None:  # labels need not count the classes any more
        return None
    if getattr(data, "_target_types", ["category"]) != ["category"]:  # OxfordIIITPet's cats and dogs, or masks
        cats_and_dogs = data._target_types == ["binary-category"]
        return ordered_names(getattr(data, "bin_classes", None)) if cats_and_dogs else None
    if wnids := ordered_names(getattr(data, "wnids", None)):  # ImageNet's, with two classes called crane
        return tuple(image_sets.prompt_names().get(wnid, wnid) for wnid in wnids)
    names, numbered = (ordered_names(getattr(data, field, None)) for field in ("classes", "class_to_idx"))
    return numbered if names is None or sorted(names) == sorted(numbered or ()) else names  # labels are by number


def ordered_names(classes: Any) -> tuple[str, ...] | None:
    """Return class names in the order of their numbers; None if they are in no form that is known."""
    if isinstance(classes, Mapping):
        if all(isinstance(value, int) for value in classes.values()):
            classes = {number: name for name, number in classes.items()}
        classes = [classes.get(number) for number in range(len(classes))]
    classes = classes.tolist() if isinstance(classes, np.ndarray) else classes
    if not isinstance(classes, Sequence) or isinstance(classes, str | bytes) or not len(classes):
        return None
    names = [entry[0] if isinstance(entry, list | tuple) and entry else entry for entry in classes]
    names = [name.decode(errors="replace") if isinstance(name, bytes) else name for name in names]
    return tuple(map(str, names)) if all(isinstance(name, str | int) for name in names) else None


def npz_images(path: str, split: str) -> ArrayImages:
    """Return the images of a NumPy archive, described in docs/data.md; nothing is unpickled."""
    name = f"npz:{printable(path)}"
    try:
        with regular_file(os.path.expanduser(path)) as raw:  # NumPy itself would leave a damaged file open
            archive = np.load(raw, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array")
            keys = _by_split(name, archive.files)
            if [*keys] == ["test"] != [split]:
                fix = f"name them {split}_images and {split}_labels, and others test_images and test_labels"
                raise NoSuchSplit(f"{name}: has no {split} split, only images and labels to test on: {fix}")
            split = folders.choose_split(name, split, [part for part in folders.SPLITS if part in keys])
            images, labels = (archive[key] for key in keys[split])  # the other arrays are not read
            names = archive["class_names"].tolist() if "class_names" in archive.files else None
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        reason = getattr(error, "strerror", None) or first_line(error).partition("set allow_pickle")[0]
        raise UserError(f"{name}: cannot be read ({reason}); expected a file of numpy.savez") from None
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    return array_images(name, images, labels, split, names)


def _by_split(name: str, arrays: Sequence[str]) -> dict[str, tuple[str, str]]:
    forms = [(part, form) for word, part in folders.SPLIT_WORDS.items() for form in (f"{word}_{{}}", f"{{}}_{word}")]
    keys = {
        part: (form.format(images), form.format(labels))
        for images, labels in (("x", "y"), ("images", "labels"))
        for part, form in reversed([*forms, ("test", "{}")])
        if {*arrays} >= {form.format(images), form.format(labels)}
    }
    if not keys:
        raise UserError(f"{name}: has the arrays {', '.join(arrays) or 'none'}; expected images, labels")
    return keys


def class_numbers(name: str, labels: Any, count: int) -> Int64[Tensor, " count"]:
    """Return labels as class numbers from 0; they may be truth values, whole floats, or in arrays of one element."""
    if labels is None:
        raise UserError(f"{name}: no labels; give them as the second argument, load_data(images, labels)")
    try:
        values = np.asarray(_plain(labels))
        if values.dtype.kind not in "biufO":  # a float would be made of text, too
            raise TypeError(f"they are of type {values.dtype}")
        values = values.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{name}: labels {shown(labels)} ({first_line(error)}); expected class numbers") from None
    if values.size != count or values.shape[:1] != (count,):
        raise UserError(f"{name}: labels of shape {values.shape}; expected ({count},), one number an image")
    values = values.reshape(count)
    odd = values[~((values >= 0) & (values < MOST_CLASSES) & (values == np.floor(values)))]  # includes NaN
    if len(odd):
        raise UserError(f"{name}: label {odd[0]:.15g}; expected class numbers from 0 to {MOST_CLASSES - 1:,}")
    return torch.from_numpy(values.astype(np.int64))


def _plain(labels: Any) -> Any:
    """Return labels as Python's numbers, perhaps in lists."""
    if isinstance(labels, list | tuple):
        return [_plain(label) for label in labels]
    return labels.tolist() if isinstance(labels, Tensor | np.ndarray | np.generic) else labels


def checked_pixels(name: str, images: Any) -> Tensor:
    """Return images ``(images, channels, height, width)`` as uint8 in 0..255 or float32 in [0, 1]."""
    wrong = (TypeError, ValueError, RuntimeError)
    with refusing(f"{name}: images are no array of numbers", f"; expected {_EXPECTED}", *wrong):
        if isinstance(images, np.ma.MaskedArray):
            raise TypeError("they are masked")
        if isinstance(images, Tensor) and (images.is_nested or images.layout is not torch.strided):
            raise TypeError("they are nested or sparse")
        if not isinstance(images, Tensor):
            array = np.asarray(images)
            if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # long double, which torch lacks
                array = array.astype(np.float64)
            # torch takes neither another byte order nor negative strides, and warns of arrays that are read-only
            images = torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
        pixels = images.detach().cpu().contiguous()
    shape, kind = tuple(pixels.shape), str(pixels.dtype).removeprefix("torch.")
    whole = pixels.dtype == torch.uint8
    is_batch = len(shape) == 4 and shape[1] in (1, 3) and math.prod(shape) > 0
    if not is_batch or not (whole or pixels.is_floating_point()):
        raise UserError(f"{name}: images of shape {shape} and type {kind}; expected {_EXPECTED}")
    pixels = pixels if whole else pixels.float()
    low, high = (float(value) for value in torch.aminmax(pixels))
    if high == 1 if whole else not (low >= 0 and high <= 1):
        expected = "0..255: multiply by 255" if whole else "[0, 1]: divide bytes by 255, and do not normalise"
        raise UserError(f"{name}: images of type {kind} in [{low:.4g}, {high:.4g}]; expected {expected}")
    return pixels
