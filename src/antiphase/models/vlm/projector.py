"""From an image tower's tokens to the word space of a language model."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.errors import UserError

Kind = Literal["linear", "mlp2x"]


class Projector(nn.Module):
    """Map image tokens to vectors of a language model's width.

    ``linear`` is LLaVA's W·h + b, ``mlp2x`` is LLaVA 1.5's W₂·GELU(W₁·h + b₁) + b₂. With ``merge`` m > 1, the m × m
    neighbours of the token grid are concatenated to one token first, as in InternVL 1.5 (Z. Chen et al., 2024,
    *pixel unshuffle*): an image then takes 1/m² of the positions.

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

    @property
    def count(self) -> int:
        """Positions that an image takes in the language model."""
        return (self.side // self.merge) ** 2

    @torch.no_grad()
    def match(self, tokens: Float[Tensor, "batch tokens width"], norm: float) -> None:
        """Shift and scale the last layer: what it gives for these tokens then has the mean 0 and this mean norm.

        Drawn as usual, what it gives has the norm that the tower's tokens happen to have, and a large part that is the
        same for all of them.

        Args:
            tokens: of some images.
            norm: such as the mean norm of a language model's word embeddings.
        """
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        last.bias -= self(tokens).mean((0, 1))
        scale = norm / self(tokens).norm(dim=-1).mean()
        last.weight *= scale
        last.bias *= scale

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch positions language"]:
        m = self.merge
        if m > 1:
            grid = tokens.unflatten(1, (self.side // m, m, self.side // m, m))
            tokens = grid.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
        return self.layers(tokens)
