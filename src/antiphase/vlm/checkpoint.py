"""Vision-language models on disk: what was trained and the image tower; a pretrained language model by name."""

import os
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.errors import UserError, first_line, invalid
from antiphase.files import write_json
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.schemes.hugging_face import import_transformers
from antiphase.streams import key
from antiphase.vlm.language import add_lora, is_lora, load_language
from antiphase.vlm.model import Projector, VisionLanguageModel
from antiphase.vlm.recipe import VlmConfig
from antiphase.vlm.towers import Tower, build_tower

LANGUAGE_FOLDER = "language"
_GENERATION_FILE = "generation_config.json"


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of a module's parameters and persistent buffers; tied weights count once."""
    return checkpoints.weights_digest(named_weights(module))


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; tied weights are there once."""
    parameters = dict(module.named_parameters())
    held = module.state_dict()
    return parameters | {name: buffer for name, buffer in module.named_buffers() if name in held}


def make_projector(config: VlmConfig, tower: Tower, language: Any, seed: int = 0) -> Projector:
    """Return a projector that fits, with weights drawn from ``seed`` by PyTorch's default rule, as LLaVA's."""
    width = language.get_input_embeddings().embedding_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "projector") & (2**63 - 1))
        return Projector(config.projector, tower.width, tower.count, width, config.merge)


@validated
def save_vlm(
    vlm: VisionLanguageModel,
    recipe: dict[str, Any],
    directory: str | os.PathLike[str],
    dtype: torch.dtype,
    *,
    write: bool = True,
) -> None:
    """Write ``recipe.json``, ``model.safetensors`` and, for a tuned language model, its configuration and end tokens.

    Args:
        vlm: the model.
        recipe: has the model's :class:`VlmConfig` under ``model``.
        directory: created if missing.
        dtype: to which a tuned language model is rounded; all else is kept as it is.
        write: False in those processes that only help to gather sharded weights.
    """
    folder = Path(directory)
    config = VlmConfig.model_validate(recipe["model"])
    weights = {f"tower.{name}": value for name, value in named_weights(cast(nn.Module, vlm.tower)).items()}
    weights |= {f"projector.{name}": value for name, value in named_weights(vlm.projector).items()}
    for name, value in named_weights(vlm.language).items():
        if config.tuned:
            weights[f"language.{name}"] = value.to(dtype)
        elif is_lora(name):
            weights[f"language.{name}"] = value
    tensors: dict[str, Tensor] = {}
    for name, value in weights.items():
        gathered = checkpoints.whole(value.detach())
        if write:
            tensors[name] = gathered.cpu().contiguous()
    if not write:
        return
    write_json(folder / checkpoints.RECIPE_FILE, recipe)
    if config.tuned:
        vlm.language.config.save_pretrained(folder / LANGUAGE_FOLDER)
        ends = import_transformers(str(folder)).GenerationConfig(eos_token_id=vlm.ends)
        ends.save_pretrained(folder / LANGUAGE_FOLDER)
        vlm.tokenizer.save_pretrained(folder / LANGUAGE_FOLDER)
    checkpoints.save_tensors(tensors, folder)


@validated
def load_vlm(path: str | os.PathLike[str]) -> VisionLanguageModel:
    """Load what ``antiphase train-vlm`` wrote, in evaluation mode.

    The directory has all weights except those of a language model that was not trained, which is loaded by its name.

    Args:
        path: the directory.

    Raises:
        UserError: if a file is missing or damaged, it is not a vision-language model, or the language model cannot be
            loaded or has other weights than in training.
    """
    folder = Path(path)
    recipe = checkpoints.read_recipe(folder)
    source = folder / checkpoints.RECIPE_FILE
    if recipe.get("kind") != "vlm":
        raise UserError(
            f"{folder}: not a vision-language model; expected a directory written by antiphase train-vlm"
        )
    try:
        config = VlmConfig.model_validate(recipe.get("model"))
    except ValidationError as error:
        raise invalid(error, f"{source}: ", ("model",)) from None
    file = folder / checkpoints.WEIGHTS_FILE
    tensors = checkpoints.read_weights(file)
    tower = build_tower(config.tower)
    if config.tuned:
        language, tokenizer = _bare_language(folder / LANGUAGE_FOLDER)
    else:
        language, tokenizer = load_language(config.language)
        check_language(language, config)
        if config.lora:
            add_lora(language, config.lora)
    vlm = VisionLanguageModel(
        tower, make_projector(config, tower, language), language, tokenizer, config.prompt
    )
    _fill(vlm, tensors, config.tuned, str(file))
    kind = attention_kind(cast(nn.Module, tower))
    name = folder.resolve().name
    return with_card(vlm, ModelCard(name, str(path), kind, recipe.get("seed"), vlm.image_shape, 0, recipe))


def check_language(language: nn.Module, config: VlmConfig) -> None:
    """Check that a language model has the weights that it had in training.

    Raises:
        UserError: if not.
    """
    if (found := weights_digest(language)) != config.language_sha256:
        raise UserError(
            f"language {config.language}: its weights have the digest {found[:12]}…, those in training had "
            f"{config.language_sha256[:12]}…; expected the same model, in the same version"
        )


def _bare_language(folder: Path) -> tuple[Any, Any]:
    transformers = import_transformers(str(folder))
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        stored = (folder / _GENERATION_FILE).exists()  # not in directories from before November 2026
        generation = transformers.GenerationConfig.from_pretrained(folder) if stored else None
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: cannot be read ({reason}); copy it again or retrain") from None
    with torch.random.fork_rng(devices=[]):
        language = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if generation is not None:
        language.generation_config = generation
    return language, tokenizer


def _fill(vlm: VisionLanguageModel, tensors: dict[str, Tensor], tuned: bool, source: str) -> None:
    """Copy tensors into the model's weights.

    Raises:
        UserError: if one is missing, is not in the model, has another shape, or is not finite.
    """
    own = named_weights(vlm)
    stored = {name for name in own if not name.startswith("language.") or is_lora(name) or tuned}
    for name in sorted(stored ^ tensors.keys()):
        place = "not in the file" if name in stored else "not in the model"
        raise UserError(f"{source}: parameter {name!r} is {place}; the architecture does not match")
    for name, value in tensors.items():
        if own[name].shape != value.shape:
            raise UserError(
                f"{source}: {name!r} has shape {tuple(value.shape)}, expected {tuple(own[name].shape)}; "
                "the architecture does not match"
            )
    checkpoints.check_finite(tensors, source)
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
