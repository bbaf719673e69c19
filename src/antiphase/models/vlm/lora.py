"""Low-rank adapters of a language model, through peft."""

from typing import Any

import torch
from torch import nn

from antiphase.errors import UserError
from antiphase.streams import key


def add_lora(language: Any, rank: int, seed: int = 0) -> None:
    """Add adapters W + (α/r)·B·A with α = 2r to every linear layer but the head, in place; B begins at 0.

    As in LLaVA 1.5 (r = 128, α = 256), but without dropout. The weights of the model itself are frozen.

    Source: E. Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022.

    Args:
        language: a causal language model of transformers.
        rank: r, at least 1.
        seed: random seed of A.

    Raises:
        UserError: if peft is not installed, or the language model has no linear layer.
    """
    try:
        import peft  # an extra
    except ImportError:
        raise UserError("lora: needs peft; install it with pip install 'antiphase[vlm]'") from None
    head = language.get_output_embeddings()
    names = {
        name.rpartition(".")[2]
        for name, module in language.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    if not names:
        raise UserError(
            f"lora: {type(language).__name__} has no linear layer (torch.nn.Linear); train all weights, or take "
            "another language model"
        )
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=sorted(names))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "lora") & (2**63 - 1))  # peft draws from the global generator
        peft.inject_adapter_in_model(config, language)


def is_lora(name: str) -> bool:
    """Return whether a parameter of this name belongs to an adapter."""
    return ".lora_" in name
