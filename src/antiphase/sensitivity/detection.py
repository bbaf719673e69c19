"""Attention found by what a module does: softmax maps of pairs of tokens, and weighted differences of them.

A module counts as attention if it computes softmax rows A and, whatever its layout,

- the scores are of pairs: changing token k changes log A_ij for i ≠ k only at j = k, up to the row's normalisation,
  and changes row k; a softmax of which this is not true is no map;
- the values are of tokens: with A fixed, changing token k changes output i ≠ k only if A_ik ≠ 0;
- output i depends on row i of A only.

Softmax calls with equal maps are one map. The attention is differential if each minuend A1 has one subtrahend A2 with
∂y/∂A2 = −Σ λ·∂y/∂A1 over the minuends of A2, with one λ for all inputs or one for each query, a function of the tokens.
DINT adds λ times the mean of A1 over the queries; then output i depends on every row of A1, and ∂y/∂A2 = −λ·(∂y/∂A1 +
mean of ∂y/∂A2 over the queries). Attention is standard if nothing is subtracted and the slopes ∂y/∂A of all maps are
linearly independent; any other module is not recognised.
"""

import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from antiphase.errors import first_line
from antiphase.sensitivity import layers
from antiphase.sensitivity.layers import Call, CentredBranch, Layer, Maps, TracedBranch, first_of, gradients

_PROBES = 8  # random cotangents of the output
_DEPENDENT = 1e-3  # relative size of what is left of slopes that are a combination of others
_SHARE = 1e-4  # of the largest λ of a subtrahend; what is smaller is rounding
_SCALES = (1.0, 0.3, 0.1)  # of the tokens: maps may be too peaked to see all scores
_LAMBDA = 1e-3  # relative difference of one λ at two inputs
_ROUNDING = 50  # relative rounding error, in units of the dtype's
HIDDEN = "does not show its maps"
HIDES_MAPS = ("flex_attention", "multi_head_attention_forward")  # calls of torch
_PRODUCTS = {"matmul", "__matmul__", "bmm", "einsum"}
_MINUS, _MINUS_REVERSED = {"sub", "__sub__", "sub_", "__isub__", "subtract"}, {"rsub", "__rsub__"}


@dataclass(frozen=True)
class Detection:
    """What a module was found to be."""

    positive: tuple[int, ...]  # numbers of the maps that are A1, by head
    negative: tuple[int, ...]  # of those that are A2, by head; empty for standard attention
    lam: Tensor | None  # of each head; None for standard attention, and if it differs from query to query
    groups: tuple[int, ...]  # see Replay
    stamp: Any  # state of the parameters
    integral: bool = False  # whether λ times the mean of A1 over the queries is added (DINT)
    outer: int = 1  # see Replay


DETECTIONS: weakref.WeakKeyDictionary[nn.Module, Detection] = weakref.WeakKeyDictionary()


class NotAttention(Exception):
    """A module is not recognised as attention: why."""


def detected_layer(module: nn.Module, call: Call) -> Layer:
    """Split a module that was found to be attention; the adapter of such modules."""
    if DETECTIONS[module].stamp != _stamp(module):  # weights changed, and λ with them
        try:
            DETECTIONS[module] = examine(replace(call, tokens=call.tokens.detach()))
        except NotAttention as reason:
            del DETECTIONS[module]
            raise ValueError(f"its weights changed, and it is no attention any more: {reason}") from None
    detection = DETECTIONS[module]
    positive, negative = list(detection.positive), list(detection.negative)
    run = Replay(call, detection.groups, detection.outer)
    tokens = run.tokens
    order = [*positive, *sorted(set(negative))]
    back = [order.index(number) for number in range(len(order))]

    def finish(combined: Tensor) -> Tensor:
        combined = _without_mean(combined, lam) if detection.integral else combined
        zeros = combined.new_zeros(len(combined), len(order) - len(positive), *combined.shape[2:])
        return run(tokens, torch.cat([combined, zeros], 1)[:, back]).output

    one = TracedBranch(lambda x: run(x).maps[:, positive], tokens)
    two = TracedBranch(lambda x: run(x).maps[:, negative], tokens)
    lam, lambda_of = None if detection.lam is None else detection.lam.to(tokens), None
    if lam is None and negative:
        lambda_of = lambda_of_tokens(call, detection)
        lam = lambda_of(tokens)
    subtracted = CentredBranch(one, two) if detection.integral else two if negative else None
    tangent = None if call.tangent is None else call.batch_first(call.tangent)
    return Layer(call.name, tokens, one, subtracted, lam, finish, tangent, lambda_of=lambda_of)


