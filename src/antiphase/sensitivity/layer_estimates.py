"""From stored rows of sensitivity to tables: alignment by layer, what explains it, Lipschitz constants, depth.

Every mean is taken over the samples before a ratio is formed, and every interval is over the samples
(:func:`~antiphase.statistics.intervals.jackknife`, 95 %), for these weights: what other training seeds would
give, only several models can tell.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from antiphase.errors import UserError
from antiphase.sensitivity.theory import amplification
from antiphase.statistics.intervals import Estimate, as_difference, as_share, as_size, jackknife

_WHO = {"model": pl.String, "attention": pl.String, "seed": pl.Int64, "sample": pl.Int64}
_LAYER = {"layer": pl.Int64, "name": pl.String}
ALIGNMENT_SCHEMA = (
    _WHO
    | _LAYER
    | {
        "head": pl.Int64,
        "site": pl.String,
        "probes": pl.Int64,
        "lam": pl.Float64,
        "first": pl.Float64,
        "second": pl.Float64,
        "cross": pl.Float64,
        "moved": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
    }
)
LIPSCHITZ_SCHEMA = (
    _WHO
    | _LAYER
    | {
        "of": pl.String,
        "estimator": pl.String,
        "norm": pl.String,
        "ball": pl.String,
        "eps": pl.Float64,
        "value": pl.Float64,
    }
)
DEPTH_SCHEMA = _WHO | {
    "perturbation": pl.String,
    "eps": pl.Float64,
    "stage": pl.Int64,
    "name": pl.String,
    "length": pl.Float64,
    "gain": pl.Float64,
    "lipschitz": pl.Float64,
    "alpha": pl.Float64,
    "positive": pl.Float64,
    "negative": pl.Float64,
    "moved": pl.Float64,
}
BRANCHES_SCHEMA = (
    _WHO
    | _LAYER
    | {"head": pl.Int64, "perturbation": pl.String}
    | dict.fromkeys(
        (
            "eps",
            "lam",
            "positive",
            "negative",
            "moved",
            "clean_positive",
            "clean_moved",
            "clean_correlation",
            "correlation",
            "change_correlation",
        ),
        pl.Float64,
    )
)

_ESTIMATE = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "n": pl.Int64}
Statistic = Callable[[np.ndarray], np.ndarray]


def alignment(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate, for each model, site and layer:

    - ``cosine``: cosθ = Σ⟨J1, J2⟩ / √(Σ‖J1‖²·Σ‖J2‖²), sums over samples and heads; ``rho``: √(Σ‖J2‖²/Σ‖J1‖²);
    - ``amplification``: √(Σ‖J1 − λ·J2‖² / Σ‖J1‖²), as measured (Theorem 1 predicts it from the two above where
      the heads share one λ);
    - ``below``: share of samples and heads whose cosθ as estimated is below 0 (Figure 5);
    - ``negative``, ``positive``, ``undecided``: shares of samples and heads whose interval of cosθ over the
      probes lies below 0, above it, or on both sides; exact inner products decide them all;
    - ``norm``: ‖J_DA‖ (or ‖J‖ of standard attention), the root mean square over samples and heads.

    Args:
        rows: of ``ALIGNMENT_SCHEMA``.

    Returns:
        Columns ``model, site, layer, name, metric, value, low, high, n``, n the number of samples.
    """  # noqa: D415 (a list follows)
    found: list[tuple[Any, ...]] = []
    keys = ["model", "site", "layer", "name"]
    for key, block in rows.group_by(keys, maintain_order=True):
        parts = sample_parts(block)
        with np.errstate(divide="ignore", invalid="ignore"):  # a map that nothing moves has no angle: NaN
            for metric, statistic in statistics_of(block).items():
                found.append((*key, metric, *_numbers(jackknife(parts, statistic), metric)))
    schema: dict[str, Any] = {name: rows.schema[name] for name in keys}
    return pl.DataFrame(found, schema | {"metric": pl.String} | _ESTIMATE, orient="row")


_PARTS = ["first", "second", "cross", "difference", "negative", "positive", "undecided", "below"]


