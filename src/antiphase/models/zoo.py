"""Load a classifier of images in [0, 1], or a dual encoder, from a one-line specification."""

import difflib
import os
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from pydantic import ValidationError
from torch import nn

from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError, shown
from antiphase.files import digest
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.clip import CLIP, build_clip
from antiphase.models.clip_factories import valid_clip
from antiphase.models.dual_encoders import OpenClip, load_open_clip, load_released
from antiphase.models.factories import VitConfig, build
from antiphase.models.kinds import attention_kind
from antiphase.models.normalize import Normalized
from antiphase.models.towers import attention_spec

SPECS = {
    "specimen:NAME": "a trained model shipped with the package: vit-0 … vit-2, diffvit-0 … diffvit-2",
    "DIRECTORY": "a run directory written by antiphase train or train-clip",
    "timm:NAME": "any timm classifier, with its pretrained weights",
    "open_clip:NAME/TAG": "any open_clip model, with the pretrained weights TAG",
    "diffclip:PATH#lambda_init=0.8": "a released checkpoint of DiffCLIP or its baseline, a file or a hub repository",
    "hub:USER/NAME": "a model on the Hugging Face hub, uploaded by antiphase.models.push",
}


def load_model(
    spec: str,
    *,
    random_weights: bool = False,
    seed: int = 0,
    lambda_init: float | Literal["depth"] | None = None,
) -> nn.Module:
    """Load a classifier of images in [0, 1], or a dual encoder, in evaluation mode.

    The model's metadata are in ``model.card``. Turn a dual encoder into a classifier with
    :func:`~antiphase.models.zero_shot_classifier`.

    Args:
        spec: one of ``SPECS``; ``diffclip:`` may end in ``#lambda_init=0.8`` or ``#lambda_init=depth``.
        random_weights: build a ``timm:`` or ``open_clip:`` model with random weights, without a download.
        seed: random seed of these weights.
        lambda_init: λ_init of a ``diffclip:`` checkpoint, which does not contain it.

    Raises:
        UserError: for an unknown specification, missing or damaged files, weights that do not match the model, or
            a failed download.

    >>> load_model("specimen:diffvit-0").card.attention
    'differential'
    """
    if not isinstance(spec, str) or not spec:
        raise UserError(
            f"model {shown(spec)}: expected a string such as 'specimen:diffvit-0', or a run directory"
        )
    kind, _, name = spec.partition(":")
    if kind in ("timm", "open_clip") and name:
        if kind == "timm":
            return _load_timm(spec, name, random_weights, seed)
        return _as_loaded(
            load_open_clip(name, random_weights, seed), spec, name, seed if random_weights else None
        )
    if random_weights:
        raise UserError(
            f"model {spec!r}: --random-weights only applies to timm: and open_clip: models; leave it out"
        )
    if kind == "diffclip" and name:
        path, _, setting = name.partition("#")
        init = read_lambda_init(spec, setting) if setting else lambda_init
        return _as_loaded(load_released(path, init), spec, path)
    if kind == "specimen":
        return _load_run(_specimen(name), spec, name)
    if kind == "hub" and name:
        return _load_run(_from_hub(name), spec, name.rpartition("/")[2])
    if not os.path.isdir(spec):  # never raises, unlike Path.is_dir
        known = ", ".join(SPECS)
        raise UserError(f"model {shown(spec)}: no such directory; expected one of {known}")
    return _load_run(Path(spec), spec, Path(spec).resolve().name)


def read_lambda_init(spec: str, setting: str) -> float | Literal["depth"]:
    """Return the λ_init behind the ``#`` of a ``diffclip:`` specification.

    Raises:
        UserError: the setting is another one, or no number.
    """
    name, _, value = setting.partition("=")
    if name == "lambda_init" and value == "depth":
        return "depth"
    try:
        if name != "lambda_init":
            raise ValueError
        return float(value)
    except ValueError:
        raise UserError(
            f"{spec}: expected #lambda_init=0.8 (or another number) or #lambda_init=depth"
        ) from None


