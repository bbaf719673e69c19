"""What ``antiphase train``, ``train-clip``, ``train-vlm`` and ``finetune`` do: load, train, record; their result."""

import copy
import math
import time
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import BaseModel
from rich.text import Text
from torch import nn

from antiphase import files, registry, terminal
from antiphase.commands import lineup, loading, run_folder, train
from antiphase.commands.result import Result, without_intervals
from antiphase.data import ImageSet, load_data
from antiphase.data.images import PairSet, resized_images
from antiphase.data.sources import load_pairs
from antiphase.errors import NoSuchSplit, UserError
from antiphase.models import CLIP, checkpoints, class_names, trained
from antiphase.models.card import ModelCard, card_of, layer_lambdas, settle_size, size_for, with_card, with_own_pixels
from antiphase.models.clip import ClipConfig, clip_sizes
from antiphase.models.schemes.scheme import named_spec
from antiphase.models.zoo import fingerprint
from antiphase.modules import device_of
from antiphase.processes import this_process
from antiphase.report.figure import new_figure
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table
from antiphase.training import fastest_precision, make_recipe, train_classifier
from antiphase.training.loop import METRICS_FILE, TIMES, check_trackers
from antiphase.training.recipe import TRAINING_PRESETS, ClipRecipe, Recipe, make_clip_recipe

Metrics = list[dict[str, Any]]
"""Of each epoch."""


def run(options: train.TrainingOptions, command: str = "") -> Metrics:
    """Train what the options say into ``options.out`` and write ``run.json``; return the metrics of each epoch."""
    began = time.monotonic()
    check_trackers(options.track)
    left_out: list[str] = []
    kinds: Any = {"TrainOptions": _train_classifier, "TrainClipOptions": _train_clip, "FinetuneOptions": _finetune}
    metrics = kinds.get(type(options).__name__, _train_vlm)(options, left_out)
    if this_process().first:
        about = {"command": command, "options": options.record()}
        about |= run_folder.finished(options.out, began) | lineup.environment_record(loading.find_device("auto"))
        about |= {"warnings": left_out} if left_out else {}
        files.write_json(options.out / "run.json", about)
    return metrics


def _of_recipe(options: train.TrainingOptions, recipe: type[BaseModel]) -> dict[str, Any]:
    """Return the fields that recipe and options both have, where they were given, and the precision."""
    shared = recipe.model_fields.keys() & type(options).model_fields.keys()
    fields = options.chosen(*(shared - {"model", "stage", "adversarial", "fare"}))
    if options.precision == "auto":
        fields["precision"] = fastest_precision(loading.find_device("auto"))
    return fields


def _train_classifier(options: train.TrainOptions, left_out: list[str]) -> Metrics:
    how: dict[str, Any] = {"trackers": options.track, "progress": not options.quiet}
    stored = options.chosen(trained.RESIZE)
    model, module = None, loading.live_object(named_spec(options.model).spec)
    if options.model not in registry.VITS:
        (loaded,) = loading.load_models([options.model], device_of(module), options.random_weights, seed=options.seed)
        if not card_of(loaded).num_classes:
            raise UserError(f"{options.model}: is no classifier; train a CLIP by antiphase train-clip")
        model = copy.deepcopy(loaded)
    images = _images(options, options.data, "train", model)
    images = images if model is None else _in_order(model, images, options)
    in_memory = loading.live_object(options.data) is not None  # and has no other split
    held_out = options.held_out or ("none" if in_memory else options.data)
    try:
        validation = None if held_out == "none" else _images(options, held_out, "test", model)
    except NoSuchSplit as error:
        raise UserError(f"{error}; --held-out none trains without") from None
    if validation is not None:  # its classes by the names of those that are trained on
        shape, count = images.image_shape, len(images.class_names)
        card = ModelCard(images.name, images.name, "unknown", None, shape, count, class_names=images.class_names)
        validation, notes = class_names.in_model_order([card], validation, "give other images by --held-out, or none")
        left_out += notes
    left_out += [line for part in (images, validation) if part is not None for line in part.left_out]
    fields = _of_recipe(options, Recipe)
    fields |= {"adversarial": options.adversary or None, "defences": options.defences or None}
    fields |= {"data": images.name} if in_memory else {}
    kind: Any = options.model if model is None else trained.starting_model(model)
    recipe = make_recipe(kind, images, options.model_part, **fields)
    how["lambdas"] = partial(_lambdas, images=images)
    if model is not None:
        how["model"] = model
        stored |= {trained.FOLDER: str(Path.cwd())}
    metrics = train_classifier(recipe, images, validation, options.out, stored=stored, **how)
    if module is not None:
        if options.new_head:  # as the copy that was trained
            trained.with_new_head(module, len(images.class_names), options.seed)
        path = options.out / checkpoints.WEIGHTS_FILE
        checkpoints.load_into(module, checkpoints.read_weights(path), str(path))
    return metrics


