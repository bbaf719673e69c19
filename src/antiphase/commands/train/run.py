"""Training of a classifier by its options."""

import time
from typing import Any

from antiphase.commands.loading import find_device
from antiphase.commands.record import write_training_record
from antiphase.commands.train.options import TrainOptions
from antiphase.data import load_data
from antiphase.training import fastest_precision, make_recipe, train_classifier
from antiphase.training.loop import check_trackers

_RECIPE = (
    "epochs",
    "batch_size",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "schedule",
    "warmup_epochs",
    "augment",
    "store",
    "seed",
)


def run(options: TrainOptions, command: str = "") -> list[dict[str, Any]]:
    """Load the data and train; return the metrics of each epoch.

    Raises:
        UserError: the data cannot be loaded, or do not fit the model.
    """
    began = time.monotonic()
    size, progress = options.image_size, not options.quiet
    check_trackers(options.track)
    images = load_data(options.data, split="train", image_size=size, limit=options.limit, progress=progress)
    held_out = load_data(options.data, split="test", image_size=size, progress=progress)
    precision = fastest_precision(find_device("auto")) if options.precision == "auto" else options.precision
    recipe = make_recipe(
        options.model,
        images,
        options.model_part,
        data=options.data,
        precision=precision,
        adversarial=options.adversary or None,
        **{name: getattr(options, name) for name in _RECIPE},
    )
    metrics = train_classifier(
        recipe, images, held_out, options.out, trackers=options.track, progress=progress
    )
    write_training_record(options, options.out, command, time.monotonic() - began)
    return metrics
