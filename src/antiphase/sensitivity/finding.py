"""Find attention by what a module does: softmax maps of pairs of tokens, and the weighted difference of two of them.

A module counts as attention if it computes softmax rows A and, whatever its layout,

- the scores are of pairs: changing token k changes log A_ij for i ≠ k only at j = k, up to the row's normalisation,
  and changes row k;
- the values are of tokens: with A fixed, changing token k changes output i ≠ k only if A_ik ≠ 0;
- output i depends on row i of A only.

It is differential if its heads fall into pairs for which ∂y/∂A_j = −λ·∂y/∂A_i, with the same λ > 0 for all samples,
tokens and a second input. A_i is the minuend of the subtraction in the module.
"""

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

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

_PARALLEL = 1e-6  # 1 − |cosine| of gradients that are multiples of each other
_SCALES = (1.0, 0.3, 0.1)  # of the tokens: maps may be too peaked to see all scores
_LAMBDA = 1e-3  # relative difference of one λ at two inputs


@dataclass(frozen=True)
class Found:
    """What was found of a module.

    Attributes:
        positive: numbers of the maps that are A1, by head.
        negative: numbers of the maps that are A2, by head; empty for standard attention.
        lam: λ of each head; None for standard attention.
        same: see :class:`~antiphase.sensitivity.replay.Replay`.
        stamp: state of the parameters.
    """

    positive: tuple[int, ...]
    negative: tuple[int, ...]
    lam: Tensor | None
    same: frozenset[int | str]
    stamp: Any


_FOUND: weakref.WeakKeyDictionary[nn.Module, Found] = weakref.WeakKeyDictionary()


def is_found(module: nn.Module) -> bool:
    """Return whether a module was found to be attention."""
    return module in _FOUND


def is_differential(module: nn.Module) -> bool:
    """Return whether a module was found to be differential attention."""
    return module in _FOUND and bool(_FOUND[module].negative)


def find_attention(call: Call) -> bool:
    """Examine a module at one of its calls, and remember what was found."""
    found = examine(call)
    if found is None:
        _FOUND.pop(call.module, None)
        return False
    _FOUND[call.module] = found
    return True


def found_layer(module: nn.Module, call: Call) -> Layer:
    """Split a module that was found to be attention; the adapter of such modules."""
    found = _FOUND[module]
    if found.stamp != _stamp(module):  # weights changed, and λ with them
        if not find_attention(replace(call, tokens=call.tokens.detach())):
            raise ValueError("its weights changed, and it no longer works like attention")
        found = _FOUND[module]
    run = Replay(call, found.same)
    total, order = len(found.positive) + len(found.negative), [*found.positive, *found.negative]
    back = [order.index(number) for number in range(total)]

    def finish(combined: Tensor) -> Tensor:
        others = combined.new_zeros(len(combined), len(found.negative), *combined.shape[2:])
        return run(call.tokens, torch.cat([combined, others], 1)[:, back]).output

    both = TracedBranch(run, call.tokens, found.positive)
    negative = replace(both, numbers=found.negative) if found.negative else None
    lam = None if found.lam is None else found.lam.to(call.tokens)
    return Layer(call.name, call.tokens, both, negative, lam, finish, call.tangent)


@gradients(enabled=False)
def examine(call: Call) -> Found | None:
    """Return what a module's heads are; None if it is not attention, or not of a kind that can be told for sure."""
    try:
        return _examined(call)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a module may fail on other tokens than its own in any way
        return None


