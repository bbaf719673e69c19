"""A radar chart: one spoke for each category, one closed line for each model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_GRID = "#d8d7d2"


def draw_radar(
    axes: Any, names: Sequence[str], lines: Sequence[tuple[Sequence[float], Mapping[str, Any]]]
) -> None:
    """Draw values on spokes, the first at the top, then clockwise.

    Args:
        axes: polar axes.
        names: names of the spokes.
        lines: the values of each line in percent, one for each spoke, NaN where there is none; and how matplotlib draws
            it, with its ``color``.
    """
    angles = [2 * math.pi * at / len(names) for at in range(len(names))]
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    for values, look in lines:
        closed = ([*angles, angles[0]], [*values, values[0]])
        axes.plot(*closed, **look)
        axes.fill(*closed, color=look["color"], alpha=0.08, lw=0)
    top = max((value for values, _ in lines for value in values if not math.isnan(value)), default=0.0)
    axes.set_xticks(angles, [_broken(name) for name in names], parse_math=False)
    limit = 10 * math.ceil((top + 1) / 10)
    step = next(step for step in (5, 10, 20, 25) if limit <= 4 * step)
    axes.set_ylim(0, limit)
    axes.set_yticks(range(step, limit + 1, step))
    axes.set_rlabel_position(math.degrees(angles[1] / 2) if len(angles) > 1 else 0)
    axes.grid(color=_GRID, lw=0.7)
    axes.spines["polar"].set_color(_GRID)
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):
        side = math.sin(angle)
        label.set_horizontalalignment("left" if side > 0.1 else "right" if side < -0.1 else "center")
    axes.tick_params(axis="x", pad=6)


def _broken(text: str) -> str:
    r"""Break a long name in two lines at the space nearest to its middle.

    >>> _broken("Presence of Specific Features")
    'Presence of\nSpecific Features'
    """
    spaces = [at for at, letter in enumerate(text) if letter == " "]
    if len(text) < 16 or not spaces:
        return text
    middle = min(spaces, key=lambda at: abs(at - len(text) / 2))
    return f"{text[:middle]}\n{text[middle + 1 :]}"
