"""From stored rows of sensitivity to tables: alignment by layer, what explains it, Lipschitz constants, depth.

Every mean is taken over the samples before a ratio is formed, and every interval is over the samples
(:func:`~antiphase.statistics.intervals.jackknife`, 95 %), for these weights: what other training seeds would
give, only several models can tell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from antiphase.errors import UserError
from antiphase.sensitivity.theory import (
    amplification,
    critical_cosine,
    printed_radius_ratio,
    radius_ratio,
    relative_sensitivity,
)
from antiphase.statistics.intervals import Estimate, Statistic, as_difference, as_share, as_size, jackknife


def _schema(texts: str, integers: str, columns: str) -> dict[str, Any]:
    """Return a schema of columns, which are numbers unless they are named before."""
    kinds = dict.fromkeys(texts.split(), pl.String) | dict.fromkeys(integers.split(), pl.Int64)
    return {name: kinds.get(name, pl.Float64) for name in columns.split()}


_WHO = "model attention seed sample"
_TEXTS, _INTEGERS = "model attention name", "seed sample layer head"
ALIGNMENT_SCHEMA = _schema(
    f"{_TEXTS} site",
    f"{_INTEGERS} probes",
    f"{_WHO} layer name head site probes lam first second cross moved low high",
)
LIPSCHITZ_SCHEMA = _schema(
    f"{_TEXTS} of estimator norm ball", _INTEGERS, f"{_WHO} layer name of estimator norm ball eps value"
)
TERMS_SCHEMA = _schema(_TEXTS, _INTEGERS, f"{_WHO} layer name head lam first second third")
DEPTH_SCHEMA = _schema(
    f"{_TEXTS} perturbation",
    f"{_INTEGERS} stage",
    f"{_WHO} perturbation eps stage name length gain lipschitz alpha positive negative moved",
)
BRANCHES_SCHEMA = _schema(
    f"{_TEXTS} perturbation",
    _INTEGERS,
    f"{_WHO} layer name head perturbation eps lam positive negative moved clean_positive clean_moved "
    "clean_correlation correlation change_correlation",
)
_PARTS = ["first", "second", "cross", "difference", "negative", "positive", "undecided", "below"]
_NORM: dict[str, Statistic] = {"norm": lambda m: np.sqrt(m[..., 3])}
_TWO_MAPS: dict[str, Statistic] = _NORM | {
    "cosine": lambda m: m[..., 2] / np.sqrt(m[..., 0] * m[..., 1]),
    "rho": lambda m: np.sqrt(m[..., 1] / m[..., 0]),
    "amplification": lambda m: np.sqrt(m[..., 3] / m[..., 0]),
}
_TWO_MAPS |= {name: lambda m, place=place: m[..., place] for place, name in enumerate(_PARTS[4:], 4)}
# first, λ²·second, difference, base
_EXPLAINED: dict[str, Statistic] = {
    "gamma": lambda m: np.sqrt(m[..., 0] / m[..., 3]),
    "relative": lambda m: 0.5 * np.log(m[..., 2] / m[..., 3]),
    "by_gamma": lambda m: 0.5 * np.log(m[..., 0] / m[..., 3]),
    "by_rho": lambda m: 0.5 * np.log(1 + m[..., 1] / m[..., 0]),
    "by_cosine": lambda m: 0.5 * np.log(m[..., 2] / (m[..., 0] + m[..., 1])),
}
_WITHIN: dict[str, Callable[[Estimate], Estimate]] = (
    {"cosine": as_difference}
    | dict.fromkeys(("below", "negative", "positive", "undecided"), as_share)
    | dict.fromkeys(
        ("first", "second", "third", "relative", "by_gamma", "by_rho", "by_cosine", "critical", "printed"),
        lambda any: any,
    )
)

Block = tuple[Sequence[Any], np.ndarray, Mapping[str, Statistic]]
"""Key of some rows, their parts (samples, parts), and the metrics as functions of the parts' means."""


def within(metric: str) -> Callable[[Estimate], Estimate]:
    """Return what keeps the interval of a metric within its range; metrics that are not listed are sizes.

    >>> within("norm")(Estimate(1.0, -1.0, 3.0, 2)).low > 0
    True
    """
    return _WITHIN.get(metric, as_size)


