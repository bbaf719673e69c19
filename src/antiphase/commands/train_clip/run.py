"""Training of a CLIP by its options."""

import time
from typing import Any

from antiphase.commands.loading import check_compiler, find_device
from antiphase.commands.record import write_training_record
from antiphase.commands.train_clip.options import TrainClipOptions
from antiphase.data.images import PairSet
from antiphase.data.sources import load_pairs
from antiphase.errors import UserError
from antiphase.evaluation.encoders import encoder_numbers
from antiphase.models import CLIP
from antiphase.terminal import say
from antiphase.training.contrastive import train_clip
from antiphase.training.recipe import fastest_precision, make_clip_recipe
from antiphase.training.tracking import check_trackers


def run(options: TrainClipOptions, command: str = "") -> list[dict[str, Any]]:
    """Load the pairs and train; return the metrics of each epoch.

    Raises:
        UserError: the pairs cannot be loaded, or do not fit the recipe.
    """
    began, progress, place = time.monotonic(), not options.quiet, find_device("auto")
    check_trackers(options.track)
    if options.compile:
        check_compiler(place)
    amount = {"limit": options.limit, "samples": options.samples, "lanes": options.lanes}
    pairs = load_pairs(options.data, split="train", progress=progress, **amount)  # pyright: ignore[reportArgumentType]
    held_out = _held_out(options, isinstance(pairs, PairSet))
    recipe = make_clip_recipe(
        options.model,
        options.preset,
        options.data,
        pairs.fingerprint(),
        options.model_part,
        precision=fastest_precision(place) if options.precision == "auto" else options.precision,
        **options.recipe_part,
    )
    metrics = train_clip(
        recipe,
        pairs,
        options.out,
        evaluate=lambda model: evaluate_sets(model, held_out),
        part=options.part,
        compiled=options.compile,
        checkpointing=options.checkpointing,
        trackers=options.track,
        progress=progress,
    )
    write_training_record(options, options.out, command, time.monotonic() - began)
    return metrics


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


def evaluate_sets(model: CLIP, held_out: list[PairSet]) -> dict[str, float]:
    """Return retrieval and zero-shot metrics of every held-out set, under its name where there are several."""
    return {
        f"{pairs.name} {name}" if len(held_out) > 1 else name: value
        for pairs in held_out
        for name, value in encoder_numbers(model, pairs).items()
    }
