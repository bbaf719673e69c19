"""Weights on disk: safetensors with the recipe beside them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.errors import UserError
from antiphase.files import replacing, write_json

WEIGHTS_FILE = "model.safetensors"
RECIPE_FILE = "recipe.json"
CLASS_NAMES = "class_names"  # in the recipe's file


def save(
    model: nn.Module, recipe: dict[str, Any], directory: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write the recipe, then the weights rounded to ``dtype``, so that weights never stand without a recipe."""
    write_json(directory / RECIPE_FILE, recipe)
    with replacing(directory / WEIGHTS_FILE) as temporary:
        save_file(
            {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}, temporary
        )


def read_recipe(directory: Path) -> dict[str, Any]:
    """Return the recipe of a run directory.

    Raises:
        UserError: if there is none, or it is not JSON.
    """
    path = directory / RECIPE_FILE
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{directory}: no {RECIPE_FILE} there; expected a directory made by antiphase train"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a recipe ({error}); take it from a backup or train again") from None
    if not isinstance(recipe, dict):
        raise UserError(f"{path}: not a recipe (no object of JSON); take it from a backup or train again")
    return recipe


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Raises:
        UserError: if the file is missing or damaged.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; an unfinished run goes on with the command that began it"
        ) from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); copy or train it again") from None


def load_into(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load tensors by name; every name and shape must match.

    Raises:
        UserError: naming the first parameter that does not fit.
    """
    own = model.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors:
            raise UserError(
                f"{source}: has no {name!r}, which the model needs; the architecture does not match"
            )
        if name not in own:
            raise UserError(f"{source}: has {name!r}, which the model lacks; the architecture does not match")
        if own[name].shape != tensors[name].shape:
            have, want = tuple(tensors[name].shape), tuple(own[name].shape)
            raise UserError(
                f"{source}: {name!r} is {have}, the model's is {want}; the architecture does not match"
            )
    model.load_state_dict(tensors)
