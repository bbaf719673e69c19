"""What ``antiphase train-vlm`` does: puts the parts together, trains them and records how."""

import time
from typing import Any

from antiphase.commands.loading import find_device
from antiphase.commands.record import write_training_record
from antiphase.commands.train_vlm.options import TrainVlmOptions
from antiphase.data.conversations import load_conversations
from antiphase.models.zoo import load_model
from antiphase.training.loop import check_trackers
from antiphase.training.recipe import fastest_precision
from antiphase.vlm.checkpoint import MERGE, add_lora, aligned, assemble, make_vlm_recipe
from antiphase.vlm.training import train_vlm


def run(options: TrainVlmOptions, command: str = "") -> list[dict[str, Any]]:
    """Train one stage into ``options.out``; return the metrics of each epoch.

    Raises:
        UserError: a part or the data cannot be loaded, or do not fit each other.
    """
    began = time.monotonic()
    check_trackers(options.track)
    stage = int(options.stage)
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
        source = None
    if options.lora is not None:
        add_lora(vlm.language, options.lora, options.seed)
    tuned = stage == 2 and options.lora is None
    recipe = make_vlm_recipe(
        stage,
        options.preset,
        config.model_copy(update={"tuned": tuned, "lora": options.lora}),
        pretrained_sha256=source,
        data=options.data,
        data_fingerprint=data.fingerprint(),
        precision=fastest_precision(find_device("auto"))
        if options.precision == "auto"
        else options.precision,
        **options.recipe_fields,
    )
    metrics = train_vlm(
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
    write_training_record(options, options.out, command, time.monotonic() - began)
    return metrics
