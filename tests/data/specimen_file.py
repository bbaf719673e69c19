"""Write the file of Fashion-MNIST images in the package: ``python -m tests.data.specimen_file OUT``."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, PngImagePlugin

from antiphase.data.folders import data_root
from antiphase.data.image_sets import SPECIMEN_CHUNK, fashion_mnist


def make_specimen_images(out: Path, per_class: int = 100) -> None:
    """Draw images of each class from the test set by a fixed seed, sorted by position.

    Pixels, ids and labels are reproducible; the compression may depend on the zlib version.
    """
    whole = fashion_mnist("test", data_root())
    generator = np.random.default_rng(0)
    of_class = [np.flatnonzero(whole.labels.numpy() == label) for label in range(len(whole.class_names))]
    chosen = np.sort(np.concatenate([generator.choice(rows, per_class, replace=False) for rows in of_class]))
    specimen = whole.take(torch.from_numpy(chosen))
    notes = PngImagePlugin.PngInfo()
    told = json.dumps({"ids": specimen.ids.tolist(), "labels": specimen.labels.tolist()})
    notes.add_text(SPECIMEN_CHUNK, told, zip=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    tall = specimen.pixels.reshape(-1, specimen.pixels.shape[-1]).numpy()
    Image.fromarray(tall).save(out, format="PNG", optimize=True, pnginfo=notes)


if __name__ == "__main__":
    make_specimen_images(Path(sys.argv[1]))