def specimen_names() -> list[str]:
    """Return the names of the trained models that ship with the package."""
    return sorted(
        entry.name for entry in _specimens().iterdir() if (entry / checkpoints.RECIPE_FILE).exists()
    )


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's ``repr``, parameters and buffers."""
    parts: list[bytes | str] = [repr(model)]
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        parts += [
            name,
            str(tensor.dtype),
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        ]
    return digest(*parts)


def _specimens() -> Path:
    return Path(str(files("antiphase").joinpath("specimens")))


def _specimen(name: str) -> Path:
    if name not in specimen_names():
        raise UserError(f"specimen {shown(name)}: expected one of {', '.join(specimen_names())}")
    return _specimens() / name


def _from_hub(name: str) -> Path:
    """Download a model in our layout and return its folder."""
    try:
        files = [hf_hub_download(name, file) for file in (checkpoints.RECIPE_FILE, checkpoints.WEIGHTS_FILE)]
    except OFFLINE as error:
        raise UserError(
            f"hub:{name}: not available from the hub ({str(error).strip().splitlines()[0]}); check the name, or "
            "download it on a machine with network access and give the folder"
        ) from None
    return Path(files[0]).parent


def _load_run(directory: Path, spec: str, name: str) -> nn.Module:
    recipe = checkpoints.read_recipe(directory)
    source = directory / checkpoints.RECIPE_FILE
    path = directory / checkpoints.WEIGHTS_FILE
    if recipe.get("kind") == "clip":
        encoder = build_clip(valid_clip(recipe.get("model"), f"{source}: model."))
        checkpoints.load_into(encoder, checkpoints.read_weights(path), str(path))
        return _as_loaded(encoder, spec, name, recipe.get("seed"), recipe)
    try:
        config = VitConfig.model_validate(recipe.get("model"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("model", *first["loc"])))
        raise UserError(f"{source}: {where}: {first['msg']}") from None
    model = build(config)
    checkpoints.load_into(model, checkpoints.read_weights(path), str(path))
    card = ModelCard(
        name, spec, attention_spec(config.attention).family, recipe.get("seed"), model.image_shape,
        config.num_classes, recipe, _class_names(recipe, config.num_classes, source),
    )  # fmt: skip
    return with_card(model, card)


def _class_names(recipe: dict[str, Any], num_classes: int, source: Path) -> tuple[str, ...] | None:
    """Return the class names in a recipe; None for runs of older versions."""
    names = recipe.get(checkpoints.CLASS_NAMES)
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(n, str) for n in names):
        raise UserError(
            f"{source}: {checkpoints.CLASS_NAMES}: expected a list of {num_classes} names; correct or remove it"
        )
    return tuple(names)


def _as_loaded(
    model: CLIP | OpenClip,
    spec: str,
    name: str,
    seed: int | None = None,
    recipe: dict[str, Any] | None = None,
) -> nn.Module:
    return with_card(model, ModelCard(name, spec, attention_kind(model), seed, model.image_shape, 0, recipe))


def _load_timm(spec: str, name: str, random_weights: bool, seed: int) -> nn.Module:
    import timm  # seconds to import, and our own models do not need it
    from timm.data.config import resolve_data_config
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    base = name.partition(".")[0]
    if base not in timm.list_models():
        near = difflib.get_close_matches(base, timm.list_models(), 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; timm.list_models() lists them"
        raise UserError(f"timm has no model {shown(name)}{hint}")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # timm draws from the global generator; fork_rng restores it
            model = timm.create_model(name, pretrained=not random_weights)
    except OFFLINE as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"timm:{name}: the weights are not available ({reason}); download them on a machine with network "
            "access, or build the model with --random-weights"
        ) from None
    checkpoints.check_finite(model.state_dict(), spec)
    settings: dict[str, Any] = resolve_data_config(model=model)
    wrapped = Normalized(model, settings["mean"], settings["std"])
    num_classes = int(getattr(model, "num_classes"))  # noqa: B009 (typed as a tensor otherwise)
    known = infer_imagenet_subset({"num_classes": num_classes})
    card = ModelCard(
        name,
        spec,
        attention_kind(model),
        seed if random_weights else None,
        tuple(settings["input_size"]),
        num_classes,
        class_names=tuple(ImageNetInfo(known).label_names()) if known else None,
    )
    return with_card(wrapped, card)
