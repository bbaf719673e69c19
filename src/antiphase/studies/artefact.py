"""What a study shows: figures and tables as frames of estimates, which the report draws and the site offers as CSV."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float, UInt8

ESTIMATES: dict[str, Any] = {
    "value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "n": pl.Int64, "seeds": pl.Int64,
}  # fmt: skip
"""Columns of every estimate: the mean, its 95 % interval (null where it has none), samples and training seeds."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it, such as ``"(a) PGD"``.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        points: columns ``series`` (String), ``x`` (Float64; the position where ``ticks`` name them) and ``ESTIMATES``.
        kind: lines with bands, or bars with whiskers beside one another.
        scale: of the horizontal axis; ``"eps"`` is logarithmic with ticks in 255ths.
        ticks: names of the positions 0, 1, 2, …; none for numbers.
        percent: whether values are shares in [0, 1], shown in percent.
        paper: the paper's numbers, columns ``series, x, value``, drawn hollow and dashed beside ours.
        level: a horizontal line to compare with, such as 0 for differences.
    """

    title: str
    x: str
    y: str
    points: pl.DataFrame
    kind: Literal["line", "bar"] = "line"
    scale: Literal["linear", "log", "eps"] = "linear"
    ticks: tuple[str, ...] = ()
    percent: bool = False
    paper: pl.DataFrame | None = None
    level: float | None = None


@dataclass(frozen=True)
class Plot:
    """A figure of one or several panels, in the paper's arrangement.

    Attributes:
        name: of its files; letters, digits and "-".
        caption: one or two sentences: what is seen, over how many images and seeds, what the band is.
        panels: row by row.
        columns: panels beside one another.
    """

    name: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2


@dataclass(frozen=True)
class Picture:
    """One field of a sheet of pictures: an image, with a signed map over it.

    Attributes:
        title: above it.
        image: height, width, 3.
        over: relevance on a grid of patches, any shape; None for the image alone.
    """

    title: str
    image: UInt8[np.ndarray, "height width 3"]
    over: Float[np.ndarray, "rows columns"] | None = None


@dataclass(frozen=True)
class Gallery:
    """Pictures in rows, such as what several models attend to in one image."""

    name: str
    caption: str
    rows: tuple[tuple[Picture, ...], ...]


@dataclass(frozen=True)
class Table:
    """A table of estimates.

    Attributes:
        name: of its CSV; letters, digits and "-".
        title: above it.
        index: name of the first column.
        cells: columns ``row`` (String), ``column`` (String), ``ESTIMATES`` and ``paper`` (Float64, the paper's number
            in the same unit, null where it gives none); rows and columns stand in the order of their first cell.
        percent: whether values are shares in [0, 1], shown in percent.
        digits: behind the decimal point.
    """

    name: str
    title: str
    index: str
    cells: pl.DataFrame
    percent: bool = True
    digits: int = 1


@dataclass(frozen=True)
class Artefact:
    """What a study's page shows, in this order."""

    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    galleries: Sequence[Gallery] = ()
    notes: Sequence[str] = field(default=())
