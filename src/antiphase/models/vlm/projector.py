"""From an image tower's tokens to the word space of a language model."""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.errors import UserError

Kind = Literal["linear", "mlp2x"]
Tokens = Float[Tensor, "batch tokens width"]
Words = Float[Tensor, "batch language"]
_RIDGE = 1e-3


class Projector(nn.Module):
    """Map image tokens to vectors of a language model's width.

    ``linear`` is LLaVA's W·h + b, ``mlp2x`` is LLaVA 1.5's W₂·GELU(W₁·h + b₁) + b₂. With ``merge`` m > 1, the m × m
    neighbours of the token grid are concatenated to one token first, as in InternVL 1.5 (Z. Chen et al., 2024,
    *pixel unshuffle*): an image then takes 1/m² of the positions. ``centre``, 0 unless :meth:`start_at_words` sets it,
    is subtracted from each token.

    Args:
        kind: ``linear`` or ``mlp2x``.
        width: width of an image token.
        count: number of tokens of an image, a square.
        language_width: width of the language model's embeddings.
        merge: side of the squares of tokens that become one; divides the side of the grid.

    Raises:
        UserError: if ``merge`` does not divide the side of the grid.
    """

    def __init__(self, kind: Kind, width: int, count: int, language_width: int, merge: int = 1) -> None:
        super().__init__()
        side = math.isqrt(count)
        if merge < 1 or side % merge:
            raise UserError(
                f"merge {merge}: expected a divisor of {side}, the side of the grid of image tokens"
            )
        self.kind, self.merge, self.side = kind, merge, side
        first = nn.Linear(width * merge * merge, language_width)
        more = [nn.GELU(), nn.Linear(language_width, language_width)] if kind == "mlp2x" else []
        self.layers = nn.Sequential(first, *more)
        self.centre: Tensor
        self.register_buffer("centre", torch.zeros(first.in_features))

    @property
    def count(self) -> int:
        """Positions that an image takes in the language model."""
        return (self.side // self.merge) ** 2

    @torch.no_grad()
    def start_at_words(self, batches: Iterable[tuple[Tokens, Words]], norm: float) -> None:
        """Start from a least squares fit of image tokens to the words of their captions.

        Let x be a token, after merging, less the mean of all tokens, and y the mean word of its image's caption less
        the mean over captions. W minimises the mean of ‖W·x − y‖² plus ρ·tr(C)/d·‖W‖², where C is the mean of x·xᵀ, d
        the width of x and ρ = 0.001. Then W is scaled so that W·x has a root mean square norm of ``norm``, and b is the
        mean word. Tokens are centred from then on, so that a step of training moves what sets them apart.

        Args:
            batches: tokens of some images, and the mean word embedding of the caption of each.
            norm: root mean square distance of the captions' words from their mean.

        Raises:
            UserError: if the projector is not linear, or all captions have the same words.
        """
        if self.kind != "linear":
            raise UserError(f"projector {self.kind}: expected a linear one, which alone can be fitted")
        layer = self.layers[0]
        assert isinstance(layer, nn.Linear)
        wide, out = layer.in_features, layer.out_features
        squares, products = (torch.zeros(wide, size, dtype=torch.float64) for size in (wide, out))
        total, words = torch.zeros(wide, dtype=torch.float64), torch.zeros(out, dtype=torch.float64)
        energy = 0.0
        images = 0
        for tokens, mean_words in batches:
            own, target = self._merged(tokens).cpu().double(), mean_words.cpu().double()
            flat = own.flatten(0, 1)
            squares += flat.T @ flat
            products += own.sum(1).T @ target
            total += flat.sum(0)
            words += target.sum(0)
            energy += float(target.square().sum())
            images += len(own)
        count = images * self.count
        mean, mean_word = total / count, words / images
        if energy / images - float(mean_word.square().sum()) < 1e-9 * norm**2:  # rounding
            raise UserError(
                "projector-start captions: all captions have the same words; expected different ones, or "
                "--projector-start default"
            )
        covariance = squares / count - mean.outer(mean)
        common = products / count - mean.outer(mean_word)
        ridge = _RIDGE * covariance.diagonal().mean() * torch.eye(wide, dtype=torch.float64)
        weight = torch.linalg.solve(covariance + ridge, common).T
        size = (weight @ covariance * weight).sum().sqrt()
        layer.weight.copy_(weight * (norm / size))
        layer.bias.copy_(mean_word)
        self.centre.copy_(mean)

    def _merged(self, tokens: Tokens) -> Float[Tensor, "batch positions merged"]:
        m = self.merge
        if m == 1:
            return tokens
        grid = tokens.unflatten(1, (self.side // m, m, self.side // m, m))
        return grid.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch positions language"]:
        return self.layers(self._merged(tokens) - self.centre)
