"""What an attention module does with its maps: each call of torch in one run, and the scale of its scores."""

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antiphase.sensitivity.detection import Replay, TorchCalls, softmax_rows
from antiphase.sensitivity.layers import Call, gradients

# by what a call does with a factor of its argument: keeps it, multiplies it, divides it; or starts anew
_KEEPS = frozenset(
    "view reshape transpose permute chunk split unbind __getitem__ select narrow unflatten flatten contiguous expand "
    "expand_as repeat repeat_interleave squeeze unsqueeze movedim swapaxes to float double type_as clone detach __get__ "
    "cat stack add __add__ __radd__ __iadd__ add_ sub __sub__ masked_fill masked_fill_ where dropout neg roll".split()
)
_TIMES = frozenset("mul __mul__ __rmul__ mul_ __imul__ multiply".split())
_OVER = frozenset("div __truediv__ true_divide div_ __itruediv__ divide".split())
_PRODUCTS = frozenset("matmul __matmul__ bmm einsum mm".split())
_ANEW = frozenset("linear layer_norm rms_norm group_norm".split())


class TorchCall(NamedTuple):
    """One call of torch."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    is_softmax: bool  # of a map

    @property
    def tensors(self) -> list[Tensor]:
        parts = [*self.args, *self.kwargs.values()]
        inner = [one for part in parts for one in (part if isinstance(part, list | tuple) else (part,))]
        return [one for one in inner if isinstance(one, Tensor)]

    @property
    def number(self) -> float | None:
        """The number by which a tensor is multiplied; None for any other call."""
        if self.name in _TIMES | _OVER and len(self.args) > 1:
            one, two = self.args[:2]
            for factor, tensor in ((two, one), (one, two)):
                alone = isinstance(factor, Tensor) and factor.numel() == 1 and type(factor) is Tensor
                if isinstance(tensor, Tensor) and (alone or isinstance(factor, int | float)):
                    value = float(factor)
                    return value if self.name in _TIMES else 1 / value if factor is two and value else None
        return None


def traced(
    call: Call, maps: Tensor | None = None, groups: tuple[int, ...] | None = None
) -> tuple[Any, list[TorchCall]]:
    """Run the module of a call, with ``maps`` in place of its own; return the run and its calls of torch."""
    calls: list[TorchCall] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        is_softmax = softmax_rows(func, args, kwargs, output)
        calls.append(TorchCall(getattr(func, "__name__", ""), args, kwargs, output, is_softmax))
        return output

    with gradients(enabled=False), TorchCalls(note):
        run = Replay(call, groups)(call.tokens, maps)
    return run, calls


def score_scales(calls: list[TorchCall]) -> list[tuple[float, int] | None]:
    """Return for each softmax map the factor of its scores q·k and the width of q; None where it cannot be told."""
    unknown = float("nan"), 0
    known: dict[
        int, tuple[float, int]
    ] = {}  # factor and width of q, 0 before the product; by id, calls keep tensors
    scales: list[tuple[float, int] | None] = []
    for one in calls:
        states = [known[id(tensor)] for tensor in one.tensors if id(tensor) in known]
        learned = any(isinstance(tensor, nn.Parameter) for tensor in one.tensors)
        if one.is_softmax:
            scales.append(states[0] if states and states[0][1] else None)
            continue
        state = unknown
        if one.name in _ANEW or (one.name in _PRODUCTS and len(states) < 2):
            state = 1.0, 0
        elif not states:
            continue
        elif one.name in _PRODUCTS:
            if (width := _width(one)) and not any(width for _, width in states):
                state = states[0][0] * states[1][0], width
        elif (number := one.number) is not None:
            state = states[0][0] * number, states[0][1]
        elif one.name in _TIMES and len(states) == 1 and not learned:  # such as cosines of rotary positions
            state = states[0]
        elif one.name in _KEEPS and all(other == states[0] for other in states):
            state = states[0]
        outputs = one.output if isinstance(one.output, tuple | list) else (one.output,)
        known |= {id(part): state for part in outputs if isinstance(part, Tensor)}
    return scales


def _width(one: TorchCall) -> int:
    """Return how long the rows are that a product of two tensors multiplies; 0 if it cannot be told."""
    if one.name != "einsum":
        return one.tensors[0].shape[-1]
    spec = re.fullmatch(r"(\w+),(\w+)->(\w+)", str(one.args[0]).replace(" ", ""))
    summed = (set(spec[1]) & set(spec[2])) - set(spec[3]) if spec else set()
    return one.tensors[0].shape[spec[1].index(*summed)] if spec and len(summed) == 1 else 0


def paired_by_halves(call: Call) -> bool:
    """Return whether output i + h is subtracted from output i of 2h maps, of which neighbours weigh the same values.

    If all maps but one are 0, what is left of both sides of the subtraction are the values of that map, in its place.
    """
    x, maps = call.tokens, traced(call)[0].maps
    noise = torch.rand(maps[:, 0].shape, generator=torch.Generator().manual_seed(6)).to(maps)
    runs, count = [], maps.shape[1]
    for number in range(count):
        alone = torch.zeros_like(maps)
        alone[:, number] = noise
        runs.append(traced(call, alone)[0].differences)
    for pairs in zip(*runs, strict=True):
        filled = [[at for at, side in enumerate(pair) if (side != 0).any()] for pair in pairs]
        if filled != [[0]] * (count // 2) + [[1]] * (count - count // 2):
            continue
        sides = [pair[at].flatten() for pair, (at,) in zip(pairs, filled, strict=True)]
        places = [side.nonzero().flatten().tolist() for side in sides]
        rows = [side[side != 0].reshape(x.shape[:2].numel(), -1) for side in sides]
        rows = [nn.functional.normalize(row.double(), dim=-1) for row in rows]
        same = [
            bool(((one * two).sum(-1).abs() > 1 - 1e-6).all())
            for one, two in zip(rows, rows[1:], strict=False)
        ]
        return all(same[::2]) and places[: count // 2] == places[count // 2 :]
    return False
