"""Axes of the panels of a study: ticks, labels and limits."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from antiphase.budgets import eps_label
from antiphase.studies.figures import BY_SEED, Panel

LETTER = 0.075
"""Width of a letter in inches, at the size of ticks and legends."""


def number_axis(axes: Axes, panel: Panel, places: Sequence[float], width: float) -> None:
    """Set the horizontal axis of a panel of lines, with a tick at every point if there is room.

    Args:
        axes: axes of the panel.
        panel: the panel.
        places: positions of its points.
        width: width of the panel in inches.
    """
    if panel.ticks:
        named_ticks(axes, range(len(panel.ticks)), panel.ticks, width)
        axes.set_xlim(-0.3, len(panel.ticks) - 0.7)
        return
    logarithmic = panel.scale != "linear" and bool(places) and places[0] > 0
    if logarithmic:
        axes.set_xscale("log", base=2)
        if len(places) == 1:
            axes.set_xlim(places[0] / 2, places[0] * 2)
    measured = np.log2(places) if logarithmic else np.array(places)
    gaps = np.diff(measured) / (measured[-1] - measured[0]) if len(places) > 1 else np.ones(1)
    labels = numbers(panel, places)
    room = LETTER * (1 + max(map(len, labels), default=0)) / (width - 0.8)
    if gaps.min(initial=1.0) > room:  # there is room for every label
        axes.set_xticks(places, labels)
        axes.minorticks_off()
    elif panel.scale == "linear":
        whole = all(place == round(place) for place in places)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))


def named_ticks(axes: Axes, places: Sequence[float], names: Sequence[str], width: float) -> None:
    """Write names below positions, broken between words if they fit, otherwise slanted and shortened."""
    letters = max(4, int((width - 0.8) / max(len(places), 1) / LETTER))
    broken = [textwrap.wrap(name, letters, break_long_words=False) for name in names]
    if all(len(lines) <= 3 and max(map(len, lines), default=0) <= letters for lines in broken):
        axes.set_xticks(places, ["\n".join(lines) for lines in broken], parse_math=False)
    else:
        slanted: dict[str, Any] = {
            "rotation": 32,
            "ha": "right",
            "rotation_mode": "anchor",
            "parse_math": False,
        }
        axes.set_xticks(places, [shortened(name, 24) for name in names], **slanted)
    axes.tick_params(axis="x", labelsize=8, length=0)


def limits(panel: Panel, points: pl.DataFrame, paper: pl.DataFrame | None) -> tuple[float, float]:
    """Return the limits of the vertical axis: all values, and their intervals unless these are much wider."""
    seeds = seeds_of(points).ravel() * (100.0 if panel.percent else 1.0)
    values = np.r_[floats(points["value"]), seeds]
    if paper is not None:
        values = np.r_[values, floats(paper["value"])]
    values = values[np.isfinite(values)]
    if not len(values):
        return (0.0, 100.0 if panel.percent else 1.0)
    level = [] if panel.level is None else [(100 if panel.percent else 1) * panel.level]
    least, most = min(values.min(), *level, np.inf), max(values.max(), *level, -np.inf)
    spread = max(most - least, 0.2 * abs(most), 30.0 if panel.percent else 0.0) or 1.0
    far = np.concatenate([[least, most], *(end[np.isfinite(end)] for end in ends(points))])
    bottom, top = max(far.min(), least - spread), min(far.max(), most + spread)
    pad = 0.06 * (top - bottom or spread)  # a single value without an interval still needs an axis
    bottom, top = bottom - pad, top + pad
    if (
        panel.percent and panel.level != 0 and values.min() >= 0 and values.max() <= 100
    ):  # rates, not differences
        bottom, top = max(bottom, 0.0), min(top, 100.0 if panel.kind == "bar" else 100.0 + pad / 3)
        if top - bottom > 45:
            bottom, top = 0.0, 102.0 if top > 99 else top
    if panel.kind == "bar" and values.min() >= 0:
        bottom = min(0.0, bottom) if panel.level is not None else 0.0
    return bottom, top


def positions(panel: Panel) -> list[float]:
    """Return the positions of all points, ours and the paper's."""
    paper = [] if panel.paper is None else panel.paper["x"].to_list()
    return sorted({*panel.points["x"].to_list(), *paper})


def numbers(panel: Panel, places: Sequence[float]) -> list[str]:
    """Format the positions of a panel, ε in 255ths if all are multiples of 1/255."""
    if panel.scale != "eps":
        return [f"{place:g}".replace("-", "−") for place in places]
    fractions = [eps_label(place) for place in places]
    return [name.removesuffix("/255") for name in fractions] if _of_255(places) else fractions


def x_label(panel: Panel) -> str:
    """Return the label of the horizontal axis, with the unit of ε."""
    if panel.scale != "eps" or "255" in panel.x:
        return panel.x
    return f"{panel.x}, in {'255ths' if _of_255(positions(panel)) else 'units'} of the pixel range"


def y_label(panel: Panel) -> str:
    """Return the label of the vertical axis, with its unit."""
    open_ = panel.percent and "%" not in panel.y and "point" not in panel.y
    return f"{panel.y} (%)".strip() if open_ else panel.y


def ends(points: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the intervals; both are NaN if one is missing or infinite."""
    low, high = floats(points["low"]), floats(points["high"])
    none = ~(np.isfinite(low) & np.isfinite(high))
    return np.where(none, math.nan, low), np.where(none, math.nan, high)


def seeds_of(points: pl.DataFrame) -> np.ndarray:
    """Return the means of single training seeds, (points, seeds); no seeds if they are unknown or there is one.

    >>> seeds_of(pl.DataFrame({"by_seed": [[0.1, 0.2, 0.4], [0.3, 0.5]]})).tolist()
    [[0.1, 0.2, 0.4], [0.3, 0.5, nan]]
    """
    lists = points[BY_SEED].to_list() if BY_SEED in points.columns else []
    most = max((len(each) for each in lists if each), default=0)
    if most < 2:
        return np.empty((len(points), 0))
    return np.array([[*(each or []), *[math.nan] * (most - len(each or []))] for each in lists], float)


def floats(column: pl.Series) -> np.ndarray:
    """Return a column as floats, with NaN for missing values."""
    return column.cast(pl.Float64).fill_null(math.nan).to_numpy()


def shortened(text: str, letters: int) -> str:
    """Omit the middle of a long name.

    >>> shortened("a" * 20 + "b" * 40, 12)
    'aaaa…bbbbbbb'
    """
    return text if len(text) <= letters else f"{text[: letters // 3]}…{text[-(letters - letters // 3 - 1) :]}"


def _of_255(places: Sequence[float]) -> bool:
    return all(eps_label(place).endswith("/255") or place == 0 for place in places)
