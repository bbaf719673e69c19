"""Theorems of the sensitivity paper on one differential layer, as functions of (λ, ρ, cosθ, γ), and estimated radii.

J1 and J2 are the Jacobians of the maps A1 and A2 with respect to the tokens or the pixels, as vectors:
ρ = ‖J2‖ / ‖J1‖, at least 0, θ the angle between them, γ = ‖J1‖ / ‖J_base‖, above 0, with J_base that of a standard
layer's map. All functions raise a UserError for numbers out of range; NaN gives NaN.
Source: sensitivity paper, Section 4.1 and Appendix B.
"""

from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor

from antiphase.arguments import ANY_NUMBER, FINITE, Must, at_least, validated
from antiphase.attacks.objectives import margin
from antiphase.errors import UserError

PerSample = Float[Tensor, " samples"]
Logits = Annotated[Float[Tensor, "samples classes"], FINITE]
Numbers = Annotated[float, ANY_NUMBER] | Real[np.ndarray, "..."]
_SIZES = Must("of numbers of at least 0", lambda values: bool((values >= 0).all()))
_ROUNDING = 1e-6  # tolerance for measured cosines outside [−1, 1]
_STEEPER = {"logits": 2.0**0.5, "margin": 1.0}  # Lipschitz constant of the margin divided by the given one


