"""From stored rows of sensitivity to tables: alignment by layer, what explains it, Lipschitz constants, depth.

Every mean is taken over the samples before a ratio is formed, and every interval is over the samples
(:func:`~antiphase.statistics.intervals.jackknife`, 95 %), for these weights: what other training seeds would
give, only several models can tell. All tables have the columns ``metric, value, low, high, n``, n that of samples.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from antiphase.errors import UserError
from antiphase.sensitivity.theory import amplification
from antiphase.statistics.intervals import Estimate, Statistic, as_difference, as_share, as_size, jackknife

Schema = dict[str, Any]
Statistic = Callable[[np.ndarray], np.ndarray]
"""A function of means over the samples, in the last axis."""
_Rows = list[tuple[Any, ...]]


def _floats(*names: str) -> Schema:
    return dict.fromkeys(names, pl.Float64)


_WHO: Schema = {"model": pl.String, "attention": pl.String, "seed": pl.Int64, "sample": pl.Int64}
_LAYER: Schema = {"layer": pl.Int64, "name": pl.String}
ALIGNMENT_SCHEMA = (
    _WHO
    | _LAYER
    | {"head": pl.Int64, "site": pl.String, "probes": pl.Int64}
    | _floats("lam", "first", "second", "cross", "moved", "low", "high")
)
LIPSCHITZ_SCHEMA = (
    _WHO | _LAYER | dict.fromkeys(("of", "estimator", "norm", "ball"), pl.String) | _floats("eps", "value")
)
DEPTH_SCHEMA = (
    _WHO
    | {"perturbation": pl.String, "eps": pl.Float64, "stage": pl.Int64, "name": pl.String}
    | _floats("length", "gain", "lipschitz", "alpha", "positive", "negative", "moved")
)
BRANCHES_SCHEMA = (
    _WHO
    | _LAYER
    | {"head": pl.Int64, "perturbation": pl.String}
    | _floats("eps", "lam", "positive", "negative", "moved", "clean_positive", "clean_moved")
    | _floats("clean_correlation", "correlation", "change_correlation")
)
_ESTIMATE: Schema = {"metric": pl.String, **_floats("value", "low", "high"), "n": pl.Int64}


def within(metric: str) -> Callable[[Estimate], Estimate]:
    """Return what keeps the interval of a metric within its range; metrics that are not listed are sizes.

    >>> within("norm")(Estimate(1.0, -1.0, 3.0, 2)).low > 0
    True
    """
    return _WITHIN.get(metric, as_size)


_ANY_NUMBER = ("relative", "by_gamma", "by_rho", "by_cosine", "critical", "printed")
_WITHIN: dict[str, Callable[[Estimate], Estimate]] = (
    {"cosine": as_difference}
    | dict.fromkeys(("below", "negative", "positive", "undecided"), as_share)
    | dict.fromkeys(_ANY_NUMBER, lambda estimate: estimate)
)


def estimates(values: np.ndarray, statistics: Mapping[str, Statistic], bounded: bool = True) -> _Rows:
    """Return metric, value, low, high and n of statistics of values (samples, parts), within their range if bounded."""
    rows: _Rows = []
    with np.errstate(divide="ignore", invalid="ignore"):  # a map that nothing moves has no angle: NaN
        for metric, statistic in statistics.items():
            one = jackknife(values, statistic)
            one = within(metric)(one) if bounded else one
            rows.append((metric, one.value, one.low, one.high, one.n))
    return rows


def table(rows: _Rows, keys: Schema) -> pl.DataFrame:
    """Return rows of keys and :func:`estimates` as a frame."""
    return pl.DataFrame(rows, keys | _ESTIMATE, orient="row")


def by_group(
    rows: pl.DataFrame, keys: Sequence[str], estimated: Callable[[pl.DataFrame], _Rows]
) -> pl.DataFrame:
    """Return the estimates of each group of rows."""
    groups = rows.group_by(keys, maintain_order=True)
    found = [(*key, *estimate) for key, block in groups for estimate in estimated(block)]
    return table(found, {name: rows.schema[name] for name in keys})


def alignment(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate, for each ``model, site, layer, name`` of rows of ``ALIGNMENT_SCHEMA``:

    - ``cosine``: cosθ = Σ⟨J1, J2⟩ / √(Σ‖J1‖²·Σ‖J2‖²), sums over samples and heads; ``rho``: √(Σ‖J2‖²/Σ‖J1‖²);
    - ``amplification``: √(Σ‖J1 − λ·J2‖² / Σ‖J1‖²), as measured (Theorem 1 predicts it from the two above where
      the heads share one λ);
    - ``below``: share of samples and heads whose cosθ as estimated is below 0 (Figure 5);
    - ``negative``, ``positive``, ``undecided``: shares of samples and heads whose interval of cosθ over the
      probes lies below 0, above it, or on both sides; exact inner products decide them all;
    - ``norm``: ‖J_DA‖ (or ‖J‖ of standard attention), the root mean square over samples and heads.
    """  # noqa: D415 (a list follows)
    keys = ("model", "site", "layer", "name")
    return by_group(rows, keys, lambda block: estimates(_sample_parts(block), _statistics_of(block)))


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
    blocks: list[Block] = []
    for pair in pairs:
        first, second = (
            rows.filter(model=name).partition_by("site", "layer", as_dict=True, maintain_order=True)
            for name in pair
        )
        if _samples(first) != _samples(second):
            raise UserError(
                f"{pair[0]} and {pair[1]}: measured on different images, layers or sites; measure both with the same "
                "settings"
            )
        for place, block in first.items():
            parts = np.concatenate([_sample_parts(block), _sample_parts(second[place])], axis=1)
            theirs = _statistics(second[place])
            statistics = {
                metric: _apart(mine, theirs[metric])
                for metric, mine in _statistics(block).items()
                if metric in theirs and (place[0], metric) != ("loss", "norm")
            }
            blocks.append(((*pair, *place), parts, statistics))
    return estimate_table(blocks, _PAIR, "difference", bounded=False)


