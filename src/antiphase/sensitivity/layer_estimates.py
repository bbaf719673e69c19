"""From stored rows of sensitivity to tables: alignment by layer, what explains it, Lipschitz constants, depth.

Means are taken over the samples before a ratio is formed; intervals are over the samples (jackknife, 95 %), for these
weights: what other training seeds would give, only several models can tell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from antiphase.errors import UserError
from antiphase.sensitivity import theory
from antiphase.statistics.intervals import Estimate, Statistic, as_difference, as_share, as_size, jackknife

_TEXTS = "model against attention name site of estimator norm ball perturbation metric"
_INTEGERS = "seed sample layer head probes stage n"
_KINDS: Any = dict.fromkeys(_TEXTS.split(), pl.String) | dict.fromkeys(_INTEGERS.split(), pl.Int64)


def _schema(columns: str) -> dict[str, Any]:
    return {name: _KINDS.get(name, pl.Float64) for name in columns.split()}


_WHO = "model attention seed sample"
ALIGNMENT_SCHEMA = _schema(f"{_WHO} layer name head site probes lam first second cross moved low high")
LIPSCHITZ_SCHEMA = _schema(f"{_WHO} layer name of estimator norm ball eps value")
TERMS_SCHEMA = _schema(f"{_WHO} layer name head lam first second third")
_LENGTHS = "positive negative moved"
DEPTH_SCHEMA = _schema(f"{_WHO} perturbation eps stage name length gain lipschitz alpha {_LENGTHS}")
_OF_BRANCHES = "clean_positive clean_moved clean_correlation correlation change_correlation"
BRANCHES_SCHEMA = _schema(f"{_WHO} layer name head perturbation eps lam {_LENGTHS} {_OF_BRANCHES}")
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
_UNBOUNDED = "first second third relative by_gamma by_rho by_cosine critical printed"
_WITHIN: dict[str, Callable[[Estimate], Estimate]] = {"cosine": as_difference}
_WITHIN |= dict.fromkeys(("below", "negative", "positive", "undecided"), as_share)
_WITHIN |= dict.fromkeys(_UNBOUNDED.split(), lambda any: any)

Block = tuple[Sequence[Any], np.ndarray, Mapping[str, Statistic]]
"""Key of some rows, their parts (samples, parts), and the metrics as functions of the parts' means."""


def within(metric: str) -> Callable[[Estimate], Estimate]:
    """Return what keeps the interval of a metric within its range; metrics that are not listed are sizes."""
    return _WITHIN.get(metric, as_size)


def estimate_table(
    blocks: Iterable[Block], keys: Mapping[str, Any], value: str = "value", bounded: bool = True
) -> pl.DataFrame:
    """Estimate each metric of each block, with an interval over the samples, within its range if ``bounded``."""
    rows = []
    with np.errstate(divide="ignore", invalid="ignore"):  # a map that nothing moves has no angle: NaN
        for key, parts, statistics in blocks:
            for metric, statistic in statistics.items():
                estimate = jackknife(parts, statistic)
                estimate = within(metric)(estimate) if bounded else estimate
                rows.append((*key, metric, estimate.value, estimate.low, estimate.high, estimate.n))
    return pl.DataFrame(rows, {**keys, **_schema(f"metric {value} low high n")}, orient="row")


def _by_group(
    rows: pl.DataFrame,
    keys: Sequence[str],
    parts: Callable[[pl.DataFrame], np.ndarray],
    statistics: Callable[[pl.DataFrame], Mapping[str, Statistic]],
) -> pl.DataFrame:
    blocks = ((key, parts(block), statistics(block)) for key, block in rows.group_by(keys, maintain_order=True))
    return estimate_table(blocks, rows.select(keys).schema)


