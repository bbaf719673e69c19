"""The numbers of the DiffCLIP paper, and ours beside them: tables, bars and gains."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import polars as pl

from antiphase.data.shards import TITLES
from antiphase.evaluation.metrics import CLASSES_ALIKE, task_metrics
from antiphase.evaluation.tasks import find_task
from antiphase.studies.claims import Check
from antiphase.studies.estimation import SAMPLE, SEED, difference, estimates
from antiphase.studies.figures import BY_SEED, Panel, Table, panels, tables
from antiphase.studies.paper_settings import printed_numbers

VALUE = pl.col("value")
AVERAGE = "Avg."
KEYS = ["task", "pretraining", "series", "data"]
"""What the numbers of this paper are told apart by."""


def published(study: str) -> pl.DataFrame:
    """Return the paper's numbers of a study: ``KEYS`` (the data are the head of a column), ``value`` and ``sd``."""
    numbers = printed_numbers("diffclip", f"diffclip-{study}").rename({"column": "data"})
    return numbers.select(*KEYS, "value", "sd")


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
    level: pl.DataFrame | None = None,
) -> list[Table]:
    """Return a table with models down, then :func:`levels`, and data sets across, the paper's numbers beside ours."""
    row = pl.coalesce(pl.format("{}, {}", "series", "pretraining"), "series")
    if level is not None:
        several = level.group_by("task", "series", maintain_order=True)
        whole = several.agg(pl.mean("value"), data=pl.lit(AVERAGE))
        level = pl.concat([level, whole], how="diagonal").with_columns(n=pl.lit(0, pl.Int64))
        shown = level.join(means.select("task", "data").unique(), on=["task", "data"], maintain_order="left")
        means = pl.concat([means, shown], how="diagonal")
    style = {"index": "model, trained on", "digits": digits}
    return tables(means, title, name, row, column, paper=paper, **style)


def bars(
    means: pl.DataFrame, title: str, y: str, paper: pl.DataFrame, by: str, ticks: Sequence[str], **style: Any
) -> tuple[Panel, ...]:
    """Return panels of bars: one group for each tick, one bar for each series in it."""
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
    """
    sets = compared(observed, first, second) or observed["pretraining"].unique(maintain_order=True)
    checks = []
    for name, task in product(sets, tasks):
        one, two = (
            {"pretraining": name, "task": task, "data": data, "series": series} for series in (first, second)
        )
        words = f"{task}: {first} − {second}, trained on {name}" + f", {data}" * told
        checks.append(Check(words, difference(observed, one, two, VALUE)))
    return checks


def compared(observed: pl.DataFrame, first: str = "DiffCLIP", second: str = "CLIP") -> list[str]:
    """Return the training sets that both series were trained on."""
    own = observed.filter(pl.col("series").is_in([first, second]))
    both = own.filter(pl.col("series").n_unique().over("pretraining") == 2)
    return both["pretraining"].unique(maintain_order=True).to_list()


LEVELS = {"constant answer": "constant", "chance": "chance"}


def levels(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what a constant answer and answers at random reach: ``task``, ``data``, ``series`` and ``value``."""
    found: list[tuple[str, str, str, float | None]] = []
    for (task, data), block in rows.group_by("task", "data", maintain_order=True):
        metrics = task_metrics(str(task), block)
        shown = [metric for metric in metrics if find_task(str(task)).stands_for(str(data), metric.name)]
        for metric in shown:
            named = str(task) if metric is shown[0] else f"{task}, {metric.setting}"
            own = f"{metric.setting} retrieval" if task == "retrieval" else named
            found += [(own, str(data), words, getattr(metric, level)) for words, level in LEVELS.items()]
    schema: dict[str, Any] = dict.fromkeys(("task", "data", "series"), pl.String)
    return pl.DataFrame(found, schema | {"value": pl.Float64}, orient="row").drop_nulls()


_MODEL = ["pretraining", "series", SEED]
_TOP = 5  # of retrieval: R@5