def _examined(call: Call) -> Found | None:
    x = call.tokens.detach()
    if x.ndim != 3 or not x.is_floating_point() or x.shape[1] < 3:
        return None
    run = Replay(call, repeated_tokens(call))
    plain = run(x)
    tokens = x.shape[1]
    if plain.output.ndim != 3 or plain.output.shape[:2] != x.shape[:2] or plain.maps.shape[-1] != tokens:
        return None
    if not agree(plain.output, call.output) or not agree(run(x, plain.maps).output, call.output):
        return None
    generator = torch.Generator().manual_seed(0)
    step = torch.randn(x.shape[2], generator=generator).to(x) * x.std() / 2
    if not any(scores_are_of_pairs(run, scale * x, scale * step) for scale in _SCALES):
        return None
    if not values_are_of_tokens(run, x, plain.maps, step):
        return None
    slopes, seen = _slopes(run, x, plain.maps)
    pairs = _pairs(slopes)
    if pairs is None:
        return None
    if not pairs:
        if not values_are_averaged(run, x, plain.maps):
            return None
        return Found(tuple(range(slopes.shape[1])), (), None, run.same, _stamp(call.module))
    pairs = _minuend_first(pairs, seen)
    if pairs is None:
        return None
    other = x.flip(1) + torch.randn(x.shape, generator=generator).to(x) * x.std()
    lam, again = _lambdas(slopes, pairs), _lambdas(_slopes(run, other, run(other).maps)[0], pairs)
    if not ((lam - again).abs() <= _LAMBDA * lam.abs()).all():
        return None
    positive, negative = zip(*pairs, strict=True)
    if not only_difference_counts(run, x, plain, positive, negative, lam.to(x.dtype)):
        return None
    return Found(positive, negative, lam.to(x.dtype), run.same, _stamp(call.module))


def _stamp(module: nn.Module) -> Any:
    return tuple(
        (id(parameter), parameter.data_ptr(), parameter._version) for parameter in module.parameters()
    )


def _slopes(run: Replay, x: Tensor, maps: Maps) -> tuple[Maps, list[tuple[set[int], set[int]]]]:
    """Return ∂(u·y)/∂A for a random u, and for each subtraction the maps that its two sides depend on."""
    with gradients(enabled=True):
        maps = leaf(maps)
        seen = run(x, maps)
        u = torch.randn(seen.output.shape, generator=torch.Generator().manual_seed(2)).to(seen.output)
        (slopes,) = torch.autograd.grad(seen.output, maps, u, retain_graph=True)
        sides = [(_read(one, maps), _read(two, maps)) for one, two in seen.differences]
    return slopes, [*sides, *_weighted(seen.square, maps)]


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


def _pairs(slopes: Maps) -> list[tuple[int, int]] | None:
    """Return the pairs of maps with opposite slopes; none for standard attention, None if it is neither."""
    flat = slopes.double().transpose(0, 1).flatten(1)
    length = flat.norm(dim=1, keepdim=True)
    if not length.isfinite().all() or (length <= 1e-6 * length.max()).any():
        return None  # a map that the output does not depend on
    cosine = (flat / length) @ (flat / length).mT
    cosine.fill_diagonal_(0.0)
    parallel = cosine.abs() > 1 - _PARALLEL
    if not parallel.any():
        return None if _share_values(slopes) else []
    if (parallel.sum(1) != 1).any() or (cosine[parallel] > 0).any():
        return None
    partners = parallel.int().argmax(1).tolist()
    return [(one, two) for one, two in enumerate(partners) if one < two]


def _share_values(slopes: Maps) -> bool:
    """Return whether the slopes of two maps are parallel in every row: they weigh the same values, by query."""
    rows = torch.nn.functional.normalize(slopes.double(), dim=-1)
    cosine = torch.einsum("bhij,bgij->hgbi", rows, rows).abs()
    used = (rows.norm(dim=-1) > 0).all(1)  # a query whose output counts for nothing says nothing
    alike = ((cosine > 1 - _PARALLEL) | ~used).all(-1).all(-1)
    return bool(alike.fill_diagonal_(False).any())


def _minuend_first(
    pairs: list[tuple[int, int]], sides: list[tuple[set[int], set[int]]]
) -> list[tuple[int, int]] | None:
    """Order each pair as in a subtraction that takes the second from the first; None if there is none."""
    ordered = []
    for one, two in pairs:
        known = {
            (one, two) if one in left else (two, one)
            for left, right in sides
            if len({one, two} & left) == 1 and len({one, two} & right) == 1 and not {one, two} & left & right
        }
        if len(known) != 1:
            return None
        ordered += known
    return ordered


def _lambdas(slopes: Maps, pairs: list[tuple[int, int]]) -> Float[Tensor, " heads"]:
    """Return λ = −⟨∂y/∂A2, ∂y/∂A1⟩ / ‖∂y/∂A1‖² of each pair."""
    flat = slopes.double().transpose(0, 1).flatten(1)
    one, two = (flat[list(numbers)] for numbers in zip(*pairs, strict=True))
    return -(one * two).sum(1) / one.square().sum(1)
