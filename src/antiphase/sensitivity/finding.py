"""Find attention by what a module does: softmax maps of pairs of tokens, and weighted differences of them.

A module counts as attention if it computes softmax rows A and, whatever its layout,

- the scores are of pairs: changing token k changes log A_ij for i ≠ k only at j = k, up to the row's normalisation,
  and changes row k; a softmax of which this is not true is no map;
- the values are of tokens: with A fixed, changing token k changes output i ≠ k only if A_ik ≠ 0;
- output i depends on row i of A only.

Softmax calls with equal maps are one map. The attention is differential if each of its maps is a minuend or a
subtrahend, and each minuend A1 has one subtrahend A2 with ∂y/∂A2 = −Σ λ·∂y/∂A1 over the minuends of A2, with the same λ
for all samples, tokens and a second input. Several minuends may share one subtrahend. It is standard if nothing is
subtracted and the slopes ∂y/∂A of all maps are linearly independent; any other module is not recognised.
"""

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from antiphase.errors import first_line
from antiphase.sensitivity.eager import gradients, leaf
from antiphase.sensitivity.evidence import (
    agree,
    only_difference_counts,
    scores_are_of_pairs,
    values_are_averaged,
    values_are_of_tokens,
)
from antiphase.sensitivity.layers import Call, Layer
from antiphase.sensitivity.replay import Maps, Replay, repeated_tokens
from antiphase.sensitivity.traced import TracedBranch

_PROBES = 8  # random cotangents of the output
_DEPENDENT = 1e-3  # relative size of what is left of slopes that are a combination of others
_SHARE = 1e-4  # of the largest λ of a subtrahend; what is smaller is rounding
_SCALES = (1.0, 0.3, 0.1)  # of the tokens: maps may be too peaked to see all scores
_LAMBDA = 1e-3  # relative difference of one λ at two inputs


@dataclass(frozen=True)
class Found:
    """What was found of a module.

    Attributes:
        positive: numbers of the maps that are A1, by head.
        negative: numbers of the maps that are A2, by head; empty for standard attention.
        lam: λ of each head; None for standard attention.
        same, groups: see :class:`~antiphase.sensitivity.replay.Replay`.
        stamp: state of the parameters.
    """

    positive: tuple[int, ...]
    negative: tuple[int, ...]
    lam: Tensor | None
    same: frozenset[int | str]
    groups: tuple[int, ...]
    stamp: Any


Grams = Float[Tensor, "batch queries maps maps"]
_FOUND: weakref.WeakKeyDictionary[nn.Module, Found] = weakref.WeakKeyDictionary()


def is_found(module: nn.Module) -> bool:
    """Return whether a module was found to be attention."""
    return module in _FOUND


def is_differential(module: nn.Module) -> bool:
    """Return whether a module was found to be differential attention."""
    return module in _FOUND and bool(_FOUND[module].negative)


def remember(module: nn.Module, found: Found) -> None:
    """Remember that a module is attention."""
    _FOUND[module] = found


def find_attention(call: Call) -> str:
    """Examine a module at one of its calls and remember what was found; return why it is not attention, or ``""``."""
    found = examine(call)
    if isinstance(found, str):
        _FOUND.pop(call.module, None)
        return found
    remember(call.module, found)
    return ""


def found_layer(module: nn.Module, call: Call) -> Layer:
    """Split a module that was found to be attention; the adapter of such modules."""
    found = _FOUND[module]
    if found.stamp != _stamp(module):  # weights changed, and λ with them
        if reason := find_attention(replace(call, tokens=call.tokens.detach())):
            raise ValueError(f"its weights changed, and it no longer works like attention: {reason}")
        found = _FOUND[module]
    run = Replay(call, found.same, found.groups)
    order = [*found.positive, *sorted(set(found.negative))]
    back = [order.index(number) for number in range(len(order))]

    def finish(combined: Tensor) -> Tensor:
        others = combined.new_zeros(len(combined), len(order) - len(found.positive), *combined.shape[2:])
        return run(call.tokens, torch.cat([combined, others], 1)[:, back]).output

    both = TracedBranch(run, call.tokens, found.positive)
    negative = replace(both, numbers=found.negative) if found.negative else None
    lam = None if found.lam is None else found.lam.to(call.tokens)
    return Layer(call.name, call.tokens, both, negative, lam, finish, call.tangent)


@gradients(enabled=False)
def examine(call: Call) -> Found | str:
    """Return what a module's maps are, or why it is not recognised as attention."""
    try:
        return _examined(call)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module may fail on other tokens than its own in any way
        return f"it cannot be run again with other tokens or maps ({first_line(error)})"