_PAIR = {"model": pl.String, "against": pl.String, "site": pl.String, "layer": pl.Int64}


def _samples(blocks: Mapping[Any, pl.DataFrame]) -> dict[Any, set[int]]:
    return {place: set(block["sample"]) for place, block in blocks.items()}


def _apart(mine: Statistic, theirs: Statistic) -> Statistic:
    return lambda means: mine(means[..., : len(_PARTS)]) - theirs(means[..., len(_PARTS) :])


def _signed(rows: pl.DataFrame) -> pl.DataFrame:
    lemma = pl.col("first") + pl.col("lam") ** 2 * pl.col("second") - 2 * pl.col("lam") * pl.col("cross")
    low, high = (pl.col(name).fill_nan(None) for name in ("low", "high"))
    negative, positive = (high < 0).fill_null(value=False), (low > 0).fill_null(value=False)
    return rows.with_columns(
        difference=pl.coalesce("moved", lemma).clip(lower_bound=0.0),
        negative=negative.cast(pl.Float64),
        positive=positive.cast(pl.Float64),
        undecided=(~negative & ~positive).cast(pl.Float64),
        below=(pl.col("cross") < 0).cast(pl.Float64),
    )


def _sample_parts(block: pl.DataFrame) -> np.ndarray:
    """Return (samples, parts) of one model, site and layer: means over the heads, samples by their ids."""
    return _signed(block).group_by("sample").agg(pl.mean(*_PARTS)).sort("sample").select(_PARTS).to_numpy()


def _statistics_of(block: pl.DataFrame) -> dict[str, Statistic]:
    """Return the metrics of one model, site and layer as functions of the means of :func:`_sample_parts`."""
    norm: dict[str, Statistic] = {"norm": lambda m: np.sqrt(m[..., 3])}
    attention = block["attention"][0]
    one_map = not (block["second"] != 0).any() if attention in ("none", "unknown") else attention == "softmax"
    return _NORM if one_map else _TWO_MAPS


# of first, λ²·second, difference, base
_EXPLAINED: dict[str, Statistic] = {
    "gamma": lambda m: np.sqrt(m[..., 0] / m[..., 3]),
    "relative": lambda m: 0.5 * np.log(m[..., 2] / m[..., 3]),
    "by_gamma": lambda m: 0.5 * np.log(m[..., 0] / m[..., 3]),
    "by_rho": lambda m: 0.5 * np.log(1 + m[..., 1] / m[..., 0]),
    "by_cosine": lambda m: 0.5 * np.log(m[..., 2] / (m[..., 0] + m[..., 1])),
}
_PAIR: Schema = {"model": pl.String, "against": pl.String, "site": pl.String, "layer": pl.Int64}


