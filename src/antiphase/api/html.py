"""A result in a notebook: its line, its picture, its tables."""

import base64
from collections.abc import Sequence
from html import escape

from matplotlib.figure import Figure

from antiphase.report.style.figures import as_svg
from antiphase.report.style.sheets import Field, Sheet

_MOST_ROWS = 24


def page_part(line: str, warnings: Sequence[str], figure: Figure, sheets: Sequence[Sheet]) -> str:
    """Return HTML that stands alone: no script, no style sheet, nothing from the network.

    Args:
        line: the result in a few words.
        warnings: reasons to doubt it.
        figure: its picture, included as SVG.
        sheets: its tables; of a long one the first 24 rows.
    """
    picture = base64.b64encode(as_svg(figure).encode()).decode()
    parts = [f"<p><b>{escape(line)}</b></p>"]
    parts += [f"<p>Warning: {escape(warning)}</p>" for warning in warnings]
    parts += [
        f'<img style="max-width:100%;background:white" alt="{escape(line)}" src="data:image/svg+xml;base64,{picture}">'
    ]
    return "\n".join([*parts, *map(_table, sheets)])


def _table(sheet: Sheet) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in sheet.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in sheet.rows[:_MOST_ROWS])
    left = len(sheet.rows) - _MOST_ROWS
    more = f"<p>{left} more rows: see frame()</p>" if left > 0 else ""
    return (
        f'<div style="overflow-x:auto"><table><caption style="text-align:left">{escape(sheet.title)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}</div>"
    )


def _cell(field: Field) -> str:
    notes = "".join(f"<br><small>{escape(note)}</small>" for note in field.notes)
    return f"<td>{escape(field.text)}{notes}</td>"
