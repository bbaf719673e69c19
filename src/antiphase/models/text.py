"""CLIP's text tower: causal blocks over byte-pair tokens, read at the end-of-text token."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int64
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from antiphase.models.towers import TowerConfig
from antiphase.models.transformer import AttentionFactory, Block, QuickGELU, run_blocks

if TYPE_CHECKING:
    from open_clip.tokenizer import SimpleTokenizer

VOCABULARY = 49_408  # of OpenAI's byte-pair encoding; the last entry ends a text
_STEP = 8  # lengths are rounded up to a multiple of this: few shapes for a compiler, few wasted tokens


class TextConfig(TowerConfig):
    """All that is needed to build a text tower again."""

    vocab_size: PositiveInt = VOCABULARY
    context_length: PositiveInt = 77
    norm_eps: PositiveFloat = 1e-5


class TextTransformer(nn.Module):
    """Token ids to one feature vector a text.

    Source: A. Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021,
    Section 2.4: causal attention, QuickGELU, the feature is the normalised output at the end-of-text token.

    Args:
        attention: ``attention(layer_index)`` gives the attention module of a layer.
        vocab_size: number of tokens; the greatest id ends a text.
        context_length: greatest number of tokens.
        dim: width of the tokens.
        depth: number of blocks.
        mlp_ratio: hidden width of the MLP over ``dim``.
        norm_eps: of the layer norms.
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
        self.checkpointing = False  # computes each block again in the backward pass: slower, smaller
        self.token_embed = nn.Embedding(vocab_size, dim)
        self.pos_embed = nn.Parameter(torch.zeros(context_length, dim))
        self.blocks = nn.ModuleList(
            Block(dim, attention(layer), mlp_ratio, QuickGELU(), norm_eps) for layer in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=norm_eps)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        """Return the features of texts.

        Args:
            tokens: ids, at most ``context_length`` of them; each row ends at its greatest id. What stands
                behind it is not looked at: see :func:`trimmed`.

        Raises:
            ValueError: for rows that are too long.
        """
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(f"{length} tokens: this model takes at most {self.context_length}")
        x = self.token_embed(tokens) + self.pos_embed[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        x = run_blocks(self.blocks, x, mask, checkpointing=self.checkpointing)
        return self.norm(x[torch.arange(len(x), device=x.device), tokens.argmax(1)])


def trimmed(tokens: Int64[Tensor, "batch length"]) -> Int64[Tensor, "batch shorter"]:
    """Return the tokens without the columns behind the last end of a text.

    Attention is causal, so no feature changes, and captions fill a fifth of the 77 places.
    """
    needed = int(tokens.argmax(1).max()) + 1
    return tokens[:, : min(-(-needed // _STEP) * _STEP, tokens.shape[1])]


def tokenize(texts: Sequence[str], context_length: int = 77) -> Int64[Tensor, "batch length"]:
    """Return the byte-pair ids of texts: start, words, end, zeros; a long text is cut and keeps its end.

    >>> tokenize(["a mug"], 5).tolist()
    [[49406, 320, 9722, 49407, 0]]
    """
    return _tokenizer()(list(texts), context_length)


@functools.cache
def _tokenizer() -> "SimpleTokenizer":
    from open_clip.tokenizer import SimpleTokenizer  # seconds to import

    return SimpleTokenizer()


def as_tokens(texts: "Sequence[str] | Tensor", context_length: int) -> Tensor:
    """Return token ids, of strings or as they are.

    Raises:
        TypeError: for one bare string, which would be read as a list of letters.
    """
    if isinstance(texts, str):
        raise TypeError(f"{texts!r}: expected a list of texts, such as [{texts!r}]")
    return texts if isinstance(texts, Tensor) else tokenize(texts, context_length)


def text_tower(config: TextConfig, attention: AttentionFactory) -> TextTransformer:
    """Build the tower with whatever weights construction draws."""
    sizes: dict[str, Any] = config.model_dump(
        include={"vocab_size", "context_length", "dim", "depth", "mlp_ratio", "norm_eps"}
    )
    return TextTransformer(attention, **sizes)
