"""Weights on disk: a safetensors file next to its recipe."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.errors import UserError, shown
from antiphase.files import digest, replacing, write_json
from antiphase.reading import read_json

WEIGHTS_FILE = "model.safetensors"
RECIPE_FILE = "recipe.json"
_DIGEST = "sha256"  # of the weights, in the header of their file
CLASS_NAMES = "class_names"  # in the recipe's file
COUNTER = "num_batches_tracked"  # of batch norm: read in training only, absent in files of before torch 0.4.1


def save(
    model: nn.Module, recipe: dict[str, Any], directory: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write the recipe, then the weights rounded to ``dtype``; in this order, weights never lack a recipe."""
    write_json(directory / RECIPE_FILE, recipe)
    save_tensors(
        {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}, directory
    )


def save_tensors(tensors: dict[str, Tensor], directory: Path) -> None:
    """Write contiguous tensors that share no memory, with their digest.

    Raises:
        UserError: if they are not finite, perhaps only since they were rounded.
    """
    check_finite(tensors, str(directory), "; retrain with --store float32 or a lower --learning-rate")
    write_tensors(tensors, directory / WEIGHTS_FILE)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write contiguous tensors that share no memory, with their digest, which :func:`read_weights` checks."""
    with replacing(path) as temporary:
        save_file(tensors, temporary, {_DIGEST: weights_digest(tensors)})


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that is sharded over processes as a whole, on the CPU; all of them have to call it."""
    return tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


def read_recipe(directory: Path) -> dict[str, Any]:
    """Return the recipe of a run directory.

    Raises:
        UserError: if it is missing or not a JSON object, or its seed or data are of another type.
    """
    path = directory / RECIPE_FILE
    if not path.exists():
        raise UserError(
            f"{directory}: no {RECIPE_FILE} found; expected a directory written by antiphase train, train-clip, "
            "train-vlm or export"
        )
    recipe = read_json(path, fix="restore it from a backup or train again")
    seed, data = recipe.get("seed"), recipe.get("data")
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**63):
        raise UserError(f"{path}: seed {shown(seed)}: expected an integer of at least 0; train again")
    if data is not None and not isinstance(data, str):
        raise UserError(f"{path}: data {shown(data)}: expected the name of data; train again")
    return recipe


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Files written by ``save`` contain a digest of the weights, which is checked.

    Raises:
        UserError: if the file is missing or damaged.
    """
    if path.exists() and (why := mistaken(path)):
        raise UserError(f"{path}: {why}")
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


def mistaken(path: Path) -> str | None:
    """Return what a path is, and what to do, if it is plainly no file of weights; nothing is unpickled."""
    if path.is_dir():
        return "is a folder; expected a file in it"
    if not path.is_file():
        return "is no regular file; expected a file of weights" if path.exists() else "no such file"
    with path.open("rb") as file:
        head = file.read(256)
    if not head:
        return "is empty; copy or download it again"
    if head.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS; get the weights with git lfs pull"
    if head.lstrip().startswith((b"<", b"{")) and b"\0" not in head:
        return "is a web page or other text; download the weights again, from the link to the file itself"
    if head.startswith(b"PK\3\4"):
        try:
            names = zipfile.ZipFile(path).namelist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return "is incomplete; copy or download it again"
        if any(name.endswith("constants.pkl") for name in names):
            return (
                "is a TorchScript archive; save its weights alone, with "
                "torch.save(torch.jit.load(FILE).state_dict(), 'weights.pt')"
            )
        if not any(name.endswith("data.pkl") for name in names):
            return "is an archive of something else; expected a file that torch.save or safetensors wrote"
    return None


def check_finite(
    tensors: Mapping[str, Tensor], source: str, advice: str = "; copy the file again or retrain"
) -> None:
    """Refuse weights with NaN or infinity.

    Raises:
        UserError: naming the first such tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"{source}: {name!r} contains NaN or infinity{advice}")


def load_into(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load tensors by name; names, shapes and types must match, and all weights must be finite.

    Raises:
        UserError: naming the first parameter that does not match.
    """
    own = model.state_dict()
    tensors = {name: value for name, value in own.items() if name.endswith(COUNTER)} | tensors
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
