"""Infer from a file of weights how many classes, channels and pixels a library's classifier has to be built for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.models import checkpoints
from antiphase.models.weight_files import read_state


def build_to_fit(
    make: Callable[..., nn.Module], file: str, *, positions: str, size: str, **names: str
) -> nn.Module:
    """Build a classifier with the sizes of a file of weights, and load them.

    Args:
        make: builds the model from keyword arguments; without any, with the library's own sizes.
        file: the weights, as :func:`~antiphase.models.weight_files.read_state` takes them.
        positions: suffix of the name of a vision transformer's position embeddings, ``(1, tokens, dim)``.
        size: name of the argument of ``make`` for the side of the image in pixels.
        **names: argument of ``make`` for ``classes`` and, if it has one, for ``channels``.

    Raises:
        UserError: naming the first parameter that does not match.
    """
    with torch.device("meta"):
        plain = make()
    own = plain.state_dict()
    state = read_state(file, own, sized=False)
    sizes: dict[str, Any] = {}
    heads = [name for name, weight in own.items() if name.endswith(("weight", "bias")) and weight.ndim]
    if (head := heads[-1]) in state and state[head].ndim:
        sizes[names["classes"]] = len(state[head])
    first = next((name for name, weight in own.items() if weight.ndim == 4), None)
    if "channels" in names and first in state and state[first].ndim == 4:
        sizes[names["channels"]] = state[first].shape[1]
    place = next((name for name in own if name.endswith(positions)), None)
    if place in state and first in own and state[place].shape != own[place].shape:
        sizes[size] = _side(state[place], own[place], own[first].shape[-1])
    model = make(**sizes)
    checkpoints.load_into(model, state, file)
    return model


def _side(given: Tensor, own: Tensor, patch: int) -> int:
    """Return the side of the image of given position embeddings; tokens that are no patches are as in ``own``."""
    others = own.shape[-2] - int(own.shape[-2] ** 0.5) ** 2
    return round(max(given.shape[-2] - others, 1) ** 0.5) * patch
