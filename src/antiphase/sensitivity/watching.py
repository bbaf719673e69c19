"""Watch a forward pass for softmax maps outside attention that is known."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from antiphase.errors import UserError
from antiphase.sensitivity.finding import find_attention, is_differential, is_found
from antiphase.sensitivity.layers import Call
from antiphase.sensitivity.replay import softmax_rows


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


def attention_calls(exits: list[Exit]) -> tuple[list[Call], list[Call]]:
    """Return the calls of attention, and the other innermost ones that compute softmax maps.

    Attention are known modules and the innermost ones that are found to be attention. Two modules that are found to be
    standard attention belong to a third if that is found to be differential.
    """
    claimed: dict[int, Exit] = {}
    for exit in exits:
        module, rivals = exit.call.module, [claimed[number] for number in exit.maps if number in claimed]
        if not exit.maps or (rivals and (len(exit.maps), len(rivals)) != (2, 2)):
            continue
        known = is_found(module) or find_attention(exit.call)
        if known and (not rivals or is_differential(module)):
            claimed |= dict.fromkeys(exit.maps, exit)
    chosen = {id(exit) for exit in claimed.values()}
    others: list[Call] = []
    told = set(claimed)
    for exit in exits:
        if exit.maps - told and not type(exit.call.module).__module__.startswith("torch.nn."):
            others.append(exit.call)
            told |= exit.maps
    return [exit.call for exit in exits if not exit.maps or id(exit) in chosen], others
