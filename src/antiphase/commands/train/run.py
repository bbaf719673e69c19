"""What ``antiphase train``, ``train-clip`` and ``train-vlm`` do: load the data, train, record how; their result."""

import math
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import BaseModel
from rich.text import Text

from antiphase.commands.lineup import environment_record
from antiphase.commands.loading import check_compiler, find_device
from antiphase.commands.result import Result
from antiphase.commands.run_folder import finished
from antiphase.commands.train import TrainClipOptions, TrainingOptions, TrainOptions, TrainVlmOptions
from antiphase.data import load_data
from antiphase.data.images import PairSet
from antiphase.data.sources import load_pairs
from antiphase.errors import UserError
from antiphase.files import as_json_lines, write_json
from antiphase.models import CLIP
from antiphase.models.clip import clip_sizes
from antiphase.processes import this_process
from antiphase.report.figure import new_figure
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table
from antiphase.terminal import say
from antiphase.training import fastest_precision, make_recipe, train_classifier
from antiphase.training.loop import check_trackers
from antiphase.training.recipe import TRAINING_PRESETS, ClipRecipe, Recipe, make_clip_recipe

Metrics = list[dict[str, Any]]
"""Of each epoch."""


def run(options: TrainingOptions, command: str = "") -> Metrics:
    """Train what the options say into ``options.out`` and write ``run.json``; return the metrics of each epoch."""
    began = time.monotonic()
    check_trackers(options.track)
    match options:
        case TrainOptions():
            metrics = _train_classifier(options)
        case TrainClipOptions():
            metrics = _train_clip(options)
        case TrainVlmOptions():
            metrics = _train_vlm(options)
        case _:
            raise TypeError(type(options).__name__)
    if this_process().first:
        about = {"command": command, "options": options.record()}
        about |= finished(options.out, began) | environment_record(find_device("auto"))
        write_json(options.out / "run.json", about)
    return metrics


def _of_recipe(options: TrainingOptions, recipe: type[BaseModel]) -> dict[str, Any]:
    """Return the fields that the recipe and the options both have, where they were given, and the precision."""
    shared = recipe.model_fields.keys() & type(options).model_fields.keys()
    fields = options.chosen(*(shared - {"model", "stage", "adversarial"}))
    if options.precision == "auto":
        fields["precision"] = fastest_precision(find_device("auto"))
    return fields


def _train_classifier(options: TrainOptions) -> Metrics:
    how = {"image_size": options.image_size, "progress": not options.quiet}
    images = load_data(options.data, split="train", limit=options.limit, **how)
    held_out = load_data(options.data, split="test", **how)
    fields = _of_recipe(options, Recipe) | {"adversarial": options.adversary or None}
    recipe = make_recipe(options.model, images, options.model_part, **fields)
    return train_classifier(
        recipe, images, held_out, options.out, trackers=options.track, progress=not options.quiet
    )


def _train_clip(options: TrainClipOptions) -> Metrics:
    from antiphase.training.contrastive import train_clip

    if options.compile:
        check_compiler(find_device("auto"))
    amount = {"limit": options.limit, "samples": options.samples, "lanes": options.lanes}
    pairs = load_pairs(options.data, split="train", progress=not options.quiet, **amount)  # pyright: ignore[reportArgumentType]
    held_out = _held_out(options, isinstance(pairs, PairSet))
    preset = TRAINING_PRESETS[options.preset]["size"]
    sizes: dict[str, Any] = clip_sizes(preset, **options.chosen("dim", "depth", "image_size"))
    recipe = make_clip_recipe(
        options.model,
        options.preset,
        fingerprint=pairs.fingerprint(),
        model_fields=options.chosen("init", "lambda_init", "variant") | sizes,
        **_of_recipe(options, ClipRecipe),
    )
    return train_clip(
        recipe,
        pairs,
        options.out,
        evaluate=lambda model: _evaluate(model, held_out),
        part=options.part,
        compiled=options.compile,
        checkpointing=options.checkpointing,
        trackers=options.track,
        progress=not options.quiet,
    )


