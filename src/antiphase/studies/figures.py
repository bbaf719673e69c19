"""The figures and tables of a study, as data frames of estimates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float, UInt8

from antiphase.terminal import eps_label

ESTIMATES: dict[str, Any] = dict.fromkeys(("value", "low", "high"), pl.Float64)
ESTIMATES |= dict.fromkeys(("n", "seeds"), pl.Int64)
"""Columns of every estimate: mean, 95 % interval (null if there is none), number of samples and training seeds."""

BY_SEED = "by_seed"
"""Optional column of a panel's points: the list of the training seeds' means, drawn as thin lines or dots."""

SIZE = "size"
"""Optional column of a panel's points: how large a marker is, by its area; 1 is usual."""

IN_255THS = pl.col("eps").map_elements(eps_label, pl.String)  # budgets in words


@dataclass(frozen=True)
class Panel:
    """One pair of axes: lines with bands, or grouped bars with whiskers.

    Points have the columns ``series`` (String), ``x`` (Float64), ``ESTIMATES`` and, optionally, ``BY_SEED``.
    """

    title: str
    x: str
    y: str
    points: pl.DataFrame
    kind: Literal["line", "bar"] = "line"
    scale: Literal["linear", "log", "eps"] = "linear"  # horizontal; "eps" is logarithmic with ticks in 255ths
    ticks: tuple[str, ...] = ()  # names of the positions 0, 1, 2, …; empty for numbers
    percent: bool = False  # whether values are fractions in [0, 1], shown in percent
    paper: pl.DataFrame | None = None  # the paper's numbers: series, x, value; with hollow markers
    level: float | None = None  # a horizontal reference line, such as 0 for differences


@dataclass(frozen=True)
class Plot:
    """A figure of one or several panels, arranged as in the paper."""

    name: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2


@dataclass(frozen=True)
class Picture:
    """An image with a signed map over it."""

    title: str
    image: UInt8[np.ndarray, "height width 3"]
    over: Float[np.ndarray, "rows columns"] | None = None


@dataclass(frozen=True)
class Gallery:
    """Rows of images, such as the attention of several models in one image."""

    name: str
    caption: str
    rows: tuple[tuple[Picture, ...], ...]


@dataclass(frozen=True)
class Table:
    """A table of estimates, whose rows and columns are in the order of their first cell."""

    name: str  # of its CSV: letters, digits and "-"
    title: str
    index: str
    cells: pl.DataFrame  # row, column (String), ESTIMATES and paper (Float64, the paper's number or null)
    percent: bool = True  # whether values are fractions in [0, 1], shown in percent
    digits: int | None = 1  # None: as many as each interval supports
    brackets: str = "95 % intervals"


@dataclass(frozen=True)
class Artefact:
    """The figures, tables and galleries of a study, in the order of its page."""

    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    galleries: Sequence[Gallery] = ()
    notes: Sequence[str] = field(default=())


def panels(
    estimates: pl.DataFrame,
    title: str,
    x: str | pl.Expr,
    labels: tuple[str, str],
    *,
    paper: pl.DataFrame | None = None,
    **style: Any,
) -> tuple[Panel, ...]:
    """Return a panel for each combination of the columns that the title names.

    Args:
        estimates: columns ``series``, ``ESTIMATES``, optionally ``BY_SEED``, and those of the title and of ``x``.
        paper: the paper's numbers, columns ``series``, ``x``, ``value`` and some of the title's.
    """
    shown = []
    for words, chosen, block in _groups(estimates, title):
        kept = [name for name in (BY_SEED, SIZE) if name in block.columns]
        points, printed = block.select("series", *ESTIMATES, *kept, x=x).cast({"x": pl.Float64}), None
        if paper is not None:
            printed = paper.filter(**{name: chosen[name] for name in chosen if name in paper.columns})
            printed = None if printed.is_empty() else printed.select("series", "x", "value")
        shown.append(Panel(words, *labels, points, paper=printed, **style))
    return tuple(shown)


def tables(
    estimates: pl.DataFrame,
    title: str,
    name: str,
    row: str | pl.Expr,
    column: str | pl.Expr,
    *,
    index: str = "model",
    paper: pl.DataFrame | None = None,
    **style: Any,
) -> list[Table]:
    """Return a table of estimates for each combination of the columns that the title names, as in :func:`panels`."""
    shown = []
    for words, chosen, block in _groups(estimates, title):
        cells = block.with_columns(row=row, column=column)
        if paper is None:
            cells = cells.with_columns(paper=pl.lit(None, pl.Float64))
        else:
            printed = paper.drop("sd", "x", strict=False).rename({"value": "paper"})
            cells = cells.join(printed, on=printed.drop("paper").columns, how="left", maintain_order="left")
        cells = cells.select(*ESTIMATES, "row", "column", "paper")
        shown.append(Table(name.format(**chosen).replace(" ", "-"), words, index, cells, **style))
    return shown


def _groups(frame: pl.DataFrame, title: str) -> Iterator[tuple[str, dict[str, Any], pl.DataFrame]]:
    """Yield title, chosen values and rows of each combination of the columns in the title's braces."""
    keys = [key for _, key, _, _ in Formatter().parse(title) if key]
    for values, block in frame.group_by(keys, maintain_order=True) if keys else [((), frame)]:
        chosen = dict(zip(keys, values, strict=True))
        yield title.format(**chosen), chosen, block
