"""Models, their images and the device they run on, as the options name them."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from antiphase.errors import UserError

if TYPE_CHECKING:
    from antiphase.data import ImageSet


def load_models(specs: Sequence[str], *, random_weights: bool, device: str) -> list[nn.Module]:
    """Load models onto a device; ``random_weights`` concerns those of timm."""
    from antiphase.models.zoo import load_model

    place = find_device(device)
    return [
        load_model(spec.strip(), random_weights=random_weights and spec.strip().startswith("timm:")).to(place)
        for spec in specs
    ]


def load_images(
    model: nn.Module, data: str | None, *, split: str, limit: int | None, skip_bad: bool, progress: bool
) -> "ImageSet":
    """Load the images that were asked for, or else those that the model was trained for.

    Raises:
        UserError: if nothing was asked for and the model says nothing of its data.
    """
    from antiphase.data import load_data
    from antiphase.models.zoo import card_of

    card = card_of(model)
    own = {"specimen": "specimen-fashion-mnist"}.get(card.spec.partition(":")[0])
    if (source := data or own or (card.recipe or {}).get("data")) is None:
        raise UserError(f"{card.spec} says nothing of its data: give --data, for example --data folder:PATH")
    channels, size, _ = card.image_shape
    return load_data(
        source, split=split, image_size=size, channels=channels, limit=limit, seed=0, skip_bad=skip_bad,
        num_classes=card.num_classes if source == "random" else None, progress=progress,
    )  # fmt: skip


def find_device(name: str) -> torch.device:
    """Return the device of a name; auto takes a GPU where there is one.

    Raises:
        UserError: if it cannot be used.
    """
    if name == "auto":
        own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # each of torchrun's processes has one
        return torch.device(own if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used ({reason}); try --device cpu") from None
    return device