@validated
def amplification(lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Compute ‖J1 − λ·J2‖ / ‖J1‖ = √(1 + λ²ρ² − 2λρ·cosθ) (Lemma 1 and Theorem 1), λ of either sign.

    It is |1 − λρ| at cosθ = 1 (the paper's equation 2 omits the absolute value) and 1 + λρ at cosθ = −1.

    >>> amplification(0.8, 1.0, -1.0), round(amplification(0.8, 2.0, 1.0), 6)
    (1.8, 0.6)
    """
    _require("rho", rho, "at least 0", np.less(rho, 0))
    _require("cosine", cosine, "between -1 and 1", np.greater(np.abs(cosine), 1 + _ROUNDING))
    return _plain(np.sqrt(np.maximum(1.0 + (lam * rho) ** 2 - 2.0 * lam * rho * cosine, 0.0)))


@validated
def relative_sensitivity(gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Compute ‖J_DA‖ / ‖J_base‖ = γ·√(1 + λ²ρ² − 2λρ·cosθ) (Theorem 2); no bound of the ratio in Lemma 2."""
    _require("gamma", gamma, "above 0", np.less_equal(gamma, 0))
    return gamma * amplification(lam, rho, cosine)


@validated
def critical_cosine(gamma: Numbers, lam: Numbers, rho: Numbers) -> Numbers:
    """Compute the cosθ below which differential attention is more sensitive than standard (Theorem 3), for λ ≥ 0.

    cosθ* = (1 + λ²ρ² − γ⁻²) / (2λρ): :func:`relative_sensitivity` exceeds 1 if and only if cosθ < cosθ*: always for
    cosθ* > 1, never for cosθ* ≤ −1. If λρ = 0, cosθ* is infinite with the sign of 1 − γ⁻², and −∞ for γ = 1.

    >>> round(critical_cosine(1.0, 0.8, 1.0), 12)
    0.4
    """
    _require("gamma", gamma, "above 0", np.less_equal(gamma, 0))
    _require("lam", lam, "at least 0; for negative λ use relative_sensitivity", np.less(lam, 0))
    _require("rho", rho, "at least 0", np.less(rho, 0))
    product = np.asarray(lam * rho, dtype=np.float64)
    excess = 1.0 - 1.0 / np.square(np.asarray(gamma, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = (excess + product**2) / (2.0 * product)
    infinite = np.where(excess > 0, np.inf, -np.inf)
    return _plain(np.where((product > 0) | np.isnan(product + excess), cosine, infinite))


@validated
def radius_ratio(margin_ratio: Numbers, gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Compute R_DA / R_base = Δm / (γ·√(1 + λ²ρ² − 2λρ·cosθ)), the corrected equation (6) (Theorem 5).

    Δm = m_DA / m_base is at least 0. The ratio of the radii of two models that are linear around the image; infinite if
    the differential layer's gradient vanishes and Δm > 0. The paper has −2λρ·cosθ outside the root, and claims a lower
    bound, which would need two Lipschitz constants.

    >>> radius_ratio(1.8, 1.0, 0.8, 1.0, -1.0)
    1.0
    """
    ratio = _divided(margin_ratio, relative_sensitivity(gamma, lam, rho, cosine))
    return _plain(np.where(np.equal(margin_ratio, 0.0), 0.0, ratio))


@validated
def printed_radius_ratio(margin_ratio: Numbers, gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Compute Δm / (γ·√(1 + λ²ρ²) − 2λρ·cosθ), equation (6) as the paper prints it, to compare :func:`radius_ratio`.

    For 2λρ·cosθ ≥ γ·√(1 + λ²ρ²) the denominator is 0 or negative, and the ratio infinite or negative.

    >>> printed_radius_ratio(1.8, 1.0, 0.75, 1.0, -1.0) < radius_ratio(1.8, 1.0, 0.75, 1.0, -1.0)
    True
    """
    _require("gamma", gamma, "above 0", np.less_equal(gamma, 0))
    amplification(lam, rho, cosine)  # refuses what is out of range
    return _plain(_divided(margin_ratio, gamma * np.hypot(1.0, lam * rho) - 2.0 * lam * rho * cosine))


def _divided(margin_ratio: Numbers, denominator: Numbers) -> np.ndarray:
    _require("margin_ratio", margin_ratio, "at least 0", np.less(margin_ratio, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(margin_ratio, denominator)


def _plain(values: np.ndarray) -> Numbers:
    return float(values) if np.ndim(values) == 0 else values


def _require(name: str, values: Numbers, expected: str, wrong: np.ndarray | np.bool_) -> None:
    if np.any(wrong):
        first = float(np.broadcast_to(np.asarray(values), np.shape(wrong))[wrong].flat[0])
        raise UserError(f"{name} {first:g}: expected a number {expected}")


@validated
def margins(logits: Logits, labels: Int64[Tensor, " samples"]) -> PerSample:
    """Compute the margin m = z_y − max_{j≠y} z_j, which is positive if the label is predicted.

    >>> margins(torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5]]), torch.tensor([0, 1]))
    tensor([ 0.5000, -2.0000])
    """
    count, classes = logits.shape
    if classes < 2:
        raise UserError(f"logits of {classes} class: expected at least 2 classes")
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(f"labels {int(labels.min())} to {int(labels.max())}: expected 0 to {classes - 1}")
    return -margin(logits, labels)


@validated
def estimated_radius(
    margin: Annotated[PerSample, FINITE],
    lipschitz: Annotated[float, at_least(0), ANY_NUMBER] | Annotated[PerSample, _SIZES],
    *,
    of: Literal["logits", "margin"],
) -> PerSample:
    """Estimate the L2 radius within which the prediction does not change: m / (√2·L) for L of the logits.

    The factor: m_j = z_y − z_j = (e_y − e_j)·z with ‖e_y − e_j‖ = √2; it is tight for two logits ±w·x/2. The robustness
    paper (Appendix B) divides by L alone, which is correct only for L of the margin. No certificate: our estimators of
    L are lower bounds. ``margin`` is m of each sample (:func:`margins`; not positive: the radius is 0), ``lipschitz`` L
    from L2 on pixels to L2 on what ``of`` says.

    >>> estimated_radius(torch.tensor([2.0, -1.0]), 4.0, of="margin")
    tensor([0.5000, 0.0000])
    """
    constant = torch.as_tensor(lipschitz, dtype=margin.dtype, device=margin.device)
    return torch.where(margin > 0, margin / (_STEEPER[of] * constant), 0.0)
