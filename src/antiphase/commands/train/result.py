"""The result of a training: its log, an entry for each epoch."""

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.text import Text

from antiphase.commands.result import Result
from antiphase.errors import UserError
from antiphase.reading import as_json_lines
from antiphase.report.figure import new_figure
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table

_METRICS = "metrics.jsonl"
_NOT_DRAWN = ("epoch", "learning_rate", "images_per_second")


class TrainingResult(Result):
    """The log of a training; the weights lie next to it."""

    main_table = "metrics"
    needs = ("recipe.json", _METRICS)

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of each epoch."""
        return as_json_lines(self.files[_METRICS], _METRICS)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The metrics of the last epoch."""
        return self.epochs[-1]

    def headlines(self) -> list[Headline]:
        drawn = [f"{name.replace('_', ' ')} {self.summary[name]:.4g}" for name in self._drawn()]
        epochs = self.summary["epoch"]
        return [Headline(f"{', '.join(drawn[:3])} after {epochs} epoch{'s' * (epochs > 1)}")]

    def sections(self) -> list[Section]:
        rows = [_numbers(epoch) for epoch in self.epochs]
        columns = tuple(rows[-1])
        cells = tuple(
            tuple(Field(f"{row[name]:.5g}" if name in row else "–") for name in columns)
            for row in reversed(rows)
        )
        csv = pl.DataFrame(rows, infer_schema_length=None).write_csv()
        table = Table("metrics", "By epoch, the last one first", columns, cells, csv)
        return [Section("metrics", "Metrics", plots=[Plot("metrics", self._figure(), "")], tables=[table])]

    def differences(self, other: Result) -> pl.DataFrame:
        raise UserError(
            "compare: a training has no rows for single images; save both models and give them to antiphase.audit or "
            "evaluate"
        )

    def console(self) -> list[Any]:
        return [Text(self.line())]

    def write_report(self, folder: Path) -> Path:
        return folder  # a training has no page

    def _drawn(self) -> list[str]:
        return [name for name in _numbers(self.summary) if name not in _NOT_DRAWN]

    def _figure(self) -> Figure:
        """Draw each metric over the epochs, one panel each."""
        names = self._drawn()
        with new_figure(5.0, 1.9 * len(names) + 0.4) as figure:
            for place, name in enumerate(names, start=1):
                axes = figure.add_subplot(len(names), 1, place)
                values = [epoch.get(name, math.nan) for epoch in self.epochs]
                axes.plot([epoch["epoch"] for epoch in self.epochs], values, ".-", color="#0072B2", lw=1.6)
                axes.set_title(name.replace("_", " "), loc="left", fontsize=9.5, parse_math=False)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                axes.spines[["top", "right"]].set_visible(False)
            figure.axes[-1].set_xlabel("epoch")
        return figure


def _numbers(epoch: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of an epoch that are one number each; λ is one for each layer."""
    return {name: value for name, value in epoch.items() if isinstance(value, int | float)}
