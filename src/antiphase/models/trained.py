"""Models of other libraries and of a user's own code that were trained here: what a run records, and how it is read."""

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antiphase import arguments, modules, registry
from antiphase.errors import UserError
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, attention_kind, card_of, with_card
from antiphase.models.schemes.scheme import drawn_from, named_spec

FOLDER = "folder"  # in the recipe's file: that of the specification's relative paths
RESIZE = "resize"  # in the recipe's file: how image files were resized, if that was said
SQUARE = "square"  # in the recipe's file: how a converted model's library resizes image files
IN_MEMORY = "given:"  # begins the specification of a module of a Python session


class StartingModel(arguments.Fields):
    """What training starts from: stored in place of the sizes of a model of ours, and part of a recipe's identity."""

    spec: str  # ``given:CLASS`` for a module of a Python session
    code: str = ""  # SHA-256 of the user's code that builds it; empty for a library's model
    weights: str  # SHA-256 of the initial weights
    image_shape: tuple[int, int, int]  # (channels, height, width)
    num_classes: arguments.Count  # number of logits


def starting_model(model: nn.Module) -> StartingModel:
    """Return what a run records of a loaded classifier before it is trained."""
    card = card_of(model)
    about = {"spec": named_spec(card.spec).spec, "code": card.code}
    about["weights"] = checkpoints.weights_digest(model.state_dict())
    return StartingModel(**about, image_shape=card.image_shape, num_classes=card.num_classes)


def recipe_of(model: nn.Module) -> dict[str, Any]:
    """Return the content of ``recipe.json`` from which :func:`rebuilt` makes a loaded classifier again."""
    card = card_of(model)
    names = {} if card.class_names is None else {checkpoints.CLASS_NAMES: [*card.class_names]}
    if card.recipe is not None and is_starting_model(card.recipe):
        return card.recipe | names
    return {"model": starting_model(model).model_dump(mode="json"), "seed": card.seed, FOLDER: str(Path.cwd())} | names


def is_starting_model(recipe: dict[str, Any]) -> bool:
    """Return whether a recipe is of a model that is built from its specification again."""
    return isinstance(recipe.get("model"), dict) and "spec" in recipe["model"]


def rebuilt(
    directory: Path, recipe: dict[str, Any], build: Callable[[str], nn.Module], module: nn.Module | None
) -> nn.Module:
    """Build the model of a run from its specification again, and load the trained weights into it, or into ``module``.

    Relative paths are of the folder in which it was trained, or else of the working directory.
    """
    source = directory / checkpoints.RECIPE_FILE
    start = checkpoints.as_config(StartingModel, recipe["model"], f"{source}: ", ("model",))
    path, doubt = directory / checkpoints.WEIGHTS_FILE, ""
    if module is None and start.spec.startswith(IN_MEMORY):
        kind = start.spec.removeprefix(IN_MEMORY)
        fix = f"give one for its weights, ap.load_model({str(directory)!r}, module={kind}(…))"
        raise UserError(f"{directory}: trained from a {kind} of a Python session; {fix}")
    if module is None:
        module = build(_found(directory, start.spec, Path(str(recipe.get(FOLDER, "")))))
        if (card := card_of(module)).num_classes != start.num_classes:
            module = with_new_head(module, start.num_classes)
        if card.code != start.code:
            doubt = f"{directory}: {card.spec} was edited after the training and may compute something else"
            warnings.warn(doubt, stacklevel=4)
    else:
        kind, shape = attention_kind(module), start.image_shape
        card = getattr(module, "card", None) or ModelCard("", "", kind, None, shape, start.num_classes)
    checkpoints.load_into(module, checkpoints.read_weights(path), str(path))
    about: dict[str, Any] = {"recipe": recipe, "seed": recipe.get("seed"), "num_classes": start.num_classes}
    if "data" in recipe:  # it was trained on images of this size
        about |= {"image_shape": start.image_shape, "any_size": False}
    return with_card(module, replace(card, tag="", doubts=(*card.doubts, *[doubt] * bool(doubt)), **about))


def with_new_head(model: nn.Module, num_classes: int, seed: int = 0) -> nn.Module:
    """Replace the linear layer that gives a loaded classifier's logits by one for other classes, drawn from a seed."""
    card = card_of(model)
    with torch.no_grad():
        last = last_linear(model, torch.full((2, *card.image_shape), 0.5, device=modules.device_of(model)))
    place = "" if last is None else last[0]
    old: Any = model.get_submodule(place)
    if type(old) is not nn.Linear:
        raise UserError(f"{card.spec}: its last layer is not linear, so that it cannot have a new head")
    with drawn_from(seed):
        new = nn.Linear(old.in_features, num_classes, old.bias is not None).to(old.weight)
    parent, _, name = place.rpartition(".")
    setattr(model.get_submodule(parent), name, new)
    return with_card(model, replace(card, num_classes=num_classes, class_names=None))


def last_linear(model: nn.Module, images: Tensor) -> tuple[str, Tensor] | None:
    """Return the name and the input of the linear layer whose output the logits are; None if it is another."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []  # with the output of each linear layer

    def note(part: nn.Module, inputs: Any, output: Tensor) -> None:
        calls.append((part, inputs[0], output))

    names: dict[nn.Module, str] = {part: name for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    with modules.hooked(part.register_forward_hook(note) for part in names):
        logits = model(images).data_ptr()
    return next(((names[one], x) for one, x, y in reversed(calls) if y.data_ptr() == logits and x.ndim == 2), None)


def code_of(text: str) -> str:
    """Return the file or module of a user's code that a specification runs, itself or by the runs it names."""
    spec, seen = named_spec(text).spec, set[str]()
    while os.path.isdir(spec) and spec not in seen:
        seen.add(spec)
        recipe: dict[str, Any] = {}
        with suppress(UserError):
            recipe = checkpoints.read_recipe(Path(spec))
        inner = named_spec(str(recipe["model"]["spec"])).spec if is_starting_model(recipe) else ""
        beside = os.path.join(str(recipe.get(FOLDER, "")), inner)
        spec = beside if inner and os.path.isdir(beside) else inner
    kind, _, rest = spec.partition(":")
    return rest.partition(":")[0] if kind == "python" else ""


def _found(directory: Path, spec: str, folder: Path) -> str:
    kind, _, rest = spec.partition(":")
    ends = {"python": rest.partition(":")[0], "hf": rest}
    place = spec if kind not in registry.MODELS else ends.get(kind, rest.partition("@")[2])
    for base in (folder, Path()) if place else ():
        if (path := (base / Path(place).expanduser()).resolve()) == directory.resolve() and place == spec:
            raise UserError(f"{directory}: its recipe says that it was trained from itself; train again")
        if path.exists():
            return spec.replace(place, str(path), 1)
    if place == spec or place.endswith(".py"):
        fix = f"put it back, or make the folder that holds {place} the working directory"
        raise UserError(f"{directory}: trained from {spec}, and {folder / place} is not there; {fix}")
    return spec