def explanation(rows: pl.DataFrame, pairs: Iterable[tuple[str, str]]) -> pl.DataFrame:
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
        Also the columns ``model, against, site, layer``; samples that both have.
    """
    found: _Rows = []
    second = pl.col("lam") ** 2 * pl.col("second")
    signed = _signed(rows.filter(pl.col("site") != "loss")).with_columns(lam_second=second)
    kind = dict(rows.select("model", "attention").unique().iter_rows())
    keys = ["site", "layer", "sample"]
    for model, against in pairs:
        if (kind[model], kind[against]) != ("differential", "softmax"):
            continue
        base = signed.filter(model=against).group_by(keys).agg(base=pl.mean("first"))
        means = signed.filter(model=model).group_by(keys).agg(pl.mean("first", "lam_second", "difference"))
        both = means.join(base, on=keys).sort(keys)
        for place, block in both.group_by(["site", "layer"], maintain_order=True):
            values = block.select("first", "lam_second", "difference", "base").to_numpy()
            found += [(model, against, *place, *one) for one in estimates(values, _EXPLAINED)]
    return table(found, _PAIR)


def prediction_error(rows: pl.DataFrame) -> float:
    """Return the largest relative difference between ‖J_DA‖ as Theorem 1 predicts it and as it was measured.

    Row by row: amplification(λ, ρ, cosθ)·‖J1‖ against ‖J1 − λ·J2‖ of the same probes, the maps subtracted
    first. Rows of a closed form have no such measurement and are left out.
    """
    measured = _measured(rows)
    if measured.is_empty():
        return 0.0
    columns = ("first", "second", "cross", "lam", "moved")
    first, second, cross, lam, moved = (measured[name].to_numpy() for name in columns)
    predicted = amplification(lam, np.sqrt(second / first), cross / np.sqrt(first * second)) * np.sqrt(first)
    return float(np.max(np.abs(predicted / np.sqrt(moved) - 1.0)))


def _measured(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("attention") == "differential", pl.col("moved").is_not_null())


def means(rows: pl.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    """Average columns over the samples of each group; what is null throughout is left out."""

    def averaged(block: pl.DataFrame) -> _Rows:
        values = {column: block[column].drop_nulls().to_numpy()[:, None] for column in columns}
        return [
            estimate
            for column, one in values.items()
            if len(one)
            for estimate in estimates(one, {column: lambda m: m[..., 0]})
        ]

    return by_group(rows, keys, averaged)


def cancellation(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate ‖ΔA1 − λΔA2‖ / √(‖ΔA1‖² + λ²‖ΔA2‖²) of each layer, from sums of squares over the samples.

    Below 1, what a perturbation does to both maps cancels; above 1 it adds up; 1 is no cancellation.

    Args:
        rows: of ``DEPTH_SCHEMA``.
    """

    def cancelled(block: pl.DataFrame) -> _Rows:
        squares = block.select("positive", "negative", "moved").to_numpy() ** 2
        return estimates(squares, {"cancellation": lambda m: np.sqrt(m[..., 2] / (m[..., 0] + m[..., 1]))})

    return by_group(_measured(rows), ["model", "perturbation", "eps", "stage"], cancelled)


def layer_differences(rows: pl.DataFrame, pairs: Iterable[tuple[str, str]]) -> pl.DataFrame:
    """Estimate how much larger each metric of :func:`alignment` is than another model's.

    The interval is the jackknife's over the samples, each left out of both models at once: f(x̄) − f(ȳ) with x and y
    of the same sample. Metrics that only one of the two models has are left out, and so is the norm along the loss's
    gradient, which is along another cotangent in each model.

    Args:
        rows: of ``ALIGNMENT_SCHEMA``.
        pairs: (model, against), with as many layers, measured on the same samples.

    Returns:
        Columns ``model, against, site, layer, metric, difference, low, high, n``.

    Raises:
        UserError: two models were not measured on the same samples, sites and layers.
    """
    found: _Rows = []
    for model, against in pairs:
        ours, theirs = (
            rows.filter(model=name).partition_by(["site", "layer"], as_dict=True) for name in (model, against)
        )
        samples = [{place: set(one["sample"]) for place, one in side.items()} for side in (ours, theirs)]
        if samples[0] != samples[1]:
            raise UserError(
                f"{model} and {against}: measured on different images, layers or sites; measure both with the same "
                "settings"
            )
        for place, block in ours.items():
            other = theirs[place]
            values = np.concatenate([_sample_parts(block), _sample_parts(other)], axis=1)
            one, two = _statistics_of(block), _statistics_of(other)
            differences = {
                metric: _difference(one[metric], two[metric])
                for metric in one
                if metric in two and (place[0], metric) != ("loss", "norm")
            }
            found += [(model, against, *place, *row) for row in estimates(values, differences, bounded=False)]
    return table(found, _PAIR).rename({"value": "difference"})


def _difference(one: Statistic, two: Statistic) -> Statistic:
    return lambda m: one(m[..., : len(_PARTS)]) - two(m[..., len(_PARTS) :])