def estimate_table(
    blocks: Iterable[Block], keys: Mapping[str, Any], value: str = "value", bounded: bool = True
) -> pl.DataFrame:
    """Estimate each metric of each block, with an interval over the samples, within its range if it is ``bounded``.

    Columns: those of the schema ``keys``, then ``metric, value, low, high, n`` with ``value`` named as given.
    """
    rows = []
    with np.errstate(divide="ignore", invalid="ignore"):  # a map that nothing moves has no angle: NaN
        for key, parts, statistics in blocks:
            for metric, statistic in statistics.items():
                estimate = jackknife(parts, statistic)
                estimate = within(metric)(estimate) if bounded else estimate
                rows.append((*key, metric, estimate.value, estimate.low, estimate.high, estimate.n))
    schema = {**keys, **_schema("metric", "n", f"metric {value} low high n")}
    return pl.DataFrame(rows, schema, orient="row")


def _by_group(
    rows: pl.DataFrame,
    keys: Sequence[str],
    parts: Callable[[pl.DataFrame], np.ndarray],
    statistics: Callable[[pl.DataFrame], Mapping[str, Statistic]],
) -> pl.DataFrame:
    """Return the estimates of each group of rows, in the order of the rows."""
    groups = rows.group_by(keys, maintain_order=True)
    blocks = ((key, parts(block), statistics(block)) for key, block in groups)
    return estimate_table(blocks, rows.select(keys).schema)