def _signed(rows: pl.DataFrame) -> pl.DataFrame:
    lemma = pl.col("first") + pl.col("lam") ** 2 * pl.col("second") - 2 * pl.col("lam") * pl.col("cross")
    difference = pl.coalesce("moved", lemma).clip(lower_bound=0.0)
    low, high = (pl.col(name).fill_nan(None) for name in ("low", "high"))
    negative, positive = (high < 0).fill_null(value=False), (low > 0).fill_null(value=False)
    return rows.with_columns(
        difference=difference,
        negative=negative.cast(pl.Float64),
        positive=positive.cast(pl.Float64),
        undecided=(~negative & ~positive).cast(pl.Float64),
        below=(pl.col("cross") < 0).cast(pl.Float64),
    )


def sample_parts(block: pl.DataFrame) -> np.ndarray:
    """Return (samples, parts) of one model, site and layer: means over the heads, samples by their ids."""
    return _signed(block).group_by("sample").agg(pl.mean(*_PARTS)).sort("sample").select(_PARTS).to_numpy()


def statistics_of(block: pl.DataFrame) -> dict[str, Statistic]:
    """Return the metrics of one model, site and layer as functions of the means of :func:`sample_parts`."""
    norm: dict[str, Statistic] = {"norm": lambda m: np.sqrt(m[..., 3])}
    attention = block["attention"][0]
    one_map = not (block["second"] != 0).any() if attention in ("none", "unknown") else attention == "softmax"
    if one_map:
        return norm
    return norm | {
        "cosine": lambda m: m[..., 2] / np.sqrt(m[..., 0] * m[..., 1]),
        "rho": lambda m: np.sqrt(m[..., 1] / m[..., 0]),
        "amplification": lambda m: np.sqrt(m[..., 3] / m[..., 0]),
        "negative": lambda m: m[..., 4],
        "positive": lambda m: m[..., 5],
        "undecided": lambda m: m[..., 6],
        "below": lambda m: m[..., 7],
    }


def explanation(rows: pl.DataFrame, pairs: list[tuple[str, str]]) -> pl.DataFrame:
    """Take a layer's relative sensitivity apart: ln(‖J_DA‖/‖J_base‖) = ln γ + ½·ln(1 + λ²ρ²) + the angle's part.

    With γ = ‖J1‖/‖J_base‖, root mean squares over samples and heads, the angle's part is what is left of
    Theorem 2: ½·ln(1 − 2λρ·cosθ / (1 + λ²ρ²)). The three add up exactly to ``relative``; the largest says
    what makes the layer more or less sensitive than its twin's. Metrics: ``gamma`` itself, and in logarithms
    ``relative``, ``by_gamma``, ``by_rho``, ``by_cosine``.

    Args:
        rows: of ``ALIGNMENT_SCHEMA``.
        pairs: (differential model, its standard twin), with as many layers; other pairs are left out, and so
            is the loss's gradient, which is along another cotangent in each model.

    Returns:
        Columns ``model, against, site, layer, metric, value, low, high, n``; samples that both have.
    """
    found: list[tuple[Any, ...]] = []
    signed = _signed(rows.filter(pl.col("site") != "loss")).with_columns(
        lam_second=pl.col("lam") ** 2 * pl.col("second")
    )
    parts = ("first", "lam_second", "difference", "base")
    kind = dict(rows.select("model", "attention").unique().iter_rows())
    for model, against in pairs:
        if (kind[model], kind[against]) != ("differential", "softmax"):
            continue
        base = signed.filter(model=against).group_by("site", "layer", "sample").agg(base=pl.mean("first"))
        own = (
            signed.filter(model=model)
            .group_by("site", "layer", "sample")
            .agg(pl.mean("first", "lam_second", "difference"))
        )
        both = own.join(base, on=["site", "layer", "sample"]).sort("site", "layer", "sample")
        for (site, layer), block in both.group_by(["site", "layer"], maintain_order=True):
            values = block.select(parts).to_numpy()
            for metric, statistic in _EXPLAINED.items():
                estimate = jackknife(values, statistic)
                found.append((model, against, site, layer, metric, *_numbers(estimate, metric)))
    schema = {
        "model": pl.String,
        "against": pl.String,
        "site": pl.String,
        "layer": pl.Int64,
        "metric": pl.String,
    }
    return pl.DataFrame(found, schema | _ESTIMATE, orient="row")


