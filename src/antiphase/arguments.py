"""The arguments of public functions, checked against their annotations: one line for the first that does not fit.

An annotation says what is accepted: a type, a ``Literal``, a tensor of a dtype and shape (jaxtyping), and in
``Annotated`` what it :class:`Must` be besides. Booleans are no numbers, text is no list, and numbers are finite unless
``ANY_NUMBER`` is said. Numbers of numpy become Python's. Axes of the same name have the same length.
"""

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import AbstractArray, Float
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from torch import Tensor

from antiphase.errors import UserError, invalid, refuse_truth_value, shown

Public = TypeVar("Public", bound=Callable[..., Any])


@dataclass(frozen=True)
class Must:
    """What an argument must be besides its type, in words that follow it: "an integer" "of at least 1"."""

    words: str
    holds: Callable[[Any], Any]


def at_least(least: float) -> Must:
    """Require a number of at least ``least``."""
    return Must(f"of at least {least:g}", lambda number: number >= least)


ANY_NUMBER = Must("", lambda number: True)  # infinite or NaN, too
OWN_WORDS = Must("", lambda value: True)  # the function checks it, in words of its own
Size = Annotated[int, at_least(1)]  # however large
Count = Annotated[int, at_least(1), Must("below 2**31", lambda number: number < 2**31)]
Seed = Annotated[int, Must("from 0 to 2**63 - 1", lambda number: 0 <= number < 2**63)]
Positive = Annotated[float, Must("above 0", lambda number: number > 0)]
NonNegative = Annotated[float, at_least(0)]
Share = Annotated[float, Must("in (0, 1]", lambda number: 0 < number <= 1)]
Probability = Annotated[float, Must("between 0 and 1", lambda number: 0 < number < 1)]

# of tensors and lists
FINITE = Must("without NaN or infinite values", lambda values: bool(values.isfinite().all()))
NOT_EMPTY = Must("with at least one element", lambda values: len(values) > 0)
UNIQUE = Must("without duplicates", lambda values: len(values.unique()) == len(values))
UNIT_RANGE = Must("and values in [0, 1]", lambda values: bool(((values - 0.5).abs() <= 0.5 + 1e-6).all()))
Batch = Annotated[Float[Tensor, "batch *shape"], NOT_EMPTY, FINITE]


def _is_device(name: Any) -> bool:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        return False
    return True


Device = Annotated[torch.device | str, Must("that names a device of this machine, such as 'cpu'", _is_device)]


