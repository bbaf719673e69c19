"""Weights on disk: a safetensors file next to its recipe."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.errors import UserError
from antiphase.files import digest, replacing, write_json
from antiphase.reading import read_json

WEIGHTS_FILE = "model.safetensors"
RECIPE_FILE = "recipe.json"
_DIGEST = "sha256"  # of the weights, in the header of their file
CLASS_NAMES = "class_names"  # in the recipe's file


def save(
    model: nn.Module, recipe: dict[str, Any], directory: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write the recipe, then the weights rounded to ``dtype``; in this order, weights never lack a recipe."""
    write_json(directory / RECIPE_FILE, recipe)
    save_tensors(
        {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}, directory
    )


def save_tensors(tensors: dict[str, Tensor], directory: Path) -> None:
    """Write contiguous tensors that share no memory, with their digest."""
    with replacing(directory / WEIGHTS_FILE) as temporary:
        save_file(tensors, temporary, {_DIGEST: weights_digest(tensors)})


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that is sharded over processes as a whole, on the CPU; all of them have to call it."""
    return tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


def read_recipe(directory: Path) -> dict[str, Any]:
    """Return the recipe of a run directory.

    Raises:
        UserError: if it is missing or not a JSON object.
    """
    path = directory / RECIPE_FILE
    if not path.exists():
        raise UserError(
            f"{directory}: no {RECIPE_FILE} found; expected a directory written by antiphase train, train-clip, "
            "train-vlm or export"
        )
    return read_json(path, fix="restore it from a backup or train again")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Files written by ``save`` contain a digest of the weights, which is checked.

    Raises:
        UserError: if the file is missing or damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            stored = (file.metadata() or {}).get(_DIGEST)
        tensors = load_file(path)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; if the run is unfinished, resume it with the command that started it"
        ) from None
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path}: incomplete or invalid safetensors file ({error}); copy it again or retrain"
        ) from None
    if stored is not None and stored != weights_digest(tensors):
        raise UserError(
            f"{path}: damaged: its weights do not match the stored digest; copy it again or retrain"
        )
    return tensors


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of weights: safetensors, or a state dict written by ``torch.save``.

    The dictionary may lie under ``state_dict``, ``model_state_dict`` or ``model``. A pickle is read with
    ``weights_only`` and one additional safe class, ``argparse.Namespace`` (options), so that no code in the file is
    executed.

    Raises:
        UserError: if the file is missing or damaged, or contains other classes or no weights.
    """
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception:  # unpickling can raise anything, and torch's own message advises weights_only=False
        raise UserError(
            f"{path}: cannot be read safely; expected a checkpoint written by torch.save that contains only tensors, "
            "numbers and an argparse.Namespace"
        ) from None
    places = ("state_dict", "model_state_dict", "model")
    for place in places:
        if isinstance(held, dict) and isinstance(held.get(place), dict):
            held = held[place]
    if (
        not isinstance(held, dict)
        or not held
        or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in held.items())
    ):
        raise UserError(
            f"{path}: no weights found; expected a dictionary of tensors, or one under {', '.join(map(repr, places))}"
        )
    return held


def with_names_of(own: Mapping[str, Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Strip a prefix that all names share and the model's do not, such as ``module.`` of distributed training."""
    while state and not own.keys() & state.keys():
        prefix = next(iter(state)).partition(".")[0] + "."
        if not all(name.startswith(prefix) for name in state):
            break
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def check_finite(tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights with NaN or infinity.

    Raises:
        UserError: naming the first such tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"{source}: {name!r} contains NaN or infinity; copy the file again or retrain")


def load_into(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load tensors by name; names, shapes and types must match, and all weights must be finite.

    Raises:
        UserError: naming the first parameter that does not match.
    """
    own = model.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors:
            raise UserError(f"{source}: parameter {name!r} is missing; the architecture does not match")
        if name not in own:
            raise UserError(
                f"{source}: parameter {name!r} is not in the model; the architecture does not match"
            )
        if own[name].shape != tensors[name].shape:
            have, want = tuple(tensors[name].shape), tuple(own[name].shape)
            raise UserError(
                f"{source}: {name!r} has shape {have}, expected {want}; the architecture does not match"
            )
        if own[name].is_floating_point() != tensors[name].is_floating_point():
            have, want = (str(held.dtype).removeprefix("torch.") for held in (tensors[name], own[name]))
            raise UserError(f"{source}: {name!r} has type {have}; expected {want}")
    check_finite(tensors, source)
    model.load_state_dict(tensors)


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors by name: their types, shapes and bytes."""
    parts: list[bytes | str] = []
    for name, tensor in sorted(tensors.items()):
        raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), raw.numpy().tobytes()]
    return digest(*parts)