def _lambdas(model: nn.Module, images: ImageSet) -> list[float]:
    """Return the mean λ of each layer of a model in training on some images: of its λ modules, or as it is found."""
    some = images.images(range(min(2, len(images)))).to(device_of(model))
    known = [float(lam.mean()) for lam in layer_lambdas(model, some)]
    if known or not hasattr(model, "card") or card_of(model).attention in ("softmax", "none"):
        return known
    return list(loading.measured_attention(model, some)[1])


def _images(options: train.TrainOptions, source: str, split: str, model: nn.Module | None) -> ImageSet:
    limit = options.limit if split == "train" else None
    if (images := loading.live_object(source)) is not None:
        images = load_data(images, limit=limit, image_size=options.image_size, skip_bad=options.skip_bad)
        images = images if options.resize is None else resized_images(images, options.resize)
        return images
    size, channels = (None, None) if model is None else size_for([model])
    if size and options.image_size not in (None, size):
        raise UserError(f"image_size {options.image_size}: {options.model} takes images of {size} pixels")
    how = {"image_size": size or options.image_size, "channels": channels, "skip_bad": options.skip_bad}
    if source == "random" and model is not None:
        how |= {"num_classes": card_of(model).num_classes, "image_size": card_of(model).image_shape[1]}
    images = load_data(source, split=split, limit=limit, progress=not options.quiet, **how)
    if model is not None:
        settle_size([model], images.image_shape)
        images = with_own_pixels(images, [model])
    return images if options.resize is None else resized_images(images, options.resize)


def _in_order(model: nn.Module, images: ImageSet, options: train.TrainOptions) -> ImageSet:
    """Return images with labels in the order of the model's outputs, of which each class has one."""
    if options.new_head and card_of(model).class_names != images.class_names:
        trained.with_new_head(model, len(images.class_names), options.seed)
        with_card(model, replace(card_of(model), class_names=images.class_names))
    card = card_of(model)
    fix = "give it a new last layer with --new-head"
    if card.class_names is not None:
        images, _ = class_names.in_model_order([card], images, fix)
    if (count := len(images.class_names)) != card.num_classes:
        raise UserError(f"{card.spec} has {card.num_classes} classes, {images.name} {count}; {fix}")
    return images


