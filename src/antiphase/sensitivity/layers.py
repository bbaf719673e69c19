"""The parts of an attention layer, the derivatives of its maps, and how torch has to compute them."""

import functools
import importlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphase.arguments import validated
from antiphase.attention.maps import mean_over_queries
from antiphase.attention.modules import AttentionMaps, Tokens
from antiphase.errors import UserError

Turn = Callable[[Tensor], Tensor]
TokensOfHeads = Float[Tensor, "batch heads tokens dim"]
PerToken = Float[Tensor, "batch heads tokens width"]
Maps = Float[Tensor, "batch heads tokens tokens"]

# whether tokens come before the batch, of modules that were run to find it
TOKENS_FIRST: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
_LEAST = 1e-6  # size of a mean λ

# arguments that are keys or values in torch and transformers
_KEYS = ("key", "value", "encoder_hidden_states", "key_value_states", "context", "memory")


@functools.cache
def prepare_forward_mode() -> None:
    """Import torch's forward-mode formulas once, without the FutureWarning that this import emits."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore", FutureWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


@contextmanager
def gradients(*, enabled: bool) -> Iterator[None]:
    """Enable or disable gradients outside the caller's inference mode; a generator must not yield within it."""
    with torch.inference_mode(mode=False), torch.set_grad_enabled(enabled):
        yield


def leaf(x: Tensor) -> Tensor:
    """Return x as the leaf of a new graph, also if it was created in inference mode."""
    with gradients(enabled=True):
        return (x.clone() if x.is_inference() else x).detach().requires_grad_()


@contextmanager
def eager_attention() -> Iterator[None]:
    """Make torch compute attention with plain matrix products, which have all derivatives, outside inference mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), gradients(enabled=torch.is_grad_enabled()):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@validated
@dataclass(frozen=True)
class Branch:
    """A = softmax(s·q̃·k̃ᵀ + mask) with q̃ = turn_q(q), k̃ = turn_k(k), q = x·W_qᵀ + b_q, k = x·W_kᵀ + b_k."""

    q: PerToken
    k: PerToken
    to_q: Float[Tensor, "heads width dim"]  # W_q of each head
    to_k: Float[Tensor, "heads width dim"]
    scale: float | None = None  # s; None: 1/√width
    mask: Tensor | None = None  # added to the scores, broadcastable to the map; −∞ forbids attention
    # applied to each head's queries or keys, such as a norm or rotary positions. None: the identity; only then do the
    # closed forms by_key and by_query hold
    turn_q: Turn | None = None
    turn_k: Turn | None = None

    @property
    def factor(self) -> float:
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def plain(self) -> bool:
        """Whether queries and keys are used exactly as projected."""
        return self.turn_q is None and self.turn_k is None

    def double(self) -> "Branch":
        """Convert to float64, which avoids cancellation for peaked maps."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: x.double() for name, x in parts.items() if isinstance(x, Tensor)})

    @cached_property
    def turned_q(self) -> PerToken:
        return self.q if self.turn_q is None else self.turn_q(self.q)

    @cached_property
    def turned_k(self) -> PerToken:
        return self.k if self.turn_k is None else self.turn_k(self.k)

    @cached_property
    def attention(self) -> Maps:
        scores = (self.turned_q * self.factor) @ self.turned_k.mT
        return (scores if self.mask is None else scores + self.mask).softmax(-1)

    @cached_property
    def by_key(self) -> TokensOfHeads:
        """U of a plain branch: row i is ∂s_ij/∂x_j, the same for every j ≠ i."""
        return self.q @ self.to_k * self.factor

    @cached_property
    def by_query(self) -> TokensOfHeads:
        """M of a plain branch: row j is ∂s_ij/∂x_i, the same for every i ≠ j."""
        return self.k @ self.to_q * self.factor

    def vjp(self, cotangent: Maps) -> TokensOfHeads:
        """Return Jᵀv, the gradient of Σ A·v by the tokens for each head; the scores' is (diag(a_i) − a_i·a_iᵀ)·v_i."""
        a = self.attention
        scores = (a * (cotangent - (a * cotangent).sum(-1, keepdim=True))) * self.factor
        to_query = _pull(self.turn_q, self.q, scores @ self.turned_k)
        to_key = _pull(self.turn_k, self.k, scores.mT @ self.turned_q)
        return to_query @ self.to_q + to_key @ self.to_k

    def jvp(self, direction: Tokens) -> Maps:
        """Return J·t, the derivative of the map as the tokens move along ``direction``."""
        a, moved = self.attention, direction[:, None]
        query = _push(self.turn_q, self.q, moved @ self.to_q.mT)
        key = _push(self.turn_k, self.k, moved @ self.to_k.mT)
        scores = (query @ self.turned_k.mT + self.turned_q @ key.mT) * self.factor
        return a * (scores - (a * scores).sum(-1, keepdim=True))


