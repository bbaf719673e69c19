"""Theorems of the robustness paper on one differential layer, as functions of (λ, ρ, cosθ, γ).

J1 and J2 are the Jacobians of the maps A1 and A2 with respect to the tokens or the pixels, as vectors:
ρ = ‖J2‖ / ‖J1‖, θ the angle between them, γ = ‖J1‖ / ‖J_base‖ with J_base that of a standard layer's map.
Source: robustness paper, Section 4.1.
"""

from typing import Annotated

import numpy as np
from jaxtyping import Real

from antiphase.arguments import ANY_NUMBER, validated
from antiphase.errors import UserError

Numbers = Annotated[float, ANY_NUMBER] | Real[np.ndarray, "..."]
_ROUNDING = 1e-6  # tolerance for measured cosines outside [−1, 1]


@validated
def amplification(lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Compute ‖J1 − λ·J2‖ / ‖J1‖ = √(1 + λ²ρ² − 2λρ·cosθ) (Lemma 1 and Theorem 1).

    Exact, not asymptotic: |1 − λρ| at cosθ = 1 (the paper's equation 2 omits the absolute value, which matters for
    λρ > 1) and 1 + λρ at cosθ = −1.

    Args:
        lam: λ, of either sign; training can make it negative.
        rho: ρ, at least 0.
        cosine: cosθ, in [−1, 1].

    Raises:
        UserError: for ρ or cosθ out of range. NaN gives NaN.

    >>> amplification(0.8, 1.0, -1.0), round(amplification(0.8, 2.0, 1.0), 6)
    (1.8, 0.6)
    """
    check_range("rho", rho, "at least 0", np.less(rho, 0))
    check_range("cosine", cosine, "between -1 and 1", np.greater(np.abs(cosine), 1 + _ROUNDING))
    root = np.sqrt(np.maximum(1.0 + (lam * rho) ** 2 - 2.0 * lam * rho * cosine, 0.0))
    return float(root) if np.ndim(root) == 0 else root


@validated
def relative_sensitivity(gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Compute ‖J_DA‖ / ‖J_base‖ = γ·√(1 + λ²ρ² − 2λρ·cosθ) (Theorem 2).

    This does not bound the ratio of the two local Lipschitz constants, as the paper's Lemma 2 claims. Its proof uses
    L ≤ ‖∇A(x)‖, but the Lipschitz constant over a ball is at least the norm at its centre, and a ratio of upper
    bounds is not a bound of the ratio.

    Args:
        gamma: γ, above 0.
        lam: λ, of either sign.
        rho: ρ, at least 0.
        cosine: cosθ, in [−1, 1].

    Raises:
        UserError: for γ, ρ or cosθ out of range.
    """
    check_range("gamma", gamma, "above 0", np.less_equal(gamma, 0))
    return gamma * amplification(lam, rho, cosine)


@validated
def critical_cosine(gamma: Numbers, lam: Numbers, rho: Numbers) -> Numbers:
    """Compute the cosθ below which differential attention is more sensitive than standard (Theorem 3).

    cosθ* = (1 + λ²ρ² − γ⁻²) / (2λρ): :func:`relative_sensitivity` exceeds 1 if and only if cosθ < cosθ*. For
    cosθ* > 1 this holds at every angle, for cosθ* ≤ −1 at none. If λρ = 0, the ratio does not depend on the angle:
    cosθ* is then infinite with the sign of 1 − γ⁻², and −∞ for γ = 1 (the ratio is 1).

    Args:
        gamma: γ, above 0.
        lam: λ, at least 0.
        rho: ρ, at least 0.

    Raises:
        UserError: for γ, λ or ρ out of range. For λ < 0 the ratio exceeds 1 *above* a cosine, so no cosθ* with the
            meaning above exists.

    >>> round(critical_cosine(1.0, 0.8, 1.0), 12)
    0.4
    """
    check_range("gamma", gamma, "above 0", np.less_equal(gamma, 0))
    check_range("lam", lam, "at least 0; for negative λ use relative_sensitivity", np.less(lam, 0))
    check_range("rho", rho, "at least 0", np.less(rho, 0))
    product = np.asarray(lam * rho, dtype=np.float64)
    excess = 1.0 - 1.0 / np.square(np.asarray(gamma, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (excess + product**2) / (2.0 * product)
    found = np.where(product > 0, found, np.where(excess > 0, np.inf, -np.inf))
    return float(found) if found.ndim == 0 else found


def check_range(name: str, values: Numbers, expected: str, wrong: np.ndarray | np.bool_) -> None:
    """Raise a UserError that names the first value marked as wrong."""
    if np.any(wrong):
        first = float(np.broadcast_to(np.asarray(values), np.shape(wrong))[wrong].flat[0])
        raise UserError(f"{name} {first:g}: expected a number {expected}")
