"""The identity of a cell: a hash of its result-affecting fields that are not at their defaults."""

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from antiphase.errors import UserError
from antiphase.files import digest

_LENGTH = 16  # hexadecimal digits; a billion cells collide with probability 3 %


def described(cell: Any) -> dict[str, Any]:
    """Return class, version and non-default fields of a cell, ready for JSON.

    Cells that it needs are replaced by their identities, so that changes propagate. Adding a field with a default does
    not change the identity of existing cells.

    Args:
        cell: a dataclass with a class attribute ``version``; every field affects the result.
    """
    fields = {}
    for field in dataclasses.fields(cell):
        if field.metadata.get("identity") is False:  # labels and cost estimates
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
    """Return the identity of a cell: the first digits of the SHA-256 of :func:`described` as sorted JSON."""
    return digest(json.dumps(described(cell), sort_keys=True, allow_nan=False))[:_LENGTH]


@lru_cache
def _source(function: Callable[..., Any]) -> str:
    """Return the digest of a function's source, cached because its file may be edited during a run."""
    return digest(textwrap.dedent(inspect.getsource(function)))[:_LENGTH]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"identity": identity(value)}
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if inspect.isfunction(value):  # a user's own function: its result may change with its source
        return {"function": value.__name__, "source": _source(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(
        f"{value!r} in a cell: expected numbers, strings, tuples, dictionaries, functions or cells"
    )
