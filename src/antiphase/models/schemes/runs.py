"""Models in our own layout: run directories, the specimens of the package, and uploads on the Hugging Face hub."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from pydantic import ValidationError
from torch import nn

from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line, invalid, shown
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, card_of, with_card
from antiphase.models.clip import build_clip
from antiphase.models.clip_factories import valid_clip
from antiphase.models.factories import VitConfig, build
from antiphase.models.kinds import attention_kind
from antiphase.models.schemes.scheme import Scheme, Wanted
from antiphase.models.towers import attention_spec
from antiphase.registry import RUNS, find


def load_run(directory: Path, spec: str, name: str) -> nn.Module:
    """Load a run directory of ``antiphase train``, ``train-clip`` or ``train-vlm``."""
    recipe = checkpoints.read_recipe(directory)
    source = directory / checkpoints.RECIPE_FILE
    path = directory / checkpoints.WEIGHTS_FILE
    if recipe.get("kind") == "clip":
        encoder = build_clip(valid_clip(recipe.get("model"), f"{source}: ", ("model",)))
        checkpoints.load_into(encoder, checkpoints.read_weights(path), str(path))
        kind, seed = attention_kind(encoder), recipe.get("seed")
        return with_card(encoder, ModelCard(name, spec, kind, seed, encoder.image_shape, 0, recipe))
    if (found := recipe.get("kind")) in RUNS:
        model = find(RUNS, found, "kind of run")(directory)
        return with_card(model, replace(card_of(model), name=name, spec=spec))
    try:
        config = VitConfig.model_validate(recipe.get("model"))
    except ValidationError as error:
        raise invalid(error, f"{source}: ", ("model",)) from None
    model = build(config)
    checkpoints.load_into(model, checkpoints.read_weights(path), str(path))
    card = ModelCard(
        name,
        spec,
        attention_spec(config.attention).family,
        recipe.get("seed"),
        model.image_shape,
        config.num_classes,
        recipe,
        _class_names(recipe, config.num_classes, source),
    )
    return with_card(model, card)


def specimen_names() -> list[str]:
    """Return the names of the trained models that ship with the package."""
    return sorted(
        entry.name for entry in _specimens().iterdir() if (entry / checkpoints.RECIPE_FILE).exists()
    )


def _specimens() -> Path:
    return Path(str(files("antiphase").joinpath("specimens")))


def _load_specimen(wanted: Wanted) -> nn.Module:
    name = wanted.name
    if name not in specimen_names():
        raise UserError(f"specimen {shown(name)}: expected one of {', '.join(specimen_names())}")
    return load_run(_specimens() / name, wanted.spec, name)


def _load_from_hub(wanted: Wanted) -> nn.Module:
    """Download a model in our layout and load it."""
    name = wanted.name
    try:
        with offline_at_once():
            files = [
                hf_hub_download(name, file) for file in (checkpoints.RECIPE_FILE, checkpoints.WEIGHTS_FILE)
            ]
    except OFFLINE as error:
        raise UserError(
            f"hub:{name}: not available from the hub ({first_line(error)}); check the name, or "
            "download it on a machine with network access and give the folder"
        ) from None
    return load_run(Path(files[0]).parent, wanted.spec, name.rpartition("/")[2])


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


SPECIMEN = Scheme(
    "specimen:NAME",
    "a trained model shipped with the package: vit-0 … vit-2, diffvit-0 … diffvit-2",
    _load_specimen,
)
HUB = Scheme(
    "hub:USER/NAME", "a model on the Hugging Face hub, uploaded by antiphase.models.push", _load_from_hub
)