def _pull(turn: Turn | None, x: Tensor, cotangent: Tensor) -> Tensor:
    return cotangent if turn is None else torch.func.vjp(turn, x)[1](cotangent)[0]


def _push(turn: Turn | None, x: Tensor, tangent: Tensor) -> Tensor:
    if turn is None:
        return tangent
    prepare_forward_mode()
    return torch.func.jvp(turn, (x,), (tangent,))[1]


@dataclass(frozen=True)
class TracedBranch:
    """Maps as a function of the tokens: a ``Branch`` whose queries and keys are not known."""

    function: Callable[[Tensor], Maps]  # from tokens to the map of each head
    tokens: Tokens

    @cached_property
    def attention(self) -> Maps:
        return self.function(self.tokens)

    def vjp(self, cotangent: Maps) -> TokensOfHeads:
        with gradients(enabled=True):
            x = leaf(self.tokens)
            pairs = zip(self.function(x).unbind(1), cotangent.unbind(1), strict=True)
            slopes = [torch.autograd.grad(one, x, v, retain_graph=True)[0] for one, v in pairs]
        return torch.stack(slopes, 1)

    def jvp(self, direction: Tokens) -> Maps:
        prepare_forward_mode()
        return torch.func.jvp(self.function, (self.tokens,), (direction,))[1]


@dataclass(frozen=True)
class CentredBranch:
    """A2 − Ā1 with Ā1 the mean of A1 over the queries: what DINT subtracts, weighted by λ; its rows sum to 0."""

    positive: Branch | TracedBranch
    negative: Branch | TracedBranch
    mask: Tensor | None = None  # as in mean_over_queries

    def _mean(self, maps: Maps) -> Maps:
        return mean_over_queries(maps, self.mask).expand_as(maps)

    @cached_property
    def attention(self) -> Maps:
        return self.negative.attention - self._mean(self.positive.attention)

    def vjp(self, cotangent: Maps) -> TokensOfHeads:
        (pulled,) = torch.func.vjp(self._mean, cotangent)[1](cotangent)
        return self.negative.vjp(cotangent) - self.positive.vjp(pulled)

    def jvp(self, direction: Tokens) -> Maps:
        return self.negative.jvp(direction) - self._mean(self.positive.jvp(direction))


AnyBranch = Branch | TracedBranch | CentredBranch


@dataclass(frozen=True)
class WeightedBranch:
    """N / λ̄ with N_i = λ_i·A2_i: the subtracted map where λ differs from query to query.

    J_N = λ·J2 + A2 ⊗ ∇λ, so that J_DA = J1 − λ̄·(J_N / λ̄), and Lemma 1 and Theorems 1 to 3 hold with J_N / λ̄ as J2.
    """

    branch: AnyBranch  # of A2
    ratio: Float[Tensor, "batch heads queries"]  # λ_i / λ̄
    term: TracedBranch  # A2 ⊗ ∇λ / λ̄

    @cached_property
    def attention(self) -> Maps:
        return self.ratio[..., None] * self.branch.attention

    def vjp(self, cotangent: Maps) -> TokensOfHeads:
        return self.branch.vjp(self.ratio[..., None] * cotangent) + self.term.vjp(cotangent)

    def jvp(self, direction: Tokens) -> Maps:
        return self.ratio[..., None] * self.branch.jvp(direction) + self.term.jvp(direction)


