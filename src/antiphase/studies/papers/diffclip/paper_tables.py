"""The numbers of the DiffCLIP paper, and ours beside them: tables, bars and gains."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from antiphase.statistics.intervals import Estimate
from antiphase.studies import figures
from antiphase.studies.claims import Check
from antiphase.studies.estimation import SEED, difference, estimates, over
from antiphase.studies.figures import BY_SEED, Panel, Table, panels
from antiphase.studies.paper_settings import printed_numbers
from antiphase.studies.papers.diffclip.reweighting import AVERAGE, VALUE

KEYS = ["task", "pretraining", "series", "data"]
"""What the numbers of this paper are told apart by."""


def published(study: str) -> pl.DataFrame:
    """Return the paper's numbers of a study: ``KEYS`` (the data are the head of a column), ``value`` and ``sd``."""
    return (
        printed_numbers("diffclip", f"diffclip-{study}")
        .rename({"column": "data"})
        .select(*KEYS, "value", "sd")
    )


def estimated(observed: pl.DataFrame) -> pl.DataFrame:
    """Return the mean of every task, model and data set, over training seeds and samples."""
    return estimates(observed, KEYS, VALUE)


def model_table(
    name: str,
    title: str,
    means: pl.DataFrame,
    paper: pl.DataFrame,
    column: str | pl.Expr = "data",
    digits: int = 1,
) -> list[Table]:
    """Return a table with models down and data sets across, the paper's numbers beside ours."""
    row = pl.format("{}, {}", "series", "pretraining")
    return figures.tables(
        means, title, name, row, column, index="model, trained on", paper=paper, digits=digits
    )


def bars(
    means: pl.DataFrame, title: str, y: str, paper: pl.DataFrame, by: str, ticks: Sequence[str], **style: Any
) -> tuple[Panel, ...]:
    """Return panels of bars: one group for each tick, one bar for each series in it.

    Args:
        means: columns ``series``, ``by``, those of the title and of estimates.
        title: see :func:`antiphase.studies.figures.panels`.
        y: label of the vertical axis.
        paper: columns ``series``, ``by`` and ``value``.
        by: the column whose values are the ticks.
        ticks: in their order.
        **style: other fields of a panel.
    """
    places = {tick: float(place) for place, tick in enumerate(ticks)}
    x = pl.col(by).replace_strict(places, default=None, return_dtype=pl.Float64)
    points, theirs = (frame.with_columns(x=x).drop_nulls("x") for frame in (means, paper))
    theirs = theirs.filter(pl.col("series").is_in(points["series"].unique().implode()))
    style = {"kind": "bar", "ticks": tuple(ticks), "percent": True, **style}
    return panels(points.drop(BY_SEED, strict=False), title, "x", ("", y), paper=theirs, **style)


def gains(
    observed: pl.DataFrame,
    tasks: Sequence[str],
    first: str = "DiffCLIP",
    second: str = "CLIP",
    data: str = AVERAGE,
    told: bool = False,
) -> list[Check]:
    """Return the checks that the first series has the higher number, for each training set and task.

    Training sets that only one of the two was trained on are left out, unless there is no other.

    Args:
        observed: as of ``averaged``, or another whose ``data`` is the one given.
        tasks: by name.
        first: series that is said to be higher.
        second: series that is said to be lower.
        data: what the numbers are of.
        told: whether the checks name it.
    """
    sets = compared(observed, first, second) or observed["pretraining"].unique(maintain_order=True)
    return [
        Check(
            f"{task}: {first} − {second}, trained on {name}" + (f", {data}" if told else ""),
            apart(observed, {"pretraining": name, "task": task, "data": data}, first, second),
        )
        for name in sets
        for task in tasks
    ]


def compared(observed: pl.DataFrame, first: str = "DiffCLIP", second: str = "CLIP") -> list[str]:
    """Return the training sets that both series were trained on."""
    own = observed.filter(pl.col("series").is_in([first, second]))
    both = own.filter(pl.col("series").n_unique().over("pretraining") == 2)
    return both["pretraining"].unique(maintain_order=True).to_list()


def apart(observed: pl.DataFrame, where: Mapping[str, str], first: str, second: str) -> Estimate | None:
    """Return mean(first series) − mean(second series) over the training seeds that both have; None without any."""
    rows = observed.filter(**where)
    seeds = [set(rows.filter(series=name)[SEED]) for name in (first, second)]
    return difference(rows, {"series": first}, {"series": second}, VALUE) if seeds[0] & seeds[1] else None


def caption(what: str, means: pl.DataFrame, samples: str) -> str:
    """Return a caption that says what intervals are over."""
    return f"{what} Intervals: 95 % over {over(means, samples=samples)}; dashed: the paper."
