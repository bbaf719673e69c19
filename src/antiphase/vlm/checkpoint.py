"""Vision-language models put together from their parts, and on disk."""

import os
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.errors import UserError, first_line, invalid
from antiphase.files import digest, write_json
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.schemes.libraries import import_transformers
from antiphase.streams import key
from antiphase.vlm.language import add_lora, is_lora, load_language
from antiphase.vlm.model import Kind, Projector, VisionLanguageModel
from antiphase.vlm.prompt import Prompt, Style
from antiphase.vlm.recipe import VlmConfig
from antiphase.vlm.towers import Tower, build_tower, image_tokens

LANGUAGE_FOLDER = "language"
_GENERATION_FILE = "generation_config.json"


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of a module's parameters and persistent buffers; tied weights count once."""
    return checkpoints.weights_digest(named_weights(module))


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; tied weights are there once."""
    held = module.state_dict()
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in held}
    return dict(module.named_parameters()) | buffers


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
    """Return architecture and model with which stage 1 begins.

    Args:
        model: a loaded model that has an image tower.
        spec: from where it came, for the record.
        name: of the language model, see ``load_language``.
        style: conversation format; None: the tokenizer's chat template where it has one.
        kind: of the projector.
        merge: side of the squares of image tokens that become one.
        seed: random seed of the projector's weights.
    """
    tower = image_tokens(model)
    language, tokenizer = load_language(name)
    config = VlmConfig(
        tower_spec=spec,
        tower=tower.reference,
        tower_sha256=weights_digest(tower),
        projector=kind,
        merge=merge,
        language=name,
        language_sha256=weights_digest(language),
        prompt=Prompt(tokenizer, style).style,
    )
    projector = _projector(config, tower, language, seed)
    return config, VisionLanguageModel(tower, projector, language, tokenizer, config.prompt)


def aligned(folder: Path) -> tuple[VlmConfig, VisionLanguageModel, str]:
    """Return architecture and model that stage 1 left, with which stage 2 begins, and the digest of its weights."""
    vlm = load_vlm(folder)
    config = VlmConfig.model_validate(vlm.card.recipe["model"])  # type: ignore[union-attr,index]
    if config.lora or config.tuned:
        raise UserError(f"{folder}: a model of stage 2; expected a directory of stage 1")
    return config, vlm, digest((folder / checkpoints.WEIGHTS_FILE).read_bytes())


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
    tuned = VlmConfig.model_validate(recipe["model"]).tuned
    tensors: dict[str, Tensor] = {}
    for name, value in named_weights(vlm).items():
        if _is_stored(name, tuned):
            rounded = value.to(dtype) if tuned and name.startswith("language.") else value
            whole = checkpoints.whole(rounded.detach())
            if write:
                tensors[name] = whole.cpu().contiguous()
    if not write:
        return
    write_json(folder / checkpoints.RECIPE_FILE, recipe)
    if tuned:
        language = folder / LANGUAGE_FOLDER
        vlm.language.config.save_pretrained(language)
        ends = import_transformers(str(folder)).GenerationConfig(eos_token_id=vlm.ends)
        ends.save_pretrained(language)
        vlm.tokenizer.save_pretrained(language)
    checkpoints.save_tensors(tensors, folder)


@validated
def load_vlm(path: str | os.PathLike[str]) -> VisionLanguageModel:
    """Load what ``antiphase train-vlm`` wrote, in evaluation mode.

    The directory has all weights except those of a language model that was not trained, which is loaded by its name.

    Raises:
        UserError: if a file is missing or damaged, or the language model has other weights than in training.
    """
    folder = Path(path)
    recipe = checkpoints.read_recipe(folder)
    if recipe.get("kind") != "vlm":
        expected = "expected a directory written by antiphase train-vlm"
        raise UserError(f"{folder}: not a vision-language model; {expected}")
    try:
        config = VlmConfig.model_validate(recipe.get("model"))
    except ValidationError as error:
        raise invalid(error, f"{folder / checkpoints.RECIPE_FILE}: ", ("model",)) from None
    file = folder / checkpoints.WEIGHTS_FILE
    tensors = checkpoints.read_weights(file)
    tower = build_tower(config.tower)
    if config.tuned:
        language, tokenizer = _untrained_language(folder / LANGUAGE_FOLDER)
    else:
        language, tokenizer = load_language(config.language)
        if (found := weights_digest(language)) != config.language_sha256:
            fault = f"its weights have the digest {found[:12]}…, those in training had"
            fault += f" {config.language_sha256[:12]}…; expected the same model, in the same version"
            raise UserError(f"language {config.language}: {fault}")
        if config.lora:
            add_lora(language, config.lora)
    projector = _projector(config, tower, language)
    vlm = VisionLanguageModel(tower, projector, language, tokenizer, config.prompt)
    _fill(vlm, tensors, config.tuned, str(file))
    name, seed = folder.resolve().name, recipe.get("seed")
    return with_card(vlm, ModelCard(name, str(path), attention_kind(tower), seed, vlm.image_shape, 0, recipe))


def _projector(config: VlmConfig, tower: Tower, language: Any, seed: int = 0) -> Projector:
    """Return a projector that fits, with weights drawn from ``seed`` by PyTorch's default rule, as LLaVA's."""
    width = language.get_input_embeddings().embedding_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "projector") & (2**63 - 1))
        return Projector(config.projector, tower.width, tower.count, width, config.merge)


def _is_stored(name: str, tuned: bool) -> bool:
    return not name.startswith("language.") or is_lora(name) or tuned


def _untrained_language(folder: Path) -> tuple[Any, Any]:
    """Return the language model of a directory with arbitrary weights, and its tokenizer."""
    transformers = import_transformers(str(folder))
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        with torch.random.fork_rng(devices=[]):
            language = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if (folder / _GENERATION_FILE).exists():  # not in directories from before November 2026
            language.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: cannot be read ({reason}); copy it again or retrain") from None
    return language, tokenizer


def _fill(vlm: VisionLanguageModel, tensors: dict[str, Tensor], tuned: bool, source: str) -> None:
    """Copy tensors into the model's weights; UserError if they do not match or are not finite."""
    weights = named_weights(vlm)
    stored = {name for name in weights if _is_stored(name, tuned)}
    for name in sorted(stored ^ tensors.keys()):
        place = "not in the file" if name in stored else "not in the model"
        raise UserError(f"{source}: parameter {name!r} is {place}; the architecture does not match")
    for name, value in tensors.items():
        if weights[name].shape != value.shape:
            shapes = f"has shape {tuple(value.shape)}, expected {tuple(weights[name].shape)}"
            raise UserError(f"{source}: {name!r} {shapes}; the architecture does not match")
    checkpoints.check_finite(tensors, source)
    with torch.no_grad():
        for name, value in tensors.items():
            weights[name].copy_(value)
