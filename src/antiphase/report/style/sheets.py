"""Tables of a page, with their numbers as CSV."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    """One field: a text, notes below it, the colour of a marker before it, and a CSS class."""

    text: str
    notes: tuple[str, ...] = ()
    color: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Sheet:
    """One table; ``csv`` holds its numbers with all digits, in long form."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Field, ...], ...]
    csv: str
