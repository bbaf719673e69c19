"""A language model of random weights that needs no download: for trying out a pipeline, not for its answers."""

from typing import Any

import torch

_CHAT = (
    "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)
_SEED = 0


def tiny_language(transformers: Any) -> tuple[Any, Any]:
    """Return a LlamaForCausalLM of 2 layers, 32 wide, and a tokenizer whose tokens are bytes.

    Args:
        transformers: the module.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # comes with transformers

    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate(words)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = _CHAT
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
        torch.manual_seed(_SEED)
        return transformers.LlamaForCausalLM(config), tokenizer
