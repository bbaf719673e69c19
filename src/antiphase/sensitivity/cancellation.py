"""What the subtraction leaves of a perturbation, and how alike the two maps of a layer are.

Source: robustness paper, Section 4.2. It calls α(d) "the average reduction factor from noise cancellation at layer d"
and does not define it. With Δ the difference between perturbed and clean input, here

    α(d) = ‖Δ((A1 − λ·A2)·V)‖ / ‖Δ(A1·V)‖

over the tokens and heads of layer d, before the norm and the projection that follow: the change that reaches the
layer's output, relative to the change without the subtraction. α is 1 for standard attention (λ = 0), |1 − λ| if the
perturbation changes both branches alike (the "shared" noise of the text), and √(1 + λ²ρ²) > 1 if it changes them
independently, ρ = ‖Δ(A2·V)‖ / ‖Δ(A1·V)‖. The alternative, ‖Δ((A1 − λ·A2)·V)‖ / √(‖Δ(A1·V)‖² + λ²‖Δ(A2·V)‖²)
(:attr:`BranchChange.balance`), is 1 for independent changes, but compares with no layer that exists: it is below 1 also
where the subtraction makes the change larger than that of A1·V alone.

α far below 1 need not mean that noise is told from signal. The rows of A1 − λ·A2 sum to 1 − λ, so that broad maps leave
|1 − λ| of every change of V, and of V itself (:attr:`BranchChange.kept`), which the norm that follows brings back to
its size. Only α below ``kept`` makes the perturbation smaller relative to the signal.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import Batch, validated
from antiphase.errors import UserError
from antiphase.sensitivity.layers import Layer
from antiphase.sensitivity.maps import attention_layers


@dataclass(frozen=True)
class BranchChange:
    """What a perturbation does to the branches of one attention layer; everything in float64, per sample and head.

    Attributes:
        name: name of the layer.
        lam: λ of each head, 0 for standard attention; None if it differs from query to query.
        positive, negative, moved: Frobenius norms of Δ(A1·V), Δ(λ·A2·V) and Δ((A1 − λ·A2)·V).
        clean_positive, clean_moved: ‖A1·V‖ and ‖(A1 − λ·A2)·V‖ of the clean input.
        clean_correlation, correlation: Pearson's correlation of the entries of A1 and A2, each row's mean subtracted,
            of the clean and of the perturbed input. NaN for standard attention and for a uniform map.
        change_correlation: the same of ΔA1 and ΔA2, whose rows have mean 0.
    """

    name: str
    lam: Float[Tensor, " heads"] | None
    positive: Float[Tensor, "batch heads"]
    negative: Float[Tensor, "batch heads"]
    moved: Float[Tensor, "batch heads"]
    clean_positive: Float[Tensor, "batch heads"]
    clean_moved: Float[Tensor, "batch heads"]
    clean_correlation: Float[Tensor, "batch heads"]
    correlation: Float[Tensor, "batch heads"]
    change_correlation: Float[Tensor, "batch heads"]

    @property
    def alpha(self) -> Float[Tensor, " batch"]:
        """α, over all heads."""
        return _over_heads(self.moved) / _over_heads(self.positive)

    @property
    def kept(self) -> Float[Tensor, " batch"]:
        """‖(A1 − λ·A2)·V‖ / ‖A1·V‖ of the clean input over all heads: what the subtraction leaves of the signal."""
        return _over_heads(self.clean_moved) / _over_heads(self.clean_positive)

    @property
    def balance(self) -> Float[Tensor, " batch"]:
        """‖Δ((A1 − λ·A2)·V)‖ relative to branches that change independently; see the top of this file."""
        apart = (self.positive.square() + self.negative.square()).sum(1).sqrt()
        return _over_heads(self.moved) / apart


@validated
def branch_changes(model: nn.Module, images: Batch, perturbed: Batch) -> Iterator[BranchChange]:
    """Yield what a perturbation does to the branches of each attention layer, in order.

    Args:
        model: any model with attention.
        images: clean inputs.
        perturbed: perturbed inputs, in the same order.

    Raises:
        UserError: as :func:`~antiphase.sensitivity.attention_layers`, or if an adapter gives no values.
    """
    for clean, other in zip(attention_layers(model, images), attention_layers(model, perturbed), strict=True):
        yield _change(clean, other)


def _change(clean: Layer, other: Layer) -> BranchChange:
    (one, both), (one_moved, both_moved) = _outputs(clean), _outputs(other)
    change, moved = one_moved - one, both_moved - both
    nothing = torch.full_like(_norm(one), torch.nan)
    correlations = (nothing, nothing, nothing)
    if clean.negative is not None and other.negative is not None:
        a1, a2, b1, b2 = (
            branch.attention.double()
            for branch in (clean.positive, clean.negative, other.positive, other.negative)
        )
        correlations = (row_centred(a1, a2), row_centred(b1, b2), row_centred(b1 - a1, b2 - a2))
    lam = clean.weight if clean.lam is None or clean.lam.ndim <= 1 else None
    return BranchChange(
        clean.name,
        lam,
        _norm(change),
        _norm(change - moved),
        _norm(moved),
        _norm(one),
        _norm(both),
        *correlations,
    )


def _outputs(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return A1·V and (A1 − λ·A2)·V of each head."""
    if layer.values is None:
        raise UserError(f"{layer.name}: its adapter gives no values V; pass `values` to its Layer")
    maps, values = layer.maps, layer.values.double()
    return maps.positive.double() @ values, maps.combined.double() @ values


def row_centred(
    one: Float[Tensor, "batch heads queries keys"], two: Float[Tensor, "batch heads queries keys"]
) -> Float[Tensor, "batch heads"]:
    """Compute Pearson's correlation of the entries of two maps after subtracting each row's mean.

    r = Σ(a_ij − ā_i)(b_ij − b̄_i) / √(Σ(a_ij − ā_i)²·Σ(b_ij − b̄_i)²). Without the centring, the share 1/N that
    every key receives would count as agreement. NaN if a map is uniform.
    """
    one, two = (part - part.mean(-1, keepdim=True) for part in (one, two))
    return (one * two).flatten(2).sum(-1) / (_norm(one) * _norm(two))


def _norm(x: Float[Tensor, "batch heads rows columns"]) -> Float[Tensor, "batch heads"]:
    return x.flatten(2).norm(dim=2)


def _over_heads(norms: Float[Tensor, "batch heads"]) -> Float[Tensor, " batch"]:
    return norms.square().sum(1).sqrt()