def validated(public: Public) -> Public:
    """Check the arguments of a function, or of a class, in every call.

    >>> @validated
    ... def attack(steps: Count) -> None: ...
    >>> attack(0)
    Traceback (most recent call last):
    antiphase.errors.UserError: steps 0: expected an integer of at least 1 and below 2**31
    """
    if isinstance(public, type):
        public.__init__ = validated(public.__init__)  # type: ignore[misc]
        return cast(Public, public)
    signature = inspect.signature(public)
    kinds: dict[str, _Kind] = {}

    @functools.wraps(public)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return public(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return public(*args, **kwargs)  # Python's own words name the function
        if not kinds:  # at the first call: an annotation may name what is defined below
            kinds.update(_kinds(public, signature))
        sizes: dict[str, Any] = {}

        def check(name: str, value: Any) -> Any:
            return _checked(name, value, kinds.get(name, _ANYTHING), sizes)

        for name, value in bound.arguments.items():
            match signature.parameters[name].kind:
                case inspect.Parameter.VAR_KEYWORD:
                    checked = {key: check(key, one) for key, one in value.items()}
                case inspect.Parameter.VAR_POSITIONAL:
                    checked = tuple(check(name, one) for one in value)
                case _:
                    checked = check(name, value)
            bound.arguments[name] = checked
        return public(*bound.args, **bound.kwargs)

    return cast(Public, call)


_CALL = validated(lambda: None).__code__


def unchecked(function: Public) -> Public:
    """Return a validated function without its checks, for a caller that has made them; any other as it is."""
    return cast(Any, function).__wrapped__ if getattr(function, "__code__", None) is _CALL else function


def check_argument(function: Callable[..., Any], name: str, value: Any) -> Any:
    """Return the value of one argument of a validated function, checked as a call would."""
    plain = unchecked(function)
    kinds = {} if plain is function else _kinds(plain, inspect.signature(plain))
    return _checked(name, value, kinds.get(name, _ANYTHING), {})


class _OneLine(type(BaseModel)):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # unlike __init__, not called by pydantic for a model in a model
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise invalid(error) from None


class Fields(BaseModel, metaclass=_OneLine):
    """A model of fields that is made with one line for the first mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    _check_number = field_validator("*", mode="before")(refuse_truth_value)


@dataclass(frozen=True)
class _Kind:
    """What an annotation allows, in words, and the types of jaxtyping in it."""

    words: str
    holds: Callable[[Any], Any]
    arrays: tuple[Any, ...] = ()


def _kinds(public: Callable[..., Any], signature: inspect.Signature) -> dict[str, _Kind]:
    hints = get_type_hints(public, include_extras=True)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and get_origin(options := hints.pop(name)) is Unpack:
            hints |= get_type_hints(get_args(options)[0], include_extras=True)
    return {name: _kind(hint) for name, hint in hints.items()}


def _checked(name: str, value: Any, kind: _Kind, sizes: dict[str, Any]) -> Any:
    """Return an argument that fits; add the lengths of its named axes to ``sizes``."""
    value = value.item() if isinstance(value, np.generic) else value
    if not kind.holds(value):
        infinite = isinstance(value, float) and not math.isfinite(value)
        words = kind.words.replace("a number", "a finite number") if infinite else kind.words
        raise UserError(f"{name} {_given(value, UNIT_RANGE.words in words)}: expected {words}")
    array = next((array for array in kind.arrays if isinstance(value, array)), None)
    for axis, size in [] if array is None else _axes(array, value.shape):
        known, first = sizes.setdefault(axis, (size, name))
        if known != size:
            words = f"{axis.lstrip('*')} {known}"
            words = f"one per {axis.removesuffix('s')}, ({known},)" if value.ndim == 1 else words
            raise UserError(f"{name} {_given(value)}: expected {words}, as in {first}")
    large = isinstance(value, int) and abs(value) >= 2**63  # torch takes no such integer
    return float(value) if large and "number" in kind.words else value


def _given(value: Any, in_range: bool = False) -> str:
    if isinstance(value, Tensor | np.ndarray):
        kind = "of" if isinstance(value, Tensor) else "of type ndarray,"
        ranged = in_range and isinstance(value, Tensor) and value.is_floating_point() and value.numel()
        from_to = f", with values from {value.min():g} to {value.max():g}" if ranged else ""
        return f"{kind} shape {tuple(value.shape)} and {value.dtype}{from_to}"
    return shown(value) if value is None or isinstance(value, str | bytes | Real) else f"of type {type(value).__name__}"


def _axes(array: Any, shape: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Return the named axes of a tensor's annotation with their lengths; of ``*axes`` those of all."""
    names, place = array.dim_str.split(), array.index_variadic
    if place is not None:
        end = len(shape) - (len(names) - place - 1)
        shape = (*shape[:place], shape[place:end], *shape[end:])
    return [(name, size) for name, size in zip(names, shape, strict=True) if name.lstrip("*").isidentifier()]


_ANYTHING = _Kind("anything", lambda value: True)


def _is_number(value: Any, most: float = math.inf) -> bool:
    most = sys.float_info.max if isinstance(value, Integral) else most
    return isinstance(value, Real) and not isinstance(value, bool) and not abs(value) > most  # pyright: ignore


_PLAIN = {
    Any: _ANYTHING,
    int: _Kind("an integer", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    float: _Kind("a number", lambda value: _is_number(value, sys.float_info.max) and value == value),
    Callable: _Kind("a callable", callable),
}
_WORDS = {str: "text", bool: "True or False", Tensor: "a torch tensor", type(None): "None"}
_LISTS = {Sequence: "list", list: "list", tuple: "tuple", Iterable: "list", Mapping: "mapping", dict: "dict"}


@functools.cache
def _kind(hint: Any) -> _Kind:
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if isinstance(hint, TypeVar) or OWN_WORDS in parts:
        return _ANYTHING
    if origin is Annotated:
        kind = _Kind("a number", _is_number) if ANY_NUMBER in parts else _kind(parts[0])
        musts = [part for part in parts[1:] if isinstance(part, Must) and part.words]
        words = f"{kind.words} {' and '.join(must.words for must in musts)}".strip()

        def holds(value: Any) -> bool:
            return kind.holds(value) and (value is None or all(must.holds(value) for must in musts))

        return replace(kind, words=words, holds=holds)
    if origin in (Union, types.UnionType):
        kinds = [_kind(part) for part in parts]
        return _Kind(
            " or ".join(dict.fromkeys(kind.words for kind in kinds)),
            lambda value: any(kind.holds(value) for kind in kinds),
            tuple(chain.from_iterable(kind.arrays for kind in kinds)),
        )
    if origin is Literal:
        words = " or ".join(", ".join(map(repr, parts)).rsplit(", ", 1))
        return _Kind(words, lambda value: isinstance(value, str | int) and value in parts)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        words = "a torch tensor" if issubclass(hint.array_type, Tensor) else "a numpy array"
        shape = ", ".join("…" if name[0] in "*." else name.lstrip("#") for name in hint.dim_str.split())
        words = f"{words} of {hint.dtype.__name__.lower()} and shape ({shape})"
        return _Kind(words, lambda value: isinstance(value, hint), (hint,))
    if origin in _LISTS:
        elements = f", each {_kind(parts[0]).words}" if len({*parts} - {...}) == 1 else ""
        return _Kind(f"a {_LISTS[origin]}{elements}", lambda value: _holds(origin, parts, value))
    words = _WORDS.get(origin) or str(getattr(origin, "__name__", origin))
    return _PLAIN.get(origin) or _Kind(words, lambda value: isinstance(value, origin))


def _holds(origin: Any, parts: tuple[Any, ...], value: Any) -> bool:
    accepted = (Sequence, np.ndarray) if origin is Sequence else origin
    if not isinstance(value, accepted) or isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0:
        return False
    if isinstance(value, Iterator) or not parts:  # reading an iterator would use it up
        return True
    elements = tuple(chain(*value.items()) if issubclass(origin, Mapping) else value)
    if issubclass(origin, Mapping):
        parts *= len(value)
    elif origin is not tuple or ... in parts:
        parts = parts[:1] * len(elements)
    return len(parts) == len(elements) and all(
        _kind(part).holds(element) for part, element in zip(parts, elements, strict=True)
    )
