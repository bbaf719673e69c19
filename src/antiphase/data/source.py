"""What a source of images is, and the facts that are known of it without reading it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antiphase.data.images import ImageSet


@dataclass(frozen=True)
class Request:
    """What a caller asked of a source."""

    split: str
    image_size: int | None
    channels: int | None
    num_classes: int | None
    root: Path
    limit: int | None
    seed: int | None
    name: str
    path: str


@dataclass(frozen=True)
class Source:
    """A source of images, and what is known of it without reading it.

    Attributes:
        description: what it is, in one line.
        load: returns the images that were asked for.
        splits: its splits; None if ``load`` decides.
        image_size: height and width in pixels, of files the size that they are resized to by default.
        channels: of the images.
        classes: number of classes; None if only reading tells.
        train_images: number of images in the train split; None if only reading tells.
    """

    description: str
    load: Callable[[Request], ImageSet]
    splits: tuple[str, ...] | None = ("train", "test")
    image_size: int = 224
    channels: int = 3
    classes: int | None = None
    train_images: int | None = None
