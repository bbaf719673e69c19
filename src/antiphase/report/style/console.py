"""Tables for the console."""

from rich import box
from rich.table import Table


def ruled_table(title: str | None = None, *, caption: str | None = None, title_style: str = "bold") -> Table:
    """Return an empty table with a rule below its head, as all commands print them."""
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title_justify="left",
        title_style=title_style,
        caption_justify="left",
    )
