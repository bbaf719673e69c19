"""A differential layer and the same layer of its standard twin: the quantities of Theorems 2, 3 and 5, with intervals.

Source: robustness paper, Section 4.1 and Appendix B. J are the Jacobians of the maps by the pixels. Inner products are
averaged over samples and heads first. θ is the angle between J1 and λ·J2, and λρ = ‖λ·J2‖ / ‖J1‖: the theorems then
hold for heads with different λ, and for a λ below 0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from antiphase.sensitivity.layer_estimates import estimate_table
from antiphase.sensitivity.theory import (
    critical_cosine,
    printed_radius_ratio,
    radius_ratio,
    relative_sensitivity,
)
from antiphase.statistics.intervals import Statistic

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
    """Average the inner products of each layer and sample over the heads.

    Args:
        own: rows of ``ALIGNMENT_SCHEMA`` of a differential model.
        base: those of its standard twin, with as many layers; None: ‖J_base‖ = ‖J1‖, so that γ = 1.

    Returns:
        Columns ``layer, sample`` and ``LAYER_PARTS``: ‖J1‖², λ²‖J2‖², λ⟨J1, J2⟩ and ‖J_base‖²; samples that both have.
    """
    lam, keys = pl.col("lam"), ["layer", "sample"]
    second, cross = (lam**2 * pl.col("second")).mean(), (lam * pl.col("cross")).mean()
    parts = own.filter(site="pixels").group_by(keys).agg(pl.mean("first"), second=second, cross=cross)
    if base is None:
        parts = parts.with_columns(base="first")
    else:
        parts = parts.join(base.filter(site="pixels").group_by(keys).agg(base=pl.mean("first")), on=keys)
    return parts.sort(keys).select(*keys, *LAYER_PARTS)


def places(rows: pl.DataFrame, against: Mapping[str, str | None]) -> pl.DataFrame:
    """Place each layer in the (λρ, θ) plane of Theorem 3, with intervals over the samples.

    Args:
        rows: of ``ALIGNMENT_SCHEMA``.
        against: the standard twin of each differential model; None if there is none, γ is then 1.

    Returns:
        Columns ``model, against, layer, metric`` (of ``PLACES``), ``value, low, high, n``.
    """
    keys: dict[str, Any] = {"model": pl.String, "against": pl.String, "layer": pl.Int64}
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

    Args:
        layers: of :func:`layer_parts`.
        own: rows of ``RADIUS_SCHEMA`` of the differential model.
        base: those of its standard twin.

    Returns:
        Columns ``layer, sample`` and ``RADIUS_PARTS``; samples that all have.
    """
    columns = [pl.col(name).log().alias(f"log_{name}") for name in ("margin", "lipschitz")]
    one, two = (rows.select("sample", *columns) for rows in (own, base))
    logs = one.join(two, on="sample", suffix="_base").select(
        "sample",
        log_margin=pl.col("log_margin") - pl.col("log_margin_base"),
        log_constant=pl.col("log_lipschitz") - pl.col("log_lipschitz_base"),
    )
    return layers.join(logs, on="sample", maintain_order="left").select("layer", "sample", *RADIUS_PARTS)


def radius_ratios(parts: pl.DataFrame) -> pl.DataFrame:
    """Estimate the ratio of estimated radii, measured and predicted by each layer, with intervals over the samples.

    Args:
        parts: of :func:`radius_parts`.

    Returns:
        Columns ``layer, metric`` (of ``RATIOS``), ``value, low, high, n``.
    """
    blocks = (
        (key, block.select(RADIUS_PARTS).to_numpy(), RATIOS)
        for key, block in parts.group_by("layer", maintain_order=True)
    )
    return estimate_table(blocks, {"layer": pl.Int64})