def _held_out(options: TrainClipOptions, indexed: bool) -> list[PairSet]:
    """Return the sets that are evaluated after each epoch; data in random access have a test split of their own."""
    names = options.held_out or ((options.data,) if indexed else ())
    sets = []
    for name in (name for name in names if name != "none"):
        pairs = load_pairs(name, split="test", progress=not options.quiet)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; hold out another source")
        if name == options.data and pairs.fingerprint() == load_pairs(name, progress=False).fingerprint():
            say(f"{name} has no test split of its own: nothing is held out", err=True)
        else:
            sets.append(pairs)
    return sets


def _evaluate(model: CLIP, held_out: list[PairSet]) -> dict[str, float]:
    """Return retrieval and zero-shot metrics of every held-out set, under its name where there are several."""
    from antiphase.evaluation.retrieval import encoder_numbers

    return {
        f"{pairs.name} {name}" if len(held_out) > 1 else name: value
        for pairs in held_out
        for name, value in encoder_numbers(model, pairs).items()
    }


def _train_vlm(options: TrainVlmOptions) -> Metrics:
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
        config, vlm = assemble(
            load_model(options.tower),
            options.tower,
            options.language or "smollm2",
            style=options.prompt,
            kind=options.projector or "linear",
            merge=options.merge or MERGE[options.preset],
            seed=options.seed,
        )
    if options.lora is not None:
        add_lora(vlm.language, options.lora, options.seed)
    tuned = stage == 2 and options.lora is None
    recipe = make_vlm_recipe(
        stage,
        options.preset,
        config.model_copy(update={"tuned": tuned, "lora": options.lora}),
        pretrained_sha256=source,
        data_fingerprint=data.fingerprint(),
        **_of_recipe(options, VlmRecipe),
    )
    return train_vlm(
        recipe,
        vlm,
        data,
        options.out,
        part=options.part,
        checkpointing=options.checkpointing,
        sharded=options.shard,
        trackers=options.track,
        progress=not options.quiet,
    )


_METRICS = "metrics.jsonl"
_NOT_DRAWN = ("epoch", "learning_rate", "images_per_second")


class TrainingResult(Result):
    """The log of a training; the weights lie next to it."""

    main_table = "metrics"
    needs = ("recipe.json", _METRICS)

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of each epoch."""
        return as_json_lines(self.files[_METRICS], _METRICS)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The metrics of the last epoch."""
        return self.epochs[-1]

    def headlines(self) -> list[Headline]:
        drawn = [f"{name.replace('_', ' ')} {self.summary[name]:.4g}" for name in self._drawn()]
        epochs = self.summary["epoch"]
        return [Headline(f"{', '.join(drawn[:3])} after {epochs} epoch{'s' * (epochs > 1)}")]

    def sections(self) -> list[Section]:
        rows = [_numbers(epoch) for epoch in self.epochs]
        columns = tuple(rows[-1])
        cells = tuple(
            tuple(Field(f"{row[name]:.5g}" if name in row else "–") for name in columns)
            for row in reversed(rows)
        )
        csv = pl.DataFrame(rows, infer_schema_length=None).write_csv()
        table = Table("metrics", "By epoch, the last one first", columns, cells, csv)
        return [Section("metrics", "Metrics", plots=[Plot("metrics", self._figure(), "")], tables=[table])]

    def differences(self, other: Result) -> pl.DataFrame:
        raise UserError(
            "compare: a training has no rows for single images; save both models and give them to antiphase.audit or "
            "evaluate"
        )

    def console(self) -> list[Any]:
        return [Text(self.line())]

    def write_report(self, folder: Path) -> Path:
        return folder  # a training has no page

    def _drawn(self) -> list[str]:
        return [name for name in _numbers(self.summary) if name not in _NOT_DRAWN]

    def _figure(self) -> Figure:
        """Draw each metric over the epochs, one panel each."""
        names = self._drawn()
        with new_figure(5.0, 1.9 * len(names) + 0.4) as figure:
            for place, name in enumerate(names, start=1):
                axes = figure.add_subplot(len(names), 1, place)
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
