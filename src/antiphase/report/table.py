"""Tables: one object that is HTML on a page, a table on the console, and text in Markdown, LaTeX or CSV."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich import box
from rich.cells import cell_len
from rich.table import Table as ConsoleTable
from rich.text import Text

from antiphase.report.words import interval_text, percent, percent_range, points
from antiphase.terminal import TABLE_FORMATS, check_format

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Field:
    """One field: a text, notes below it, the colour of a marker before it, and a CSS class.

    ``name`` may wrap, ``word`` is text, ``mean`` begins a row of means, ``undecided`` is pale.
    """

    text: str
    notes: tuple[str, ...] = ()
    color: str = ""
    kind: str = ""


FieldOf = Callable[[Mapping[str, Any]], Field]  # of a row of numbers


@dataclass(frozen=True)
class Table:
    """Fields in rows; ``csv`` holds the numbers with all digits, in long form."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Field, ...], ...]
    csv: str


@dataclass(frozen=True)
class OnConsole:
    """A table as rich prints it: first column in bold, notes below the values, no word broken if there is room.

    Columns that find no room follow in further tables, which repeat the columns of words on the left.
    """

    table: Any
    columns: Sequence[str] = ()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Text | ConsoleTable]:
        names = self.table.columns
        places = [place for place, name in enumerate(names) if not self.columns or name in self.columns]
        widths = {place: max(map(cell_len, self._lines(place))) for place in places}
        words = [place for place in places if place == places[0] or _is_words(self.table, place)]
        numbers = [place for place in places if place not in words]
        full = options.max_width - 1  # a space on the left, and two behind each column
        needed = sum(widths[place] + 2 for place in numbers)
        widest = max((widths[place] + 2 for place in numbers), default=0)
        room = max(full - needed, min(_WORDS, full - widest))
        least = {col: max(cell_len(part) for line in self._lines(col) for part in _BREAKS.split(line)) for col in words}
        while sum(widths[place] + 2 for place in words) > room:
            if not (wide := [place for place in words if widths[place] > least[place]]):
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
        blocks: list[list[int]] = [[]]
        for place in numbers:
            if blocks[-1] and sum(widths[other] + 2 for other in (*words, *blocks[-1], place)) > full:
                blocks.append([])
            blocks[-1].append(place)
        if self.table.title:
            yield Text(self.table.title, "bold")
        for block in blocks:
            drawn = ConsoleTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
            together = [place for place in places if place in (*words, *block)]
            for place in together:
                head = "\n".join(_wrapped(names[place], widths[place]))
                side: Any = "left" if place in words else "right"
                drawn.add_column(head, justify=side, overflow="fold", min_width=min(widths[place], full))
            for row in self.table.rows:
                drawn.add_row(*(_text(row[place], place == places[0], widths[place]) for place in together))
            yield drawn

    def _lines(self, place: int) -> list[str]:
        fields = (row[place] for row in self.table.rows)
        return [self.table.columns[place], *(line for field in fields for line in (field.text, *field.notes))]


