"""POPE under attack: how often models answer yes for absent objects, without and with a perturbation of the image."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from antiphase.evaluation.rates import ROW_SCHEMA
from antiphase.statistics.intervals import Estimate, as_difference, as_share
from antiphase.statistics.seeds_by_images import crossed_mean
from antiphase.vlm.pope import SAMPLINGS

ASKED_SCHEMA = ROW_SCHEMA | {"image": pl.Int64, "question": pl.String, "samplings": pl.List(pl.String)}
"""Rows of an attack on answers: a ``sample`` is an image with a question, ``label`` is 1 for yes.

``image`` is the image's id, ``samplings`` are those of POPE that ask the question.
"""

ALL = "all"
METRICS = ("false yes", "false no", "accuracy")
"""Share of yes to questions about absent objects, of no to those about present ones, and of right answers."""


def answer_rates(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rates of each image without an attack (ε = 0) and under each ε, from rows of ``ASKED_SCHEMA``.

    Columns are ``model, attack, sampling`` (``ALL`` for every question once), ``eps, image, metric, value``. An answer
    is wrong under an attack if it was wrong before or the attack changes it, as in robust accuracy. The rates are means
    over the questions about one image: *false yes* is the hallucination rate.
    """
    wrong = pl.col("clean_prediction") != pl.col("label")
    smallest = pl.col("eps") == pl.col("eps").min().over("model", "attack")
    clean = rows.filter(smallest).with_columns(eps=pl.lit(0.0), wrong=wrong)
    attacked = rows.with_columns(wrong=wrong | pl.col("success"))
    columns = ["model", "attack", "eps", "image", "label", pl.col("wrong").cast(pl.Float64), "samplings"]
    every = pl.concat([clean.select(columns), attacked.select(columns)])
    by_sampling = every.explode("samplings").rename({"samplings": "sampling"})
    every = pl.concat([every.drop("samplings").with_columns(sampling=pl.lit(ALL)), by_sampling])
    keys = ["model", "attack", "sampling", "eps", "image"]
    parts = {
        "false yes": (every.filter(label=0), pl.col("wrong")),
        "false no": (every.filter(label=1), pl.col("wrong")),
        "accuracy": (every, 1 - pl.col("wrong")),
    }
    frames = [
        some.group_by(keys, maintain_order=True).agg(value=value.mean()).with_columns(metric=pl.lit(metric))
        for metric, (some, value) in parts.items()
    ]
    return pl.concat(frames)


def summarise_answers(
    rows: pl.DataFrame, families: Mapping[str, Sequence[str]], pairs: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return every rate with its interval, and how much more each rate moves for a model than for its twin.

    Intervals are over the images of one model, or over seeds and images
    (:func:`~antiphase.statistics.seeds_by_images.crossed_mean`).

    Args:
        rows: of ``ASKED_SCHEMA``.
        families: models of each name that differ in the training seed alone.
        pairs: models and their twins.

    Returns:
        ``results`` with ``family, attack, sampling, eps, metric``; ``differences`` with ``model, twin`` (families), the
        same keys and ``what``: ``level`` at ε, or ``move`` from ε = 0 to ε. Both have ``value, low, high, n, seeds``.
    """
    keys = ("attack", "sampling", "eps", "metric")
    grouped = answer_rates(rows).group_by(*keys, "model", maintain_order=True)
    values = {key: block.sort("image")["value"].to_numpy() for key, block in grouped}
    attacks, samplings = list(dict.fromkeys(key[0] for key in values)), (ALL, *SAMPLINGS)
    cells = sorted(
        {key[:4] for key in values},
        key=lambda cell: (attacks.index(cell[0]), METRICS.index(cell[3]), samplings.index(cell[1]), cell[2]),
    )
    family_of = {model: name for name, models in families.items() for model in models}
    twins: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for pair in pairs:
        twins.setdefault((family_of[pair[0]], family_of[pair[1]]), []).append(pair)

    def entry(
        cell: Any, several: Sequence[np.ndarray], convert: Callable[[Estimate], Estimate]
    ) -> dict[str, Any]:
        estimate = convert(crossed_mean(np.stack(several)))
        ends = {"low": estimate.low, "high": estimate.high}
        finite = {name: end if np.isfinite(end) else None for name, end in ends.items()}
        numbers = {"value": estimate.value, **finite, "n": estimate.n, "seeds": len(several)}
        return dict(zip(keys, cell, strict=True)) | numbers

    results, differences = [], []
    for name, models in families.items():
        for cell in cells:
            several = [values[*cell, model] for model in models if (*cell, model) in values]
            results.append({"family": name} | entry(cell, several, as_share))
    for (model, twin), members in twins.items():

        def gaps(*cell: Any, members: Sequence[tuple[str, str]] = tuple(members)) -> np.ndarray:
            return np.stack([values[*cell, one] - values[*cell, other] for one, other in members])

        for cell in cells:
            attack, sampling, eps, metric = cell
            changes = {"level": gaps(*cell)}
            if eps:
                changes["move"] = changes["level"] - gaps(attack, sampling, 0.0, metric)
            for what, several in changes.items():
                head = {"model": model, "twin": twin, "what": what}
                differences.append(head | entry(cell, list(several), as_difference))
    return {"results": results, "differences": differences}
