"""CLIP's text tower: causal transformer over byte-pair tokens, read out at the end-of-text token."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int64
from pydantic import PositiveFloat
from torch import Tensor, nn

from antiphase.models.towers import Size, TowerConfig, check_memory
from antiphase.models.transformer import AttentionFactory, Block, QuickGELU, run_blocks

if TYPE_CHECKING:
    from open_clip.tokenizer import SimpleTokenizer

VOCABULARY = 49_408  # of OpenAI's byte-pair encoding; the last entry is end-of-text
_STEP = 8  # lengths are rounded up to a multiple: few shapes to compile, few wasted tokens


class TextConfig(TowerConfig):
    """Architecture of a text tower."""

    vocab_size: Size = VOCABULARY
    context_length: Size = 77
    norm_eps: PositiveFloat = 1e-5


class TextTransformer(nn.Module):
    """Encode each text's token ids as one feature vector, the layer-normalised output at the end-of-text token.

    Source: A. Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021,
    Section 2.4 (causal attention, QuickGELU).

    Args:
        attention: ``attention(layer_index)`` returns the attention module of a layer.
        vocab_size: number of token ids; the largest is end-of-text.
        context_length: maximum number of tokens per text.
        dim: token width.
        depth: number of blocks.
        mlp_ratio: hidden width of the MLP divided by ``dim``.
        norm_eps: ε of the layer norms.
    """

    def __init__(
        self,
        attention: AttentionFactory,
        *,
        vocab_size: int,
        context_length: int,
        dim: int,
        depth: int,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.context_length = context_length
        self.checkpointing = False  # recompute each block in the backward pass: slower, less memory
        self.token_embed = nn.Embedding(vocab_size, dim)
        self.pos_embed = nn.Parameter(torch.zeros(context_length, dim))
        self.blocks = nn.ModuleList(
            Block(dim, attention(layer), mlp_ratio, QuickGELU(), norm_eps) for layer in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=norm_eps)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        """Return one feature vector per text.

        Args:
            tokens: at most ``context_length`` ids per row; a text ends at the largest id of its row, and later ids
                have no effect (see :func:`trimmed`).

        Raises:
            ValueError: if there are more than ``context_length`` tokens.
        """
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(f"{length} tokens: expected at most {self.context_length}, the context length")
        x = self.token_embed(tokens) + self.pos_embed[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        x = run_blocks(self.blocks, x, mask, checkpointing=self.checkpointing)
        return self.norm(x[torch.arange(len(x), device=x.device), tokens.argmax(1)])


def trimmed(tokens: Int64[Tensor, "batch length"]) -> Int64[Tensor, "batch shorter"]:
    """Drop the columns after the last end-of-text token.

    Attention is causal, so the features do not change; captions fill about a fifth of the 77 positions.
    """
    needed = int(tokens.argmax(1).max()) + 1
    return tokens[:, : min(-(-needed // _STEP) * _STEP, tokens.shape[1])]


def tokenize(texts: Sequence[str], context_length: int = 77) -> Int64[Tensor, "batch length"]:
    """Return byte-pair ids: start, words, end, zero padding; a long text is truncated but keeps its end token.

    >>> tokenize(["a mug"], 5).tolist()
    [[49406, 320, 9722, 49407, 0]]
    """
    return _tokenizer()(list(texts), context_length)


@functools.cache
def _tokenizer() -> "SimpleTokenizer":
    from open_clip.tokenizer import SimpleTokenizer  # seconds to import

    return SimpleTokenizer()


def as_tokens(texts: "Sequence[str] | Tensor", context_length: int) -> Tensor:
    """Tokenise strings; return token ids unchanged.

    Raises:
        TypeError: for a single string, which would be read as a list of letters.
    """
    if isinstance(texts, str):
        raise TypeError(f"text {texts!r}: expected a list of strings, such as [{texts!r}]")
    return texts if isinstance(texts, Tensor) else tokenize(texts, context_length)


def text_tower(config: TextConfig, attention: AttentionFactory) -> TextTransformer:
    """Build a text tower with the constructors' weights.

    Raises:
        UserError: if it does not fit the memory.
    """
    check_memory(config, config.vocab_size + config.context_length)
    sizes: dict[str, Any] = config.model_dump(
        include={"vocab_size", "context_length", "dim", "depth", "mlp_ratio", "norm_eps"}
    )
    return TextTransformer(attention, **sizes)
