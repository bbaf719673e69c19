"""A differential layer and the same layer of its standard twin: the quantities of Theorems 2, 3 and 5, with intervals.

Source: robustness paper, Section 4.1 and Appendix B. J are the Jacobians of the maps by the pixels. Inner products are
averaged over samples and heads first. θ is the angle between J1 and λ·J2, and λρ = ‖λ·J2‖ / ‖J1‖: the theorems then
hold for heads with different λ, and for a λ below 0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from antiphase.sensitivity.layer_estimates import Statistic, by_group, estimates, table
from antiphase.sensitivity.theory import (
    critical_cosine,
    printed_radius_ratio,
    radius_ratio,
    relative_sensitivity,
)

LAYER_PARTS = ("first", "second", "cross", "base")
RADIUS_PARTS = (*LAYER_PARTS, "log_margin", "log_constant")


def _place(m: np.ndarray) -> tuple[Any, Any, Any, Any]:
    """Return γ, 1, λρ and cosθ, the arguments of the theorems."""
    first, second, cross, base = (m[..., part] for part in range(4))
    with np.errstate(divide="ignore", invalid="ignore"):
        gamma, ratio = np.sqrt(first / base), np.sqrt(second / first)
        cosine = np.clip(cross / np.sqrt(first * second), -1.0, 1.0)
    moves = (first > 0) & (base > 0)  # a map that nothing moves has no place
    return np.where(moves, gamma, np.nan), np.ones_like(first), np.where(moves, ratio, np.nan), cosine


PLACES: dict[str, Statistic] = {
    "gamma": lambda m: _place(m)[0],
    "rho": lambda m: _place(m)[2],
    "cosine": lambda m: _place(m)[3],
    "critical": lambda m: np.asarray(critical_cosine(*_place(m)[:3])),
    "relative": lambda m: np.asarray(relative_sensitivity(*_place(m))),
}
"""Of means of ``LAYER_PARTS``: γ, λρ, cosθ, the critical cosine (Theorem 3) and ‖J_DA‖ / ‖J_base‖ (Theorem 2)."""

RATIOS: dict[str, Statistic] = {
    "margin": lambda m: np.exp(m[..., 4]),
    "constant": lambda m: np.exp(m[..., 5]),
    "measured": lambda m: np.exp(m[..., 4] - m[..., 5]),
    "corrected": lambda m: np.asarray(radius_ratio(np.exp(m[..., 4]), *_place(m))),
    "printed": lambda m: np.asarray(printed_radius_ratio(np.exp(m[..., 4]), *_place(m))),
}
"""Of means of ``RADIUS_PARTS``, differential / standard: Δm, L, the radius, equation (6) corrected and as printed."""


def layer_parts(rows: pl.DataFrame, base: pl.DataFrame | None) -> pl.DataFrame:
    """Average the inner products of each layer and sample over the heads.

    Args:
        rows: of ``ALIGNMENT_SCHEMA`` of a differential model.
        base: those of its standard twin, with as many layers; None: ‖J_base‖ = ‖J1‖, so that γ = 1.

    Returns:
        Columns ``layer, sample`` and ``LAYER_PARTS``: ‖J1‖², λ²‖J2‖², λ⟨J1, J2⟩ and ‖J_base‖²; samples that both have.
    """
    lam, keys = pl.col("lam"), ["layer", "sample"]
    second, cross = (lam**2 * pl.col("second")).mean(), (lam * pl.col("cross")).mean()
    means = rows.filter(site="pixels").group_by(keys).agg(pl.mean("first"), second=second, cross=cross)
    if base is None:
        means = means.with_columns(base="first")
    else:
        means = means.join(base.filter(site="pixels").group_by(keys).agg(base=pl.mean("first")), on=keys)
    return means.sort(keys).select(*keys, *LAYER_PARTS)


def places(rows: pl.DataFrame, against: Mapping[str, str | None]) -> pl.DataFrame:
    """Place each layer in the (λρ, θ) plane of Theorem 3, with intervals over the samples.

    Args:
        rows: of ``ALIGNMENT_SCHEMA``.
        against: the standard twin of each differential model; None if there is none, γ is then 1.

    Returns:
        Columns ``model, against, layer, metric`` (of ``PLACES``), ``value, low, high, n``.
    """
    found: list[tuple[Any, ...]] = []
    for model, twin in against.items():
        parts = layer_parts(rows.filter(model=model), None if twin is None else rows.filter(model=twin))
        for (layer,), block in parts.group_by("layer", maintain_order=True):
            values = block.select(LAYER_PARTS).to_numpy()
            found += [(model, twin, layer, *one) for one in estimates(values, PLACES)]
    return table(found, {"model": pl.String, "against": pl.String, "layer": pl.Int64})


def radius_parts(layers: pl.DataFrame, rows: pl.DataFrame, base: pl.DataFrame) -> pl.DataFrame:
    """Add the logarithms of Δm and of the ratio of Lipschitz constants of each sample.

    Args:
        layers: of :func:`layer_parts`.
        rows: of ``RADIUS_SCHEMA`` of the differential model.
        base: those of its standard twin.

    Returns:
        Columns ``layer, sample`` and ``RADIUS_PARTS``; samples that all have.
    """
    logs = rows.join(base, on="sample", suffix="_base").select(
        "sample",
        log_margin=pl.col("margin").log() - pl.col("margin_base").log(),
        log_constant=pl.col("lipschitz").log() - pl.col("lipschitz_base").log(),
    )
    return layers.join(logs, on="sample", maintain_order="left").select("layer", "sample", *RADIUS_PARTS)


def radius_ratios(parts: pl.DataFrame) -> pl.DataFrame:
    """Estimate the ratio of estimated radii, measured and predicted by each layer, with intervals over the samples.

    Args:
        parts: of :func:`radius_parts`.

    Returns:
        Columns ``layer, metric`` (of ``RATIOS``), ``value, low, high, n``.
    """
    return by_group(parts, ["layer"], lambda block: estimates(block.select(RADIUS_PARTS).to_numpy(), RATIOS))
