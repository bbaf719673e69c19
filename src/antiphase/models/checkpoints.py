"""Weights on disk: our safetensors file next to its recipe, and files of weights as other training code writes them."""

import argparse
import itertools
import json
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from antiphase.errors import UserError, invalid, shown
from antiphase.files import digest, read_json, replacing, write_json

State = dict[str, Tensor]
Config = TypeVar("Config", bound=BaseModel)
WEIGHTS_FILE = "model.safetensors"
RECIPE_FILE = "recipe.json"
CLASS_NAMES = "class_names"  # in the recipe's file
_DIGEST = "sha256"  # of the weights, in the header of their file
_COUNTER = "num_batches_tracked"  # of batch norm: read in training only, absent before torch 0.4.1
_WRAPPER = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")  # of compile, FSDP
# of a moving average: not model_no_ema or state_dict_before_swa
_AVERAGE = re.compile(r"(^|[._])(?<!no_)(?<!no[nt]_)(?<!before_)(?<!without_)(ema|swa|averaged)([._]|$)", re.IGNORECASE)
_ASIDE = re.compile(  # kept with the weights, but no weights
    r"(criterion|loss)\w*\..*"  # of the loss in a Lightning module
    r"|(.*\.)?(n_averaged|total_ops|total_params|num_batches_tracked|position_ids|relative_position_index|attn_mask)"
)
_MISTAKEN = {  # how files begin that are no weights
    rb"\Z": "is empty; copy or download it again",
    rb"version https://git-lfs": "is a pointer of Git LFS; get the weights with git lfs pull",
    rb"\s*[<{][^\0]*\Z": "is a web page or other text; download the weights again, from the link to the file itself",
}
_INDEX = ".index.json"  # of a checkpoint in several files
_MOST_SHOWN = 5


def save(model: nn.Module, recipe: dict[str, Any], folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the recipe, then the weights rounded to ``dtype``; in this order, weights never lack a recipe."""
    write_json(folder / RECIPE_FILE, recipe)
    state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in model.state_dict().items()}
    save_tensors(unshared(state), folder)


def unshared(tensors: State) -> State:
    """Return contiguous tensors of which no two share memory, as safetensors requires; tied weights do."""
    places: set[int] = set()
    state: State = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        state[name] = tensor.clone() if place in places else tensor.contiguous()
        places.add(place)
    return state


def save_tensors(tensors: State, directory: Path) -> None:
    """Write contiguous tensors that share no memory, with their digest; refuse them if rounding made one infinite."""
    check_finite(tensors, str(directory), "retrain with --store float32 or a lower --learning-rate")
    write_tensors(tensors, directory / WEIGHTS_FILE)


def write_tensors(tensors: State, path: Path) -> None:
    """Write contiguous tensors that share no memory, with their digest, which :func:`read_weights` checks."""
    with replacing(path) as temporary:
        save_file(tensors, temporary, {_DIGEST: weights_digest(tensors)})


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors by name: their types, shapes and bytes."""
    parts: list[bytes | str] = []
    for name, tensor in sorted(tensors.items()):
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), raw_bytes(tensor)]
    return digest(*parts)


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor of any type."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def read_recipe(directory: Path) -> dict[str, Any]:
    """Return the recipe of a run directory; refuse one that is missing, no JSON object, or has odd seed or data."""
    path = directory / RECIPE_FILE
    if not path.exists():
        raise UserError(f"{directory}: no {RECIPE_FILE} found; expected a directory of antiphase train")
    recipe = read_json(path, fix="restore it from a backup or train again")
    seed, data, kind = recipe.get("seed"), recipe.get("data"), recipe.get("kind")
    if kind is not None and not isinstance(kind, str):
        raise UserError(f"{path}: kind {shown(kind)}: expected text; train again")
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**63):
        raise UserError(f"{path}: seed {shown(seed)}: expected an integer of at least 0; train again")
    if data is not None and not isinstance(data, str):
        raise UserError(f"{path}: data {shown(data)}: expected the name of data; train again")
    return recipe


def read_weights(path: Path, fix: str = "copy it again or retrain") -> State:
    """Return the tensors of a safetensors file; the digest in files of ours is checked."""
    if not path.exists():
        raise UserError(f"{path}: no such file; if the run is unfinished, resume it with its command")
    _refuse_mistaken(path)
    try:
        with safe_open(path, "pt") as file:
            stored = (file.metadata() or {}).get(_DIGEST)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dictionary)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: incomplete or invalid ({error}); {fix}") from None
    if stored not in (None, weights_digest(tensors)):
        raise UserError(f"{path}: damaged: not the weights of its digest; {fix}")
    return tensors


