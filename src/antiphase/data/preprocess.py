"""Convert images of any source to a model's input size with its own preprocessing."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.data.decoding import Square
from antiphase.data.images import FileImages, ImageSet
from antiphase.data.members import changed
from antiphase.data.pairs import FilePairs, PairSet
from antiphase.data.prefetch import in_threads
from antiphase.errors import UserError
from antiphase.files import digest


def content_key(data: ImageSet | PairSet) -> str:
    """Return a key of the images for caches on this machine.

    For files it combines the fingerprint with the modification times, because the fingerprint (names and sizes) does
    not distinguish a folder of bitmaps from a corrupted copy.

    Raises:
        UserError: if a file was removed.
    """
    if not isinstance(data, (FileImages, FilePairs)):
        return data.fingerprint()
    try:
        times = [str(changed(data.root / file)) for file in data.files]
    except OSError as error:
        raise UserError(f"{data.name}: {error.filename} was removed after the set was listed") from error
    return digest(data.fingerprint(), *times)


def model_images(
    data: ImageSet | PairSet, positions: Sequence[int], square: Square, channels: int = 3
) -> Float[Tensor, "b channels size size"]:
    """Return images as float32 in [0, 1] with the model's size and number of channels.

    Grey images are repeated over three channels if needed; arrays of the model's size are not changed.

    Args:
        data: labelled images or pairs.
        positions: positions of the images in ``data``.
        square: the model's preprocessing.
        channels: the model's number of channels.

    Raises:
        UserError: if an image is unreadable, or is in colour and the model expects grey.
    """
    if isinstance(data, FileImages):
        return data.resized(square, channels).images(positions)
    if isinstance(data, PairSet):
        if channels != 3:
            raise UserError(f"{data.name} is in colour, but the model expects grey images; use other data")
        return (
            torch.stack(list(in_threads(lambda at: square(data.pixels(at)), map(int, positions)))).float()
            / 255
        )
    images = data.images(positions)
    if images.shape[1:] == (channels, square.size, square.size):
        return images
    if channels != 3:
        raise UserError(
            f"{data.name} has images of shape {data.image_shape}, but the model expects "
            f"{(channels, square.size, square.size)}; use other data"
        )
    pixels = (images * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    return torch.stack([square(image) for image in pixels]).float() / 255
