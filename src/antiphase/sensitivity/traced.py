"""Softmax maps of a module that is run as a whole, and their derivatives with respect to its tokens."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.sensitivity.branches import Branch
from antiphase.sensitivity.eager import gradients, leaf, prepare_forward_mode
from antiphase.sensitivity.replay import Replay


@dataclass(frozen=True)
class TracedBranch:
    """Some of a module's softmax maps, one for each head; the counterpart of a ``Branch`` without its parts.

    Attributes:
        run: runs the module again.
        tokens: its tokens.
        numbers: numbers of the maps in the order of computation.
    """

    run: Replay
    tokens: Float[Tensor, "batch tokens dim"]
    numbers: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether queries and keys are known and used exactly as projected: no."""
        return False

    @property
    def heads(self) -> int:
        """Number of maps."""
        return len(self.numbers)

    @cached_property
    def attention(self) -> Float[Tensor, "batch heads tokens tokens"]:
        """The map A."""
        return self._maps(self.tokens)

    def vjp(
        self, cotangent: Float[Tensor, "batch heads tokens tokens"]
    ) -> Float[Tensor, "batch heads tokens dim"]:
        """Return Jᵀv, the gradient of Σ A·v with respect to the tokens, separately for each head."""
        with gradients(enabled=True):
            x = leaf(self.tokens)
            maps = self._maps(x)
            found = [
                torch.autograd.grad(maps[:, head], x, cotangent[:, head], retain_graph=True)[0]
                for head in range(self.heads)
            ]
        return torch.stack(found, 1)

    def jvp(self, direction: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return J·t, the derivative of the map as the tokens move along ``direction``."""
        prepare_forward_mode()
        return torch.func.jvp(self._maps, (self.tokens,), (direction,))[1]

    def _maps(self, x: Tensor) -> Tensor:
        return self.run(x).maps[:, list(self.numbers)]


AnyBranch = Branch | TracedBranch
"""A softmax map of each head, with or without its parts."""
