"""What images a classifier takes, found by running it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antiphase.errors import UserError, first_line
from antiphase.modules import advice, device_of

_SIDES = (8, 16, 28, 32, 48, 64, 96, 112, 128, 144, 160, 192, 224, 240, 256, 288, 320, 336, 384, 448, 512)
_USUAL = 224  # of a model that takes any


@dataclass(frozen=True)
class Probe:
    """What a classifier takes and returns.

    Attributes:
        image_shape: (channels, height, width).
        num_classes: number of logits.
        any_size: whether it also takes images of other sizes.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    any_size: bool = False


def probe(model: nn.Module, spec: str, image_shape: tuple[int, int, int] | None = None) -> Probe:
    """Find the images that a classifier takes, and its number of logits.

    Args:
        model: a classifier in evaluation mode.
        spec: its specification, for error messages.
        image_shape: its own; if None, the usual ones are tried, the smallest first.

    Raises:
        UserError: if the model fails on images of every shape that was tried, or does not return logits.
    """
    odd: UserError | None = None
    failure: BaseException | None = None
    for shape in [image_shape] if image_shape else _shapes(model):
        try:
            output = _run(model, shape)
        except Exception as error:
            failure = failure or error
            continue
        count = _logits(output)
        if count is None:
            odd = odd or UserError(
                f"{spec}: returns {_described(output)} for images of shape {(2, *shape)}; expected logits, a tensor "
                "of shape (images, classes)"
            )
            continue
        if image_shape is None and _takes(model, (shape[0], 2 * shape[1], 2 * shape[2]), count):
            return Probe((shape[0], _USUAL, _USUAL), count, any_size=True)
        return Probe(shape, count)
    if odd is not None:
        raise odd
    assert failure is not None
    tried = (
        f"shape {image_shape}"
        if image_shape
        else f"{_SIDES[0]}×{_SIDES[0]} to {_SIDES[-1]}×{_SIDES[-1]} pixels"
    )
    other = "if it takes images of another shape, give the model an attribute image_shape = (channels, height, width)"
    raise UserError(
        f"{spec}: fails on images of {tried} ({type(failure).__name__}: {first_line(failure)}); "
        f"{advice(model, torch.float32, failure) or other}"
    ) from failure


def _shapes(model: nn.Module) -> Iterator[tuple[int, int, int]]:
    """Yield the usual shapes, with the channels of the first convolution; for patches, whole ones and at least 2×2.

    With a single patch, position embeddings for any number of tokens would fit.
    """
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    channels = (3, 1) if first is None else (first.in_channels,)
    patch = first.stride[0] if first is not None and first.stride == first.kernel_size else 1
    for side in _SIDES:
        if patch == 1 or (side % patch == 0 and side > patch):
            yield from ((count, side, side) for count in channels)


@torch.no_grad()
def _run(model: nn.Module, shape: tuple[int, int, int]) -> object:
    return model(torch.full((2, *shape), 0.5, device=device_of(model)))


def _logits(output: object) -> int | None:
    """Return the number of logits; None if the output is something else."""
    if (
        not isinstance(output, Tensor)
        or not output.is_floating_point()
        or output.ndim != 2
        or len(output) != 2
    ):
        return None
    return output.shape[1] or None


def _takes(model: nn.Module, shape: tuple[int, int, int], count: int) -> bool:
    try:
        return _logits(_run(model, shape)) == count
    except Exception:
        return False


def _described(output: object) -> str:
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"a tensor of {str(output.dtype).removeprefix('torch.')} and shape {tuple(output.shape)}"
