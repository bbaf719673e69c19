"""From the rows of POPE, without and under attack, to one number for each observation, as in ``observed.py``."""

import numpy as np
import polars as pl

from antiphase.budgets import eps_label
from antiphase.data.shards import TITLES
from antiphase.studies.estimation import SAMPLE, SEED
from antiphase.studies.papers.diffclip.observed import clustered
from antiphase.vlm.attack import answer_rates
from antiphase.vlm.pope import pope_values

_MODEL = ["pretraining", "series", SEED]
_CLEAN = "clean"
FALSE_YES = "false yes"


def scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each question and metric of :func:`~antiphase.vlm.pope.pope_values`.

    The questions about an image are one sample.

    Args:
        rows: of :class:`~antiphase.studies.cells.Evaluate` with the task ``pope``.

    Returns:
        Columns ``pretraining, series, training_seed, task`` (the sampling), ``data`` (the metric), ``sample, value``.
    """
    found = []
    named = _pretrained(rows)
    for key, block in named.group_by([*_MODEL, "setting"], maintain_order=True):
        found += [_block(key, block["group"], name, value) for name, value in pope_values(block).items()]
    return clustered(pl.concat(found), [*_MODEL, "task", "data"])


def hallucinations(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the share of yes to absent objects of each image: the hallucination rate, without and under attack.

    Args:
        rows: of :class:`~antiphase.studies.cells.AttackAnswers`.

    Returns:
        Columns as of :func:`scores`; ``task`` is the sampling, or ``"all"`` for every question once, and ``data`` is
        ``"clean"`` or the budget, such as ``"2/255"``.
    """
    named = _pretrained(rows).with_columns(
        model=pl.format("{}/{}/{}", *_MODEL), samplings=pl.col("samplings").str.split(",")
    )
    rates = answer_rates(named).filter(metric=FALSE_YES)
    models = named.select("model", *_MODEL).unique()
    budget = pl.col("eps").map_elements(lambda eps: eps_label(eps) if eps else _CLEAN, return_dtype=pl.String)
    return rates.join(models, on="model", maintain_order="left").select(
        *_MODEL, task="sampling", data=budget, value="value", **{SAMPLE: pl.col("image").cast(pl.String)}
    )


def rises(observed: pl.DataFrame) -> pl.DataFrame:
    """Return how much each image's hallucination rate rises from no attack to each budget.

    Args:
        observed: as of :func:`hallucinations`.
    """
    keys = [*_MODEL, "task", SAMPLE]
    before = observed.filter(data=_CLEAN).select(*keys, before="value")
    under = observed.filter(pl.col("data") != _CLEAN).join(before, on=keys, maintain_order="left")
    return under.with_columns(value=pl.col("value") - pl.col("before")).drop("before")


def _pretrained(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pretraining=pl.col("trained_on").fill_null("released").replace(TITLES))


def _block(key: tuple[object, ...], images: pl.Series, name: str, value: np.ndarray) -> pl.DataFrame:
    fields = dict(zip([*_MODEL, "task"], key, strict=True))
    return pl.DataFrame({SAMPLE: images.cast(pl.String), "value": value}).select(
        *(pl.lit(each).alias(column) for column, each in fields.items()),
        pl.lit(name).alias("data"),
        SAMPLE,
        "value",
    )
