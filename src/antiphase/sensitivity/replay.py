"""Run an attention module again, with its softmax maps observed or replaced."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from antiphase.sensitivity.layers import Call, same_tensor

Maps = Float[Tensor, "batch maps tokens tokens"]
_MINUS = {"sub", "__sub__", "sub_", "__isub__", "subtract"}
_MINUS_REVERSED = {"rsub", "__rsub__"}
_IN_PLACE = {"sub_", "__isub__"}


def softmax_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
    """Return whether a call of torch is a softmax over the last axis whose last two axes have the same length."""
    if getattr(func, "__name__", "") != "softmax" or not isinstance(output, Tensor) or output.ndim < 3:
        return False
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return axis in (-1, output.ndim - 1) and output.shape[-1] == output.shape[-2]


def subtraction(func: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor] | None:
    """Return minuend and subtrahend if a call of torch, not made yet, subtracts one tensor from another."""
    name = getattr(func, "__name__", "")
    if name not in _MINUS | _MINUS_REVERSED or not all(isinstance(side, Tensor) for side in args[:2]):
        return None
    one, two = args[:2] if name in _MINUS else args[1::-1]
    return (one.clone() if name in _IN_PLACE else one), two


@dataclass
class Replayed:
    """What one run of a module did.

    Attributes:
        output: first tensor that it returned.
        maps: its different softmax maps in the order of computation, those of one softmax in the order of its leading
            axes.
        differences: both sides of each subtraction.
        square: what else has the shape of a map in its last two axes.
    """

    output: Tensor
    maps: Maps
    differences: list[tuple[Tensor, Tensor]]
    square: list[Tensor]


class Observed(TorchFunctionMode):
    """Observe, or replace, each softmax map of (batch · maps) × tokens × tokens.

    Args:
        batch: number of samples.
        given: maps to put in place of those computed; None: observe only.
        groups: for each map that is computed the number of the one to put in its place; −1: none. None: the same.
    """

    def __init__(self, batch: int, given: Maps | None = None, groups: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.batch, self.given, self.groups = batch, given, groups
        self.maps: list[Tensor] = []
        self.differences: list[tuple[Tensor, Tensor]] = []
        self.square: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if (sides := subtraction(func, args)) is not None:
            self.differences.append(sides)
        output = func(*args, **kwargs)
        if softmax_rows(func, args, kwargs, output):
            return self._passed(output)
        if isinstance(output, Tensor) and output.ndim > 2 and output.shape[-1] == output.shape[-2]:
            self.square.append(output)
        return output

    def _passed(self, own: Tensor) -> Tensor:
        """Note a map, and return it or the one given in its place."""
        flat = own.reshape(self.batch, -1, *own.shape[-2:])
        first = sum(map.shape[1] for map in self.maps)
        self.maps.append(flat)
        if self.given is None:
            return own
        numbers = range(first, first + flat.shape[1])
        chosen = list(numbers if self.groups is None else self.groups[first : first + flat.shape[1]])
        replaced = self.given[:, chosen].to(own.dtype)
        if -1 in chosen:
            kept = torch.tensor(chosen, device=own.device) < 0
            replaced = torch.where(kept[:, None, None], flat, replaced)
        return replaced.reshape(own.shape)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute softmax(s·q·kᵀ + mask)·v in steps, so that the map can be seen."""
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self._passed(scores.softmax(-1)) @ value


@dataclass(frozen=True)
class Replay:
    """Run the module of a call again on other tokens.

    Attributes:
        call: the call.
        same: positions and names of the arguments that are the tokens again, as in ``attention(x, x, x)``.
        groups: for each softmax map its number among those that differ; −1: it is not part of the attention. None: all
            differ.
    """

    call: Call
    same: frozenset[int | str] = field(default_factory=frozenset)
    groups: tuple[int, ...] | None = None

    def __call__(self, x: Tensor, maps: Maps | None = None) -> Replayed:
        """Return what the module does on tokens x, with the maps given in place of its own."""
        args = [x if at in self.same else value for at, value in enumerate(self.call.args)]
        kwargs = {name: x if name in self.same else value for name, value in self.call.kwargs.items()}
        with Observed(len(x), maps, self.groups) as seen:
            output = self.call.module(x, *args, **kwargs)
        output = output[0] if isinstance(output, tuple) else output
        found = torch.cat(seen.maps, 1)
        if self.groups is not None:
            found = found[:, [self.groups.index(number) for number in range(max(self.groups) + 1)]]
        return Replayed(output, found, seen.differences, seen.square)


def repeated_tokens(call: Call) -> frozenset[int | str]:
    """Return positions and names of the other arguments that are the tokens again."""
    named = [*enumerate(call.args), *call.kwargs.items()]
    return frozenset(
        name for name, value in named if isinstance(value, Tensor) and same_tensor(value, call.tokens)
    )
