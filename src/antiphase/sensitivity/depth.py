"""Propagation of a perturbation through the depth of a model, and what the subtraction leaves of it.

Source: sensitivity paper, Section 4.2: ‖Δ(d)‖ ≤ α(d)·L(d)·‖Δ(d−1)‖ with Δ(0) = ξ (equation 5), Δ the difference between
perturbed and clean input, L(d) the operator norm of block d's Jacobian at the clean tokens. The paper does not define
α(d); here α(d) = ‖Δ((A1 − λ·A2)·V)‖ / ‖Δ(A1·V)‖ over the tokens and heads of layer d, before norm and projection: 1 for
standard attention, |1 − λ| if the perturbation changes both branches alike, √(1 + λ²ρ²) > 1 if it changes them
independently, ρ = ‖Δ(A2·V)‖ / ‖Δ(A1·V)‖. As the rows of A1 − λ·A2 sum to 1 − λ, broad maps leave |1 − λ| of every
change of V, and of V itself: only α below :attr:`BranchChange.kept` makes the perturbation smaller relative to the
signal. The column ``alpha`` of stored rows is ‖Δ(d)‖ / (L(d)·‖Δ(d−1)‖), with which equation (5) holds by construction.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, UNIQUE, Batch, Count, Seed, validated
from antiphase.attention.maps import per_head
from antiphase.errors import UserError
from antiphase.modules import hooked
from antiphase.sensitivity.layers import Call, Layer, Maps, eager_attention, first_of
from antiphase.sensitivity.lipschitz import PerSample, power_iteration
from antiphase.sensitivity.maps import attention_layers, default_call, make_call, one_set_each, record, until

PerHead = Float[Tensor, "batch heads"]
PerLayer = Float[Tensor, "batch layers"]


@dataclass(frozen=True)
class Path:
    """Size of a perturbation along a model; the last axis is the depth."""

    names: tuple[str, ...]  # of the stages: the embedding, then the blocks
    length: Float[Tensor, "batch stages_and_one"]  # ‖ξ‖₂ at the pixels, then ‖Δ(d)‖₂ after each stage
    # Frobenius norms ‖ΔA1‖, λ‖ΔA2‖ (0 for standard attention) and ‖ΔA1 − λ·ΔA2‖ over the heads of each attention layer
    positive: PerLayer
    negative: PerLayer
    moved: PerLayer
    layers: tuple[str, ...]  # names of the attention layers

    @property
    def gain(self) -> Float[Tensor, "batch stages"]:
        """Growth of each stage, ‖Δ(d)‖ / ‖Δ(d−1)‖."""
        return self.length[:, 1:] / self.length[:, :-1]


def blocks(model: nn.Module, images: Batch) -> list[Call]:
    """Return the calls of the blocks that hold attention layers: elements of a ModuleList or Sequential."""
    parts = dict(model.named_modules())
    lists = nn.ModuleList | nn.Sequential
    names: dict[str, None] = {}
    for call in record(model, images):
        steps = call.name.partition("@")[0].split(".")
        paths = [".".join(steps[:end]) for end in range(len(steps), 0, -1)]
        inside = (path for path in paths if isinstance(parts[path.rpartition(".")[0]], lists))
        names[next(inside, paths[0])] = None
    calls: list[Call] = []

    def keep(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        calls.append(make_call(name, module, args, kwargs, output))

    hooks = (parts[name].register_forward_hook(partial(keep, name), with_kwargs=True) for name in names)
    with hooked(hooks), eager_attention(), torch.no_grad():
        default_call(model, images)(images.clone())
    return calls


def _subtracted(layer: Layer) -> Tensor:
    """Return λ·A2, which is 0 in standard attention."""
    if layer.negative is None or layer.lam is None:
        return torch.zeros_like(layer.positive.attention)
    return per_head(layer.lam) * layer.negative.attention


@validated
def propagate(model: nn.Module, images: Batch, perturbed: Batch) -> Path:
    """Measure the difference between clean and perturbed inputs, all unequal, after every block of a model."""
    if not (images != perturbed).flatten(1).any(1).all():
        raise UserError("perturbed: an image equals its clean image; expected every image to be perturbed")
    clean, other = blocks(model, images), blocks(model, perturbed)
    points = [perturbed - images, other[0].tokens - clean[0].tokens]
    points += [b.output - a.output for a, b in zip(clean, other, strict=True)]
    norms: dict[str, list[Tensor]] = {}
    for a, b in zip(attention_layers(model, images), attention_layers(model, perturbed), strict=True):
        one = b.positive.attention - one_set_each(a, len(images)).positive.attention
        two = _subtracted(b) - _subtracted(a)
        norms[a.name] = [_norm(part, 1) for part in (one, two, one - two)]
    positive, negative, moved = (torch.stack(column, 1) for column in zip(*norms.values(), strict=True))
    stages = ("embedding", *(block.name for block in clean))
    return Path(stages, torch.stack([_norm(point, 1) for point in points], 1), positive, negative, moved, tuple(norms))


@validated
def stage_norms(
    model: nn.Module,
    images: Batch,
    *,
    steps: Count = 20,
    seed: Seed = 0,
    ids: Annotated[Int64[Tensor, " batch"], UNIQUE] | None = None,
) -> Float[Tensor, "batch stages"]:
    """Estimate L(d), the L2 operator norm of each stage's Jacobian at the clean input, from below.

    By ``steps`` of power iteration, keyed by ``seed`` and ``ids``, the positions if None.
    """
    calls = blocks(model, images)

    def stage(block: Call | None, x: Tensor) -> Tensor:
        if block is None:  # the embedding
            return until(default_call(model, x), calls[0].module, x)[0][0]
        return first_of(block.module(x, *block.args, **block.kwargs))

    stages = [(partial(stage, None), images), *((partial(stage, block), block.tokens) for block in calls)]
    return torch.stack([power_iteration(f, x, steps=steps, seed=seed, ids=ids).value for f, x in stages], 1)


@validated
def crossover(differences: Annotated[Mapping[int, tuple[float, float]], NOT_EMPTY]) -> int | None:
    """Return the depth from which the differential model is more robust than the standard one; None if undecided.

    ``differences`` has the interval (low, high) of ASR(differential) − ASR(standard) by depth: all from the result on
    lie below 0, and an earlier one above. (Corollary 1 solves aᴰ = bᴰ, which unless a = b only D = 0 does.)
    """
    depths = sorted(differences)
    last = max((place for place, depth in enumerate(depths) if not differences[depth][1] < 0), default=-1)
    above = any(differences[depth][0] > 0 for depth in depths[: last + 1])
    return depths[last + 1] if above and last + 1 < len(depths) else None


@dataclass(frozen=True)
class BranchChange:
    """What a perturbation does to the branches of one attention layer; everything in float64, per sample and head."""

    name: str  # of the layer
    lam: Float[Tensor, " heads"] | None  # 0 for standard attention; None if it differs from query to query
    positive: PerHead  # ‖Δ(A1·V)‖, Frobenius norms
    negative: PerHead  # ‖Δ(λ·A2·V)‖
    moved: PerHead  # ‖Δ((A1 − λ·A2)·V)‖
    clean_positive: PerHead  # ‖A1·V‖ of the clean input
    clean_moved: PerHead  # ‖(A1 − λ·A2)·V‖
    clean_correlation: PerHead  # see row_centred, of A1 and A2; NaN for standard attention
    correlation: PerHead  # of the perturbed input
    change_correlation: PerHead  # of ΔA1 and ΔA2

    @property
    def alpha(self) -> PerSample:
        """α, over all heads."""
        return _over_heads(self.moved) / _over_heads(self.positive)

    @property
    def kept(self) -> PerSample:
        """‖(A1 − λ·A2)·V‖ / ‖A1·V‖ of the clean input over all heads: what the subtraction leaves of the signal."""
        return _over_heads(self.clean_moved) / _over_heads(self.clean_positive)


@validated
def branch_changes(model: nn.Module, images: Batch, perturbed: Batch) -> Iterator[BranchChange]:
    """Yield what a perturbation does to the branches of each attention layer, in order."""
    for clean, other in zip(attention_layers(model, images), attention_layers(model, perturbed), strict=True):
        (one, both), (one_moved, both_moved) = _outputs(one_set_each(clean, len(images))), _outputs(other)
        change, moved = one_moved - one, both_moved - both
        norms = [_norm(part) for part in (change, change - moved, moved, one, both)]
        correlations = [torch.full_like(norms[0], torch.nan)] * 3
        if clean.negative is not None and other.negative is not None:
            pairs = ((clean.positive, clean.negative), (other.positive, other.negative))
            (a1, a2), (b1, b2) = ([branch.attention.double() for branch in pair] for pair in pairs)
            correlations = [row_centred(a1, a2), row_centred(b1, b2), row_centred(b1 - a1, b2 - a2)]
        lam = clean.weight if clean.lam is None or clean.lam.ndim <= 1 else None
        yield BranchChange(clean.name, lam, *norms, *correlations)


def _outputs(layer: Layer) -> tuple[Tensor, Tensor]:
    if layer.values is None:
        raise UserError(f"{layer.name}: its adapter gives no values V; pass `values` to its Layer")
    maps, values = layer.maps, layer.values.double()
    return maps.positive.double() @ values, maps.combined.double() @ values


def row_centred(one: Maps, two: Maps) -> PerHead:
    """Compute Pearson's correlation of two maps' entries after subtracting each row's mean; NaN if one is uniform."""
    one, two = (part - part.mean(-1, keepdim=True) for part in (one, two))
    return (one * two).flatten(2).sum(-1) / (_norm(one) * _norm(two))


def _norm(x: Tensor, axis: int = 2) -> Tensor:
    return x.flatten(axis).norm(dim=axis)


def _over_heads(norms: Tensor) -> Tensor:
    return norms.square().sum(1).sqrt()