def lambda_of_tokens(call: Call, detection: Detection) -> Callable[[Tensor], Tensor]:
    """Return λ of each query as a function of the tokens, with derivatives: it solves for the slopes at fixed maps."""
    run, positive, negative = Replay(call, outer=detection.outer), detection.positive, detection.negative
    maps, subtrahends = run(run.tokens).maps.detach(), sorted(set(negative))

    def lambda_of(x: Tensor) -> Tensor:
        output, pull, *_ = torch.func.vjp(lambda maps: run(x, maps).output, maps)
        generator = torch.Generator().manual_seed(2)
        squares = products = 0.0
        for _ in range(_PROBES):
            (slopes,) = pull(torch.randn(output.shape, generator=generator).to(output.dtype).to(x.device))
            joined = _joined(slopes, detection.groups)
            one, two = joined[:, positive], joined[:, subtrahends]
            one = one + joined[:, negative].mean(2, keepdim=True) if detection.integral else one
            squares = squares + torch.einsum("bgij,bhij->bigh", one, one)
            products = products + torch.einsum("bgij,bhij->bigh", one, two)
        size = squares.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].detach()  # pyright: ignore
        ridge = (1e-13 * size + 1e-300) * torch.eye(len(positive), dtype=torch.float64, device=x.device)
        weights = -torch.linalg.solve(squares + ridge, products)
        heads = [weights[..., head, subtrahends.index(other)] for head, other in enumerate(negative)]
        return torch.stack(heads, 1).to(x.dtype)

    return lambda_of


