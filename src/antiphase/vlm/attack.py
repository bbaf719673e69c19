"""POPE under attack: how often models answer yes for absent objects, without and with a perturbation of the image."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

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
    """Return the rates of each image without an attack (ε = 0) and under each ε.

    An answer is wrong under an attack if it was wrong before or the attack changes it, as in robust accuracy. The rates
    are means over the questions about one image: *false yes* is the hallucination rate.

    Args:
        rows: of ``ASKED_SCHEMA``.

    Returns:
        Columns ``model, attack, sampling`` (``ALL`` for every question once), ``eps, image, metric, value``.
    """
    told = rows.with_columns(wrong=(pl.col("clean_prediction") != pl.col("label")).cast(pl.Float64))
    attacked = told.with_columns(wrong=(pl.col("wrong") > 0).or_(pl.col("success")).cast(pl.Float64))
    smallest = pl.col("eps") == pl.col("eps").min().over("model", "attack")
    clean = told.filter(smallest).with_columns(eps=pl.lit(0.0))
    columns = ["model", "attack", "eps", "image", "label", "wrong", "samplings"]
    every = pl.concat([clean.select(columns), attacked.select(columns)])
    by_sampling = every.explode("samplings").rename({"samplings": "sampling"})
    every = pl.concat([every.drop("samplings").with_columns(sampling=pl.lit(ALL)), by_sampling])
    keys = ["model", "attack", "sampling", "eps", "image"]
    parts = {
        "false yes": (every.filter(label=0), pl.col("wrong")),
        "false no": (every.filter(label=1), pl.col("wrong")),
        "accuracy": (every, 1 - pl.col("wrong")),
    }
    return pl.concat(
        [
            some.group_by(keys, maintain_order=True)
            .agg(value=value.mean())
            .with_columns(metric=pl.lit(metric))
            for metric, (some, value) in parts.items()
        ]
    )


def summarise_answers(
    rows: pl.DataFrame, families: Mapping[str, Sequence[str]], pairs: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return every rate with its interval, and how much more each rate moves for a model than for its twin.

    Intervals of one model are over the images; those of several training seeds, and of differences over several pairs,
    are over seeds and images, see :func:`~antiphase.statistics.seeds_by_images.crossed_mean`.

    Args:
        rows: of ``ASKED_SCHEMA``.
        families: models of each name that differ in the training seed alone.
        pairs: models and their twins.

    Returns:
        ``results`` with ``family, attack, sampling, eps, metric``; ``differences`` with ``model, twin`` (families), the
        same keys and ``what``: ``level`` at ε, or ``move`` from ε = 0 to ε. Both have ``value, low, high, n, seeds``,
        and are in the order of attacks, ``METRICS``, samplings (``ALL`` first) and ε.
    """
    rates = answer_rates(rows)
    tables = {
        key: _matrix(some)
        for key, some in rates.group_by("attack", "sampling", "eps", "metric", "model", maintain_order=True)
    }
    attacks, asked = list(dict.fromkeys(key[0] for key in tables)), (ALL, *SAMPLINGS)
    cells = sorted(
        {key[:4] for key in tables},
        key=lambda cell: (attacks.index(cell[0]), METRICS.index(cell[3]), asked.index(cell[1]), cell[2]),
    )
    results = []
    for name, models in families.items():
        for cell in cells:
            values = np.stack([tables[*cell, model] for model in models if (*cell, model) in tables])
            results.append(
                {"family": name, **_named(cell), **_told(as_share(crossed_mean(values)), len(values))}
            )
    of_model = {model: name for name, models in families.items() for model in models}
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for model, twin in pairs:
        grouped.setdefault((of_model[model], of_model[twin]), []).append((model, twin))
    differences = []
    for (model, twin), own in grouped.items():
        for attack, sampling, eps, metric in cells:
            kinds = {"level": _gaps(tables, own, (attack, sampling, eps, metric))}
            if eps:
                kinds["move"] = kinds["level"] - _gaps(tables, own, (attack, sampling, 0.0, metric))
            for what, values in kinds.items():
                found = as_difference(crossed_mean(values))
                named = {
                    "model": model,
                    "twin": twin,
                    "what": what,
                    **_named((attack, sampling, eps, metric)),
                }
                differences.append(named | _told(found, len(own)))
    return {"results": results, "differences": differences}


def _matrix(some: pl.DataFrame) -> Float[np.ndarray, " images"]:
    return some.sort("image")["value"].to_numpy()


def _gaps(
    tables: Mapping[Any, np.ndarray], pairs: Sequence[tuple[str, str]], cell: tuple[Any, ...]
) -> Float[np.ndarray, "pairs images"]:
    """Return model minus twin of every pair."""
    return np.stack([tables[*cell, model] - tables[*cell, twin] for model, twin in pairs])


def _named(cell: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("attack", "sampling", "eps", "metric"), cell, strict=True))


def _told(found: Estimate, seeds: int) -> dict[str, Any]:
    ends = {
        name: end if np.isfinite(end) else None for name, end in (("low", found.low), ("high", found.high))
    }
    return {"value": found.value, **ends, "n": found.n, "seeds": seeds}
