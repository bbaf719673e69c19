"""What every source's labels and arrays of pixels are checked for."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.errors import UserError, first_line, shown

MOST_CLASSES = 1_000_000
"""Larger labels are ids, for which there would be a class each."""

_LAYOUT = "(images, channels, height, width)"
_TYPES = "uint8 in 0..255, or floating point in [0, 1]"


def class_numbers(name: str, labels: Any, count: int) -> Int64[Tensor, " count"]:
    """Return labels as numbers of classes from 0.

    Args:
        name: of the images, for messages.
        labels: array, tensor or list of ``count`` integers, also as truth values, as floating-point numbers that are
            whole, or in arrays of one element each.
        count: number of images.

    Raises:
        UserError: naming the first label that is no class number.

    >>> class_numbers("array", [np.array([1.0]), np.array([3.0])], 2)
    tensor([1, 3])
    """
    if labels is None:
        raise UserError(f"{name}: no labels; give them as the second argument, load_data(images, labels)")
    values = _array(labels)
    if values.dtype.kind not in "biuf":
        odd = next((one for one in values.ravel().tolist() if type(one) not in (bool, int, float)), labels)
        raise UserError(f"{name}: label {shown(odd)}; expected the number of a class for each image")
    if values.size != count or values.shape[:1] != (count,):
        hint = ": labels.argmax(1), if they are one-hot" if values.ndim == 2 and len(values) == count else ""
        raise UserError(
            f"{name}: labels of shape {values.shape}; expected ({count},), one for each image{hint}"
        )
    values = values.reshape(count)
    odd = values[~((values >= 0) & (values < MOST_CLASSES) & (values == np.floor(values)))]  # includes NaN
    if len(odd):
        worst = odd.max() if (odd >= MOST_CLASSES).any() else odd[0]
        raise UserError(
            f"{name}: label {worst}; expected the number of each class from 0, at most {MOST_CLASSES - 1:,}"
        )
    return torch.from_numpy(values.astype(np.int64))


def checked_pixels(name: str, images: Any) -> Tensor:
    """Return images as uint8 in 0..255 or float32 in [0, 1].

    Args:
        name: of the images, for messages.
        images: array or tensor, ``(images, channels, height, width)`` with 1 or 3 channels.

    Raises:
        UserError: naming the range, layout or type that is not as expected.
    """
    try:
        pixels = _tensor(images)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = first_line(error)
        raise UserError(f"{name}: images are no array of numbers ({reason}); expected {_TYPES}") from None
    _check_layout(name, tuple(pixels.shape))
    kind = str(pixels.dtype).removeprefix("torch.")
    if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
        hint = "divide them by 65535, or by the largest value that they can have" if kind == "uint16" else ""
        raise UserError(f"{name}: images of type {kind}; expected {_TYPES}{hint and f': {hint}'}")
    pixels = pixels if pixels.dtype == torch.uint8 else pixels.float()
    low, high = (float(value) for value in torch.aminmax(pixels))
    whole = pixels.dtype == torch.uint8
    if high == 1 if whole else not (low >= 0 and high <= 1):
        wanted = "0..255: multiply them by 255" if whole else f"[0, 1]: {_fix(low, high)}"
        raise UserError(f"{name}: images of type {kind} in [{low:.4g}, {high:.4g}]; expected {wanted}")
    return pixels


def channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is (images, height, width, channels)."""
    return len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)


def _check_layout(name: str, shape: tuple[int, ...]) -> None:
    if channels_last(shape):
        raise UserError(
            f"{name}: images of shape {shape} have their channels last; expected {_LAYOUT}: images.transpose(0, 3, "
            "1, 2) in NumPy, images.permute(0, 3, 1, 2) in torch"
        )
    if len(shape) != 4 or shape[1] not in (1, 3):
        side = math.isqrt(shape[1]) if len(shape) == 2 else 0
        hint = ": add the channel, images[:, None]" if len(shape) == 3 else ""
        hint = f": images.reshape(-1, 1, {side}, {side})" if side and side**2 == shape[1] else hint
        raise UserError(f"{name}: images of shape {shape}; expected {_LAYOUT} with 1 or 3 channels{hint}")
    if not math.prod(shape):
        raise UserError(f"{name}: no images; expected at least one")


def _fix(low: float, high: float) -> str:
    if low >= 0 and high <= 255:
        return "divide them by 255"
    if low < 0:
        return "leave out the normalisation, which belongs into the model"
    return "scale them to [0, 1], without NaN"


def _array(labels: Any) -> np.ndarray:
    """Return labels as an array, of dtype object if they are of no one type or shape."""

    def plain(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        return (_tensor(one).double() if one.is_floating_point() else _tensor(one)).numpy()

    try:
        values = np.asarray(
            [plain(one) for one in labels] if isinstance(labels, list | tuple) else plain(labels)
        )
        values = np.asarray(values.tolist()) if values.dtype == object else values
        return values.astype(np.float64) if values.dtype.kind == "f" else values
    except (TypeError, ValueError, RuntimeError):
        odd = np.empty(1, dtype=object)
        odd[0] = labels
        return odd


def _tensor(images: Any) -> Tensor:
    if isinstance(images, Tensor):
        if images.is_nested or images.layout is not torch.strided:
            raise TypeError("they are nested or sparse")
        return images.detach().cpu().contiguous()
    if isinstance(images, np.ma.MaskedArray):
        raise TypeError("they are masked")
    array = np.asarray(images)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # long double, which torch lacks
        array = array.astype(np.float64)
    # torch takes neither another byte order nor negative strides, and warns of arrays that cannot be written to
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
