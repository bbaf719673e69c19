"""An attention layer taken apart: its branches, its λ, and what comes behind the map."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError
from antiphase.sensitivity.branches import Branch


@dataclass(frozen=True)
class Call:
    """What an attention module was given, and what it returned.

    Attributes:
        name: of the module in the model; its second run in one pass has ``@2`` behind it.
        module: the module.
        tokens: the first tensor it was given.
        tangent: how the tokens move along the inputs' direction, where one was asked for.
        args, kwargs: what else it was given.
        output: the first tensor it returned.
    """

    name: str
    module: nn.Module
    tokens: Tensor
    tangent: Tensor | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor

    def given(self, place: int, name: str) -> Any:
        """Return an argument behind the tokens by its place (from 0) or its name; None where not given."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)


@dataclass(frozen=True)
class Layer:
    """One attention layer at its tokens: ``output = finish(A1 − λ·A2)``.

    Attributes:
        name: of the module in the model.
        tokens: its input, the site of sensitivity "at the tokens".
        positive: branch of A1; the only one of standard attention.
        negative: branch of A2, or None.
        lam: λ, shape ``()``, ``(heads,)`` or ``(batch, heads, queries)``; None for standard attention.
        finish: from the combined map to the layer's output.
        tangent: how the tokens move along the inputs' direction, where one was asked for.
    """

    name: str
    tokens: Float[Tensor, "batch tokens dim"]
    positive: Branch
    negative: Branch | None
    lam: Tensor | None
    finish: Callable[[Tensor], Tensor]
    tangent: Float[Tensor, "batch tokens dim"] | None = None

    @property
    def maps(self) -> AttentionMaps:
        """The maps, differentiable in the tokens if these have a graph."""
        negative = None if self.negative is None else self.negative.attention
        return AttentionMaps(self.positive.attention, negative, self.lam)

    @property
    def heads(self) -> int:
        """Number of maps, or of pairs of maps."""
        return self.positive.to_q.shape[0]

    @property
    def weight(self) -> Tensor:
        """λ of each head; zeros for standard attention.

        Raises:
            UserError: λ differs from query to query.
        """
        if self.lam is None:
            return self.tokens.new_zeros(self.heads)
        if self.lam.ndim > 1:
            raise UserError(
                f"{self.name}: λ differs from query to query, expected one for each head; measure maps, depth or "
                "Lipschitz constants in place of alignment"
            )
        return self.lam.detach().expand(self.heads)