def _refuse_mistaken(path: Path) -> None:
    """Refuse a path that is plainly no file of weights; nothing is unpickled."""
    if not path.is_file():
        kind = "is a folder; expected a file in it" if path.is_dir() else "is no regular file"
        raise UserError(f"{path}: {kind if path.exists() else 'no such file'}")
    with path.open("rb") as file:
        head = file.read(256)
    why = next((words for pattern, words in _MISTAKEN.items() if re.match(pattern, head)), "")
    if head.startswith(b"PK\3\4"):
        try:
            with zipfile.ZipFile(path) as archive:
                names = " ".join(archive.namelist())
                damaged = archive.testzip() if "data.pkl" in names and "constants.pkl" not in names else None
        except (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError, EOFError):
            why = "is incomplete; copy or download it again"
        else:
            if "constants.pkl" in names:
                why = "is a TorchScript archive; save its weights alone: torch.save(model.state_dict(), FILE)"
            elif "data.pkl" not in names:
                why = "is an archive of something else; expected a file of torch.save or safetensors"
            elif damaged:
                why = f"is damaged or has no checksums ({damaged}); copy or download it again, or save it with them"
    if why:
        raise UserError(f"{path}: {why}")


def check_finite(tensors: Mapping[str, Tensor], source: str, fix: str = "copy the file again or retrain") -> None:
    """Refuse weights with NaN or infinity, naming the first such tensor."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"{source}: {name!r} contains NaN or infinity; {fix}")


def load_into(model: nn.Module, tensors: State, source: str) -> None:
    """Load tensors by name; names, shapes and types must match, and all weights must be finite."""
    state = model.state_dict()
    kept = {name: value for name, value in state.items() if name.endswith(_COUNTER) or not isinstance(value, Tensor)}
    tensors = kept | tensors
    fixed, given = ({name: x for name, x in weights.items() if name not in kept} for weights in (state, tensors))
    check_fit(fixed, given, source)
    model.load_state_dict(tensors)


def check_fit(target: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse tensors of other names, shapes and types than a model's own, or that are not finite."""
    misfit = "; the architecture does not match"
    for name in sorted(target.keys() | tensors.keys()):
        want, have = target.get(name), tensors.get(name)
        wrong = ""
        if want is None or have is None:
            wrong = f"parameter {name!r} is {'missing' if have is None else 'not in the model'}{misfit}"
        elif want.shape != have.shape:
            wrong = f"{name!r} has shape {tuple(have.shape)}, expected {tuple(want.shape)}{misfit}"
        elif have.is_meta or have.layout != want.layout:
            wrong = f"{name!r} is sparse or has no values; expected plain numbers, as of tensor.to_dense()"
        elif want.is_floating_point() != have.is_floating_point():
            wrong = f"{name!r} has type {have.dtype}; expected {want.dtype}"
        if wrong:
            raise UserError(f"{source}: {wrong}")
    check_finite(tensors, source)


def as_config(kind: type[Config], values: Any, source: str = "", place: tuple[str, ...] = ()) -> Config:
    """Return values as a validated configuration; an error names ``source`` and the field in ``place``."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise invalid(error, source, place) from None


def read_state(name: str | Path, target: Mapping[str, Tensor], *, sized: bool = True) -> State:
    """Return a model's weights from a file, under the model's names; tensors that the model lacks keep theirs.

    ``name`` is FILE or ``FILE#SET``; docs/commands.md says what a file may hold. No code of it is run. ``target`` are
    the model's tensors by name, whose shapes count if ``sized``.
    """
    path, which = file_and_set(name)
    content = _tensors(path)
    if not content:
        raise UserError(f"{path}: no weights found; expected a dictionary of tensors, as of state_dict()")
    names = {_WRAPPER.sub("", key): key for key in target}
    needed = {short for short, key in names.items() if not short.endswith(_COUNTER) and isinstance(target[key], Tensor)}
    tied: dict[Any, list[str]] = {}  # names of the same numbers, which a file may have once
    for short in sorted(needed):
        tied.setdefault((target[names[short]].data_ptr() or short, target[names[short]].shape), []).append(short)
    sets: dict[str, State] = {}  # by what precedes the model's names
    for key, tensor in content.items():
        for start in re.finditer(r"^|[.\0]", key):
            if (short := key[start.end() :]) in needed:
                sets.setdefault(key[: start.end()], {})[short] = tensor
    for tensors, same in itertools.product(sets.values(), tied.values()):
        for stored in [tensors[short] for short in same if short in tensors][:1]:
            tensors.update(dict.fromkeys(same, stored) | tensors)
    fits = [prefix for prefix, tensors in sets.items() if len(tensors) == len(needed)]
    if sized and len(fits) > 1:
        shapes = {key: target[names[key]].shape for key in needed}
        same = [one for one in fits if {key: x.shape for key, x in sets[one].items()} == shapes] or fits
        part, whole = (min(some, key=lambda one: len(re.findall(r"[.\0]", one))) for some in (same, fits))
        if part.startswith(whole) and part != whole and not which:
            inner, outer = (_dotted(one)[:-1] or "what is not in it" for one in (part, whole))
            why = f"{outer} has the model's names, and only {inner} its shapes"
            raise UserError(f"{path}: {why}; if that is meant, give {path}#{inner}")
        fits = same
    labels = {_dotted(prefix).strip(".") or ".": prefix for prefix in fits}
    if which:
        known = ", ".join(labels) or "none"
        labels = {text: prefix for text, prefix in labels.items() if which in (text, *text.split("."))}
        if not labels:
            raise UserError(f"{name}: no weights {shown(which)} that fit the model; the file has {known}")
    # if nothing fits, loading says what does not match
    best = max(sets, key=lambda one: len(sets[one]), default="")
    prefix = labels[_choice(list(labels), path)] if labels else best
    state = {key[len(prefix) :]: x for key, x in content.items() if _is_in(key, prefix)} | sets.get(prefix, {})
    state = {names.get(key, key): tensor for key, tensor in state.items()}
    aside = [key for key in state if labels and key not in target and _ASIDE.fullmatch(key)]
    ignored = [_dotted(key) for key in content if fits and not any(_is_in(key, one) for one in fits)] + aside
    if ignored and not which:
        more = f" and {len(ignored) - _MOST_SHOWN} more" if len(ignored) > _MOST_SHOWN else ""
        averaged = _AVERAGE.search(" ".join(ignored).replace("n_averaged", ""))
        more += "; a moving average among them is not used" if averaged else ""
        warnings.warn(f"{path}: ignored, not in the model: {', '.join(ignored[:_MOST_SHOWN])}{more}", stacklevel=2)
    return {key: tensor for key, tensor in state.items() if key not in aside}


def _is_in(key: str, prefix: str) -> bool:
    return key.startswith(prefix) and "\0" not in key[len(prefix) :]


def _dotted(place: str) -> str:
    return place.replace("\0", ".")


def file_and_set(name: str | Path) -> tuple[Path, str]:
    """Return the file and the set of ``FILE#SET``; the set is empty if none is named."""
    file, _, which = str(name).rpartition("#")
    path = Path(os.path.expanduser(name))
    return (Path(os.path.expanduser(file)), which) if file and not os.path.exists(path) else (path, "")