@dataclass(frozen=True)
class Call:
    """One call of an attention module."""

    name: str  # of the module in the model; @2 is appended for its second call in one pass
    module: nn.Module
    tokens: Tensor  # first tensor passed to it
    tangent: Tensor | None  # derivative of the tokens along the requested direction of the inputs, if any
    args: tuple[Any, ...]  # the other arguments
    kwargs: Mapping[str, Any]
    output: Tensor  # first tensor returned

    def given(self, place: int, name: str) -> Any:
        """Return an argument after the tokens by position (from 0) or name; None if absent."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)

    def is_tokens(self, tensor: Tensor) -> bool:
        """Return whether an argument is the tokens; a dual tensor and its primal share storage."""
        return tensor.shape == self.tokens.shape and tensor.data_ptr() == self.tokens.data_ptr()

    @property
    def is_cross(self) -> bool:
        """Whether keys or values are of other tokens than the queries."""
        others = [self.kwargs.get(name) for name in _KEYS]
        others += self.args[:2] if isinstance(self.module, nn.MultiheadAttention) else ()
        return any(isinstance(one, Tensor) and not self.is_tokens(one) for one in others)

    def batch_first(self, tensor: Tensor) -> Tensor:
        """Exchange the first two axes if the tokens of the module come before the batch."""
        stated = getattr(self.module, "batch_first", True)  # as of torch's
        return tensor.transpose(0, 1) if TOKENS_FIRST.get(self.module, stated is False) else tensor


@dataclass(frozen=True)
class Layer:
    """One attention layer at its tokens: ``output = finish(A1 − λ·A2)``."""

    name: str  # of the module in the model
    tokens: Tokens  # its input, by which sensitivity "at the tokens" is measured
    positive: Branch | TracedBranch  # of A1; the only branch of standard attention
    negative: AnyBranch | None  # of A2, or of what takes its place (DINT)
    lam: Tensor | None  # λ: (), (heads,) or (batch, heads, queries); None for standard attention
    finish: Callable[[Tensor], Tensor]  # from the combined map to the layer's output
    tangent: Tokens | None = None  # as in Call
    values: PerToken | None = None  # V, which the map multiplies; None if the adapter does not give it
    lambda_of: Callable[[Tensor], Tensor] | None = None  # from tokens to ``lam``, where it depends on them

    @property
    def maps(self) -> AttentionMaps:
        """The maps; differentiable with respect to the tokens if these have a graph."""
        negative = None if self.negative is None else self.negative.attention
        return AttentionMaps(self.positive.attention, negative, self.lam)

    @property
    def heads(self) -> int:
        """Number of heads: maps, or pairs of maps."""
        return self.positive.attention.shape[1]

    @property
    def weight(self) -> Tensor:
        """λ of each head; zeros for standard attention. Where λ differs by query, λ̄, its mean: (batch, heads)."""
        if self.lam is None:
            return self.tokens.new_zeros(self.heads)
        if self.lam.ndim < 3:
            return self.lam.detach().expand(self.heads)
        mean = self.lam.detach().mean(-1)
        return torch.where(mean.abs() > _LEAST, mean, _LEAST)  # it is divided by

    @cached_property
    def term(self) -> TracedBranch | None:
        """λ·A2 / λ̄ with A2 fixed, whose Jacobian is A2 ⊗ ∇λ / λ̄; None if λ does not depend on the tokens."""
        if self.negative is None or self.lam is None or self.lam.ndim < 3:
            return None
        if (lambda_of := self.lambda_of) is None:
            fix = "expected `lambda_of`, from tokens to λ, in its Layer"
            raise UserError(f"{self.name}: λ differs from query to query; {fix}")
        maps, mean = self.negative.attention.detach(), self.weight[..., None]
        return TracedBranch(lambda x: (lambda_of(x) / mean)[..., None] * maps, self.tokens.detach())

    @cached_property
    def subtracted(self) -> AnyBranch | WeightedBranch | None:
        """What :attr:`weight` multiplies in A1 − λ·A2: the negative map, row by row times λ/λ̄ where λ differs."""
        if self.negative is None or self.lam is None or self.term is None:
            return self.negative
        return WeightedBranch(self.negative, self.lam.detach() / self.weight[..., None], self.term)


def first_of(output: Any) -> Any:
    """Return the first of several outputs, or the only one."""
    return output[0] if isinstance(output, tuple) else output
