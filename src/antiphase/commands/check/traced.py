"""What an attention module does with its maps: each call of torch in one run, and the scale of its scores."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.sensitivity.detection import Replay, TorchCalls, softmax_rows
from antiphase.sensitivity.layers import Call, gradients

_VIEWS = frozenset(
    "view reshape transpose permute chunk split tensor_split unbind __getitem__ select narrow unflatten flatten "
    "contiguous expand expand_as repeat repeat_interleave squeeze unsqueeze movedim swapaxes to float double type_as "
    "clone detach __get__ cat stack concat add __add__ __radd__ __iadd__ add_ sub __sub__ masked_fill masked_fill_ "
    "where dropout neg rearrange roll index_select type".split()
)
_TIMES = frozenset("mul __mul__ __rmul__ mul_ __imul__ multiply".split())
_OVER = frozenset("div __truediv__ true_divide div_ __itruediv__ divide".split())
_PRODUCTS = frozenset("matmul __matmul__ bmm einsum baddbmm mm".split())
_NORMS = frozenset("linear layer_norm rms_norm group_norm".split())


@dataclass(frozen=True)
class TorchCall:
    """One call of torch."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    is_softmax: bool  # of a map

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, those in lists included."""
        parts = [*self.args, *self.kwargs.values()]
        inner = [one for part in parts for one in (part if isinstance(part, list | tuple) else (part,))]
        return [one for one in inner if isinstance(one, Tensor)]

    @property
    def number(self) -> float | None:
        """The number by which a multiplication multiplies a tensor; None for any other call."""
        if self.name not in _TIMES | _OVER or len(self.args) < 2:
            return None
        one, two = self.args[:2]
        for factor, tensor in ((two, one), (one, two)):
            single = isinstance(factor, Tensor) and factor.numel() == 1 and not isinstance(factor, nn.Parameter)
            if isinstance(tensor, Tensor) and (single or isinstance(factor, int | float)):
                value = float(factor)
                return value if self.name in _TIMES else 1 / value if factor is two and value else None
        return None


def traced(call: Call, maps: Tensor | None = None, groups: tuple[int, ...] | None = None) -> tuple[Any, list[TorchCall]]:
    """Run the module of a call, with maps in place of its own if they are given; return run and calls of torch."""
    calls: list[TorchCall] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        calls.append(TorchCall(name, args, kwargs, output, softmax_rows(func, args, kwargs, output)))
        return output

    with gradients(enabled=False), TorchCalls(note):
        run = Replay(call, groups)(call.tokens, maps)
    return run, calls


_UNKNOWN = (float("nan"), 0)  # factor and width of a tensor of which they cannot be told


def score_scales(calls: list[TorchCall]) -> list[tuple[float, int] | None]:
    """Return for each softmax map the factor of its scores q·k and the width of q; None where it cannot be told."""
    known: dict[int, tuple[float, int]] = {}  # by id; the calls keep the tensors alive
    scales: list[tuple[float, int] | None] = []
    for one in calls:
        sources = [(tensor, known[id(tensor)]) for tensor in one.tensors if id(tensor) in known]
        states = [state for _, state in sources]
        if one.is_softmax:
            state = states[0] if len(states) == 1 else _UNKNOWN
            scales.append(state if state[1] else None)
            continue
        result: tuple[float, int] | None = None
        if one.name in _NORMS:
            result = (1.0, 0)
        elif one.name in _PRODUCTS:
            result = _product(one, states)
        elif not states:
            continue
        elif (number := one.number) is not None and len(states) == 1:
            result = (states[0][0] * number, states[0][1])
        elif one.name in _TIMES:  # by another tensor, such as the cosines of rotary positions
            learned = any(isinstance(tensor, nn.Parameter) for tensor in one.tensors)
            result = states[0] if len(states) == 1 and not learned else _UNKNOWN
        else:
            same = all(state == states[0] for state in states)
            result = states[0] if one.name in _VIEWS and same else _UNKNOWN
        outputs = one.output if isinstance(one.output, tuple | list) else (one.output,)
        known |= {id(part): result or (1.0, 0) for part in outputs if isinstance(part, Tensor)}
    return scales


def _product(one: TorchCall, states: list[tuple[float, int]]) -> tuple[float, int]:
    """Return factor and width of q·k, and factor 1 for a projection."""
    if len(states) < 2:
        return 1.0, 0
    two = one.tensors
    if one.name == "baddbmm" or any(width for _, width in states) or len(two) != 2:
        return _UNKNOWN
    width = two[0].shape[-1]
    if one.name == "einsum":
        spec = re.fullmatch(r"(\w+),(\w+)->(\w+)", str(one.args[0]).replace(" ", ""))
        summed = (set(spec[1]) & set(spec[2])) - set(spec[3]) if spec else set()
        if spec is None or len(summed) != 1:
            return _UNKNOWN
        width = two[0].shape[spec[1].index(*summed)]
    return states[0][0] * states[1][0], width


def values_width(calls: list[TorchCall], tokens: int) -> int | None:
    """Return the width of the values that the maps multiply; None where it cannot be told."""
    for one in calls:
        if one.name in _PRODUCTS - {"einsum"} and len(two := one.tensors) == 2:
            square = two[0].shape[-2:] == (tokens, tokens)
            if square and two[1].shape[-1] != tokens:
                return two[1].shape[-1]
    return None


def values_of_maps(call: Call) -> tuple[list[tuple[int, int]], torch.Tensor] | None:
    """Return which map is subtracted from which, and which maps weigh the same values, as a matrix of booleans.

    For modules that subtract outputs of maps. All maps but one are set to 0: what is left of both sides of the
    subtraction are the values of that map, in its head's place. None where no such subtraction is written.
    """
    x = call.tokens
    run, _ = traced(call)
    count, batch = run.maps.shape[1], x.shape[:2].numel()
    error = torch.rand(run.maps[:, :1].shape, generator=torch.Generator().manual_seed(6)).to(run.maps)
    sides = []
    for number in range(count):
        maps = torch.zeros_like(run.maps)
        maps[:, number] = error[:, 0]
        sides.append(traced(call, maps)[0].differences)
    for written in zip(*sides, strict=True):
        places: dict[tuple[int, ...], list[int]] = {}
        rows = []
        for number, pair in enumerate(written):
            filled = [at for at, side in enumerate(pair) if side.shape == pair[0].shape and (side != 0).any()]
            if len(filled) != 1:
                break
            side = pair[filled[0]]
            at = (side != 0).flatten().nonzero().flatten()
            if len(at) % batch:
                break
            rows.append(nn.functional.normalize(side.flatten()[at].reshape(batch, -1).double(), dim=-1))
            places.setdefault(tuple(at.tolist()), [-1, -1])[filled[0]] = number
        if len(rows) == count and len({row.shape for row in rows}) == 1 and all(min(p) >= 0 for p in places.values()):
            stacked = torch.stack(rows)
            cosines = torch.einsum("gnd,hnd->ghn", stacked, stacked).abs().amin(-1)
            return sorted((one, two) for one, two in places.values()), cosines > 1 - 1e-6
    return None
