"""A few attacked images of a run, on disk."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from antiphase.errors import UserError
from antiphase.files import replacing
from antiphase.reading import parse_json


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
