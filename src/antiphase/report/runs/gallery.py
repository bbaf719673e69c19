"""The gallery of a report: clean image, perturbation and adversarial image for each sample and model."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from PIL import Image

from antiphase.runs.gallery import AttackGallery

_SMALL = 96  # images of at most this many pixels per side are enlarged without smoothing


@dataclass(frozen=True)
class Tile:
    """One model's attack on one sample: three images as data URIs, and the predicted classes."""

    model: str
    clean: str
    perturbation: str
    adversarial: str
    clean_prediction: str
    prediction: str
    flipped: bool


@dataclass(frozen=True)
class Card:
    """One sample with a tile for each model."""

    sample: int
    label: str
    tiles: tuple[Tile, ...]


def magnification(gallery: AttackGallery) -> int:
    """Return the integer factor that stretches the largest perturbation from grey to black or white."""
    largest = max(float(np.abs(images - gallery.clean).max(initial=0.0)) for images in gallery.adversarial)
    return max(int(0.5 / largest + 1e-3), 1) if largest else 1


def cards(gallery: AttackGallery) -> list[Card]:
    """Return one card for each sample; perturbations are magnified and centred on grey."""
    factor = magnification(gallery)

    def name(index: int) -> str:
        return gallery.class_names[index] if 0 <= index < len(gallery.class_names) else str(index)

    def tile(m: int, s: int) -> Tile:
        before, after = int(gallery.clean_prediction[m][s]), int(gallery.prediction[m][s])
        clean, adversarial = gallery.clean[s], gallery.adversarial[m][s]
        return Tile(
            model=gallery.models[m],
            clean=data_uri(clean),
            perturbation=data_uri(0.5 + factor * (adversarial - clean)),
            adversarial=data_uri(adversarial),
            clean_prediction=name(before),
            prediction=name(after),
            flipped=before != after,
        )

    return [
        Card(
            sample=int(gallery.sample[s]),
            label=name(int(gallery.label[s])),
            tiles=tuple(tile(m, s) for m in range(len(gallery.models))),
        )
        for s in range(len(gallery.sample))
    ]


def has_hard_pixels(gallery: AttackGallery) -> bool:
    """Return whether the images are small enough to be enlarged without smoothing."""
    return max(gallery.clean.shape[-2:]) <= _SMALL


def data_uri(image: Float[np.ndarray, "channels height width"]) -> str:
    """Encode an image of one or three channels, clipped to [0, 1], as a PNG data URI."""
    pixels = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)).save(
        buffer, "PNG", optimize=True
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
