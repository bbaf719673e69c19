"""From the rows of evaluations to one number for each observation, so that plain means are the papers' numbers.

A number that is a mean over classes, over patterns or over data sets of unequal size is no plain mean over samples.
Its observations are moved and stretched so that it is, and so that their spread is the one within a class or a set:
every study can then estimate it as it estimates all else, over training seeds and samples.
"""

from collections.abc import Sequence

import polars as pl

from antiphase.data.shards import TITLES
from antiphase.evaluation.metrics import CLASSES_ALIKE
from antiphase.studies.estimation import SAMPLE, SEED

VALUE = pl.col("value")
AVERAGE = "Avg."

_MODEL = ["pretraining", "series", SEED]
_TOP = 5  # of retrieval: R@5


def observations(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each observation: a hit or a share, with what it is of.

    The task of retrieval becomes ``image retrieval`` (R@5 of captions that look for their image) and ``text
    retrieval``; a second prompt ensemble or objective becomes a task of its own. Zero-shot and probe count the classes
    of :data:`~antiphase.evaluation.metrics.CLASSES_ALIKE` alike; MMVP's pairs are left as they are. The captions of an
    image are one sample, so are the rows of an image under several seeds; few-shot has one for each seed and episode.

    Args:
        rows: of :class:`~antiphase.studies.cells.Evaluate`.

    Returns:
        Columns ``pretraining, series, training_seed, task, data, seed, sample, group, pattern, value``.
    """
    task, setting = pl.col("task"), pl.col("setting")
    first = setting.first().over([*_MODEL, "task", "data"])
    hit = pl.col("rank") < pl.when(task == "retrieval").then(_TOP).otherwise(1)
    sample = (
        pl.when(task == "few-shot")
        .then(pl.format("{}/{}", "seed", "unit"))
        .when(task == "retrieval")
        .then(pl.col("group").cast(pl.String))
        .otherwise(pl.col("unit").cast(pl.String))
    )
    named = (
        pl.when(task == "retrieval")
        .then(pl.format("{} retrieval", setting))
        .when(setting != first)
        .then(pl.format("{}, {}", task, setting))
        .otherwise(task)
    )
    if "pattern" not in rows.columns:
        rows = rows.with_columns(pattern=pl.lit(None, pl.String))
    found = rows.with_columns(pretraining=pl.col("trained_on").fill_null("released").replace(TITLES)).select(
        *_MODEL,
        "data",
        "seed",
        "group",
        "pattern",
        sample.alias(SAMPLE),
        task=named,
        kind=task,
        value=pl.coalesce("score", hit.cast(pl.Float64)),
    )
    among = [*_MODEL, "task", "data"]
    kind = pl.col("kind")
    classes = kind.is_in(["zero-shot", "probe"]) & pl.col("data").is_in(list(CLASSES_ALIKE))
    captions = pl.col("task") == "image retrieval"
    parts = (
        alike(found.filter(classes), among, "group"),
        clustered(found.filter(captions), among),
        found.filter(~classes & ~captions),
    )
    order = found.select(among).unique(maintain_order=True).with_row_index("_at")
    together = pl.concat(parts).join(order, on=among, maintain_order="left")
    return together.sort("_at", maintain_order=True).drop("_at", "kind")


def alike(observed: pl.DataFrame, among: Sequence[str], strata: str) -> pl.DataFrame:
    """Let every stratum count alike in the plain mean.

    With m_g the mean of stratum g of n_g rows among n, G strata and b = 1/G·Σ_g m_g, a value v of stratum g becomes
    b + s_g·n/(G·n_g)·(v − m_g): the mean over all rows is b, and rows differ by what they differ by within their
    stratum. s_g = √(k/(k − 1)) for k samples in the stratum makes up for the mean that was taken from few.

    Args:
        observed: with columns ``value`` and ``sample``.
        among: columns that tell apart what has a mean of its own.
        strata: column of the strata.
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

    Args:
        observed: as of :func:`observations`.
        over: ``"data"`` or ``"task"``.
        name: what that column then holds.
    """
    among = [each for each in (*_MODEL, "task", "data") if each != over]
    every = [each for each in among if each not in ("series", SEED)]
    count = pl.col(over).n_unique()
    whole = observed.filter(count.over(among) == count.over(every))
    one = whole.group_by(
        [*among, over, SAMPLE], maintain_order=True
    )  # a sample may have rows of several seeds
    told = one.agg(pl.first("seed", "group", "pattern"), pl.mean("value")).select(observed.columns)
    told = told.with_columns(pl.format("{} {}", over, SAMPLE).alias(SAMPLE))
    return alike(told, among, over).with_columns(pl.lit(name).alias(over))


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
