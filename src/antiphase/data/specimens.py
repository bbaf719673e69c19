"""The 1,000 Fashion-MNIST test images that ship with the package as one tall grey PNG."""

import json
import os
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from PIL import Image, PngImagePlugin

from antiphase.data.arrays import FASHION_MNIST_CLASSES, fashion_mnist
from antiphase.data.images import ArrayImages
from antiphase.data.root import data_root
from antiphase.errors import UserError
from antiphase.files import replacing

SPECIMEN_FILE = "fashion-mnist-test-1000.png"
PER_CLASS = 100
_SEED = 0
_CHUNK = "antiphase"  # PNG text chunk with {"ids": [...], "labels": [...]} as JSON


def specimen_images(path: Path | None = None) -> ArrayImages:
    """Return the specimen images: 28×28 grey; ids are positions in the 10,000 Fashion-MNIST test images.

    Args:
        path: file written by ``make_specimen_images``; None: the one in the package.

    Raises:
        UserError: if the file is unreadable.
    """
    if path is None:
        with as_file(files("antiphase") / "specimens" / SPECIMEN_FILE) as own:
            return specimen_images(own)
    try:
        with Image.open(path) as image:
            notes = json.loads(image.info[_CHUNK])
            pixels = np.array(image)
    except (OSError, SyntaxError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is not a valid file of specimen images ({error}): reinstall antiphase"
        ) from error
    return ArrayImages(
        name="specimen-fashion-mnist",
        split="test",
        class_names=FASHION_MNIST_CLASSES,
        ids=torch.tensor(notes["ids"]),
        labels=torch.tensor(notes["labels"]),
        pixels=torch.from_numpy(pixels).reshape(-1, 1, 28, 28),
    )


def make_specimen_images(out: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None) -> None:
    """Write the specimen file from the full test set: 100 images per class by a fixed seed, sorted by position.

    Pixels, ids and labels are reproducible; the compression may depend on the zlib version. To regenerate the file:
    ``python -c "from antiphase.data.specimens import make_specimen_images as make; make('OUT.png')"``.

    Args:
        out: file to write.
        root: as in ``load_data``; used if Debian's package is not installed.
    """
    whole = fashion_mnist("test", data_root(root))
    generator = np.random.default_rng(_SEED)
    of_class = [np.flatnonzero(whole.labels.numpy() == label) for label in range(len(whole.class_names))]
    chosen = np.sort(np.concatenate([generator.choice(rows, PER_CLASS, replace=False) for rows in of_class]))
    specimen = whole.take(torch.from_numpy(chosen))
    notes = PngImagePlugin.PngInfo()
    notes.add_text(
        _CHUNK, json.dumps({"ids": specimen.ids.tolist(), "labels": specimen.labels.tolist()}), zip=True
    )
    with replacing(out) as temporary:
        tall = specimen.pixels.reshape(-1, specimen.pixels.shape[-1]).numpy()
        Image.fromarray(tall).save(temporary, format="PNG", optimize=True, pnginfo=notes)
