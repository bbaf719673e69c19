"""Maps against masks: the rates, as a table for the console."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from antiphase.statistics.intervals import is_interval, jackknife, proportion


def mask_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rates over the images, with 95 % intervals, one line for each model, method and text."""
    table = Table(title="maps against masks, 95 % intervals over the images")
    for heading in ("model", "method", "text", "images", "pointing game", "mask average precision"):
        table.add_column(heading, overflow="fold")
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["method"], row["text"]), []).append(row)
    for key, group in groups.items():
        hits = proportion(sum(row["pointing_game"] for row in group), len(group))
        values = np.array([[row["average_precision"]] for row in group])
        mean = jackknife(values, lambda means: means[..., 0])
        spread = (
            f" [{max(mean.low, 0):.2f}, {min(mean.high, 1):.2f}]" if is_interval(mean.low, mean.high) else ""
        )
        table.add_row(
            *key,
            str(len(group)),
            f"{hits.value:.2f} [{hits.low:.2f}, {hits.high:.2f}]",
            f"{mean.value:.2f}{spread}",
        )
    return table