def _examined(call: Call) -> Found | str:
    x = call.tokens.detach()
    if x.ndim != 3 or not x.is_floating_point() or x.shape[1] < 3:
        return "it is not given tokens of shape (batch, 3 or more, channels)"
    run = Replay(call, repeated_tokens(call))
    plain = run(x)
    if plain.output.ndim != 3 or plain.output.shape[:2] != x.shape[:2] or plain.maps.shape[-1] != x.shape[1]:
        return "its maps or its output are not of its tokens"
    if not agree(plain.output, call.output) or not agree(run(x, plain.maps).output, call.output):
        return "it gives another output when it is run again"
    generator = torch.Generator().manual_seed(0)
    step = torch.randn(x.shape[2], generator=generator).to(x) * x.std() / 2
    paired = torch.stack([scores_are_of_pairs(run, scale * x, scale * step) for scale in _SCALES]).any(0)
    if not paired.any():
        return "its softmax rows are not scores of pairs of tokens"
    groups = _groups(plain.maps, paired.tolist())
    run = replace(run, groups=groups)
    plain = run(x)
    if not values_are_of_tokens(run, x, plain.maps, step):
        return "its output at a token is not a sum of values weighted by that token's row of the maps"
    grams, sides = _slopes(run, groups, x)
    if not grams.isfinite().all() or (_diagonal(grams.sum((0, 1))) <= 1e-12 * grams.sum((0, 1)).max()).any():
        return "its output does not depend on one of its maps"
    small = max(_DEPENDENT, 20 * torch.finfo(plain.maps.dtype).eps)
    signs = _signs(sides, groups)
    if isinstance(signs, str):
        return signs
    positive, negative = signs
    if not negative:
        if _dependent(grams, small):
            return "several of its maps weigh the same values"
        if not values_are_averaged(run, x, plain.maps):
            return "its output is not an average of values"
        return Found(tuple(range(grams.shape[-1])), (), None, run.same, groups, _stamp(call.module))
    if len(positive) + len(negative) < grams.shape[-1]:
        return "it subtracts only some of its maps"
    if _lowest(grams.sum((0, 1))[positive][:, positive]) <= small**2:
        return "several of its maps weigh the same values"
    weights = _weights(grams.sum((0, 1)), positive, negative, small)
    if weights is None:
        if _dependent(grams, small):
            return "λ, the weight of the map that is subtracted, differs from token to token"
        return "what it subtracts is not a weighted map of the same values"
    shares = weights.abs() > _SHARE * weights.abs().amax(0)
    if (shares.sum(1) != 1).any():
        return "it subtracts several maps from one"
    other = x.flip(1) + torch.randn(x.shape, generator=generator).to(x) * x.std()
    again = _weights(_slopes(run, groups, other)[0].sum((0, 1)), positive, negative, small)
    if again is None or not ((weights - again).abs() <= _LAMBDA * weights.abs())[shares].all():
        return "λ, the weight of the map that is subtracted, differs from input to input"
    lam = weights[shares].to(x.dtype)
    minuends = tuple(positive)
    subtrahends = tuple(negative[at] for at in shares.int().argmax(1).tolist())
    if not only_difference_counts(run, x, plain, minuends, subtrahends, lam):
        return "its output depends on more than the difference of its maps"
    return Found(minuends, subtrahends, lam, run.same, groups, _stamp(call.module))


def _stamp(module: nn.Module) -> Any:
    return tuple(
        (id(parameter), parameter.data_ptr(), parameter._version) for parameter in module.parameters()
    )


def _groups(maps: Maps, paired: list[bool]) -> tuple[int, ...]:
    """Number the maps of pairs so that equal ones share a number; −1 for the others."""
    tolerance = min(torch.finfo(maps.dtype).eps, torch.finfo(torch.float32).eps) ** 0.75
    kept: list[Tensor] = []
    numbers: list[int] = []
    for at, is_map in enumerate(paired):
        own = maps[:2, at]
        equal = (number for number, one in enumerate(kept) if _equal(own, one, tolerance)) if is_map else ()
        number = next(iter(equal), len(kept) if is_map else -1)
        if number == len(kept):
            kept.append(own)
        numbers.append(number)
    return tuple(numbers)


def _equal(one: Tensor, two: Tensor, tolerance: float) -> bool:
    return bool((one - two).abs().max() <= tolerance * one.max())


