"""Read the numbers of the paper, and format and check our own."""

from collections.abc import Mapping, Sequence

import polars as pl

from antiphase.statistics.intervals import Estimate
from antiphase.studies.claims import Check
from antiphase.studies.estimation import SEED, difference, estimates, over
from antiphase.studies.figures import ESTIMATES, Panel, Table
from antiphase.studies.papers.diffclip.observed import AVERAGE, VALUE

KEYS = ["task", "pretraining", "series", "data"]
"""What the numbers of this paper are told apart by."""

_PAPER = {"value": pl.Float64, "sd": pl.Float64}


def published(text: str | None) -> pl.DataFrame:
    r"""Return the numbers of the tables in a docstring whose heads begin with task, pretraining and model.

    Returns:
        A row for each cell that holds one: ``KEYS`` (the data are the head of its column), ``value`` and, behind a ±,
        ``sd``: shares, where the paper prints percent.

    >>> published("| task | pretraining | model | dtd |\n|-|-|-|-|\n| probe | CC3M | CLIP | 58.7 ± 0.1 |").rows()
    [('probe', 'CC3M', 'CLIP', 'dtd', 0.587, 0.001)]
    """
    found: list[tuple[object, ...]] = []
    head: list[str] = []
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells or cells[0] == "task":
            head = cells
        elif head and set(line) - set("|-: "):
            for name, cell in zip(head[3:], cells[3:], strict=True):
                mean, _, sd = cell.replace("−", "-").partition(" ± ")
                if mean != "–":
                    found.append((*cells[:3], name, _share(mean), _share(sd) if sd else None))
    return pl.DataFrame(found, dict.fromkeys(KEYS, pl.String) | _PAPER, orient="row")


def _share(percent: str) -> float:
    return round(float(percent) / 100, 9)


def estimated(observed: pl.DataFrame) -> pl.DataFrame:
    """Return the mean of every task, model and data set, over training seeds and samples."""
    return estimates(observed, KEYS, VALUE)


def model_table(
    name: str,
    title: str,
    found: pl.DataFrame,
    paper: pl.DataFrame,
    column: pl.Expr | None = None,
    digits: int = 1,
) -> Table:
    """Return a table with models down and data sets across, the paper's numbers beside ours.

    Args:
        name: of its CSV.
        title: above it.
        found: ``KEYS`` and the columns of estimates.
        paper: as of :func:`published`.
        column: what a column is called; the data set where not given.
        digits: behind the decimal point.
    """
    theirs = paper.select(*KEYS, paper="value").unique(KEYS, keep="first")
    cells = found.join(theirs, on=KEYS, how="left", maintain_order="left").select(
        *ESTIMATES,
        "paper",
        row=pl.format("{}, {}", "series", "pretraining"),
        column=pl.col("data") if column is None else column,
    )
    return Table(name, title, "model, trained on", cells, digits=digits)


def bars(
    title: str,
    y: str,
    found: pl.DataFrame,
    paper: pl.DataFrame,
    by: str,
    ticks: Sequence[str],
    level: float | None = None,
) -> Panel:
    """Return a panel of bars: one group for each tick, one bar for each series in it.

    Args:
        title: above it.
        y: label of the vertical axis.
        found: columns ``series``, ``by`` and those of estimates.
        paper: columns ``series``, ``by`` and ``value``.
        by: the column whose values are the ticks.
        ticks: in their order.
        level: a horizontal line.
    """
    places = {tick: float(at) for at, tick in enumerate(ticks)}
    x = pl.col(by).replace_strict(places, default=None, return_dtype=pl.Float64)
    points = found.with_columns(x=x).filter(pl.col("x").is_not_null()).select("series", "x", *ESTIMATES)
    theirs = paper.filter(pl.col("series").is_in(points["series"].unique().implode())).with_columns(x=x)
    theirs = theirs.filter(pl.col("x").is_not_null()).select("series", "x", "value")
    paper_points = theirs if len(theirs) else None
    return Panel(
        title, "", y, points, kind="bar", ticks=tuple(ticks), percent=True, paper=paper_points, level=level
    )


def gains(
    observed: pl.DataFrame,
    tasks: Sequence[str],
    first: str = "DiffCLIP",
    second: str = "CLIP",
    data: str = AVERAGE,
) -> list[Check]:
    """Return the checks that the first series has the higher number, for each training set and task.

    Training sets that only one of the two was trained on are left out, unless there is no other.

    Args:
        observed: as of ``averaged``, or another whose ``data`` is the one given.
        tasks: by name.
        first: series that is said to be higher.
        second: series that is said to be lower.
        data: what the numbers are of.
    """
    found = []
    for pretraining in compared(observed, first, second) or observed["pretraining"].unique(
        maintain_order=True
    ):
        for task in tasks:
            where = {"pretraining": pretraining, "task": task, "data": data}
            found.append(
                Check(
                    f"{task}: {first} − {second}, trained on {pretraining}",
                    apart(observed, where, first, second),
                )
            )
    return found


def compared(observed: pl.DataFrame, first: str = "DiffCLIP", second: str = "CLIP") -> list[str]:
    """Return the training sets that both series were trained on."""
    own = observed.filter(pl.col("series").is_in([first, second]))
    return (
        own.filter(pl.col("series").n_unique().over("pretraining") == 2)["pretraining"]
        .unique(maintain_order=True)
        .to_list()
    )


def apart(observed: pl.DataFrame, where: Mapping[str, str], first: str, second: str) -> Estimate | None:
    """Return mean(first series) − mean(second series) over the training seeds that both have; None without any."""
    rows = observed.filter(**where)
    seeds = [set(rows.filter(series=name)[SEED]) for name in (first, second)]
    if not seeds[0] & seeds[1]:
        return None
    return difference(rows, {"series": first}, {"series": second}, VALUE)


def caption(what: str, found: pl.DataFrame, samples: str) -> str:
    """Return a caption that says what intervals are over."""
    return f"{what} Intervals: 95 % over {over(found, samples=samples)}; dashed: the paper."
