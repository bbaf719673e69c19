"""From a specification in one string to a classifier of images in [0, 1]."""

import difflib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from pydantic import ValidationError
from timm.data.config import resolve_data_config
from torch import nn

from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.models import checkpoints
from antiphase.models.factories import VitConfig, build
from antiphase.models.lambdas import layer_lambdas
from antiphase.models.normalize import Normalized

SPECS = {
    "specimen:NAME": "a trained model of the package: vit-0 … vit-2, diffvit-0 … diffvit-2",
    "DIRECTORY": "a run made by antiphase train",
    "timm:NAME": "any classifier of timm, with its pretrained weights",
}


@dataclass(frozen=True)
class ModelCard:
    """What is known of a loaded model beside its weights; ``model.card``.

    Attributes:
        name: short name, the last part of the specification.
        spec: the specification.
        attention: ``"softmax"`` or ``"differential"``.
        seed: of its training (of its weights, if random); None where unknown.
        image_shape: (channels, height, width).
        num_classes: number of logits.
        recipe: how it was trained, where known.
    """

    name: str
    spec: str
    attention: Literal["softmax", "differential"]
    seed: int | None
    image_shape: tuple[int, int, int]
    num_classes: int
    recipe: dict[str, Any] | None = None


def load_model(spec: str, *, random_weights: bool = False, seed: int = 0) -> nn.Module:
    """Load a classifier from images in [0, 1] to logits, in evaluation mode, with its ``card``.

    Args:
        spec: ``specimen:vit-0``, a directory made by ``antiphase train``, or ``timm:NAME``.
        random_weights: build a ``timm:`` model without downloading its weights.
        seed: of random weights.

    Raises:
        UserError: for an unknown specification, missing or damaged files, weights that do not fit, or
            weights that cannot be downloaded.

    >>> load_model("specimen:diffvit-0").card.attention
    'differential'
    """
    kind, _, name = spec.partition(":")
    if kind == "timm" and name:
        return _load_timm(spec, name, random_weights, seed)
    if random_weights:
        raise UserError(f"--random-weights is for timm: models; {spec!r} comes with its weights")
    if kind == "specimen":
        return _load_run(_specimen(name), spec, name)
    if not Path(spec).is_dir():
        known = ", ".join(SPECS)
        raise UserError(f"model {spec!r}: neither a directory nor one of {known}")
    return _load_run(Path(spec), spec, Path(spec).resolve().name)


def specimen_names() -> list[str]:
    """Return the names of the package's trained models."""
    return sorted(
        entry.name for entry in _specimens().iterdir() if (entry / checkpoints.RECIPE_FILE).exists()
    )


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's class names, parameters and buffers: equal for equal functions."""
    parts: list[bytes | str] = [repr(model)]
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        parts += [
            name,
            str(tensor.dtype),
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        ]
    return digest(*parts)


def card_of(model: nn.Module) -> ModelCard:
    """Return the card of a model that :func:`load_model` loaded.

    Raises:
        UserError: if it has none.
    """
    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard):
        raise UserError(f"{type(model).__name__} has no card; expected a model loaded by load_model")
    return card


def _with_card(model: nn.Module, card: ModelCard) -> nn.Module:
    object.__setattr__(model, "card", card)  # past nn.Module, which would look for parameters in it
    return model.eval()


def _specimens() -> Path:
    return Path(str(files("antiphase").joinpath("specimens")))


def _specimen(name: str) -> Path:
    if name not in specimen_names():
        raise UserError(f"specimen {name!r}: expected one of {', '.join(specimen_names())}")
    return _specimens() / name


def _load_run(directory: Path, spec: str, name: str) -> nn.Module:
    recipe = checkpoints.read_recipe(directory)
    try:
        config = VitConfig.model_validate(recipe.get("model"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("model", *first["loc"])))
        raise UserError(f"{directory / checkpoints.RECIPE_FILE}: {where}: {first['msg']}") from None
    model = build(config)
    path = directory / checkpoints.WEIGHTS_FILE
    checkpoints.load_into(model, checkpoints.read_weights(path), str(path))
    card = ModelCard(
        name, spec, config.attention, recipe.get("seed"), model.image_shape, config.num_classes, recipe
    )
    return _with_card(model, card)


def _load_timm(spec: str, name: str, random_weights: bool, seed: int) -> nn.Module:
    base = name.partition(".")[0]
    if base not in timm.list_models():
        near = difflib.get_close_matches(base, timm.list_models(), 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; timm.list_models() lists them"
        raise UserError(f"timm has no model {name!r}{hint}")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # timm draws from the global generator, which is put back afterwards
            model = timm.create_model(name, pretrained=not random_weights)
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"timm:{name}: the weights cannot be had ({reason}); download them where there is a network, "
            "or build the model with --random-weights"
        ) from None
    settings: dict[str, Any] = resolve_data_config(model=model)
    wrapped = Normalized(model, settings["mean"], settings["std"])
    attention = "differential" if layer_lambdas(model) else "softmax"
    card = ModelCard(
        name,
        spec,
        attention,
        seed if random_weights else None,
        tuple(settings["input_size"]),
        int(getattr(model, "num_classes")),  # noqa: B009 (typed as a tensor otherwise)
    )
    return _with_card(wrapped, card)