def _joined(slopes: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Return the sum of the slopes of equal maps, (batch, maps, queries, keys), in float64."""
    numbers = torch.tensor(groups, device=slopes.device)
    used = numbers >= 0
    zeros = torch.zeros((len(slopes), max(groups) + 1, *slopes.shape[2:]), dtype=torch.float64, device=slopes.device)
    return zeros.index_add(1, numbers[used], slopes[:, used].double())


def _without_mean(combined: Maps, lam: Tensor | None) -> Maps:
    """Return the maps A with A + λ·(mean of A over the queries) = ``combined``."""
    assert lam is not None
    return combined - (lam / (1 + lam))[:, None, None] * combined.mean(-2, keepdim=True)


class TorchCalls(TorchFunctionMode):
    """Hand every call of torch to a function of (func, args, kwargs), which makes it."""

    def __init__(self, handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self.handle = handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.handle(func, args, kwargs or {})


def softmax_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
    """Return whether a call of torch is a softmax over the last axis whose last two axes have the same length."""
    return is_softmax(func, args, kwargs, output) and output.ndim > 2 and output.shape[-1] == output.shape[-2]


def is_softmax(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
    """Return whether a call of torch is a softmax over the last axis."""
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return getattr(func, "__name__", "") == "softmax" and isinstance(output, Tensor) and axis in (-1, output.ndim - 1)


def attended(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[int, int] | None:
    """Return over how many queries and keys a call of torch attends: a softmax, of one sample or more, or fused."""
    if func is F.scaled_dot_product_attention:
        sides = dict(zip(("query", "key"), args, strict=False)) | kwargs
        return sides["query"].shape[-2], sides["key"].shape[-2]
    if not is_softmax(func, args, kwargs, output) or output.ndim < 2 or (output.ndim == 2 and min(output.shape) < 3):
        return None
    return output.shape[-2:] if output.ndim > 2 or output.shape[0] == output.shape[1] else None


def pairs_tokens(func: Any, args: tuple[Any, ...], output: Any) -> set[int]:
    """Return of how many tokens a call of torch multiplies two tensors for all pairs, as q·kᵀ does; mostly empty."""
    sides = [one.shape[1:] for one in args if isinstance(one, Tensor) and one.ndim > 2]
    sizes = output.shape[1:] if len(sides) > 1 and getattr(func, "__name__", "") in _PRODUCTS else ()
    return {size for size in sizes if size > 2 and sizes.count(size) > 1 and all(size in side for side in sides)}


def subtraction(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return minuend and subtrahend if a call of torch, not made yet, subtracts one tensor from another."""
    name = getattr(func, "__name__", "")
    sides = [*args[:2], *(kwargs[key] for key in ("input", "other") if key in kwargs)]
    if name not in _MINUS | _MINUS_REVERSED or [isinstance(side, Tensor) for side in sides] != [True, True]:
        return None
    one, two = sides if name in _MINUS else sides[::-1]
    return (one.clone() if name in ("sub_", "__isub__") else one), two


@dataclass
class _Run:
    output: Tensor  # first tensor that the module returned, the batch first
    maps: Maps  # in the order of computation, those of one softmax in the order of its leading axes
    differences: list[tuple[Tensor, Tensor, Tensor]]  # both sides of each subtraction, and its result
    computed: list[Tensor]  # what every other call of torch returned


@dataclass(frozen=True)
class Replay:
    """Run the module of a call again on other tokens, the batch first; they also replace arguments that are them."""

    call: Call
    # of each softmax map the number among those that differ, −1 if it is not part of the attention; None: all differ
    groups: tuple[int, ...] | None = None
    # how often each softmax has all samples: a map's leading axes are (outer, batch, rest), such as (heads, batch)
    outer: int = 1

    @property
    def tokens(self) -> Tensor:
        return self.call.batch_first(self.call.tokens)

    def __call__(self, x: Tensor, replacements: Maps | None = None) -> _Run:
        """Return what the module does on tokens x, with ``replacements`` in place of its own maps."""
        parts: list[Tensor] = []
        differences: list[tuple[Tensor, Tensor, Tensor]] = []
        computed: list[Tensor] = []
        hidden: list[str] = []  # why the maps are not all that the module attends by

        def replaced(computed: Tensor) -> Tensor:
            flat = computed.reshape(self.outer, len(x), -1, *computed.shape[-2:]).transpose(0, 1).flatten(1, 2)
            numbers = torch.arange(flat.shape[1]) + sum(part.shape[1] for part in parts)
            parts.append(flat)
            if replacements is None:
                return computed
            if self.groups is not None:
                numbers = torch.tensor(self.groups)[numbers]
            numbers = numbers.to(computed.device)
            chosen = replacements[:, numbers].to(computed.dtype)
            mixed = torch.where((numbers < 0)[:, None, None], flat, chosen)
            return mixed.unflatten(1, (self.outer, -1)).transpose(0, 1).reshape(computed.shape)

        def watch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if func is F.scaled_dot_product_attention:
                maps, value = _softmax_and_values(*args, **kwargs)
                return replaced(maps) @ value
            if getattr(func, "__name__", "") in HIDES_MAPS:
                hidden.append(f"{func.__name__} {HIDDEN}")
            sides = subtraction(func, args, kwargs)
            output = func(*args, **kwargs)
            differences.extend([] if sides is None else [(*sides, output)])
            if softmax_rows(func, args, kwargs, output):
                return replaced(output)
            if isinstance(output, Tensor) and output.ndim > 2:
                computed.append(output)
                if output.ndim > 3 and output.shape[-2] == x.shape[1] and is_softmax(func, args, kwargs, output):
                    hidden.append("it attends to other tokens, too")
            return output

        def moved(value: Any) -> Any:
            return given if isinstance(value, Tensor) and self.call.is_tokens(value) else value

        given, module = self.call.batch_first(x), self.call.module
        buffers = {name: one.clone() for name, one in module.named_buffers()}  # the module may write to them
        kwargs = {name: moved(value) for name, value in self.call.kwargs.items()}
        with TorchCalls(watch):
            output = functional_call(module, buffers, (given, *map(moved, self.call.args)), kwargs)
        output = self.call.batch_first(first_of(output))
        if hidden or not parts:
            raise NotAttention(hidden[0] if hidden else "it computes no softmax maps")
        maps = torch.cat(parts, 1)
        if self.groups is not None:
            maps = maps[:, [self.groups.index(number) for number in range(max(self.groups) + 1)]]
        return _Run(output, maps, differences, computed)


def _softmax_and_values(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Return softmax(s·q·kᵀ + mask) and v, whose product torch's fused attention computes unseen."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given: Any = dict.fromkeys(names) | dict(zip(names, args, strict=False)) | kwargs
    query, key, value, mask = (given[name] for name in names[:4])
    if given["enable_gqa"]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"])
    if given["is_causal"]:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1), value


@gradients(enabled=False)
def examine(call: Call) -> Detection:
    """Return what the maps of a called module are; raise NotAttention if it is not recognised."""
    reasons: list[NotAttention] = []
    for first in (False, True):
        layers.TOKENS_FIRST[call.module] = first
        try:
            return _examined(call)
        except NotAttention as reason:
            reasons.append(reason)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a module may fail on other tokens than its own in any way
            reasons.append(NotAttention(f"it cannot be run again with other tokens or maps ({first_line(error)})"))
    del layers.TOKENS_FIRST[call.module]
    raise reasons[0]


def _examined(call: Call) -> Detection:
    x = Replay(call).tokens.detach()
    if x.ndim != 3 or not x.is_floating_point() or x.shape[1] < 3:
        raise NotAttention("it is not given tokens of shape (batch, 3 or more, channels)")
    generator = torch.Generator().manual_seed(0)
    step = torch.randn(x.shape[2], generator=generator).to(x) * x.std() / 2
    run = Replay(call, outer=_outer(call, x, step))
    plain = run(x)
    if plain.output.ndim != 3 or plain.output.shape[:2] != x.shape[:2] or plain.maps.shape[-1] != x.shape[1]:
        raise NotAttention("its maps or its output are not of its tokens")
    output = call.batch_first(call.output)
    if not (_agree(plain.output, output) and _agree(run(x, plain.maps).output, output)):
        raise NotAttention("it gives another output when it is run again")
    paired = torch.stack([_scores_are_of_pairs(run, scale * x, scale * step) for scale in _SCALES]).any(0)
    if not paired.any():
        raise NotAttention("its softmax rows are not scores of pairs of tokens")
    groups = _groups(plain.maps, paired.tolist())
    run = replace(run, groups=groups)
    plain = run(x)
    if _agree(run(x, _uniform(plain.maps, seed=12)).output, plain.output):
        raise NotAttention("its output does not depend on its maps here, as of a projection that begins at 0")
    small = max(_DEPENDENT, 20 * torch.finfo(plain.maps.dtype).eps)
    other = x.flip(1) + torch.randn(x.shape, generator=generator).to(x) * x.std()
    if not _values_are_of_tokens(run, x, plain.maps, step):
        if (detection := _integral(run, x, other, plain, step, small)) is not None:
            return detection
        raise NotAttention("its output at a token is no sum of values weighted by its row of the maps")
    grams, sides = _slopes(run, x)
    total = grams.sum((0, 1))
    if not grams.isfinite().all() or (total.diagonal() <= 1e-12 * total.max()).any():
        raise NotAttention("its output does not depend on one of its maps, as of λ = 0")
    positive, negative = _signs(sides, groups)
    stamp = _stamp(call.module)
    if not negative:
        # else a query's output counts for nothing
        used = grams[(grams.diagonal(dim1=-2, dim2=-1) > 0).all(-1)]
        dependent = len(total) > 1 and len(used) and bool((_lowest(used) <= small**2).all())
        if dependent or _in_proportion(run, other, small):
            raise NotAttention("several of its maps weigh the same values")
        if not averages(run, x, plain.maps):
            raise NotAttention("its output is not an average of values")
        return Detection(tuple(range(len(total))), (), None, groups, stamp, outer=run.outer)
    if len(positive) + len(negative) < len(total):
        raise NotAttention("it subtracts only some of its maps")
    if _lowest(total[positive][:, positive]) <= small**2:
        raise NotAttention("several of its maps weigh the same values")
    others = _slopes(run, other)[0]
    same, shares = False, torch.empty(0)
    weights: Tensor | None = _weights(total, positive, negative, small)
    again = None if weights is None else _weights(others.sum((0, 1)), positive, negative, small)
    if weights is not None and again is not None:
        shares = _shares(weights)
        same = bool(((weights - again).abs() <= _LAMBDA * weights.abs())[shares].all())
    if not same:  # one λ for each query, not one for all
        weights, again = (_weights(one, positive, negative, small) for one in (grams, others))
        if weights is None or again is None:
            raise NotAttention("what it subtracts is not a weighted map of the same values")
        shares = _shares(weights.abs().mean((0, 1)))
        if not torch.equal(shares, _shares(again.abs().mean((0, 1)))):
            raise NotAttention("what it subtracts from a map differs from input to input")
    assert weights is not None
    lam = weights[..., shares].to(x.dtype)
    lam = lam.mT if lam.ndim > 1 else lam
    subtrahends = [negative[number] for number in shares.int().argmax(1).tolist()]
    # add E to A2 and λ·E to A1, which leaves A1 − λ·A2 as it is
    error, moved = _uniform(plain.maps, seed=4) / plain.maps.shape[-1], plain.maps.clone()
    moved[:, positive] += (lam[:, None, None] if lam.ndim == 1 else lam[..., None]) * error[:, subtrahends]
    change = (run(x, moved).output - plain.output).abs().max()
    for number in set(subtrahends):
        moved[:, number] += error[:, number]
    if not (run(x, moved).output - plain.output).abs().max() <= 1e-2 * change:
        raise NotAttention("its output depends on more than the difference of its maps")
    return Detection(tuple(positive), tuple(subtrahends), lam if same else None, groups, stamp, outer=run.outer)


@gradients(enabled=False)
def averages(run: Replay, x: Tensor, maps: Maps) -> bool:
    """Return whether the output is of Σ_j A_ij·v_j: between two equal tokens, weight of any sign may move."""
    one, two = x.shape[1] // 2, x.shape[1] // 2 + 1
    equal, moved = x.clone(), maps.clone()
    equal[:, two] = x[:, one]
    weight = 3 * _uniform(maps[..., one], seed=10) * maps.abs().mean()
    moved[..., [one, two]] += torch.stack([-weight, weight], -1)
    changes = [(run(tokens, moved).output - run(tokens, maps).output).abs().max() for tokens in (equal, x)]
    return bool(changes[0] <= max(1e-3, 4 * torch.finfo(maps.dtype).eps ** 0.5) * changes[1])


def _outer(call: Call, x: Tensor, step: Tensor) -> int:
    """Return ``Replay.outer``: only then does a change of the first sample leave the maps of the others as they are."""
    x = torch.cat([x, x.flip(1)]) if len(x) == 1 else x
    with suppress(Exception):  # its arguments may be of one sample
        count = Replay(call)(x).maps.shape[1]
        for outer in [number for number in range(1, count + 1) if count % number == 0]:
            before, after = (Replay(call, outer=outer)(one).maps for one in (x, _moved(x, 0, step)))
            if _agree(after[1:], before[1:]):
                return outer
    return 1


def _shares(weights: Tensor) -> Tensor:
    """Return which subtrahend each minuend has, as booleans of shape (minuends, subtrahends)."""
    shares = weights.abs() > _SHARE * weights.abs().amax(0)
    if (shares.sum(1) != 1).any():
        raise NotAttention("it subtracts several maps from one")
    return shares


def _integral(run: Replay, x: Tensor, other: Tensor, plain: _Run, step: Tensor, small: float) -> Detection | None:
    """Return what the maps are if output i is a weighted row of A1 − λ·A2 + λ·(mean of A1 over the queries)."""
    groups = run.groups or ()
    grams, sides = _slopes(run, x, means=True)
    totals = [one.sum((0, 1)) for one in (grams, _slopes(run, other, means=True)[0])]
    signs = _signs(sides, groups)
    for positive, negative in (signs, signs[::-1]):
        if not positive or len(positive) != len(negative) or len(positive) + len(negative) <= max(groups):
            continue
        both = [_integral_weights(total, positive, negative, small) for total in totals]
        (pairs, lam), (same, again) = both
        if sorted(pairs) != negative or pairs != same or ((lam - again).abs() > _LAMBDA * lam.abs()).any():
            continue
        lam = lam.to(x.dtype)
        if ((1 + lam).abs() < small).any():
            continue

        def of_difference(x: Tensor, maps: Maps, positive: list[int] = positive, lam: Tensor = lam) -> "_Run":
            moved = torch.zeros_like(maps)
            moved[:, positive] = _without_mean(maps[:, positive], lam)
            return run(x, moved)

        minus, factor = plain.maps[:, pairs], lam[:, None, None]
        both = plain.maps.clone()
        both[:, positive] -= factor * (minus - plain.maps[:, positive].mean(-2, keepdim=True))
        error = _uniform(plain.maps, seed=4) / plain.maps.shape[-1]
        moved, apart = plain.maps.clone(), both.clone()
        moved[:, pairs] += error[:, pairs]
        apart[:, positive] -= factor * error[:, pairs]
        if (
            _agree(of_difference(x, both).output, plain.output)
            and _agree(of_difference(x, apart).output, run(x, moved).output)
            and _values_are_of_tokens(of_difference, x, plain.maps, step)
        ):
            return Detection(tuple(positive), tuple(pairs), lam, groups, _stamp(run.call.module), True, run.outer)
    return None


def _integral_weights(gram: Tensor, positive: list[int], negative: list[int], small: float) -> tuple[list[int], Tensor]:
    """Solve ∂y/∂A2 = −λ·(∂y/∂A1 + mean of ∂y/∂A2) for each A1; return its A2 (−1 if there is none) and λ."""
    count, pairs, lambdas = len(gram) // 2, list[int](), list[Tensor]()
    for one in positive:
        chosen, lam = -1, gram.new_zeros(())
        for two in negative:
            parts = [one, count + two]
            square, along = gram[parts][:, parts].sum(), gram[two, parts].sum()
            if gram[two, two] - along.square() / square <= small**2 * gram[two, two]:
                chosen, lam = two, -along / square
        pairs.append(chosen)
        lambdas.append(lam)
    return pairs, torch.stack(lambdas)


def _stamp(module: nn.Module) -> Any:
    """Return what changes with parameters and buffers; fused optimizers change them without a new version."""
    tensors = (*module.parameters(), *module.buffers())
    return tuple((id(one), one.data_ptr(), one._version, float(one.detach().double().norm())) for one in tensors)


def _agree(one: Tensor, two: Tensor) -> bool:
    tolerance = 20 * torch.finfo(one.dtype).eps ** 0.75 * float(two.abs().max())
    return bool((one - two).abs().max() <= tolerance)


def _moved(x: Tensor, token: int, step: Tensor) -> Tensor:
    x = x.clone()
    x[0, token] += step
    return x


def _uniform(like: Tensor, seed: int) -> Tensor:
    return torch.rand(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(like)


def _scores_are_of_pairs(run: Replay, x: Tensor, step: Tensor) -> Tensor:
    """Change token k: log A_ij of other queries may change only at j = k, up to a constant, and row k has to."""
    token = x.shape[1] // 2
    plain, moved = run(x).maps, run(_moved(x, token, step)).maps
    if len(x) > 1 and not _agree(moved[1:], plain[1:]):
        return torch.zeros(plain.shape[1], dtype=torch.bool, device=x.device)
    before, after = plain[0].double(), moved[0].double()
    valid = (before > 1e-30) & (after > 1e-30)
    change = torch.where(valid, after.clamp_min(1e-40).log() - before.clamp_min(1e-40).log(), 0.0)
    others = torch.arange(x.shape[1], device=x.device) != token
    counted = valid & others
    mean = (change * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp_min(1)
    change = ((change - mean) * valid).abs()  # log A is known up to a constant of each row
    elsewhere = change[:, others][..., others].amax((1, 2))
    to_key, of_query = change[:, others, token].amax(1), change[:, token][:, others].amax(1)
    rounding = _ROUNDING * torch.finfo(x.dtype).eps
    small = max(1e-2 * float(to_key.max()), rounding)
    return (elsewhere <= small) & (to_key > 10 * elsewhere + rounding) & (of_query > rounding)


def _values_are_of_tokens(run: Callable[[Tensor, Maps], _Run], x: Tensor, like: Maps, step: Tensor) -> bool:
    """Fix maps in which one other token alone attends to token k, and change token k, then that row of the maps."""
    token, reader = x.shape[1] // 2, (x.shape[1] // 2 + 1) % x.shape[1]
    maps = _uniform(like, seed=1) + 0.1
    maps[:, :, :, token] = 0
    maps[:, :, reader, token] = maps[:, :, reader].sum(-1)
    maps /= maps.sum(-1, keepdim=True)
    for sized in (maps, maps * (_uniform(like[:1, :, :1, :1], seed=9) + 0.5)):  # if λ is 1, equal maps cancel
        fixed, other = run(x, sized).output, sized.clone()
        other[0, :, reader] = sized[0, :, reader].roll(1, -1)
        outputs = run(_moved(x, token, step), sized).output, run(x, other).output
        changes = [(output - fixed).abs().amax(-1) for output in outputs]
        small = _ROUNDING * torch.finfo(x.dtype).eps * float(fixed.abs().max())
        least = [float(change[0, reader]) for change in changes]
        if min(least) > small:
            break
    changes[0][0, token] = changes[0][0, reader] = changes[1][0, reader] = 0  # these may change
    close = [(change <= 1e-4 * size + small).all() for change, size in zip(changes, least, strict=True)]
    return min(least) > small and all(close)


def _groups(maps: Maps, paired: list[bool]) -> tuple[int, ...]:
    """Number the maps of pairs so that equal ones share a number; −1 for the others."""
    tolerance = min(torch.finfo(maps.dtype).eps, torch.finfo(torch.float32).eps) ** 0.75
    kept: list[Tensor] = []
    numbers: list[int] = []
    for one, is_map in zip(maps[:2].unbind(1), paired, strict=True):
        equal = [bool((one - other).abs().max() <= tolerance * one.max()) for other in kept]
        if is_map and not any(equal):
            kept.append(one)
            equal.append(True)
        numbers.append(equal.index(True) if is_map else -1)
    return tuple(numbers)


def _slopes(run: Replay, x: Tensor, means: bool = False) -> tuple[Tensor, list[tuple[set[int], set[int]]]]:
    """Return Σ_u ⟨∂(u·y)/∂A_g, ∂(u·y)/∂A_h⟩ by row, over random u, and the maps on both sides of each subtraction.

    The sides are numbers of maps before equal ones are joined. ``means``: the slopes' means over queries are maps, too.
    """
    single, groups = replace(run, groups=None), run.groups or ()
    with gradients(enabled=True):
        maps = single(x).maps.detach().requires_grad_()
        done = single(x, maps)
        error = max(1e-2, torch.finfo(maps.dtype).eps ** 0.5) * _uniform(maps, seed=11) * maps.detach()
        change = (single(x, maps.detach() + error).output - done.output).detach()
        generator = torch.Generator().manual_seed(2)
        grams: Any = 0.0
        for _ in range(_PROBES):
            u = torch.randn(done.output.shape, generator=generator).to(done.output)
            (slopes,) = torch.autograd.grad(done.output, maps, u, retain_graph=True)
            if ((change * u).sum() - (slopes * error).sum()).abs() > 0.1 * change.norm():
                raise NotAttention("its maps act on its output past their gradients, as of detach")
            joined = _joined(slopes, groups)
            if means:
                joined = torch.cat([joined, joined.mean(2, keepdim=True).expand_as(joined)], 1)
            grams = grams + torch.einsum("bgij,bhij->bigh", joined, joined)

        def slopes_of(tensor: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            slope = torch.zeros_like(maps)
            if tensor.requires_grad:
                (slope,) = torch.autograd.grad(tensor, maps, u, retain_graph=True, materialize_grads=True)
            return slope.amin((0, 2, 3)), slope.amax((0, 2, 3))

        def read(tensor: Tensor) -> set[int]:
            u = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)).to(tensor)
            low, high = slopes_of(tensor, u)
            return set(((low < 0) | (high > 0)).nonzero().flatten().tolist())

        def acts(result: Tensor) -> bool:
            how: Any = {"retain_graph": True, "allow_unused": True}
            return result.requires_grad and torch.autograd.grad(done.output.sum(), result, **how)[0] is not None

        pairs = [(one, two) for one, two, result in done.differences if acts(result)]
        sides = [(read(one), read(two)) for one, two in pairs]
        alike = [one.shape == two.shape for one, two in pairs]
        if any(left and left == right and same for (left, right), same in zip(sides, alike, strict=True)):
            raise NotAttention("it subtracts maps from themselves")
        written = [(left, right) for left, right in sides if left - right and right - left]
        weighted: list[tuple[set[int], set[int]]] = []  # maps with positive and negative weight in the last map of both
        for square in reversed(done.computed):
            if square.shape[-2:] == maps.shape[-2:] and acts(square):
                low, high = slopes_of(square, torch.ones_like(square))
                same = high - low <= _LAMBDA * high.abs()  # for every entry; not so for maps times values
                plus, minus = (set((same & sign).nonzero().flatten().tolist()) for sign in (high > 0, high < 0))
                if plus and minus and not any((plus | minus) & (one | two) for one, two in weighted):
                    weighted.append((plus, minus))
        return grams, [pair for pair in written if pair[::-1] not in weighted] + weighted


def _in_proportion(run: Replay, x: Tensor, small: float) -> bool:
    """Return whether of a number on the way to the output the slopes of two maps are in proportion: λ by channel."""
    single, groups, generator = replace(run, groups=None), run.groups or (), torch.Generator().manual_seed(5)
    with gradients(enabled=True):
        maps = single(x).maps.detach().requires_grad_()
        for tensor in single(x, maps).computed:
            if not tensor.requires_grad or not tensor.is_floating_point():
                continue
            for index in torch.randint(tensor.numel(), (2,), generator=generator).tolist():
                (slope,) = torch.autograd.grad(tensor.flatten()[index], maps, retain_graph=True, materialize_grads=True)
                joined = _joined(slope, groups).sum((0, 2))
                read = F.normalize(joined[joined.norm(dim=-1) > _SHARE * joined.norm()], dim=-1)
                squares = (read @ read.mT).square().fill_diagonal_(0)
                if len(read) > 1 and 1 - squares.max() <= small**2:
                    return True
    return False


def _signs(sides: list[tuple[set[int], set[int]]], groups: tuple[int, ...]) -> tuple[list[int], list[int]]:
    positive, negative = set[int](), set[int]()
    for left, right in sides:
        one, two = ({groups[number] for number in side} - {-1} for side in (left - right, right - left))
        if one and two:
            positive |= one
            negative |= two
    if positive & negative:
        raise NotAttention("it subtracts a map from itself, or a difference from a map")
    return sorted(positive), sorted(negative)


def _lowest(grams: Tensor) -> Tensor:
    length = grams.diagonal(dim1=-2, dim2=-1).sqrt()
    return torch.linalg.eigvalsh(grams / (length[..., None] * length[..., None, :]))[..., 0]


def _weights(gram: Tensor, positive: list[int], negative: list[int], small: float) -> Tensor | None:
    """Solve ∂y/∂A2 = −Σ λ·∂y/∂A1 for λ, of shape (…, minuends, subtrahends); None if it has no solution."""
    both, squares = gram[..., positive, :][..., negative], gram[..., positive, :][..., positive]
    if gram.ndim > 2:  # of each query: some may count for nothing
        weights = -torch.linalg.pinv(squares, hermitian=True) @ both
    else:
        weights = -torch.linalg.solve(squares, both)
    square = gram.diagonal(dim1=-2, dim2=-1)[..., negative]
    return weights if (square + (weights * both).sum(-2) <= small**2 * square).all() else None