def observations(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each observation: a hit or a share, with what it is of.

    The task of retrieval becomes ``image retrieval`` (R@5 of captions that look for their image) and ``text
    retrieval``; a second prompt ensemble or objective becomes a task of its own. Zero-shot and probe count the classes
    of :data:`~antiphase.evaluation.metrics.CLASSES_ALIKE` alike; MMVP's pairs are left as they are. The captions of an
    image are one sample, so are the rows of an image under several seeds; few-shot has one for each seed and episode.
    """
    task, setting, unit = pl.col("task"), pl.col("setting"), pl.col("unit").cast(pl.String)
    among = [*_MODEL, "task", "data"]
    retrieved = task == "retrieval"
    named = pl.when(setting != setting.first().over(among)).then(pl.format("{}, {}", task, setting))
    episode = pl.when(task == "few-shot").then(pl.format("{}/{}", "seed", "unit"))
    image = pl.when(retrieved).then(pl.col("group").cast(pl.String))
    hit = (pl.col("rank") < pl.when(retrieved).then(_TOP).otherwise(1)).cast(pl.Float64)
    if "pattern" not in rows.columns:
        rows = rows.with_columns(pattern=pl.lit(None, pl.String))
    observed = rows.with_columns(pretraining=pretraining()).select(
        *_MODEL,
        *("data", "seed", "group", "pattern"),
        image.otherwise(episode.otherwise(unit)).alias(SAMPLE),
        task=pl.when(retrieved).then(pl.format("{} retrieval", setting)).otherwise(named.otherwise(task)),
        value=pl.coalesce("score", hit),
        classes=task.is_in(["zero-shot", "probe"]) & pl.col("data").is_in(list(CLASSES_ALIKE)),
    )
    order = observed.select(among).unique(maintain_order=True).with_row_index("order")
    captions = pl.col("task") == "image retrieval"
    parts = (
        alike(observed.filter("classes"), among, "group"),
        clustered(observed.filter(captions), among),
        observed.filter(~pl.col("classes") & ~captions),
    )
    together = pl.concat(parts).join(order, on=among, maintain_order="left")
    return together.sort("order", maintain_order=True).drop("order", "classes")


def pretraining() -> pl.Expr:
    """Return what the models of rows were trained on, as the paper calls it."""
    return pl.col("trained_on").fill_null("released").replace(TITLES)


def alike(observed: pl.DataFrame, among: Sequence[str], strata: str) -> pl.DataFrame:
    """Let every stratum count alike in the plain mean.

    With m_g the mean of stratum g of n_g rows among n, G strata and b = 1/G·Σ_g m_g, a value v of stratum g becomes
    b + s_g·n/(G·n_g)·(v − m_g): the mean over all rows is b, and rows differ by what they differ by within their
    stratum. s_g = √(k/(k − 1)) for k samples in the stratum makes up for the mean that was taken from few.
    """
    own = [*among, strata]
    mean, size, samples = pl.mean("value").over(own), pl.len().over(own), pl.col(SAMPLE).n_unique().over(own)
    stretch = (samples / (samples - 1).clip(1)).sqrt()
    whole, count = pl.len().over(among), pl.col(strata).n_unique().over(among)
    centre = (mean / size).sum().over(among) / count
    return observed.with_columns(value=centre + stretch * whole / (count * size) * (VALUE - mean))


def averaged(observed: pl.DataFrame, over: str = "data", name: str = AVERAGE) -> pl.DataFrame:
    """Return the observations of the mean over data sets, or over tasks, each of which counts alike.

    A model that was not measured on all that the others were measured on is left out, so that no means over different
    sets are compared.
    """
    among = [column for column in (*_MODEL, "task", "data") if column != over]
    every = [column for column in among if column not in ("series", SEED)]
    count = pl.col(over).n_unique()
    whole = observed.filter(count.over(among) == count.over(every))
    samples = whole.group_by([*among, over, SAMPLE], maintain_order=True)  # may have rows of several seeds
    means = samples.agg(pl.first("seed", "group", "pattern"), pl.mean("value")).select(observed.columns)
    means = means.with_columns(pl.format("{} {}", over, SAMPLE).alias(SAMPLE))
    return alike(means, among, over).with_columns(pl.lit(name).alias(over))


def with_average(observed: pl.DataFrame) -> pl.DataFrame:
    """Add the mean over data sets of the tasks that were measured on several, behind them."""
    several = observed.filter(pl.col("data").n_unique().over(["pretraining", "task"]) > 1)
    return pl.concat([observed, averaged(several)]) if len(several) else observed


def clustered(observed: pl.DataFrame, among: Sequence[str]) -> pl.DataFrame:
    """Let every caption count alike where an image's captions are averaged into one sample.

    With c of n captions of k images an image's own and m the mean over all captions, a value v becomes
    m + c·k/n·(v − m): the mean over images of their captions' means is then m.
    """
    own, mean = pl.len().over([*among, SAMPLE]), pl.mean("value").over(among)
    per_image = pl.len().over(among) / pl.col(SAMPLE).n_unique().over(among)
    return observed.with_columns(value=mean + own / per_image * (VALUE - mean))