def alignment(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate metrics of each model, site and layer.

    - ``cosine``: cosθ = Σ⟨J1, J2⟩ / √(Σ‖J1‖²·Σ‖J2‖²), sums over samples and heads; ``rho``: √(Σ‖J2‖²/Σ‖J1‖²);
    - ``amplification``: √(Σ‖J1 − λ·J2‖² / Σ‖J1‖²), as measured; ``norm``: ‖J_DA‖ (or ‖J‖), root mean square;
    - ``below``: share of samples and heads whose cosθ as estimated is below 0 (Figure 5);
    - ``negative``, ``positive``, ``undecided``: shares of those whose interval of cosθ over the probes lies below 0,
      above it, or on both sides.
    """
    return _by_group(rows, ["model", "site", "layer", "name"], _sample_parts, _statistics)


def terms(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate ``first``, ``second``, ``third``: each term's share in ‖J_DA‖², by model, layer and name."""
    names = ["first", "second", "third"]
    keys = ["model", "layer", "name"]
    means = rows.group_by([*keys, "sample"], maintain_order=True).agg(pl.mean(*names))
    shares = {name: lambda m, place=place: m[..., place] / m.sum(-1) for place, name in enumerate(names)}
    return _by_group(means, keys, lambda block: block.select(names).to_numpy(), lambda block: shares)


def layer_differences(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Estimate how much larger each metric of :func:`alignment` is than another model's, samples paired.

    The norm along the loss's gradient is left out, which is along another cotangent in each.
    """
    blocks, count = list[Block](), len(_PARTS)
    for pair in pairs:
        first, second = (
            rows.filter(model=name).partition_by("site", "layer", as_dict=True, maintain_order=True) for name in pair
        )
        one, two = ({place: set(part["sample"]) for place, part in parts.items()} for parts in (first, second))
        if one != two:
            raise UserError(f"{' and '.join(pair)}: measured on different images, layers or sites")
        for place, block in first.items():
            parts = np.concatenate([_sample_parts(block), _sample_parts(second[place])], axis=1)
            others = _statistics(second[place])
            statistics = {
                metric: lambda m, a=statistic, b=others[metric]: a(m[..., :count]) - b(m[..., count:])
                for metric, statistic in _statistics(block).items()
                if metric in others and (place[0], metric) != ("loss", "norm")
            }
            blocks.append(((*pair, *place), parts, statistics))
    return estimate_table(blocks, _schema("model against site layer"), "difference", bounded=False)


def _signed(rows: pl.DataFrame) -> pl.DataFrame:
    lemma = pl.col("first") + pl.col("lam") ** 2 * pl.col("second") - 2 * pl.col("lam") * pl.col("cross")
    low, high = (pl.col(name).fill_nan(None) for name in ("low", "high"))
    sign = pl.when(high < 0).then(-1).when(low > 0).then(1).otherwise(0)
    signs = {"negative": sign == -1, "positive": sign == 1, "undecided": sign == 0}
    signs["below"] = pl.col("cross") < 0
    shares = {name: true.cast(pl.Float64) for name, true in signs.items()}
    return rows.with_columns(difference=pl.coalesce("moved", lemma).clip(lower_bound=0.0), **shares)


def _sample_parts(block: pl.DataFrame) -> np.ndarray:
    return _signed(block).group_by("sample").agg(pl.mean(*_PARTS)).sort("sample").select(_PARTS).to_numpy()


def _statistics(block: pl.DataFrame) -> dict[str, Statistic]:
    return _TWO_MAPS if block["attention"][0] != "softmax" and (block["second"] != 0).any() else _NORM


def explanation(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Take a layer's relative sensitivity apart: ln(‖J_DA‖/‖J_base‖) = ln γ + ½·ln(1 + λ²ρ²) + the angle's part.

    γ = ‖J1‖/‖J_base‖, root mean squares over samples and heads; the angle's part is what is left of Theorem 2, ½·ln(1 −
    2λρ·cosθ / (1 + λ²ρ²)). Pairs (differential model, its standard twin) have as many layers; others are left out, and
    so is the loss's gradient.
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
    return estimate_table(blocks, _schema("model against site layer"))


def _joined(rows: pl.DataFrame, base: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    """Average ‖J1‖², λ²‖J2‖² and other columns, and ‖J1‖² of the base, over the heads of each layer and sample."""
    keys = ["site", "layer", "sample"]
    model = rows.group_by(keys).agg(pl.mean("first"), second=(pl.col("lam") ** 2 * pl.col("second")).mean(), **columns)
    return model.join(base.group_by(keys).agg(base=pl.mean("first")), on=keys).sort(keys)


def prediction_error(rows: pl.DataFrame) -> float:
    """Return the largest relative difference between ‖J_DA‖ by Theorem 1 and as measured with the same probes."""
    two_maps = pl.col("attention") == "differential", pl.col("second") > 0
    if (measured := rows.filter(*two_maps, pl.col("moved").is_not_null())).is_empty():
        return 0.0
    columns = ("first", "second", "cross", "lam", "moved")
    first, second, cross, lam, moved = (measured[name].to_numpy() for name in columns)
    cosine = cross / np.sqrt(first * second)
    predicted = theory.amplification(lam, np.sqrt(second / first), cosine) * np.sqrt(first)
    return float(np.max(np.abs(predicted / np.sqrt(moved) - 1.0)))


def means(rows: pl.DataFrame, keys: list[str], columns: list[str], bounded: bool = True) -> pl.DataFrame:
    """Average columns over the samples of each group, with intervals; what is null throughout is left out."""
    blocks = (
        (key, values[:, None], {column: lambda m: m[..., 0]})
        for key, block in rows.group_by(keys, maintain_order=True)
        for column in columns
        if len(values := block[column].drop_nulls().to_numpy())
    )
    return estimate_table(blocks, rows.select(keys).schema, bounded=bounded)


def cancellation(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate ‖ΔA1 − λΔA2‖ / √(‖ΔA1‖² + λ²‖ΔA2‖²) of each layer: below 1 it cancels, above 1 it adds up."""
    return _by_group(
        rows.filter(pl.col("attention") == "differential", pl.col("moved").is_not_null()),
        ["model", "perturbation", "eps", "stage"],
        lambda block: block.select("positive", "negative", "moved").to_numpy() ** 2,
        lambda block: {"cancellation": lambda m: np.sqrt(m[..., 2] / (m[..., 0] + m[..., 1]))},
    )


Means = Float[np.ndarray, "... parts"]
LAYER_PARTS = ("first", "second", "cross", "base")
RADIUS_PARTS = (*LAYER_PARTS, "log_margin", "log_constant")


def _angle(m: Means) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
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
    "critical": lambda m: np.asarray(theory.critical_cosine(*_angle(m)[:3])),
    "relative": lambda m: np.asarray(theory.relative_sensitivity(*_angle(m))),
}
"""Of means of ``LAYER_PARTS``: γ, λρ, cosθ, the critical cosine (Theorem 3) and ‖J_DA‖ / ‖J_base‖ (Theorem 2)."""

RATIOS: dict[str, Statistic] = {
    "margin": lambda m: np.exp(m[..., 4]),
    "constant": lambda m: np.exp(m[..., 5]),
    "measured": lambda m: np.exp(m[..., 4] - m[..., 5]),
    "corrected": lambda m: np.asarray(theory.radius_ratio(np.exp(m[..., 4]), *_angle(m))),
    "printed": lambda m: np.asarray(theory.printed_radius_ratio(np.exp(m[..., 4]), *_angle(m))),
}
"""Of means of ``RADIUS_PARTS``, differential / standard: Δm, L, the radius, equation (6) corrected and as printed."""


def layer_parts(rows: pl.DataFrame, base: pl.DataFrame | None) -> pl.DataFrame:
    """Average ‖J1‖², λ²‖J2‖², λ⟨J1, J2⟩ and the standard twin's ‖J_base‖² over the heads of each layer and sample.

    ``base``: the twin's rows, with as many layers; None: ‖J_base‖ = ‖J1‖. Columns ``layer, sample, *LAYER_PARTS``.
    """
    rows, base = (frame.filter(site="pixels") for frame in (rows, rows if base is None else base))
    return _joined(rows, base, cross=(pl.col("lam") * pl.col("cross")).mean()).select("layer", "sample", *LAYER_PARTS)


def places(rows: pl.DataFrame, against: Mapping[str, str | None]) -> pl.DataFrame:
    """Place each layer in the (λρ, θ) plane of Theorem 3, with intervals over the samples; metrics of ``PLACES``."""
    blocks = []
    for model, twin in against.items():
        parts = layer_parts(rows.filter(model=model), None if twin is None else rows.filter(model=twin))
        for (layer,), block in parts.group_by("layer", maintain_order=True):
            blocks.append(((model, twin, layer), block.select(LAYER_PARTS).to_numpy(), PLACES))
    return estimate_table(blocks, _schema("model against layer"))


def radius_parts(layers: pl.DataFrame, rows: pl.DataFrame, base: pl.DataFrame) -> pl.DataFrame:
    """Add the logarithms of Δm and of the ratio of Lipschitz constants of each sample that all have."""
    logs = rows.join(base, on="sample", suffix="_base").select(
        "sample",
        log_margin=pl.col("margin").log() - pl.col("margin_base").log(),
        log_constant=pl.col("lipschitz").log() - pl.col("lipschitz_base").log(),
    )
    return layers.join(logs, on="sample", maintain_order="left").select("layer", "sample", *RADIUS_PARTS)
