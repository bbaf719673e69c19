"""Tables: one object that is HTML on a page and a table on the console; and rows of text in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table as ConsoleTable
from rich.text import Text

from antiphase.report.words import ends, percent, percent_range, points, points_range

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Field:
    """One field: a text, notes below it, the colour of a marker before it, and a CSS class.

    Classes: ``name`` (may wrap), ``word`` (text, not a number), ``mean`` (in the first field: a row of means) and
    ``undecided`` (pale).
    """

    text: str
    notes: tuple[str, ...] = ()
    color: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """Fields in rows; ``csv`` holds the numbers with all digits, in long form."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Field, ...], ...]
    csv: str

    def console(self, columns: Sequence[str] | None = None, width: int = 80) -> Group:
        """Return the table for a console: the first column in bold, notes below the values.

        Columns that find no room follow in further tables with the same first column.

        Args:
            columns: those that are shown, in their order; all where not given.
            width: of the console.
        """
        name, *places = [self.columns.index(column) for column in columns or self.columns]
        room = width - min(max(self._width(name), 16), _NAMES)
        blocks: list[list[int]] = [[]]
        for place in places:
            if blocks[-1] and sum(map(self._width, (*blocks[-1], place))) > room:
                blocks.append([])
            blocks[-1].append(place)
        tables = []
        for block in blocks:
            table = ruled_table(None if tables else self.title)
            table.add_column(self.columns[name], overflow="fold", min_width=14)
            for place in block:
                words = bool(self.rows) and self.rows[0][place].kind in ("name", "word")
                justify = "left" if words else "right"
                table.add_column(self.columns[place], overflow="fold", justify=justify, no_wrap=not words)
            for row in self.rows:
                table.add_row(_text(row[name], True), *(_text(row[place], False) for place in block))
            tables.append(table)
        return Group(*tables)

    def _width(self, place: int) -> int:
        fields = (row[place] for row in self.rows)
        lines = [line for field in fields for line in (field.text, *map(_short, field.notes))]
        return max(map(len, [self.columns[place], *lines])) + 2


def tabulate(
    name: str,
    title: str,
    frame: "pl.DataFrame",
    down: Sequence[str],
    across: str,
    field: Callable[[Mapping[str, Any]], Field],
    heads: Callable[[Any], str] | Mapping[Any, str] = str,
    csv: "pl.DataFrame | None" = None,
) -> Table:
    """Tabulate estimates in long form: a line for each value of some columns, a column for each value of another.

    Args:
        name: of the table.
        title: of the table.
        frame: the estimates. ``color`` and ``kind``, if it has them, are of the first field of a line.
        down: the columns whose values tell the lines apart, as their heads.
        across: the column whose values have a column each.
        field: writes one row.
        heads: writes a value of ``across``, which are sorted; or their heads, in their order.
        csv: all rows, for the CSV file, if they are others.
    """
    given = frame[across].unique()
    values = [one for one in heads if one in given] if isinstance(heads, Mapping) else given.sort().to_list()
    lines = []
    for (first, *more), block in frame.group_by(down, maintain_order=True):
        rows = block.rows(named=True)
        look = {"color": rows[0].get("color", ""), "kind": rows[0].get("kind", "name")}
        words = (Field(str(word), kind="word" if isinstance(word, str) else "") for word in more)
        fields = {row[across]: field(row) for row in rows}
        numbers = (fields.get(value, Field("–")) for value in values)
        lines.append((Field(str(first), **look), *words, *numbers))
    label = heads.__getitem__ if isinstance(heads, Mapping) else heads
    numbers = (frame if csv is None else csv).drop("color", "kind", strict=False)
    return Table(name, title, (*down, *map(label, values)), tuple(lines), numbers.write_csv())


def estimate_field(
    value: float | None, low: float | None, high: float | None, text: Callable[[float], str]
) -> Field:
    """Return a number with its interval below it; a dash for None."""
    return Field("–") if value is None else Field(text(value), (ends(low, high, text, " to "),))


def rate_field(row: Mapping[str, Any]) -> Field:
    """Return a rate in percent with its interval below it."""
    return Field(percent(row["value"]), (percent_range(row["low"], row["high"]),))


def difference_field(row: Mapping[str, Any]) -> Field:
    """Return a difference of rates in points with its interval below it, pale if it is not ``decided``.

    The number is the ``difference`` of the row, or its ``value``.
    """
    value = row["difference"] if "difference" in row else row["value"]
    kind = "" if row.get("decided", True) else "undecided"
    return Field(points(value), (points_range(row["low"], row["high"]),), kind=kind)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: bool = False) -> str:
    """Return a table in Markdown; with ``numeric``, all columns but the first are aligned to the right.

    >>> print(markdown_table(["ε", "ASR"], [["1/255", "12.5"]], numeric=True))
    | ε | ASR |
    | --- | ---: |
    | 1/255 | 12.5 |
    """
    rule = ["---", *["---:" if numeric else "---"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


_NAMES = 24  # of a console's line, for the names of the rows


def _short(note: str) -> str:
    """Return an interval in brackets, in the little room that a console has."""
    return f"[{note.replace(' to ', ' ')}]" if " to " in note else note


def _text(field: Field, first: bool) -> Text:
    style = "dim" if field.kind == "undecided" else "bold" if first or field.notes else ""
    return Text.assemble((field.text, style), *((f"\n{_short(note)}", "dim") for note in field.notes))


def ruled_table(
    title: str | None = None, *, caption: str | None = None, title_style: str = "bold"
) -> ConsoleTable:
    """Return an empty table with a rule below its head, as all commands print them."""
    left: Any = {"title_justify": "left", "caption_justify": "left", "title_style": title_style}
    return ConsoleTable(
        title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, **left
    )