# first, λ²·second, difference, base
_EXPLAINED: dict[str, Statistic] = {
    "gamma": lambda m: np.sqrt(m[..., 0] / m[..., 3]),
    "relative": lambda m: 0.5 * np.log(m[..., 2] / m[..., 3]),
    "by_gamma": lambda m: 0.5 * np.log(m[..., 0] / m[..., 3]),
    "by_rho": lambda m: 0.5 * np.log(1 + m[..., 1] / m[..., 0]),
    "by_cosine": lambda m: 0.5 * np.log(m[..., 2] / (m[..., 0] + m[..., 1])),
}


def prediction_error(rows: pl.DataFrame) -> float:
    """Return the largest relative difference between ‖J_DA‖ as Theorem 1 predicts it and as it was measured.

    Row by row: amplification(λ, ρ, cosθ)·‖J1‖ against ‖J1 − λ·J2‖ of the same probes, the maps subtracted
    first. Rows of a closed form have no such measurement and are left out.
    """
    own = rows.filter(pl.col("attention") == "differential", pl.col("moved").is_not_null())
    if own.is_empty():
        return 0.0
    columns = ("first", "second", "cross", "lam", "moved")
    first, second, cross, lam, measured = (own[name].to_numpy() for name in columns)
    predicted = amplification(lam, np.sqrt(second / first), cross / np.sqrt(first * second)) * np.sqrt(first)
    return float(np.max(np.abs(predicted / np.sqrt(measured) - 1.0)))


def means(rows: pl.DataFrame, keys: list[str], columns: list[str]) -> pl.DataFrame:
    """Average columns over the samples of each group, with intervals over the samples.

    Returns:
        Columns ``*keys, metric, value, low, high, n``; what is null throughout is left out.
    """
    found: list[tuple[Any, ...]] = []
    for key, block in rows.group_by(keys, maintain_order=True):
        for column in columns:
            values = block[column].drop_nulls().to_numpy()
            if len(values):
                estimate = jackknife(values[:, None], lambda m: m[..., 0])
                found.append((*key, column, *_numbers(estimate, column)))
    schema: dict[str, Any] = {name: rows.schema[name] for name in keys}
    return pl.DataFrame(found, schema | {"metric": pl.String} | _ESTIMATE, orient="row")


def cancellation(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate ‖ΔA1 − λΔA2‖ / √(‖ΔA1‖² + λ²‖ΔA2‖²) of each layer, from sums of squares over the samples.

    Below 1, what a perturbation does to both maps cancels; above 1 it adds up; 1 is no cancellation.

    Args:
        rows: of ``DEPTH_SCHEMA``.
    """
    own = rows.filter(pl.col("attention") == "differential", pl.col("moved").is_not_null())
    keys = ["model", "perturbation", "eps", "stage"]
    found: list[tuple[Any, ...]] = []
    for key, block in own.group_by(keys, maintain_order=True):
        squares = block.select("positive", "negative", "moved").to_numpy() ** 2
        estimate = jackknife(squares, lambda m: np.sqrt(m[..., 2] / (m[..., 0] + m[..., 1])))
        found.append((*key, "cancellation", *_numbers(estimate, "cancellation")))
    schema: dict[str, Any] = {name: rows.schema[name] for name in keys}
    return pl.DataFrame(found, schema | {"metric": pl.String} | _ESTIMATE, orient="row")


def within(metric: str) -> Callable[[Estimate], Estimate]:
    """Return what keeps the interval of a metric within its range; metrics that are not listed are sizes.

    >>> within("norm")(Estimate(1.0, -1.0, 3.0, 2)).low > 0
    True
    """
    return _WITHIN.get(metric, as_size)


_WITHIN: dict[str, Callable[[Estimate], Estimate]] = (
    {"cosine": as_difference}
    | dict.fromkeys(("below", "negative", "positive", "undecided"), as_share)
    | dict.fromkeys(("relative", "by_gamma", "by_rho", "by_cosine"), lambda estimate: estimate)
)


def _numbers(estimate: Estimate, metric: str) -> tuple[float, float, float, int]:
    estimate = within(metric)(estimate)
    return estimate.value, estimate.low, estimate.high, estimate.n


def layer_differences(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Estimate how much larger each metric of :func:`alignment` is than another model's.

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
