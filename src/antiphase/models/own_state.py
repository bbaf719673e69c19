"""What a user's model computes with besides its weights: attributes, hooks, and the code that runs."""

import dis
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from numbers import Number
from types import CodeType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antiphase.files import digest
from antiphase.models.card import is_users
from antiphase.models.checkpoints import raw_bytes

_PLAIN = (str, bytes, Number, type(None), torch.dtype, torch.device)
_VALUES = (Tensor, np.ndarray, nn.Module, Mapping, list, tuple)
_KEPT = 64  # values of a tensor; larger ones may be what a model keeps of its last images
_USUAL = {*vars(nn.Module()), "card", "square"}
_MADE_OF: dict[Any, Callable[[Any], Iterable[Any]]] = {
    Mapping: lambda value: [*value, *value.values()],
    (list, tuple): list,
    partial: lambda value: [value.func, value.args, value.keywords],
    MethodType: lambda value: [value.__func__, value.__self__],
    CodeType: lambda value: [value.co_code, *value.co_names, *value.co_consts],
}


def own_state(model: nn.Module) -> str:
    """Return the SHA-256 of all that parameters, buffers and ``repr`` do not tell of a user's model.

    That is plain attributes of its modules, tensors of at most 64 values among them, hooks, the code of its classes and
    functions, and what this code takes from around it. Code of installed packages is not read.
    """
    return digest(*_told(model))


def _told(model: nn.Module) -> Iterator[str | bytes]:
    seen, registered, left = dict[int, Any](), set(map(id, model.modules())), [model]
    while left:
        value: Any = left.pop()
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif id(value) not in seen:
            seen[id(value)] = value  # kept, since another object could get its id
            yield type(value).__name__
            if isinstance(value, Tensor | np.ndarray):
                tensor = torch.as_tensor(value)
                yield raw_bytes(tensor) if tensor.numel() <= _KEPT else ""
            elif isinstance(value, nn.Module):
                left += [*_of_module(value), *value.children()]
                yield from map(raw_bytes, () if id(value) in registered else value.state_dict().values())
            else:
                left += _parts(value)


def _of_module(module: nn.Module) -> list[Any]:
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    users = is_users(type(module)) or "forward" in vars(module)
    own = {name: part for name, part in vars(module).items() if name not in _USUAL}
    return [*([type(module), own] if users else []), *filter(_is_read, hooks)]


def _parts(value: Any) -> list[Any]:
    """Return what a value is made of; nothing of what is not known."""
    for kind, parts in _MADE_OF.items():
        if isinstance(value, kind):
            return list(parts(value))
    if isinstance(value, type):
        return [part for base in value.__mro__ if _is_read(base) for part in vars(base).values() if _is_read(part)]
    if not _is_read(value):
        return []
    function = inspect.unwrap(value) if callable(value) else value
    if not hasattr(function, "__code__"):
        return [type(value), vars(value)] if hasattr(value, "__dict__") else []
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
    around = [function.__globals__.get(name) for name in _globals(function.__code__)]
    taken = [part for part in around if isinstance(part, (*_PLAIN, *_VALUES)) or _is_read(part)]
    return [function.__code__, function.__defaults__, *taken, *cells]


def _globals(code: CodeType) -> list[str]:
    names = [step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
    return names + [name for part in code.co_consts if isinstance(part, CodeType) for name in _globals(part)]


def _is_read(value: Any) -> bool:
    """Return whether a class, function or object is of a file of the user's, not of an installed package."""
    name = getattr(value, "__module__", None)
    if not isinstance(name, str) or not is_users(value) or name.partition(".")[0] in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file
