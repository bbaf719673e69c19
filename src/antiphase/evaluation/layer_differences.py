"""Paired differences of two models' gradient alignment, layer by layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from antiphase.errors import UserError
from antiphase.evaluation.layers import Statistic, sample_parts, statistics_of
from antiphase.evaluation.statistics import jackknife


def layer_differences(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Estimate how much larger each metric of :func:`antiphase.evaluation.layers.alignment` is than another model's.

    The interval is the jackknife's over the samples, each left out of both models at once: f(x̄) − f(ȳ) with x and y
    of the same sample. Metrics that only one of the two models has are left out, and so is the norm along the loss's
    gradient, which is along another cotangent in each model.

    Args:
        rows: of ``ALIGNMENT_SCHEMA``.
        pairs: (model, against), with as many layers, measured on the same samples.

    Returns:
        Columns ``model, against, site, layer, metric, difference, low, high, n``, n the number of samples.

    Raises:
        UserError: two models were not measured on the same samples, sites and layers.
    """
    found: list[tuple[Any, ...]] = []
    keys = ["site", "layer"]
    for model, against in pairs:
        blocks = [rows.filter(model=name).partition_by(keys, as_dict=True) for name in (model, against)]
        places = [{place: set(block["sample"]) for place, block in its.items()} for its in blocks]
        if places[0] != places[1]:
            raise UserError(
                f"{model} and {against}: measured on different images, layers or sites; measure both with the same "
                "settings"
            )
        for place, block in blocks[0].items():
            other = blocks[1][place]
            first, second = sample_parts(block), sample_parts(other)
            both, width = np.concatenate([first, second], axis=1), first.shape[1]
            mine, theirs = statistics_of(block), statistics_of(other)
            with np.errstate(divide="ignore", invalid="ignore"):  # a map that nothing moves has no angle: NaN
                for metric in mine:
                    if metric in theirs and (place[0], metric) != ("loss", "norm"):
                        apart = _apart(mine[metric], theirs[metric], width)
                        estimate = jackknife(both, apart)
                        numbers = (estimate.value, estimate.low, estimate.high, estimate.n)
                        found.append((model, against, *place, metric, *numbers))
    schema = {
        "model": pl.String,
        "against": pl.String,
        "site": pl.String,
        "layer": pl.Int64,
        "metric": pl.String,
        "difference": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "n": pl.Int64,
    }
    return pl.DataFrame(found, schema, orient="row")


def _apart(mine: Statistic, theirs: Statistic, width: int) -> Statistic:
    return lambda means: mine(means[..., :width]) - theirs(means[..., width:])
