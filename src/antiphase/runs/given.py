"""Models and images that are objects of the caller: held under names, so that options and records stay text."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from antiphase.errors import UserError

PREFIX = "given:"
_HELD: dict[str, Any] = {}


@contextmanager
def holding(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let ``given:NAME`` stand for an object within the block.

    Args:
        objects: by specification, each beginning with ``given:``.
    """
    before = dict(_HELD)
    _HELD.update(objects)
    try:
        yield
    finally:
        _HELD.clear()
        _HELD.update(before)


def given(spec: Any) -> Any:
    """Return the object of a specification; None for any other specification.

    Raises:
        UserError: an object of another call.
    """
    if not isinstance(spec, str) or not spec.startswith(PREFIX):
        return None
    if spec not in _HELD:
        raise UserError(
            f"{spec}: was an object of another Python session; expected a specification, or the object"
        )
    return _HELD[spec]
