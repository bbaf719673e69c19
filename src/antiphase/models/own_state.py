"""What a user's model computes with besides its weights: attributes, hooks, and the code that runs."""

import dis
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
_KEPT = 64  # values of a tensor; larger ones may be what a model keeps of its last images
_USUAL = {*vars(nn.Module()), "card", "square"}
_OF_CLASS = {*vars(type("", (), {})), "__annotations__", "__qualname__", "__firstlineno__", "__static_attributes__"}
_MADE_OF: dict[Any, Callable[[Any], list[Any]]] = {
    Mapping: lambda value: [*value, *value.values()],
    (list, tuple): list,
    (set, frozenset): lambda value: sorted(repr(one) for one in value if isinstance(one, _PLAIN)),
    partial: lambda value: [value.func, value.args, value.keywords],
    property: lambda value: [value.fget],
    (MethodType, staticmethod, classmethod): lambda value: [value.__func__, getattr(value, "__self__", None)],
    CodeType: lambda value: [value.co_code, *value.co_names, *value.co_consts],
}
_READ = (*_PLAIN, Tensor, np.ndarray, nn.Module, *_MADE_OF)


def own_state(model: nn.Module) -> str:
    """Return the SHA-256 of all that parameters, buffers and ``repr`` do not tell of a user's model.

    That is plain attributes of its modules, tensors of at most 64 values among them, hooks, the code of its classes and
    functions, and what this code takes from around it. Code of installed packages is not read.
    """
    return digest(*_told(model))


def _told(model: nn.Module) -> Iterator[str]:
    met, registered, left = dict[int, tuple[int, Any]](), set(map(id, model.modules())), [model]
    while left:
        value: Any = left.pop()
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif id(value) in met:
            yield f"again {met[id(value)][0]}"
        else:
            met[id(value)] = len(met), value  # kept, since another object could get its id
            parts: list[Any] = []
            with suppress(Exception):  # of a user's object; then its type is told
                parts = _parts(value, id(value) in registered)
            yield f"{type(value).__name__} {len(parts)}"
            left += parts


def _parts(value: Any, registered: bool) -> list[Any]:
    """Return what a value is made of; its name if it is not read."""
    if isinstance(value, Tensor | np.ndarray):
        few, dense = math.prod(value.shape) <= _KEPT, value.to_dense() if isinstance(value, Tensor) else value
        return [str(value.dtype), *value.shape, dense.tolist() if few else ""]
    if isinstance(value, nn.Module):
        hooks = [*value._forward_pre_hooks.values(), *value._forward_hooks.values()]
        own = {name: part for name, part in vars(value).items() if name not in _USUAL}
        parts = [type(value), own] if is_users(type(value)) or "forward" in vars(value) else []
        weights = () if registered else [*value._parameters.values(), *value._buffers.values()]
        parts += [repr(value)] * (not registered) + [digest(raw_bytes(one)) for one in weights if one is not None]
        return [*parts, *(hook for hook in hooks if isinstance(hook, partial) or _is_read(hook)), *value.children()]
    for kinds, made_of in _MADE_OF.items():
        if isinstance(value, kinds):
            return made_of(value)
    if isinstance(value, type):
        members = [pair for base in value.__mro__ if _is_read(base) for pair in vars(base).items()]
        members = [pair for pair in members if isinstance(pair[1], _READ) or _is_read(pair[1])]
        return [one for pair in members if pair[0] not in _OF_CLASS for one in pair]
    if not _is_read(value):
        return [getattr(value, "__qualname__", "")]
    if not isinstance(code := getattr(value, "__code__", None), CodeType):
        return [type(value), vars(value)]
    around = [value.__globals__.get(name) for name in _globals(code)]
    taken = [part for part in around if isinstance(part, _READ) or callable(part)]
    cells = [cell.cell_contents for cell in value.__closure__ or () if cell != type(cell)()]
    return [code, value.__defaults__, value.__kwdefaults__, getattr(value, "__wrapped__", None), *taken, *cells]


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
