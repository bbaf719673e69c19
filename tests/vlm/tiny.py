"""A language model, a tokenizer and an image tower so small that a pass takes milliseconds."""

import torch

from antiphase.models.vit import VitConfig, build
from antiphase.vlm import Projector, VisionLanguageModel, image_tokens

WORDS = (
    "Is there a cat dog sun tree in the image ? . Yes No yes no what is this A chat between curious user and an "
    "artificial intelligence assistant The gives helpful , detailed polite answers to 's questions USER : ASSISTANT"
)
CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tiny_tokenizer(chat=True):
    """Return a tokenizer of whole words, made by hand."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", "<|start|>", "<|end|>", "\n", "user", "assistant", *WORDS.split()]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r" +"), "removed"), pre_tokenizers.Split(Regex(r"\n|[?.,:]|'s"), "isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="<|end|>" if chat else "</s>",
        additional_special_tokens=["<|start|>", "<|end|>"],
    )
    tokenizer.chat_template = CHAT if chat else None
    return tokenizer


def tiny_language(words=80, seed=0):
    """Return a LlamaForCausalLM of random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=words,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=4,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def tiny_vit(seed=0, image_size=16):
    """Return a vision transformer of ours: for images of 16 pixels, 16 tokens of 12 numbers."""
    config = VitConfig(
        attention="differential",
        image_size=image_size,
        patch_size=4,
        in_channels=3,
        num_classes=0,
        dim=12,
        depth=3,
        num_heads=2,
    )
    return build(config, seed).eval()


def tiny_vlm(chat=True, merge=2):
    """Return the three parts put together."""
    tower = image_tokens(tiny_vit())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        projector = Projector("mlp2x", tower.width, tower.count, 24, merge)
    return VisionLanguageModel(tower, projector, tiny_language(), tiny_tokenizer(chat)).eval()


def tiny_images(count=3, seed=0):
    """Return images in [0, 1]."""
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
