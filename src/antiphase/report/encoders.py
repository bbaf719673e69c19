"""Retrieval and zero-shot classification as a table."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def encoder_table(summary: Mapping[str, Any]) -> Table:
    """Return a row for each model and set: every metric in percent, with its 95 % interval."""
    found = {(r["model"], r["data"], r["metric"]): r for r in summary["results"]}
    metrics = [name for name in summary["metrics"] if any(key[2] == name for key in found)]
    table = Table(caption="per cent, with 95 % intervals over the captions or images")
    for heading in ("model", "data", *metrics):
        table.add_column(heading, no_wrap=heading not in metrics)
    for model, data in dict.fromkeys(key[:2] for key in found):
        cells = []
        for metric in metrics:
            one = found.get((model, data, metric))
            cells.append(
                "–" if one is None
                else f"{100 * one['value']:.1f}\n[{100 * one['low']:.1f}, {100 * one['high']:.1f}]"
            )  # fmt: skip
        table.add_row(model, data, *cells)
    return table
