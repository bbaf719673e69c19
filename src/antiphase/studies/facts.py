"""What a cell comes to when its model, transforms and attack are really built, without data and without training."""

from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import torch
from pydantic import ValidationError

from antiphase.attacks.catalogue import settings_of
from antiphase.data.sources import source_of
from antiphase.errors import UserError
from antiphase.evaluation.tasks import Protocol
from antiphase.models.clip import bare_clip
from antiphase.models.factories import build_vision, configure
from antiphase.models.towers import attention_of, attention_spec
from antiphase.runs.sense_model import part_of
from antiphase.studies.cells import Attack, Evaluate, Given, Relevance, Sense, TrainClip, TrainVit
from antiphase.studies.spec import Cell
from antiphase.training.recipe import Recipe

Fact = tuple[str, Any]


@singledispatch
def facts_of(cell: Cell) -> Iterator[Fact]:
    """Yield names and values of what the cell would use; a name may come several times.

    Raises:
        UserError: if something of it cannot be built.
    """
    return iter(())


@facts_of.register
def _(cell: TrainVit) -> Iterator[Fact]:
    source = source_of(cell.data)
    # a folder's classes are counted when it is read; until then the head's width is left at one
    sizes = {"in_channels": source.channels, "num_classes": source.classes or 1, **cell.sizes}
    attention = attention_of(cell.model)
    config = configure(attention, cell.pixels, sizes)
    with torch.device("meta"):  # shapes are checked, no weight is drawn
        model = build_vision(config)
    hostile = {"adversarial": cell.adversary} if cell.adversary else {}
    try:
        recipe = Recipe.model_validate(
            {"model": config, "data": cell.data, "data_fingerprint": "", **cell.recipe, **hostile}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{cell.label}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    yield "train.attention", attention
    yield "train.data", cell.data
    yield "train.depth", len(model.blocks)
    for name in ("optimizer", "learning_rate", "batch_size", "epochs"):
        yield f"train.{name}", getattr(recipe, name)
    if attention_spec(attention).differential:
        yield "train.initial_lambda", config.lambda_init
    if recipe.adversarial is not None:
        yield "train.adversarial_eps_255", round(recipe.adversarial.eps * 255, 6)


@facts_of.register
def _(cell: Attack) -> Iterator[Fact]:
    plan = cell.plan()
    yield from _given(cell)
    yield "attack.data", cell.data
    yield "attack.name", plan.attack
    yield "attack.norm", plan.norm
    for eps in plan.eps:
        yield "attack.eps_255", round(eps * 255, 6)
    for stage in plan.ensemble.stages:
        yield "attack.stages", stage.name
        settings = settings_of(stage)
        yield "attack.settings", (stage.name, tuple(settings.items()))
        for name, value in settings.items():
            yield f"attack.{name}", value


@facts_of.register
def _(cell: Sense) -> Iterator[Fact]:
    plan = cell.plan()
    yield from _given(cell)
    yield "sense.part", cell.part
    if "eps" in part_of(cell.part).settings:  # what is measured at x has no ε
        yield "sense.eps", plan.eps


@facts_of.register
def _(cell: TrainClip) -> Iterator[Fact]:
    recipe = cell.make_recipe("")
    with torch.device("meta"):
        model = bare_clip(recipe.model)
    image, text = recipe.model.vision, recipe.model.text
    yield "clip.data", cell.data.partition(":")[2].partition("/")[0] or cell.data
    yield "clip.parameters", sum(weights.numel() for weights in model.parameters())
    for name in ("epochs", "batch_size", "learning_rate", "weight_decay", "betas", "warmup_epochs", "crop"):
        yield f"clip.{name}", getattr(recipe, name)
    size = f"{image.image_size} pixels, patches of {image.patch_size}"
    yield "clip.image", f"{size}, {image.dim} wide, {image.depth} layers, {image.num_heads} heads"
    yield (
        "clip.text",
        f"{text.context_length} tokens, {text.dim} wide, {text.depth} layers, {text.num_heads} heads",
    )
    if attention_spec(image.attention).differential:
        yield "clip.lambda_init", "depth" if image.lambda_schedule == "depth" else image.lambda_init


@facts_of.register
def _(cell: Evaluate) -> Iterator[Fact]:
    protocol = Protocol(**cell.protocol)
    yield from _given(cell)
    yield f"{cell.task}.data", cell.data
    for name in ("space", "seeds", "episodes", "ways", "shots"):
        yield f"{cell.task}.{name}", getattr(protocol, name)


@facts_of.register
def _(cell: Relevance) -> Iterator[Fact]:
    yield from _given(cell)
    yield "relevance.data", cell.data


def _given(cell: Any) -> Iterator[Fact]:
    """Yield what a measured model is, where it is not trained here."""
    if isinstance(cell.model, Given):
        yield "given.spec", cell.model.spec
        if cell.model.note:
            yield "given.note", f"{cell.model.spec}: {cell.model.note}"
