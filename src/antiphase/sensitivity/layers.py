"""The parts of an attention layer: its branches, its λ, and the computation after the map."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn

from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError
from antiphase.sensitivity.branches import Branch

if TYPE_CHECKING:
    from antiphase.sensitivity.traced import TracedBranch

# arguments that are keys or values in torch and transformers
_KEYS = ("key", "value", "encoder_hidden_states", "key_value_states", "context", "memory")


@dataclass(frozen=True)
class Call:
    """One call of an attention module.

    Attributes:
        name: name of the module in the model; ``@2`` is appended to its second call in one pass.
        module: the module.
        tokens: first tensor passed to it.
        tangent: derivative of the tokens along the requested direction of the inputs, if any.
        args, kwargs: its other arguments.
        output: first tensor it returned.
    """

    name: str
    module: nn.Module
    tokens: Tensor
    tangent: Tensor | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor

    def given(self, place: int, name: str) -> Any:
        """Return an argument after the tokens by position (from 0) or name; None if absent."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)


@dataclass(frozen=True)
class Layer:
    """One attention layer at its tokens: ``output = finish(A1 − λ·A2)``.

    Attributes:
        name: name of the module in the model.
        tokens: its input, with respect to which sensitivity "at the tokens" is measured.
        positive: branch of A1; the only branch of standard attention.
        negative: branch of A2; None for standard attention.
        lam: λ, shape ``()``, ``(heads,)`` or ``(batch, heads, queries)``; None for standard attention.
        finish: maps the combined map to the layer's output.
        tangent: derivative of the tokens along the requested direction of the inputs, if any.
        values: V, which the map multiplies; None if the adapter does not give it.
    """

    name: str
    tokens: Float[Tensor, "batch tokens dim"]
    positive: "Branch | TracedBranch"
    negative: "Branch | TracedBranch | None"
    lam: Tensor | None
    finish: Callable[[Tensor], Tensor]
    tangent: Float[Tensor, "batch tokens dim"] | None = None
    values: Float[Tensor, "batch heads tokens width"] | None = None

    @property
    def maps(self) -> AttentionMaps:
        """The maps; differentiable with respect to the tokens if these have a graph."""
        negative = None if self.negative is None else self.negative.attention
        return AttentionMaps(self.positive.attention, negative, self.lam)

    @property
    def heads(self) -> int:
        """Number of heads: maps, or pairs of maps."""
        return self.positive.heads

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


def same_tensor(one: Tensor, two: Tensor) -> bool:
    """Return whether two arguments are the same tensor; a dual tensor and its primal share storage."""
    return one.shape == two.shape and one.data_ptr() == two.data_ptr()


def is_cross(call: Call) -> bool:
    """Return whether keys or values of a call are of other tokens than the queries."""
    given = dict(call.kwargs)
    if isinstance(call.module, nn.MultiheadAttention):
        given |= {"key": call.given(0, "key"), "value": call.given(1, "value")}
    others = (given.get(name) for name in _KEYS)
    return any(isinstance(one, Tensor) and not same_tensor(one, call.tokens) for one in others)
