"""Training of a vision-language model by its options."""

import time
from pathlib import Path
from typing import Any, cast

from torch import nn

from antiphase.data.conversations import load_conversations
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.models.checkpoints import WEIGHTS_FILE
from antiphase.models.vlm import VisionLanguageModel, VlmConfig, image_tokens, load_language, load_vlm
from antiphase.models.vlm.lora import add_lora
from antiphase.models.vlm.prompt import Prompt
from antiphase.models.vlm.store import make_projector, weights_digest
from antiphase.models.zoo import load_model
from antiphase.runs.loading import find_device
from antiphase.runs.options.vlm_training import TrainVlmOptions
from antiphase.runs.record import write_training_record
from antiphase.training.recipe import fastest_precision
from antiphase.training.vlm import train_vlm
from antiphase.training.vlm_recipe import MERGE, make_vlm_recipe


def run(options: TrainVlmOptions, command: str = "") -> list[dict[str, Any]]:
    """Load the parts and the data and train; return the metrics of each epoch.

    Args:
        options: of the training.
        command: for the record, ``run.json``.

    Raises:
        UserError: a part or the data cannot be loaded, or do not fit each other.
    """
    began = time.monotonic()
    stage = int(options.stage)
    data = load_conversations(options.data, stage=stage, limit=options.limit, seed=options.seed)
    config, vlm, source = _begin(options)
    precision = fastest_precision(find_device("auto")) if options.precision == "auto" else options.precision
    recipe = make_vlm_recipe(
        stage, options.preset, config, pretrained_sha256=source, data=options.data,
        data_fingerprint=data.fingerprint(), precision=precision, **options.recipe_part,
    )  # fmt: skip
    metrics = train_vlm(
        recipe, vlm, data, options.out, part=options.part, checkpointing=options.checkpointing,
        progress=not options.quiet,
    )  # fmt: skip
    write_training_record(options, options.out, command, time.monotonic() - began)
    return metrics


def _begin(options: TrainVlmOptions) -> tuple[VlmConfig, VisionLanguageModel, str | None]:
    """Return architecture and model before training, and the digest of stage 1's weights."""
    tuned = options.stage == "2" and options.lora is None
    changed = {"tuned": tuned, "lora": options.lora}
    if options.pretrained is not None:
        vlm, source = _pretrained(options.pretrained)
        config = VlmConfig.model_validate(vlm.card.recipe["model"])  # type: ignore[union-attr,index]
        if config.lora or config.tuned:
            raise UserError(f"{options.pretrained}: a model of stage 2; expected a directory of stage 1")
        config = config.model_copy(update=changed)
    else:
        assert options.tower is not None
        tower = image_tokens(load_model(options.tower))
        name = options.language or "smollm2"
        language, tokenizer = load_language(name)
        style = Prompt(tokenizer, options.prompt).style
        config = VlmConfig(
            tower_spec=options.tower, tower=tower.reference, tower_sha256=weights_digest(cast(nn.Module, tower)),
            projector=options.projector or "linear", merge=options.merge or MERGE[options.preset], language=name,
            language_sha256=weights_digest(language), prompt=style, **changed,
        )  # fmt: skip
        projector = make_projector(config, tower, language, options.seed)
        vlm, source = VisionLanguageModel(tower, projector, language, tokenizer, style), None
    if options.lora is not None:
        add_lora(vlm.language, options.lora, options.seed)
    return config, vlm, source


def _pretrained(folder: Path) -> tuple[VisionLanguageModel, str]:
    return load_vlm(folder), digest((folder / WEIGHTS_FILE).read_bytes())
