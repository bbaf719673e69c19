"""What a cell comes to when its model, transforms and attack are really built, without data and without training."""

from collections.abc import Iterator
from functools import lru_cache, singledispatch
from typing import Any

import torch
from pydantic import ValidationError

from antiphase.attacks.catalogue import settings_of
from antiphase.data.conversations import query_settings
from antiphase.data.sources import source_of
from antiphase.errors import invalid
from antiphase.evaluation.tasks import Protocol, find_task
from antiphase.models.clip import ClipConfig, bare_clip
from antiphase.models.transformer import attention_of, attention_spec
from antiphase.models.vit import VitConfig, build_vision, configure
from antiphase.runs import sense_model
from antiphase.studies.cells import (
    Attack,
    AttackAnswers,
    Evaluate,
    Given,
    Relevance,
    Sense,
    TrainClip,
    TrainVit,
    TrainVlm,
)
from antiphase.studies.spec import Cell
from antiphase.training.recipe import Recipe
from antiphase.vlm import VlmConfig
from antiphase.vlm.recipe import MERGE, SCHEDULE
from antiphase.vlm.towers import HIDDEN_STATE

Fact = tuple[str, Any]

# of every part, also of those that studies alone measure
_SENSE_SETTINGS = {
    part.name: part.settings
    for part in (*sense_model.PARTS, *vars(sense_model).values())
    if isinstance(part, sense_model.Part)
}


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
    hostile = {"adversarial": cell.adversary} if cell.adversary else {}
    try:
        recipe = Recipe.model_validate(
            {
                "model": config,
                "data": cell.data,
                "data_fingerprint": "",
                "seed": cell.seed,
                **cell.recipe,
                **hostile,
            }
        )
    except ValidationError as error:
        raise invalid(error, f"{cell.label}: ") from None
    yield "train.attention", attention
    yield "train.data", cell.data
    yield "train.depth", _blocks(config)  # type: ignore[arg-type]  # frozen, hence hashable
    for name in (
        "optimizer",
        "learning_rate",
        "batch_size",
        "epochs",
        "schedule",
        "weight_decay",
        "augment",
        "seed",
    ):
        yield f"train.{name}", getattr(recipe, name)
    size = f"{config.image_size} pixels, patches of {config.patch_size}"
    yield "train.size", f"{size}, {config.dim} wide, {config.num_heads} heads"
    if attention_spec(attention).differential:
        yield "train.initial_lambda", config.lambda_init
    if recipe.adversarial is not None:
        hostile = recipe.adversarial
        yield "train.adversarial_eps_255", round(hostile.eps * 255, 6)
        steps = f"{hostile.steps} steps, warm-up epochs {hostile.warmup_epochs:g}"
        yield "train.adversarial", f"{hostile.variant}, {steps}"


@facts_of.register
def _(cell: Attack) -> Iterator[Fact]:
    plan = cell.plan()
    yield from _given(cell)
    yield "attack.data", cell.data
    yield "attack.name", plan.attack
    yield "attack.norm", plan.norm
    yield "attack.images", cell.limit
    yield "attack.nested", plan.nested
    yield "attack.seed", plan.seed
    if cell.prompt is not None:
        yield "attack.prompt", cell.prompt
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
    yield "sense.data", cell.data
    yield "sense.images", cell.limit
    for name in _SENSE_SETTINGS[cell.part]:
        if name in ("eps", "travel"):
            radii = (plan.eps,) if name == "eps" else plan.travel
            yield from ((f"sense.{name}_255", round(eps * 255, 6)) for eps in radii)
        else:
            yield f"sense.{name}", getattr(plan, name)