def tabulate(
    name: str,
    title: str,
    frame: "pl.DataFrame",
    down: Sequence[str],
    across: str,
    field: FieldOf,
    heads: Callable[[Any], str] | Mapping[Any, str] = str,
    csv: "pl.DataFrame | None" = None,
) -> Table:
    """Tabulate estimates in long form: a line for each value of ``down``, a column for each of ``across``.

    ``frame`` may have ``color`` and ``kind`` of the first field of a line. ``heads`` writes the values of ``across``,
    which are sorted, or has their heads in order. ``csv`` are all rows, for the CSV file, if they are others.
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


def estimate_field(value: float | None, low: float | None, high: float | None, text: Callable[[float], str]) -> Field:
    """Return a number with its interval below it; a dash for None."""
    return Field("–") if value is None else Field(text(value), (interval_text(low, high, text),))


def rate_field(row: Mapping[str, Any]) -> Field:
    """Return a rate in percent with its interval below it."""
    return Field(percent(row["value"]), (percent_range(row["low"], row["high"]),))


def difference_field(row: Mapping[str, Any]) -> Field:
    """Return a difference (``difference`` or ``value``) in points with its interval, pale if it is not ``decided``."""
    value = row["difference"] if "difference" in row else row["value"]
    kind = "" if row.get("decided", True) else "undecided"
    return Field(points(value), (percent_range(row["low"], row["high"]),), kind=kind)


def table_text(table: Any, form: str) -> str:
    """Return a table as text in one of ``TABLE_FORMATS``: CSV is in long form, LaTeX for booktabs."""
    return {"csv": lambda _: table.csv, "latex": latex, "markdown": markdown}[check_format(form)](table)


def table_files(table: Any) -> list[tuple[str, str, str]]:
    """Return what a page offers of a table: for each format its label, a file name and a data URI."""
    contents = {form: table_text(table, form) for form in TABLE_FORMATS}
    return [
        (label, f"{table.name}.{ending}", f"data:text/{form};charset=utf-8,{quote(contents[form])}")
        for form, (label, ending) in TABLE_FORMATS.items()
        if contents[form]
    ]


def markdown(table: Any) -> str:
    """Return a table in Markdown, notes after the values; columns of numbers are aligned to the right."""

    def text(field: Any) -> str:
        words, href = escaped(" ".join((field.text, *field.notes))), getattr(field, "href", "")
        return f"[{words}]({href})" if href else words

    numeric = all(field.kind == "" for row in table.rows for field in row[1:])
    rule = ["---", *["---:" if numeric else "---"] * (len(table.columns) - 1)]
    lines = [map(escaped, table.columns), rule, *(map(text, row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    r"""Escape markup and characters that would break a table row in Markdown."""
    marks = r"[\\`*|~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w)"
    return re.sub(marks, r"\\\g<0>", " ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")


def latex(table: Any) -> str:
    """Return a table environment of LaTeX with the rules of booktabs."""
    label, lines = re.sub(r"[^a-z0-9]+", "-", table.name.lower()), []
    for row in table.rows:
        bold = "\\textbf{{{}}}" if row[0].kind == "mean" else "{}"
        texts = [bold.format(in_latex(field.text)) for field in row]
        lines.append(" & ".join(texts).replace("[", "{[}", texts[0].startswith("[")))
        for notes in itertools.zip_longest(*(field.notes for field in row), fillvalue=""):
            lines.append(" & ".join(f"\\scriptsize {in_latex(note)}" if note else "" for note in notes))
    head = " & ".join(map(in_latex, table.columns))
    parts = [f"\\begin{{table}}\n\\centering\n\\caption{{{in_latex(table.title)}}}"]
    parts += [f"\\label{{tab:{label}}}\n\\begin{{tabular}}{{{_sides(table)}}}\n\\toprule", rf"{head} \\", "\\midrule"]
    return "\n".join([*parts, *(rf"{line.strip()} \\" for line in lines), "\\bottomrule\n\\end{tabular}\n\\end{table}"])


def _sides(table: Any) -> str:
    """Return the columns of LaTeX's tabular; where a line is too short for them, long words become paragraphs."""
    texts = [table.columns, *([field.text for field in row] for row in table.rows)]
    longest = [min(max(map(len, column)), _LINE) for column in zip(*texts, strict=True)]
    sides = ["l" if _is_words(table, place) else "r" for place in range(len(longest))]
    long = [place for place, side in enumerate(sides) if side == "l" and longest[place] > _SHORT]
    if sum(longest) > _LINE:
        total = sum(longest[place] for place in long)
        room = max(_LINE - sum(longest) + total - 2 * len(sides), _LINE // 3) / _LINE
        for place in long:
            sides[place] = f"p{{{room * longest[place] / total:.2f}\\linewidth}}"
    return "".join(sides)


def in_latex(text: str) -> str:
    r"""Escape text for LaTeX; symbols that a font may lack are set in mathematics."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


_MATHEMATICS = {
    "ε": "varepsilon", "λ": "lambda", "θ": "theta", "ρ": "rho", "γ": "gamma", "σ": "sigma", "α": "alpha", "Δ": "Delta",
    "∞": "infty", "‖": "Vert", "√": "surd", "·": "cdot", "×": "times", "±": "pm", "≤": "le", "≥": "ge", "→": "to",
    "∂": "partial", "∇": "nabla", "Σ": "Sigma", "η": "eta", "μ": "mu", "κ": "kappa", "δ": "delta", "β": "beta",
}  # fmt: skip
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"$\\{name}$" for character, name in _MATHEMATICS.items()},
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "–": "--", "—": "---", "…": "\\ldots{}",
    "°": "$^\\circ$", **{character: f"$_{number}$" for number, character in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    "’": "'", "‘": "`", "“": "``", "”": "''",
}  # fmt: skip
_LINE, _SHORT = 70, 20  # characters of a line of LaTeX's article; of a column that is no paragraph
_WORDS = 40  # of a console's line, for the columns of words where numbers need the room
_BREAKS = re.compile(r"\s|(?<=[/_.:,=-])(?=\w)")  # where a line may end


def _is_words(table: Any, place: int) -> bool:
    return not place or (bool(table.rows) and table.rows[0][place].kind not in ("", "undecided"))


def _wrapped(text: str, width: int) -> list[str]:
    """Break a line between words, and a word that is too long after a separator."""
    lines = [""]
    for word in text.split(" "):
        for place, part in enumerate(_BREAKS.split(word) if cell_len(word) > width else [word]):
            joined = f"{lines[-1]} {part}" if lines[-1] and not place else lines[-1] + part
            if cell_len(joined) <= width or not lines[-1]:
                lines[-1] = joined
            else:
                lines.append(part)
    return lines


def _text(field: Field, first: bool, width: int) -> Text:
    style = "dim" if field.kind == "undecided" else "bold" if first or field.notes else ""
    notes = ("\n".join(_wrapped(note, width)) for note in field.notes)
    return Text.assemble(("\n".join(_wrapped(field.text, width)), style), *((f"\n{note}", "dim") for note in notes))
