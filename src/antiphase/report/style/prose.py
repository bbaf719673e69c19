"""Convert the docstring of a study to HTML: paragraphs, lists, indented commands and pipe tables."""

import inspect
import re
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

_BULLET = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
_RULED = re.compile(r"[\s|:-]*-[\s|:-]*")  # the line below the header of a table
_NUMBER = re.compile(r"[-−+±]?[\d.,]+( ?%)?|[-–—]?")


def paragraphs(text: str) -> list[str]:
    """Split a docstring into blocks at empty lines; tables, lists and commands are separate blocks."""
    found: list[list[str]] = []
    last = ""
    for line in inspect.cleandoc(text).splitlines():
        kind = _kind(line, last)
        if line.strip():
            if kind == last and found:
                found[-1].append(line)
            else:
                found.append([line])
        last = kind
    return ["\n".join(block) for block in found]


def prose(blocks: Sequence[str]) -> Markup:
    """Return blocks of :func:`paragraphs` as escaped HTML."""
    return Markup("\n").join(_WRITERS[_kind(block.splitlines()[0], "")](block) for block in blocks)


def _kind(line: str, last: str) -> str:
    if not line.strip():
        return "code" if last == "code" else ""
    if line.lstrip().startswith("|"):
        return "table"
    if line.startswith("    "):
        return "list" if last == "list" else "code"
    if line.startswith("antiphase study "):
        return "code"
    if _BULLET.match(line):
        return "list"
    if line.startswith("#"):
        return "heading"
    return "list" if last == "list" and line.startswith(" ") else "text"


def _inline(text: str) -> Markup:
    """Escape, then mark `code` and **bold**."""
    marked = re.sub(r"``([^`]+)``|`([^`]+)`", lambda m: f"<code>{m[1] or m[2]}</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(\S(?:[^*]*\S)?)\*\*", r"<b>\1</b>", marked))


def _text(block: str) -> Markup:
    return Markup("<p>{}</p>").format(_inline(" ".join(block.split())))


def _heading(block: str) -> Markup:
    return Markup("<h3>{}</h3>").format(_inline(block.lstrip("# ")))


def _code(block: str) -> Markup:
    return Markup('<pre class="scroll" tabindex="0">{}</pre>').format(inspect.cleandoc(block))


def _list(block: str) -> Markup:
    points: list[str] = []
    for line in block.splitlines():
        if _BULLET.match(line) or not points:
            points.append(_BULLET.sub("", line, count=1))
        else:
            points[-1] += f" {line.strip()}"
    return Markup("<ul>{}</ul>").format(
        Markup("").join(Markup("<li>{}</li>").format(_inline(p)) for p in points)
    )


def _table(block: str) -> Markup:
    lines = block.splitlines()
    rows = [_fields(line) for line in lines if not _RULED.fullmatch(line)]
    head = rows[:1] if len(lines) > 1 and _RULED.fullmatch(lines[1]) else []
    body = rows[len(head) :]
    width = max(map(len, rows), default=0)
    words = {
        at for at in range(width) if any(at < len(row) and not _NUMBER.fullmatch(row[at]) for row in body)
    }

    def line(row: Sequence[str], tag: str) -> Markup:
        cells = [*row, *[""] * (width - len(row))]
        return Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<{0}{1}>{2}</{0}>").format(
                    Markup(tag), Markup(' class="word"') if at in words else Markup(""), _inline(cell)
                )
                for at, cell in enumerate(cells)
            )
        )

    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="The paper’s numbers">'
        '<table class="narrow plain"><thead>{}</thead><tbody>{}</tbody></table></div>'
    ).format(
        Markup("").join(line(row, "th") for row in head), Markup("").join(line(row, "td") for row in body)
    )


def _fields(line: str) -> list[str]:
    return [field.strip().replace(r"\|", "|") for field in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


_WRITERS: dict[str, Callable[[str], Markup]] = {
    "text": _text,
    "heading": _heading,
    "code": _code,
    "list": _list,
    "table": _table,
}