@facts_of.register
def _(cell: TrainClip) -> Iterator[Fact]:
    recipe = cell.make_recipe("")
    image, text = recipe.model.vision, recipe.model.text
    yield "clip.data", cell.data.partition(":")[2].partition("/")[0] or cell.data
    yield "clip.parameters", _parameters(recipe.model)  # type: ignore[arg-type]  # frozen, hence hashable
    for name in (
        "epochs",
        "batch_size",
        "learning_rate",
        "weight_decay",
        "betas",
        "warmup_epochs",
        "warmup_start",
        "final_learning_rate",
        "crop",
        "precision",
        "seed",
    ):
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
def _(cell: TrainVlm) -> Iterator[Fact]:
    stage = {1: "align", 2: "tune"}[cell.stage]
    config = VlmConfig(
        tower_spec="",
        tower={},
        tower_sha256="",
        merge=MERGE[cell.preset],
        language=cell.language,
        language_sha256="",
        prompt=cell.prompt or "chat",
    )
    recipe = cell.make_recipe(config, "")
    yield f"{stage}.data", _conversations(cell.data)
    for name in (
        "epochs",
        "batch_size",
        "learning_rate",
        "weight_decay",
        "warmup",
        "betas",
        "epsilon",
        "gradient_norm",
        "max_length",
        "precision",
        "seed",
    ):
        yield f"{stage}.{name}", getattr(recipe, name)
    yield f"{stage}.schedule", SCHEDULE
    yield f"{stage}.trained", "projector" if cell.stage == 1 else "projector, language model"
    if cell.stage == 2:
        yield "tune.order", "those without an image, then drawn" if recipe.text_first else "drawn"
    if cell.stage == 1:
        yield "align.language", cell.language
        yield "align.prompt", config.prompt
        yield "align.hidden_state", HIDDEN_STATE
        yield "align.projector", config.projector
        yield "align.projector_start", recipe.projector_start
        if isinstance(cell.start, Given):
            yield "given.spec", cell.start.spec
            if cell.start.note:
                yield "given.note", f"{cell.start.spec}: {cell.start.note}"
        if isinstance(cell.start, TrainClip):
            image = cell.start.make_recipe("").model.vision
            yield "align.positions", (image.image_size // image.patch_size // config.merge) ** 2


@facts_of.register
def _(cell: AttackAnswers) -> Iterator[Fact]:
    plan = cell.plan()
    yield "answers.data", cell.data
    if cell.suffix:
        yield "answers.suffix", cell.suffix
    yield "answers.attack", plan.attack
    yield "answers.images", cell.limit
    for eps in plan.eps:
        yield "answers.eps_255", round(eps * 255, 6)
    for stage in plan.ensemble.stages:
        yield "answers.steps", settings_of(stage)["steps"]


@facts_of.register
def _(cell: Evaluate) -> Iterator[Fact]:
    protocol = Protocol(**cell.protocol)
    yield from _given(cell)
    yield f"{cell.task}.data", cell.data
    for name in find_task(cell.task).fields:
        value = getattr(protocol, name)
        if value != "":  # the questions' suffix, which there need not be
            yield f"{cell.task}.{name}", ", ".join(value) if isinstance(value, tuple) else value
    if cell.task == "zero-shot":
        yield "zero-shot.templates", ", ".join(protocol.templates) or "the data's own, else 80 and 7"


@facts_of.register
def _(cell: Relevance) -> Iterator[Fact]:
    yield from _given(cell)
    yield "look.data", cell.data
    yield "look.images", cell.limit
    yield "look.queries", len(cell.texts) or {"objects": 2}.get(cell.ask, 1)  # an image's two largest objects
    for text in cell.texts:
        yield "look.texts", text


def _conversations(source: str) -> str:
    """Return the name of a source's file without its folder, and the part of it that is taken."""
    plain, _, query = source.partition("?")
    name = plain.partition(":")[2].rpartition("/")[2] or plain
    only = query_settings(query).get("only", "")
    return f"{name}, {only}" if only else name


@lru_cache
def _blocks(config: VitConfig) -> int:
    """Return the number of blocks of a model, built without drawing weights: its shapes are checked."""
    with torch.device("meta"):
        return len(build_vision(config).blocks)


@lru_cache
def _parameters(config: ClipConfig) -> int:
    """Return the number of parameters of a dual encoder, built without drawing weights."""
    with torch.device("meta"):
        return sum(weights.numel() for weights in bare_clip(config).parameters())


def _given(cell: Any) -> Iterator[Fact]:
    """Yield what a measured model is, where it is not trained here."""
    if isinstance(cell.model, Given):
        yield "given.spec", cell.model.spec
        if cell.model.note:
            yield "given.note", f"{cell.model.spec}: {cell.model.note}"
