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
from antiphase.models.vlm.projector import Kind
from antiphase.models.vlm.prompt import Prompt, Style
from antiphase.models.vlm.store import make_projector, weights_digest
from antiphase.models.zoo import load_model
from antiphase.runs.loading import find_device
from antiphase.runs.options.vlm_training import TrainVlmOptions
from antiphase.runs.record import write_training_record
from antiphase.training.processes import check_trackers
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
    check_trackers(options.track)
    stage = int(options.stage)
    data = load_conversations(options.data, stage=stage, limit=options.limit, seed=options.seed)
    config, vlm, source = _begin(options)
    precision = fastest_precision(find_device("auto")) if options.precision == "auto" else options.precision
    recipe = make_vlm_recipe(
        stage,
        options.preset,
        config,
        pretrained_sha256=source,
        data=options.data,
        data_fingerprint=data.fingerprint(),
        precision=precision,
        **options.recipe_part,
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


def assemble(
    model: nn.Module,
    spec: str,
    name: str,
    *,
    style: Style | None = None,
    kind: Kind = "linear",
    merge: int = 1,
    seed: int = 0,
) -> tuple[VlmConfig, VisionLanguageModel]:
    """Return architecture and model with which stage 1 begins: the projector's weights are drawn.

    Args:
        model: a loaded model that has an image tower.
        spec: from where it came, for the record.
        name: of the language model, see ``load_language``.
        style: conversation format; None: the tokenizer's chat template where it has one.
        kind: of the projector.
        merge: side of the squares of image tokens that become one.
        seed: random seed of the projector.

    Raises:
        UserError: the model has no image tower, or the language model cannot be loaded.
    """
    tower = image_tokens(model)
    language, tokenizer = load_language(name)
    config = VlmConfig(
        tower_spec=spec,
        tower=tower.reference,
        tower_sha256=weights_digest(cast(nn.Module, tower)),
        projector=kind,
        merge=merge,
        language=name,
        language_sha256=weights_digest(language),
        prompt=Prompt(tokenizer, style).style,
    )
    projector = make_projector(config, tower, language, seed)
    return config, VisionLanguageModel(tower, projector, language, tokenizer, config.prompt)


def aligned(folder: Path) -> tuple[VlmConfig, VisionLanguageModel, str]:
    """Return architecture and model that stage 1 left, with which stage 2 begins, and the digest of its weights.

    Raises:
        UserError: the directory is not one of stage 1.
    """
    vlm = load_vlm(folder)
    config = VlmConfig.model_validate(vlm.card.recipe["model"])  # type: ignore[union-attr,index]
    if config.lora or config.tuned:
        raise UserError(f"{folder}: a model of stage 2; expected a directory of stage 1")
    return config, vlm, digest((folder / WEIGHTS_FILE).read_bytes())


def _begin(options: TrainVlmOptions) -> tuple[VlmConfig, VisionLanguageModel, str | None]:
    """Return architecture and model before training, and the digest of stage 1's weights."""
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
    tuned = options.stage == "2" and options.lora is None
    config = config.model_copy(update={"tuned": tuned, "lora": options.lora})
    if options.lora is not None:
        add_lora(vlm.language, options.lora, options.seed)
    return config, vlm, source
