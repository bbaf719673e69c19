"""A table of a page: fields in rows, and the same numbers as CSV."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    """One field: a text, smaller notes below it, a colour mark before it, a kind for its style."""

    text: str
    notes: tuple[str, ...] = ()
    color: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Sheet:
    """One table of the page; ``csv`` holds its numbers in full, in long form."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Field, ...], ...]
    csv: str
