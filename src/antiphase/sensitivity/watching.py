"""Watch a forward pass for softmax maps outside attention that is known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from antiphase.errors import UserError
from antiphase.sensitivity.eager import gradients
from antiphase.sensitivity.finding import examine, is_differential, is_found, remember
from antiphase.sensitivity.layers import Call
from antiphase.sensitivity.replay import softmax_rows, subtraction

_PARTS = 4  # modules of standard attention that one of differential attention may be made of


@dataclass
class Exit:
    """One call of a module, in the order in which modules return.

    Attributes:
        call: the call.
        maps: numbers of the softmax maps computed within it, if it is not known to be attention.
    """

    call: Call
    maps: set[int] = field(default_factory=set)


class Watch(TorchFunctionMode):
    """Note the calls of modules that compute square softmax maps.

    Args:
        model: the model that runs.
        known: whether a module is known to be attention; what happens inside is not watched.
        make: makes a call from name, module, arguments and output.
        exits: list to which the calls are appended.
    """

    def __init__(
        self,
        model: nn.Module,
        known: Callable[[nn.Module], bool],
        make: Callable[..., Call],
        exits: list[Exit],
    ) -> None:
        super().__init__()
        self.model, self.known, self.make, self.exits = model, known, make, exits
        self.stack: list[set[int]] = [set()]
        self.count, self.quiet = 0, 0
        self.hooks: list[RemovableHandle] = []

    def __enter__(self) -> "Watch":
        for name, module in self.model.named_modules():
            self.hooks.append(module.register_forward_pre_hook(self._enter))
            self.hooks.append(module.register_forward_hook(self._leaver(name), with_kwargs=True))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self.hooks:
            hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        fused = func is scaled_dot_product_attention and args[0].shape[-2] == args[1].shape[-2]
        if not self.quiet and (fused or softmax_rows(func, args, kwargs, output)):
            self.stack[-1].add(self.count)
            self.count += 1
        return output

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.stack.append(set())
        self.quiet += self.known(module)

    def _leaver(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self.quiet -= self.known(module)
            maps = self.stack.pop()
            self.stack[-1] |= maps
            if maps:
                try:
                    self.exits.append(Exit(self.make(name, module, args, kwargs, output), maps))
                except (UserError, AttributeError, IndexError):  # its arguments are no tokens
                    return

        return leave


_PLUS = {"add", "__add__", "__radd__", "add_", "__iadd__"}


class _Sums(TorchFunctionMode):
    """Note both sides, and the result, of each addition and subtraction."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor, Tensor, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sides = subtraction(func, args)
        minus = sides is not None
        if getattr(func, "__name__", "") in _PLUS and all(isinstance(side, Tensor) for side in args[:2]):
            sides = args[0].clone(), args[1]
        output = func(*args, **(kwargs or {}))
        if sides is not None and output.requires_grad:
            one, two = sides
            self.found.append((one, two, output, minus))
        return output


def subtracted_outputs(modules: Sequence[nn.Module], run: Callable[[], Any]) -> set[nn.Module]:
    """Return the modules of which one's output is subtracted from another's.

    Args:
        modules: modules of a model, none within another.
        run: runs the model.
    """
    leaves: list[Tensor] = []
    owners: list[nn.Module] = []

    def add_leaf(module: nn.Module, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        leaves.append(torch.zeros_like(first, requires_grad=True))
        owners.append(module)
        return (first + leaves[-1], *output[1:]) if isinstance(output, tuple) else first + leaves[-1]

    hooks = [module.register_forward_hook(add_leaf) for module in dict.fromkeys(modules)]
    found = set[nn.Module]()
    try:
        with gradients(enabled=True), _Sums() as sums:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    numbers = {id(leaf): at for at, leaf in enumerate(leaves)}
    known: dict[Any, frozenset[int]] = {}
    for one, two, total, minus in sums.found:
        left, right = _used(one, numbers, known), _used(two, numbers, known)
        sides = [leaves[at] for at in left - right], [leaves[at] for at in right - left]
        if all(sides) and (minus or _opposed(total, *sides)):
            found |= {owners[at] for at in left ^ right}
    return found


def _used(tensor: Tensor, numbers: dict[int, int], known: dict[Any, frozenset[int]]) -> frozenset[int]:
    """Return the numbers of the leaves that a tensor is computed from."""
    if tensor.grad_fn is None:
        return frozenset({numbers[id(tensor)]} if id(tensor) in numbers else ())
    stack = [tensor.grad_fn]
    while stack:
        node = stack[-1]
        before = [part for part, _ in node.next_functions if part is not None]
        if todo := [part for part in before if part not in known]:
            stack += todo
            continue
        leaf = getattr(node, "variable", None)
        own = {numbers[id(leaf)]} if id(leaf) in numbers else ()
        known[node] = frozenset(own).union(*(known[part] for part in before))
        stack.pop()
    return known[tensor.grad_fn]


def _opposed(total: Tensor, left: list[Tensor], right: list[Tensor]) -> bool:
    """Return whether a sum has its two sides with weights of opposite signs everywhere."""
    u = torch.randn(total.shape, generator=torch.Generator().manual_seed(5)).to(total)
    slopes = torch.autograd.grad(total, [*left, *right], u, retain_graph=True)
    signs = [(slope * u).sign() if slope.shape == u.shape else u.new_zeros(1) for slope in slopes]
    least, most = (torch.stack([fold(sign) for sign in signs]) for fold in (torch.min, torch.max))
    up, down = (least >= 0) & (most > 0), (most <= 0) & (least < 0)
    parts = [slice(len(left)), slice(len(left), None)]
    return any(bool(up[one].any() and down[two].any()) for one, two in (parts, parts[::-1]))


Unrecognised = tuple[Call, str]
"""A call that is left out, and why."""


def attention_calls(exits: list[Exit]) -> tuple[list[Call], list[Unrecognised]]:
    """Return the calls of attention, and the other innermost ones that compute softmax maps.

    Attention are known modules and the innermost ones that are found to be attention. Several modules that are found to
    be standard attention belong to one that holds them if that is found to be differential.
    """
    claimed: dict[int, Exit] = {}
    reasons: dict[int, str] = {}
    for exit in exits:
        module = exit.call.module
        rivals = {id(claimed[number]): claimed[number].call for number in exit.maps & claimed.keys()}
        parts = len(rivals) + bool(exit.maps - claimed.keys())
        if not exit.maps or (rivals and not 1 < parts <= _PARTS):
            continue
        if not is_found(module):
            found = examine(exit.call)
            if isinstance(found, str):
                reasons[id(exit)] = found
                continue
            if rivals and not found.negative:
                continue
            remember(module, found)
        if not any(is_differential(rival.module) for rival in rivals.values()):
            claimed |= dict.fromkeys(exit.maps, exit)
    chosen = {id(exit) for exit in claimed.values()}
    others: list[Unrecognised] = []
    told = set(claimed)
    for exit in exits:
        if exit.maps - told and not type(exit.call.module).__module__.startswith("torch.nn."):
            others.append((exit.call, reasons.get(id(exit), "it holds attention that is recognised")))
            told |= exit.maps
    return [exit.call for exit in exits if not exit.maps or id(exit) in chosen], others