def _train_clip(options: train.TrainClipOptions, left_out: list[str]) -> Metrics:
    from antiphase.evaluation.retrieval import encoder_numbers
    from antiphase.training.contrastive import train_clip

    if options.compile:
        loading.check_compiler(loading.find_device("auto"))
    amount: dict[str, Any] = {"limit": options.limit, "samples": options.samples, "lanes": options.lanes}
    amount["skip_bad"] = options.skip_bad
    pairs = load_pairs(options.data, split="train", progress=not options.quiet, **amount)  # pyright: ignore[reportArgumentType]
    held_out = _held_out(options, isinstance(pairs, PairSet))
    left_out += [line for part in (pairs, *held_out) if isinstance(part, PairSet) for line in part.left_out]
    preset = TRAINING_PRESETS[options.preset]["size"]
    fields: dict[str, Any] = clip_sizes(preset, **options.chosen("dim", "depth", "image_size"))
    fields = options.chosen("init", "lambda_init", "variant") | fields
    about = {"fingerprint": pairs.fingerprint(), "model_fields": fields} | _of_recipe(options, ClipRecipe)
    about |= {"defences": options.defences} if options.defences else {}
    recipe = make_clip_recipe(options.model, options.preset, **about)

    def evaluate(model: CLIP) -> dict[str, float]:
        numbers = {pairs.name: encoder_numbers(model, pairs) for pairs in held_out}
        if len(numbers) < 2:
            return next(iter(numbers.values()), {})
        return {f"{name} {metric}": value for name, metrics in numbers.items() for metric, value in metrics.items()}

    how = _how(options) | {"evaluate": evaluate, "compiled": options.compile}
    if (start := options.from_run) is not None:
        source = checkpoints.read_recipe(start)
        how["weights"] = checkpoints.read_weights(start / checkpoints.WEIGHTS_FILE)
        if source.get("kind") != "clip":
            raise UserError(f"from {start}: holds no CLIP; expected a run of antiphase train-clip")
        place = f"{start / checkpoints.RECIPE_FILE}: "
        model, built = checkpoints.as_config(ClipConfig, source.get("model"), place, ("model",)), recipe.model
        kinds = [(one.vision.attention, one.text.attention) for one in (model, built)]
        if "converted" in source:  # into any kind of differential attention
            kinds = [tuple(kind == "softmax" for kind in towers) for towers in kinds]
        if trained.SQUARE in source:
            raise UserError(f"from {start}: prepares images as no CLIP of train-clip does")
        if kinds[0] != kinds[1]:
            raise UserError(f"from {start}: is no {options.model}; give the --model of its attention")
        recipe = recipe.model_copy(update={"model": model, "start": checkpoints.weights_digest(how["weights"])})
    return train_clip(recipe, pairs, options.out, **how)


def _how(options: train.PresetOptions) -> dict[str, Any]:
    """Return how to train by a preset; none of it affects the weights."""
    how = {"part": options.part, "checkpointing": options.checkpointing}
    return how | {"trackers": options.track, "progress": not options.quiet}


def _held_out(options: train.TrainClipOptions, indexed: bool) -> list[PairSet]:
    names = options.held_out or ((options.data,) if indexed else ())
    sets = []
    for name in (name for name in names if name != "none"):
        pairs = load_pairs(name, split="test", skip_bad=options.skip_bad, progress=not options.quiet)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; hold out another source")
        if name == options.data and pairs.fingerprint() == load_pairs(name, progress=False).fingerprint():
            terminal.say(f"{name} has no test split of its own: nothing is held out", err=True)
        else:
            sets.append(pairs)
    return sets


def _train_vlm(options: train.TrainVlmOptions, _: list[str]) -> Metrics:
    from antiphase.data.conversations import load_conversations
    from antiphase.models.zoo import load_model
    from antiphase.vlm.checkpoint import MERGE, VlmRecipe, add_lora, aligned, assemble, make_vlm_recipe
    from antiphase.vlm.training import train_vlm

    stage, source = int(options.stage), None
    data = load_conversations(options.data, stage=stage, limit=options.limit, seed=options.seed)
    if options.pretrained is not None:
        config, vlm, source = aligned(options.pretrained)
    else:
        assert options.tower is not None
        tower, merge = load_model(options.tower), options.merge or MERGE[options.preset]
        how = {"style": options.prompt, "kind": options.projector or "linear", "seed": options.seed}
        config, vlm = assemble(tower, options.tower, options.language or "smollm2", merge=merge, **how)
    if options.lora is not None:
        add_lora(vlm.language, options.lora, options.seed)
    tuned = stage == 2 and options.lora is None
    config = config.model_copy(update={"tuned": tuned, "lora": options.lora})
    fields = {"pretrained_sha256": source, "data_fingerprint": data.fingerprint()}
    fields |= _of_recipe(options, VlmRecipe)
    recipe = make_vlm_recipe(stage, options.preset, config, **fields)
    return train_vlm(recipe, vlm, data, options.out, **_how(options))