def _slopes(run: Replay, groups: tuple[int, ...], x: Tensor) -> tuple[Grams, list[tuple[set[int], set[int]]]]:
    """Return Σ_u ⟨∂(u·y)/∂A_g, ∂(u·y)/∂A_h⟩ of the rows of all maps, over random u, and what is subtracted from what.

    What is subtracted are pairs of the numbers of maps before equal ones are joined: those that the minuend depends on,
    and those that the subtrahend does. Where no subtraction is written, weights below zero are.
    """
    single = replace(run, groups=None)
    numbers = torch.tensor(groups, device=x.device)
    used, count = numbers >= 0, max(groups) + 1
    with gradients(enabled=True):
        maps = leaf(single(x).maps)
        seen = single(x, maps)
        generator = torch.Generator().manual_seed(2)
        grams = x.new_zeros(*x.shape[:2], count, count, dtype=torch.float64)
        for _ in range(_PROBES):
            u = torch.randn(seen.output.shape, generator=generator).to(seen.output)
            (slopes,) = torch.autograd.grad(seen.output, maps, u, retain_graph=True)
            joined = slopes.new_zeros(len(x), count, *maps.shape[2:]).double()
            joined.index_add_(1, numbers[used], slopes[:, used].double())
            grams += torch.einsum("bgij,bhij->bigh", joined, joined)
        sides = [(_read(one, maps), _read(two, maps)) for one, two in seen.differences]
        written = [(left, right) for left, right in sides if left - right and right - left]
        return grams, written or _weighted(seen.square, maps)


def _read(tensor: Tensor, maps: Maps) -> set[int]:
    """Return the numbers of the maps that a tensor depends on."""
    if not tensor.requires_grad:
        return set()
    u = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)).to(tensor)
    (slope,) = torch.autograd.grad(tensor, maps, u, retain_graph=True, allow_unused=True)
    return set() if slope is None else _numbers(slope.abs().amax((0, 2, 3)) > 0)


def _numbers(chosen: Bool[Tensor, " maps"]) -> set[int]:
    return set(chosen.nonzero().flatten().tolist())


def _weighted(square: list[Tensor], maps: Maps) -> list[tuple[set[int], set[int]]]:
    """Return, for tensors shaped as maps, the maps that enter with a positive and with a negative weight."""
    found = []
    for tensor in square:
        if not tensor.requires_grad or tensor.shape[-1] != maps.shape[-1]:
            continue
        (slope,) = torch.autograd.grad(
            tensor, maps, torch.ones_like(tensor), retain_graph=True, allow_unused=True
        )
        if slope is None:
            continue
        low, high = slope.amin((0, 2, 3)), slope.amax((0, 2, 3))
        weight = high - low <= _LAMBDA * high.abs()  # the same for every entry; not so for maps times values
        found.append((_numbers(weight & (high > 0)), _numbers(weight & (high < 0))))
    return found


def _signs(
    sides: list[tuple[set[int], set[int]]], groups: tuple[int, ...]
) -> tuple[list[int], list[int]] | str:
    """Return which maps are minuends and which subtrahends, or why that cannot be said."""
    positive, negative = set[int](), set[int]()
    for left, right in sides:
        one, two = ({groups[at] for at in own if groups[at] >= 0} for own in (left - right, right - left))
        if one and two:
            positive |= one
            negative |= two
    if positive & negative:
        return "it subtracts a map from itself, or a difference from a map"
    return sorted(positive), sorted(negative)


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)


def _lowest(grams: Tensor) -> Tensor:
    """Return the smallest eigenvalue of each matrix of inner products, of vectors scaled to length 1."""
    length = _diagonal(grams).sqrt()
    return torch.linalg.eigvalsh(grams / (length[..., None] * length[..., None, :]))[..., 0]


def _dependent(grams: Grams, small: float) -> bool:
    """Return whether at every query the slopes of the maps are linearly dependent."""
    used = (_diagonal(grams) > 0).all(-1)  # a query whose output counts for nothing says nothing
    return grams.shape[-1] > 1 and bool(used.any() and (_lowest(grams[used]) <= small**2).all())


def _weights(
    gram: Float[Tensor, "maps maps"], positive: list[int], negative: list[int], small: float
) -> Float[Tensor, "minuends subtrahends"] | None:
    """Solve ∂y/∂A2 = −Σ λ·∂y/∂A1 for λ; None if it has no solution."""
    both = gram[positive][:, negative]
    weights = -torch.linalg.solve(gram[positive][:, positive], both)
    square = _diagonal(gram)[negative]
    return weights if (square + (weights * both).sum(0) <= small**2 * square).all() else None
