"""Results of ``antiphase train``, ``train-clip`` and ``train-vlm``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphase.commands.old import Kind, nothing_paired
from antiphase.commands.result import Result
from antiphase.reading import as_json_lines
from antiphase.report.figure import STYLE
from antiphase.report.table import Field, Table

_METRICS = "metrics.jsonl"
_NOT_DRAWN = ("epoch", "learning_rate", "images_per_second")


def _epochs(content: bytes) -> list[dict[str, Any]]:
    return as_json_lines(content, _METRICS)


def _numbers(epoch: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an epoch that are one number each; λ is one for each layer."""
    return {name: value for name, value in epoch.items() if isinstance(value, int | float)}


def _line(result: Result) -> str:
    last = _numbers(_epochs(result.files[_METRICS])[-1])
    numbers = [
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in last.items() if name not in _NOT_DRAWN
    ]
    return f"{', '.join(numbers[:3])} after {last['epoch']} epoch{'s' * (last['epoch'] > 1)}"


def _sheets(folder: Path) -> list[Table]:
    rows = [_numbers(row) for row in _epochs((folder / _METRICS).read_bytes())]
    columns = tuple(rows[-1])
    cells = tuple(
        tuple(Field(f"{row[name]:.5g}" if name in row else "–") for name in columns) for row in reversed(rows)
    )
    csv = pl.DataFrame(rows, infer_schema_length=None).write_csv()
    return [Table("metrics", "By epoch, the last one first", columns, cells, csv)]


def _figure(folder: Path) -> Figure:
    """Draw each metric over the epochs, one panel each."""
    rows = [_numbers(row) for row in _epochs((folder / _METRICS).read_bytes())]
    names = [name for name in rows[-1] if name not in _NOT_DRAWN]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 1.9 * len(names) + 0.4), layout="constrained")
        FigureCanvasAgg(figure)
        for place, name in enumerate(names, start=1):
            axes = figure.add_subplot(len(names), 1, place)
            axes.plot(
                [row["epoch"] for row in rows],
                [row.get(name, math.nan) for row in rows],
                ".-",
                color="#0072B2",
                lw=1.6,
            )
            axes.set_title(name.replace("_", " "), loc="left", fontsize=9.5, parse_math=False)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("epoch")
    return figure


KIND = Kind(
    "metrics",
    ("recipe.json", _METRICS),
    _line,
    _sheets,
    _figure,
    nothing_paired(
        "a training has no rows for single images; save both models and give them to antiphase.audit or evaluate"
    ),
    lambda folder: None,
)
