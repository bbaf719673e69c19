"""A few attacked images of a run, on disk and on its page."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from antiphase.errors import UserError
from antiphase.files import parse_json, replacing
from antiphase.report.page import environment


@dataclass(frozen=True)
class AttackGallery:
    """The same samples, with images in [0, 1], under the attack of each of ``models`` at one ε."""

    eps: float
    models: tuple[str, ...]
    class_names: tuple[str, ...]
    sample: Int[np.ndarray, " samples"]
    label: Int[np.ndarray, " samples"]
    clean: Float[np.ndarray, "samples channels height width"]
    adversarial: Float[np.ndarray, "models samples channels height width"]
    clean_prediction: Int[np.ndarray, "models samples"]
    prediction: Int[np.ndarray, "models samples"]
    files: tuple[str, ...] = ()


_ARRAYS = ("sample", "label", "clean", "adversarial", "clean_prediction", "prediction")
_NAMES = ("models", "class_names", "files")


def write_gallery(path: Path, gallery: AttackGallery) -> None:
    """Write a gallery as safetensors, with ε and names as JSON in the header."""
    header = {name: json.dumps(getattr(gallery, name)) for name in ("eps", *_NAMES)}
    with replacing(path) as temporary:
        save_file({name: np.ascontiguousarray(getattr(gallery, name)) for name in _ARRAYS}, temporary, header)


def read_gallery(content: bytes) -> AttackGallery:
    """Return the gallery in the content of a file of ``write_gallery``."""
    try:
        start = 8 + int.from_bytes(content[:8], "little")
        header = parse_json(content[8:start])["__metadata__"]
        names: Any = {name: tuple(parse_json(header[name])) for name in _NAMES}
        arrays: Any = load(content)
        return AttackGallery(parse_json(header["eps"]), **names, **{name: arrays[name] for name in _ARRAYS})
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        expected = "expected a run's gallery; delete it or run again"
        raise UserError(f"gallery.safetensors cannot be read ({error}): {expected}") from error


_SMALL = 96  # images of at most this many pixels per side are enlarged without smoothing


def magnification(gallery: AttackGallery) -> int:
    """Return the integer factor that stretches the largest perturbation from grey to black or white."""
    largest = float(np.abs(gallery.adversarial - gallery.clean).max(initial=0.0))
    return max(int(0.5 / largest + 1e-3), 1) if largest else 1


def gallery_markup(
    gallery: AttackGallery,
    colors: Mapping[str, str],
    titles: Sequence[str] | None = None,
    answers: Mapping[str, Sequence[Sequence[str]]] | None = None,
    words: str = "",
) -> Markup:
    """Draw a gallery for a page; perturbations are magnified and centred on grey."""
    known = dict(enumerate(gallery.class_names))

    def names(labels: Any) -> list[str]:
        return [known.get(label, str(label)) for label in labels.tolist()]

    pairs = zip(gallery.models, gallery.clean_prediction, gallery.prediction, strict=True)
    named = {model: list(zip(*map(names, pair), strict=True)) for model, *pair in pairs}
    values = {"gallery": gallery, "colors": colors, "titles": titles, "words": words, "data_uri": data_uri}
    values |= {"labels": names(gallery.label), "answers": answers or named, "magnification": magnification(gallery)}
    values["hard_pixels"] = max(gallery.clean.shape[-2:]) <= _SMALL
    return Markup(environment().get_template("gallery.html").render(values))


def data_uri(image: Float[np.ndarray, "channels height width"]) -> str:
    """Encode an image of one or three channels, clipped to [0, 1], as a PNG data URI."""
    pixels = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1))
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