def alignment(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate, for each model, site and layer:

    - ``cosine``: cosθ = Σ⟨J1, J2⟩ / √(Σ‖J1‖²·Σ‖J2‖²), sums over samples and heads; ``rho``: √(Σ‖J2‖²/Σ‖J1‖²);
    - ``amplification``: √(Σ‖J1 − λ·J2‖² / Σ‖J1‖²), as measured; ``norm``: ‖J_DA‖ (or ‖J‖), root mean square;
    - ``below``: share of samples and heads whose cosθ as estimated is below 0 (Figure 5);
    - ``negative``, ``positive``, ``undecided``: shares of those whose interval of cosθ over the probes lies below 0,
      above it, or on both sides; exact inner products decide them all.

    Columns ``model, site, layer, name, metric, value, low, high, n``, n the number of samples.
    """  # noqa: D415 (a list follows)
    return _by_group(rows, ["model", "site", "layer", "name"], _sample_parts, _statistics)


def terms(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate the share of each term of J_DA = J1 − λ·J2 − A2 ⊗ ∇λ in ‖J_DA‖², from sums over samples and heads.

    Columns ``model, layer, name, metric, value, low, high, n``; the metrics ``first``, ``second`` and ``third``.
    """
    names = ["first", "second", "third"]
    keys = ["model", "layer", "name"]
    means = rows.group_by([*keys, "sample"], maintain_order=True).agg(pl.mean(*names))
    shares = {name: lambda m, place=place: m[..., place] / m.sum(-1) for place, name in enumerate(names)}
    return _by_group(means, keys, lambda block: block.select(names).to_numpy(), lambda block: shares)


def layer_differences(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Estimate how much larger each metric of :func:`alignment` is than another model's.

    The interval is the jackknife's over the samples, each left out of both models of a pair (model, against) at once.
    Metrics that only one of the two has are left out, and so is the norm along the loss's gradient, which is along
    another cotangent in each model. Columns ``model, against, site, layer, metric, difference, low, high, n``.
    """
    blocks: list[Block] = []
    for pair in pairs:
        first, second = (
            rows.filter(model=name).partition_by("site", "layer", as_dict=True, maintain_order=True)
            for name in pair
        )
        one, two = (
            {place: set(block["sample"]) for place, block in blocks.items()} for blocks in (first, second)
        )
        if one != two:
            raise UserError(f"{' and '.join(pair)}: measured on different images, layers or sites")
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


_PAIR = _schema("model against site", "layer", "model against site layer")


def _apart(mine: Statistic, theirs: Statistic) -> Statistic:
    return lambda means: mine(means[..., : len(_PARTS)]) - theirs(means[..., len(_PARTS) :])


def _signed(rows: pl.DataFrame) -> pl.DataFrame:
    lemma = pl.col("first") + pl.col("lam") ** 2 * pl.col("second") - 2 * pl.col("lam") * pl.col("cross")
    low, high = (pl.col(name).fill_nan(None) for name in ("low", "high"))
    sign = pl.when(high < 0).then(-1).when(low > 0).then(1).otherwise(0)
    signs = {
        "negative": sign == -1,
        "positive": sign == 1,
        "undecided": sign == 0,
        "below": pl.col("cross") < 0,
    }
    return rows.with_columns(
        difference=pl.coalesce("moved", lemma).clip(lower_bound=0.0),
        **{name: true.cast(pl.Float64) for name, true in signs.items()},
    )


def _sample_parts(block: pl.DataFrame) -> np.ndarray:
    """Return (samples, parts) of one model, site and layer: means over the heads, samples by their ids."""
    return _signed(block).group_by("sample").agg(pl.mean(*_PARTS)).sort("sample").select(_PARTS).to_numpy()


def _statistics(block: pl.DataFrame) -> dict[str, Statistic]:
    """Return the metrics of one model, site and layer as functions of the means of :func:`_sample_parts`."""
    attention = block["attention"][0]
    one_map = not (block["second"] != 0).any() if attention in ("none", "unknown") else attention == "softmax"
    return _NORM if one_map else _TWO_MAPS


def explanation(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Take a layer's relative sensitivity apart: ln(‖J_DA‖/‖J_base‖) = ln γ + ½·ln(1 + λ²ρ²) + the angle's part.

    With γ = ‖J1‖/‖J_base‖, root mean squares over samples and heads, the angle's part is what is left of Theorem 2:
    ½·ln(1 − 2λρ·cosθ / (1 + λ²ρ²)). The three add up exactly to ``relative``; the largest says what makes the layer
    more or less sensitive than its twin's. Pairs (differential model, its standard twin) have as many layers; others
    are left out, and so is the loss's gradient. Metrics: ``gamma`` itself, and in logarithms ``relative``,
    ``by_gamma``, ``by_rho``, ``by_cosine``. Columns ``model, against, site, layer, metric, value, low, high, n``.
    """
    signed = _signed(rows.filter(pl.col("site") != "loss"))
    kind = dict(rows.select("model", "attention").unique().iter_rows())
    blocks: list[Block] = []
    for pair in pairs:
        if [kind[name] for name in pair] != ["differential", "softmax"]:
            continue
        model, base = (signed.filter(model=name) for name in pair)
        both = _joined(model, base, difference=pl.mean("difference"))
        for place, block in both.group_by(["site", "layer"], maintain_order=True):
            parts = block.select("first", "second", "difference", "base").to_numpy()
            blocks.append(((*pair, *place), parts, _EXPLAINED))
    return estimate_table(blocks, _PAIR)


def _joined(rows: pl.DataFrame, base: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    """Average ‖J1‖², λ²‖J2‖² and other columns, and ‖J1‖² of the base, over the heads of each layer and sample."""
    keys = ["site", "layer", "sample"]
    second = (pl.col("lam") ** 2 * pl.col("second")).mean()
    model = rows.group_by(keys).agg(pl.mean("first"), second=second, **columns)
    return model.join(base.group_by(keys).agg(base=pl.mean("first")), on=keys).sort(keys)


def prediction_error(rows: pl.DataFrame) -> float:
    """Return the largest relative difference between ‖J_DA‖ as Theorem 1 predicts it and as it was measured.

    Row by row: amplification(λ, ρ, cosθ)·‖J1‖ against ‖J1 − λ·J2‖ of the same probes, the maps subtracted
    first. Rows of a closed form have no such measurement and are left out.
    """
    measured = rows.filter(pl.col("attention") == "differential", pl.col("moved").is_not_null())
    if measured.is_empty():
        return 0.0
    columns = ("first", "second", "cross", "lam", "moved")
    first, second, cross, lam, moved = (measured[name].to_numpy() for name in columns)
    predicted = amplification(lam, np.sqrt(second / first), cross / np.sqrt(first * second)) * np.sqrt(first)
    return float(np.max(np.abs(predicted / np.sqrt(moved) - 1.0)))


def means(rows: pl.DataFrame, keys: list[str], columns: list[str], bounded: bool = True) -> pl.DataFrame:
    """Average columns over the samples of each group, with intervals over the samples.

    Columns ``*keys, metric, value, low, high, n``; what is null throughout is left out.
    """
    blocks = (
        (key, values[:, None], {column: lambda m: m[..., 0]})
        for key, block in rows.group_by(keys, maintain_order=True)
        for column in columns
        if len(values := block[column].drop_nulls().to_numpy())
    )
    return estimate_table(blocks, rows.select(keys).schema, bounded=bounded)


def cancellation(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate ‖ΔA1 − λΔA2‖ / √(‖ΔA1‖² + λ²‖ΔA2‖²) of each layer, from sums of squares over the samples.

    Below 1, what a perturbation does to both maps cancels; above 1 it adds up; 1 is no cancellation.
    """
    measured = rows.filter(pl.col("attention") == "differential", pl.col("moved").is_not_null())
    return _by_group(
        measured,
        ["model", "perturbation", "eps", "stage"],
        lambda block: block.select("positive", "negative", "moved").to_numpy() ** 2,
        lambda block: {"cancellation": lambda m: np.sqrt(m[..., 2] / (m[..., 0] + m[..., 1]))},
    )


Means = Float[np.ndarray, "... parts"]
LAYER_PARTS = ("first", "second", "cross", "base")
RADIUS_PARTS = (*LAYER_PARTS, "log_margin", "log_constant")


def _angle(m: Means) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return γ, 1, λρ and cosθ."""
    first, second, cross, base = (m[..., part] for part in range(4))
    with np.errstate(divide="ignore", invalid="ignore"):
        gamma, ratio = np.sqrt(first / base), np.sqrt(second / first)
        cosine = np.clip(cross / np.sqrt(first * second), -1.0, 1.0)
    moves = (first > 0) & (base > 0)  # a map that nothing moves has no place
    return np.where(moves, gamma, np.nan), np.ones_like(first), np.where(moves, ratio, np.nan), cosine


PLACES: dict[str, Statistic] = {
    "gamma": lambda m: _angle(m)[0],
    "rho": lambda m: _angle(m)[2],
    "cosine": lambda m: _angle(m)[3],
    "critical": lambda m: np.asarray(critical_cosine(*_angle(m)[:3])),
    "relative": lambda m: np.asarray(relative_sensitivity(*_angle(m))),
}
"""Of means of ``LAYER_PARTS``: γ, λρ, cosθ, the critical cosine (Theorem 3) and ‖J_DA‖ / ‖J_base‖ (Theorem 2)."""

RATIOS: dict[str, Statistic] = {
    "margin": lambda m: np.exp(m[..., 4]),
    "constant": lambda m: np.exp(m[..., 5]),
    "measured": lambda m: np.exp(m[..., 4] - m[..., 5]),
    "corrected": lambda m: np.asarray(radius_ratio(np.exp(m[..., 4]), *_angle(m))),
    "printed": lambda m: np.asarray(printed_radius_ratio(np.exp(m[..., 4]), *_angle(m))),
}
"""Of means of ``RADIUS_PARTS``, differential / standard: Δm, L, the radius, equation (6) corrected and as printed."""


def layer_parts(own: pl.DataFrame, base: pl.DataFrame | None) -> pl.DataFrame:
    """Average the inner products of a differential model's rows over the heads of each layer and sample.

    ``base`` are the rows of its standard twin, with as many layers; None: ‖J_base‖ = ‖J1‖, so that γ = 1. Columns
    ``layer, sample`` and ``LAYER_PARTS``: ‖J1‖², λ²‖J2‖², λ⟨J1, J2⟩ and ‖J_base‖²; samples that both have.
    """
    own, base = (rows.filter(site="pixels") for rows in (own, own if base is None else base))
    parts = _joined(own, base, cross=(pl.col("lam") * pl.col("cross")).mean())
    return parts.select("layer", "sample", *LAYER_PARTS)


def places(rows: pl.DataFrame, against: Mapping[str, str | None]) -> pl.DataFrame:
    """Place each layer in the (λρ, θ) plane of Theorem 3, with intervals over the samples.

    Columns ``model, against, layer, metric`` (of ``PLACES``), ``value, low, high, n``.
    """
    keys = _schema("model against", "layer", "model against layer")
    blocks = (
        ((model, twin, layer), block.select(LAYER_PARTS).to_numpy(), PLACES)
        for model, twin in against.items()
        for (layer,), block in layer_parts(
            rows.filter(model=model), None if twin is None else rows.filter(model=twin)
        ).group_by("layer", maintain_order=True)
    )
    return estimate_table(blocks, keys)


def radius_parts(layers: pl.DataFrame, own: pl.DataFrame, base: pl.DataFrame) -> pl.DataFrame:
    """Add the logarithms of Δm and of the ratio of Lipschitz constants of each sample.

    Columns ``layer, sample`` and ``RADIUS_PARTS``; samples that all have.
    """
    logs = own.join(base, on="sample", suffix="_base").select(
        "sample",
        log_margin=pl.col("margin").log() - pl.col("margin_base").log(),
        log_constant=pl.col("lipschitz").log() - pl.col("lipschitz_base").log(),
    )
    return layers.join(logs, on="sample", maintain_order="left").select("layer", "sample", *RADIUS_PARTS)


def radius_ratios(parts: pl.DataFrame) -> pl.DataFrame:
    """Estimate the ratio of estimated radii, measured and predicted by each layer, with intervals over the samples.

    Columns ``layer, metric`` (of ``RATIOS``), ``value, low, high, n``.
    """
    return _by_group(
        parts, ["layer"], lambda block: block.select(RADIUS_PARTS).to_numpy(), lambda block: RATIOS
    )
