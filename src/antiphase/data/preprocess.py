"""Images of any source as a model takes them: squared by the model's own preprocessing."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.data.decoding import Square
from antiphase.data.images import FileImages, ImageSet
from antiphase.data.pairs import FilePairs, PairSet
from antiphase.data.prefetch import in_threads
from antiphase.data.tar_members import changed
from antiphase.errors import UserError
from antiphase.files import digest


def content_key(data: ImageSet | PairSet) -> str:
    """Return what stands for the images in the name of what is stored of them on this machine.

    For files it is the set's fingerprint and when each was last changed: the fingerprint alone, of names and sizes, is
    the same for a folder of bitmaps and for its corrupted copy.

    Raises:
        UserError: a file is gone.
    """
    if not isinstance(data, (FileImages, FilePairs)):
        return data.fingerprint()
    try:
        times = [str(changed(data.root / file)) for file in data.files]
    except OSError as error:
        raise UserError(f"{data.name}: {error.filename} is gone since the set was listed") from error
    return digest(data.fingerprint(), *times)


def model_images(
    data: ImageSet | PairSet, positions: Sequence[int], square: Square, channels: int = 3
) -> Float[Tensor, "b channels size size"]:
    """Return images as float32 in [0, 1], of the model's size and number of channels.

    Grey images are repeated for a model of three channels; an image of the model's size is left as it is.

    Args:
        data: labelled images or pairs.
        positions: which of them.
        square: the model's preprocessing.
        channels: of the model.

    Raises:
        UserError: an image cannot be read, or is in colour and the model takes grey ones.
    """
    if isinstance(data, FileImages):
        own = replace(data, image_size=square.size, interpolation=square.interpolation, channels=channels)
        return own.images(positions)
    if isinstance(data, PairSet):
        if channels != 3:
            raise UserError(f"{data.name} is in colour, the model takes images of {channels} channel")
        return (
            torch.stack(list(in_threads(lambda at: square(data.pixels(at)), map(int, positions)))).float()
            / 255
        )
    images = data.images(positions)
    if images.shape[1:] == (channels, square.size, square.size):
        return images
    if channels != 3:
        raise UserError(
            f"{data.name} has images of shape {data.image_shape}, the model takes {channels} channel and {square.size} "
            "pixels a side: expected the same"
        )
    pixels = (images * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    return torch.stack([square(image) for image in pixels]).float() / 255
