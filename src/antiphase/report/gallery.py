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
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from antiphase.budgets import eps_label
from antiphase.errors import UserError
from antiphase.files import replacing
from antiphase.reading import parse_json
from antiphase.report.page import environment


@dataclass(frozen=True)
class AttackGallery:
    """The same samples under the attack of each model, at one ε; images in [0, 1].

    ``adversarial``, ``clean_prediction`` and ``prediction`` hold one array for each of ``models``.
    """

    eps: float
    models: tuple[str, ...]
    class_names: tuple[str, ...]
    sample: Int[np.ndarray, " samples"]
    label: Int[np.ndarray, " samples"]
    clean: Float[np.ndarray, "samples channels height width"]
    adversarial: tuple[Float[np.ndarray, "samples channels height width"], ...]
    clean_prediction: tuple[Int[np.ndarray, " samples"], ...]
    prediction: tuple[Int[np.ndarray, " samples"], ...]


def write_gallery(path: Path, gallery: AttackGallery) -> None:
    """Write a gallery as safetensors.

    Tensors ``sample``, ``label``, ``clean`` and, for model m, ``m{m}.adversarial``,
    ``m{m}.clean_prediction`` and ``m{m}.prediction``; in the header ``eps``,
    ``models`` and ``class_names``, each as JSON.
    """
    tensors = {"sample": gallery.sample, "label": gallery.label, "clean": gallery.clean}
    for m in range(len(gallery.models)):
        tensors[f"m{m}.adversarial"] = gallery.adversarial[m]
        tensors[f"m{m}.clean_prediction"] = gallery.clean_prediction[m]
        tensors[f"m{m}.prediction"] = gallery.prediction[m]
    header = {"eps": gallery.eps, "models": gallery.models, "class_names": gallery.class_names}
    with replacing(path) as temporary:
        save_file(
            {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()},
            temporary,
            metadata={name: json.dumps(value) for name, value in header.items()},
        )


def read_gallery(path: Path) -> AttackGallery:
    """Read what ``write_gallery`` wrote.

    Raises:
        UserError: The file is corrupt or lacks a part.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            header = {name: parse_json(value) for name, value in file.metadata().items()}
            models = tuple(header["models"])

            def of_models(name: str) -> tuple[np.ndarray, ...]:
                return tuple(file.get_tensor(f"m{m}.{name}") for m in range(len(models)))

            return AttackGallery(
                eps=header["eps"],
                models=models,
                class_names=tuple(header["class_names"]),
                sample=file.get_tensor("sample"),
                label=file.get_tensor("label"),
                clean=file.get_tensor("clean"),
                adversarial=of_models("adversarial"),
                clean_prediction=of_models("clean_prediction"),
                prediction=of_models("prediction"),
            )
    except (SafetensorError, OSError, KeyError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): expected a run's gallery; delete it or run again"
        ) from error


_SMALL = 96  # images of at most this many pixels per side are enlarged without smoothing


def magnification(gallery: AttackGallery) -> int:
    """Return the integer factor that stretches the largest perturbation from grey to black or white."""
    largest = max(float(np.abs(images - gallery.clean).max(initial=0.0)) for images in gallery.adversarial)
    return max(int(0.5 / largest + 1e-3), 1) if largest else 1


def gallery_cards(gallery: AttackGallery) -> list[dict[str, Any]]:
    """Return one card for each sample, with a tile for each model; perturbations are magnified and centred on grey.

    A card has ``title`` and ``note``; a tile has ``model``, the images ``clean``, ``perturbation`` and ``adversarial``
    as data URIs, ``clean_prediction``, ``prediction`` and ``flipped``.
    """
    factor = magnification(gallery)

    def name(index: int) -> str:
        return gallery.class_names[index] if 0 <= index < len(gallery.class_names) else str(index)

    def tile(m: int, s: int) -> dict[str, Any]:
        before, after = int(gallery.clean_prediction[m][s]), int(gallery.prediction[m][s])
        clean, adversarial = gallery.clean[s], gallery.adversarial[m][s]
        return {
            "model": gallery.models[m],
            "clean": data_uri(clean),
            "perturbation": data_uri(0.5 + factor * (adversarial - clean)),
            "adversarial": data_uri(adversarial),
            "clean_prediction": name(before),
            "prediction": name(after),
            "flipped": before != after,
        }

    return [
        {
            "title": name(int(gallery.label[s])),
            "note": f"sample {int(sample)}",
            "tiles": [tile(m, s) for m in range(len(gallery.models))],
        }
        for s, sample in enumerate(gallery.sample)
    ]


def gallery_markup(
    gallery: AttackGallery,
    colors: Mapping[str, str],
    cards: Sequence[Mapping[str, Any]] | None = None,
    words: str = "",
    answer: str = "predicted",
) -> Markup:
    """Draw a gallery for a page.

    Args:
        gallery: the images.
        colors: of the models.
        cards: those of :func:`gallery_cards`, if they were changed.
        words: said above the images in addition.
        answer: what a model's output is, in words for screen readers.
    """
    template = environment().get_template("gallery.html")
    return Markup(
        template.render(
            cards=gallery_cards(gallery) if cards is None else cards,
            eps=eps_label(gallery.eps),
            magnification=magnification(gallery),
            hard_pixels=max(gallery.clean.shape[-2:]) <= _SMALL,
            colors=colors,
            words=words,
            answer=answer,
        )
    )


def data_uri(image: Float[np.ndarray, "channels height width"]) -> str:
    """Encode an image of one or three channels, clipped to [0, 1], as a PNG data URI."""
    pixels = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)).save(
        buffer, "PNG", optimize=True
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