def _finetune(options: train.FinetuneOptions, left_out: list[str]) -> Metrics:
    from antiphase.training.fare import ADVERSARY, FareRecipe, fine_tune

    (model,) = loading.load_models([options.model], loading.find_device("auto"), seed=options.seed)
    model = copy.deepcopy(model)  # one that was given stays as it is
    if not isinstance(model, CLIP) or model.config is None:
        raise UserError(f"{card_of(model).spec}: expected a CLIP of antiphase, such as a run of train-clip")
    if trained.SQUARE in (card_of(model).recipe or {}):
        raise UserError(f"{card_of(model).spec}: prepares images as no CLIP of train-clip does")
    how = {"image_size": model.image_shape[1], "channels": 3, "progress": not options.quiet}
    images = with_own_pixels(load_data(options.data, split="train", limit=options.limit, **how), [model])
    left_out += images.left_out
    fields = _of_recipe(options, FareRecipe) | {"data": images.name, "data_fingerprint": images.fingerprint()}
    fields |= {"start": fingerprint(model), "fare": ADVERSARY | {"eps": options.fare, "steps": options.steps}}
    recipe = FareRecipe(model=model.config, **fields)
    return fine_tune(recipe, model, images, options.out, trackers=options.track, progress=not options.quiet)


_NOT_DRAWN = ("epoch", "learning_rate", *TIMES)


class TrainingResult(Result):
    """The log of a training; the weights lie next to it."""

    main_table = "metrics"
    needs = ("recipe.json", METRICS_FILE)

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        if not (epochs := files.as_json_lines(self.files[METRICS_FILE], self.path_of(METRICS_FILE))):
            raise UserError(f"{self.path_of(METRICS_FILE)}: is empty; expected a line for each epoch")
        return epochs

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self.epochs[-1]

    def headlines(self) -> list[Headline]:
        drawn = [f"{name.replace('_', ' ')} {self.summary[name]:.4g}" for name in self._drawn()]
        epochs = self.summary["epoch"]
        return [Headline(f"{', '.join(drawn[:3])} after {epochs} epoch{'s' * (epochs > 1)}")]

    def sections(self) -> list[Section]:
        rows = [_numbers(epoch) for epoch in self.epochs]
        columns = tuple(rows[-1])
        cells = [tuple(Field(f"{row[name]:.5g}" if name in row else "–") for name in columns) for row in reversed(rows)]
        csv = pl.DataFrame(rows, infer_schema_length=None).write_csv()
        table = Table("metrics", "By epoch, the last one first", columns, tuple(cells), csv)
        return [Section("metrics", "Metrics", plots=[Plot("metrics", self._figure(), "")], tables=[table])]

    def differences(self, other: Any) -> pl.DataFrame:
        """Return the differences of the metrics after the last epoch of both; one training each has no interval."""
        last = min(self.summary["epoch"], other.summary["epoch"])
        numbers, others = ({row["epoch"]: _numbers(row) for row in result.epochs}[last] for result in (self, other))
        shared = [name for name in self._drawn() if name in numbers and name in others]
        if not shared:
            raise UserError("compare: the trainings have no metric in common; expected two of one kind")
        names = [result.directory.name if result.directory else "training" for result in (self, other)]
        metrics = [f"{name.replace('_', ' ')}, epoch {last}" for name in shared]
        values = [numbers[name] - others[name] for name in shared]
        return without_intervals(pl.DataFrame({"metric": metrics, "difference": values}), *names)

    def console(self) -> list[Any]:
        return [Text(self.line())]

    def write_report(self, folder: Path) -> Path:
        return folder  # a training has no page

    def _drawn(self) -> list[str]:
        return [name for name in _numbers(self.summary) if name not in _NOT_DRAWN]

    def _figure(self) -> Figure:
        names = self._drawn()
        with new_figure(5.0, 1.9 * len(names) + 0.4) as figure:
            for axes, name in zip(figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
                values = [epoch.get(name, math.nan) for epoch in self.epochs]
                axes.plot([epoch["epoch"] for epoch in self.epochs], values, ".-", color="#0072B2", lw=1.6)
                axes.set_title(name.replace("_", " "), loc="left", fontsize=9.5, parse_math=False)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                axes.spines[["top", "right"]].set_visible(False)
            figure.axes[-1].set_xlabel("epoch")
        return figure


def _numbers(epoch: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of an epoch that are one number each; λ is one for each layer."""
    return {name: value for name, value in epoch.items() if isinstance(value, int | float)}
