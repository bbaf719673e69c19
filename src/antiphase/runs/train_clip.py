"""Training of a CLIP by its options."""

import time
from typing import Any

from antiphase.commands.loading import check_compiler, find_device
from antiphase.commands.record import write_training_record
from antiphase.data.pairs import PairSet
from antiphase.data.sources import load_pairs
from antiphase.errors import UserError
from antiphase.evaluation.encoders import encoder_numbers
from antiphase.models import CLIP
from antiphase.runs.options.clip_training import TrainClipOptions
from antiphase.terminal import say
from antiphase.training.contrastive import train_clip
from antiphase.training.recipe import fastest_precision, make_clip_recipe
from antiphase.training.tracking import check_trackers


def run(options: TrainClipOptions, command: str = "") -> list[dict[str, Any]]:
    """Load the pairs and train; return the metrics of each epoch.

    Args:
        options: of the training.
        command: for the record, ``run.json``.

    Raises:
        UserError: the pairs cannot be loaded, or do not fit the recipe.
    """
    began = time.monotonic()
    check_trackers(options.track)
    if options.compile:
        check_compiler(find_device("auto"))
    pairs = load_pairs(
        options.data,
        split="train",
        limit=options.limit,
        samples=options.samples,
        lanes=options.lanes,
        progress=not options.quiet,
    )
    tested = _held_out(options, isinstance(pairs, PairSet))
    precision = fastest_precision(find_device("auto")) if options.precision == "auto" else options.precision
    recipe = make_clip_recipe(
        options.model,
        options.preset,
        options.data,
        pairs.fingerprint(),
        options.model_part,
        precision=precision,
        **options.recipe_part,
    )

    def evaluate(model: CLIP) -> dict[str, float]:
        return evaluate_sets(model, tested)

    metrics = train_clip(
        recipe,
        pairs,
        options.out,
        evaluate=evaluate,
        part=options.part,
        compiled=options.compile,
        checkpointing=options.checkpointing,
        trackers=options.track,
        progress=not options.quiet,
    )
    write_training_record(options, options.out, command, time.monotonic() - began)
    return metrics


def _held_out(options: TrainClipOptions, indexed: bool) -> list[PairSet]:
    """Return the sets that are evaluated after each epoch.

    Args:
        options: of the training.
        indexed: whether the training data are in random access, so that their own test split can be held out.
    """
    found = []
    own = (options.data,) if indexed else ()
    for name in options.held_out or own:
        if name == "none":
            continue
        one = load_pairs(name, split="test", progress=not options.quiet)
        if not isinstance(one, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; hold out another source")
        if name == options.data and one.fingerprint() == load_pairs(name, progress=False).fingerprint():
            say(f"{name} has no test split of its own: nothing is held out", err=True)
            continue
        found.append(one)
    return found


def evaluate_sets(model: CLIP, tested: list[PairSet]) -> dict[str, float]:
    """Return retrieval and zero-shot metrics of every held-out set, under its name where there are several."""
    found: dict[str, float] = {}
    for pairs in tested:
        numbers = encoder_numbers(model, pairs, prompts=pairs.prompts)
        found |= {
            f"{pairs.name} {name}" if len(tested) > 1 else name: value for name, value in numbers.items()
        }
    return found