def _choice(labels: list[str], path: Path) -> str:
    if len(labels) == 1:
        return labels[0]
    averages = list(filter(_AVERAGE.search, labels))
    if len(labels) > 2 or len(averages) != 1:
        sets = f"{', '.join(labels)}; choose one: {path}#{labels[0]}"
        raise UserError(f"{path}: several sets of weights fit the model: {sets}")
    (other,) = set(labels) - set(averages)
    told = f"loaded the moving average {averages[0]}; for the other weights: {path}#{other}"
    warnings.warn(f"{path}: {told}", stacklevel=3)
    return averages[0]


def _tensors(path: Path) -> State:
    """Return the tensors of a file by name: the keys of the dictionaries around each, separated by null characters."""
    if len(files := files_of(path)) > 1:
        parts = [_tensors(file) for file in files[1:]]
        if len(merged := {key: tensor for part in parts for key, tensor in part.items()}) < sum(map(len, parts)):
            raise UserError(f"{path}: two of its files have a tensor of the same name; download all of them again")
        return merged
    _refuse_mistaken(path)
    with path.open("rb") as file:
        head = file.read(9)
    if path.suffix == ".safetensors" or head[7:] == b"\0{":
        return _unwrapped(read_weights(path), path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # options
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # it can raise anything, and torch's own message advises weights_only=False
        named = re.search(r"GLOBAL (\S+)", str(error))
        has = f" (it contains {shown(named[1])}, and a pickle of other classes can run code)" if named else ""
        fix = "expected only tensors, numbers and an argparse.Namespace; save model.state_dict() alone"
        raise UserError(f"{path}: cannot be read safely{has}; {fix}") from None
    tensors, left, seen = State(), [("", content)], set[int]()
    while left:
        place, entry = left.pop()
        if isinstance(entry, list | tuple):  # of a moving average, say
            entry = {str(number): one for number, one in enumerate(entry) if isinstance(one, Tensor)}
        elif not isinstance(entry, dict) or id(entry) in seen:  # a pickle may refer to itself
            continue
        else:
            seen.add(id(entry))
        named = {key: value for key, value in entry.items() if isinstance(key, str)}
        tensors |= _unwrapped({f"{place}{k}": x for k, x in named.items() if isinstance(x, Tensor)}, path)
        left += [(f"{place}{key}\0", value) for key, value in reversed(named.items())]
    return tensors


def _unwrapped(tensors: State, path: Path) -> State:
    """Return tensors by their names without what compile and FSDP add; refuse two that then share one and differ."""
    state: State = {}
    for key, tensor in tensors.items():
        short = _WRAPPER.sub("", key)
        other = state.setdefault(short, tensor)
        if other is not tensor and not torch.equal(other, tensor):
            fix = "save the state_dict() of one model alone"
            raise UserError(f"{path}: two tensors are called {shown(_dotted(short))} without wrappers; {fix}")
    return state


def files_of(path: Path) -> list[Path]:
    """Return a file, and those that it names if it is the index of a checkpoint in several files."""
    if not path.name.endswith(_INDEX) or not path.is_file():
        return [path]
    try:
        names = {str(name) for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        names = set()
    if not names or any(Path(name).name != name or name in ("", "..") or name.endswith(_INDEX) for name in names):
        raise UserError(f"{path}: no index of a checkpoint; expected a weight_map from names to files")
    return [path, *(path.with_name(name) for name in sorted(names))]
