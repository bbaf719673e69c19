"""What an attention module does with its maps: each call of torch in one run, and the scale of its scores."""

import itertools
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antiphase.sensitivity.detection import Replay, TorchCalls, softmax_rows
from antiphase.sensitivity.layers import Call, gradients

# calls whose output has the factor of their argument; a multiple of it; that of q times that of k; or none yet
_KEEPS = re.compile(
    "view|reshape|transpose|permute|chunk|split|unbind|__getitem__|select|narrow|unflatten|flatten|contiguous|expand|"
    "expand_as|repeat|repeat_interleave|(un)?squeeze|movedim|swapaxes|to|float|double|type_as|clone|detach|__get__|cat|"
    "stack|(__i?r?)?(add|sub)(_|__)?|masked_fill_?|where|dropout|neg|roll"
)
_TIMES = re.compile("(__[ir]?)?mul(_|__)?|multiply")
_OVER = re.compile("(__i?)?(true)?(_?div)(_|__|ide)?")
_PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum", "mm")
_NONE_YET = ("linear", "layer_norm", "rms_norm", "group_norm")


class TorchCall(NamedTuple):
    """One call of torch; ``is_softmax``: of a map."""

    name: str
    args: tuple[Any, ...]
    tensors: list[Tensor]  # among the arguments, those in lists included
    output: Any
    is_softmax: bool

    @property
    def number(self) -> float | None:
        """The number by which a tensor is multiplied; None for any other call."""
        over = _OVER.fullmatch(self.name)
        if len(self.args) < 2 or not (over or _TIMES.fullmatch(self.name)):
            return None
        for factor in self.args[1:] if over else self.args[1::-1]:
            if isinstance(factor, int | float) or (type(factor) is Tensor and factor.numel() == 1):
                return 1 / (float(factor) or 1.0) if over else float(factor)
        return None


def traced(
    call: Call, maps: Tensor | None = None, groups: tuple[int, ...] | None = None
) -> tuple[Any, list[TorchCall]]:
    """Run the module of a call, with ``maps`` in place of its own; return the run and its calls of torch."""
    calls: list[TorchCall] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        parts = [one if isinstance(one, list | tuple) else (one,) for one in (*args, *kwargs.values())]
        tensors = [one for one in itertools.chain(*parts) if isinstance(one, Tensor)]
        is_softmax = softmax_rows(func, args, kwargs, output)
        calls.append(TorchCall(getattr(func, "__name__", ""), args, tensors, output, is_softmax))
        return output

    with gradients(enabled=False), TorchCalls(note):
        return Replay(call, groups)(call.tokens, maps), calls


def score_scales(calls: list[TorchCall]) -> list[tuple[float, int] | None]:
    """Return for each softmax map the factor of its scores q·k and the width of q; None where it cannot be told."""
    known: dict[int, tuple[float, int]] = {}  # factor and width, 0 before the product, by id of tensors
    scales: list[tuple[float, int] | None] = []
    for one in calls:
        states = [known[id(tensor)] for tensor in one.tensors if id(tensor) in known]
        state = float("nan"), 0
        if one.is_softmax:
            scales.append(states[0] if states and states[0][1] else None)
        elif one.name in _NONE_YET or (one.name in _PRODUCTS and len(states) < 2):
            state = 1.0, 0
        elif one.name in _PRODUCTS and (width := _width(one)):
            state = states[0][0] * states[1][0], width
        elif states and (number := one.number) is not None:
            state = states[0][0] * number, states[0][1]
        elif states and all(other == states[0] for other in states) and _KEEPS.fullmatch(one.name):
            state = states[0]
        elif len(states) == 1 and _TIMES.fullmatch(one.name):  # such as by cosines of rotary positions
            state = state if any(isinstance(tensor, nn.Parameter) for tensor in one.tensors) else states[0]
        elif not states:
            continue
        outputs = one.output if isinstance(one.output, tuple | list) else (one.output,)
        known |= {id(part): state for part in outputs if isinstance(part, Tensor)}
    return scales


def _width(one: TorchCall) -> int:
    """Return how long the rows are that a product multiplies; 0 if it cannot be told."""
    inputs, _, output = str(one.args[0]).partition("->") if one.name == "einsum" else ("d,", "", "")
    return 0 if inputs.partition(",")[0].strip()[-1:] in output else one.tensors[0].shape[-1]


def paired_by_halves(call: Call) -> bool:
    """Return whether output i + h is subtracted from output i of 2h maps, and neighbours alone weigh the same values.

    If all maps but one are 0, what is left of both sides of the subtraction are the values of that map, in its place.
    """
    runs = []
    try:
        maps = traced(call)[0].maps
        for number in range(maps.shape[1]):
            alone, generator = torch.zeros_like(maps), torch.Generator().manual_seed(6)
            alone[:, number] = torch.rand(maps[:, 0].shape, generator=generator).to(maps)
            runs.append(traced(call, alone)[0].differences)
    except Exception:  # the user's code, with maps that it never had
        return False
    half, batch = maps.shape[1] // 2, call.tokens.shape[:2].numel()
    for sides in zip(*runs, strict=True):
        flat = [side[number >= half].flatten() for number, side in enumerate(sides)]
        places = [one.nonzero().flatten().tolist() for one in flat]
        if places[:half] == places[half:] and all(place and len(place) % batch == 0 for place in places):
            rows = [nn.functional.normalize(one[one != 0].view(batch, -1).double(), dim=-1) for one in flat]
            same = [[bool(((a * b).sum(-1).abs() > 1 - 1e-6).all()) for b in rows] for a in rows]
            apart = not all(same[at][at + half] for at in range(half))
            return apart and all(same[at][at + 1] for at in range(0, 2 * half, 2))
    return False
