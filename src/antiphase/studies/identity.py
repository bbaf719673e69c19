"""What makes a cell the same cell: a hash of its result-affecting fields that are not at their defaults."""

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from antiphase.errors import UserError
from antiphase.files import digest

_LENGTH = 16  # hexadecimal digits; two of a billion cells meet with a chance of 3 %


def described(cell: Any) -> dict[str, Any]:
    """Return what identifies a cell, ready for JSON: its class, its version, its fields that are not at their defaults.

    A cell that it needs stands there by its own identity, so that what changes there changes here too. A field that
    is added later with a default leaves the identity of older cells as it was.

    Args:
        cell: a dataclass with class attributes ``version``; every field affects the result.
    """
    fields = {}
    for field in dataclasses.fields(cell):
        if field.metadata.get("identity") is False:  # what a line is called, how long it may take
            continue
        value = getattr(cell, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING or value != default:
            fields[field.name] = _plain(value)
    what = {"cell": type(cell).__name__, "version": type(cell).version, "fields": fields}
    content = cell.content() if hasattr(cell, "content") and callable(cell.content) else {}
    return what | ({"content": content} if content else {})


def identity(cell: Any) -> str:
    """Return the cell's identity: the beginning of the SHA-256 of :func:`described` as sorted JSON."""
    return digest(json.dumps(described(cell), sort_keys=True, allow_nan=False))[:_LENGTH]


@lru_cache
def _source(function: Callable[..., Any]) -> str:
    """Return the digest of a function's text as it was when first asked: its file may be edited during a run."""
    return digest(textwrap.dedent(inspect.getsource(function)))[:_LENGTH]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"identity": identity(value)}
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if inspect.isfunction(value):  # a user's own: when its text changes, so may its result
        return {"function": value.__name__, "source": _source(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"{value!r} in a cell: expected numbers, words, tuples, dictionaries, functions or cells")
