"""What the robustness paper proves of one differential layer, as functions of (λ, ρ, cosθ, γ).

With J1 and J2 the Jacobians of the maps A1 and A2 by an input site, as vectors: ρ = ‖J2‖ / ‖J1‖, θ the angle
between them, γ = ‖J1‖ / ‖J_base‖ for a standard layer's map. Source: robustness paper, Section 4.1.
"""

import numpy as np
from jaxtyping import Float

Numbers = float | Float[np.ndarray, "..."]


def amplification(lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Return ‖J1 − λ·J2‖ / ‖J1‖ = √(1 + λ²ρ² − 2λρ·cosθ) (Lemma 1 and Theorem 1).

    It is exact, not asymptotic: |1 − λρ| at cosθ = 1 (the paper's equation 2 leaves out the bars, which
    matters where λρ > 1) and 1 + λρ at cosθ = −1.

    Args:
        lam: λ.
        rho: ρ, at least 0.
        cosine: cosθ, in [−1, 1].

    >>> amplification(0.8, 1.0, -1.0), round(amplification(0.8, 2.0, 1.0), 6)
    (1.8, 0.6)
    """
    root = np.sqrt(np.maximum(1.0 + (lam * rho) ** 2 - 2.0 * lam * rho * cosine, 0.0))
    return float(root) if np.ndim(root) == 0 else root


def relative_sensitivity(gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers) -> Numbers:
    """Return ‖J_DA‖ / ‖J_base‖ = γ·√(1 + λ²ρ² − 2λρ·cosθ) (Theorem 2).

    The paper's Lemma 2 says that this also bounds the ratio of the two local Lipschitz constants. It does
    not: its proof uses L ≤ ‖∇A(x)‖, but a Lipschitz constant over a ball is at least the norm at its centre,
    and a quotient of upper bounds bounds no quotient. Nothing of that kind is offered here.

    Args:
        gamma: γ, above 0.
        lam: λ.
        rho: ρ, at least 0.
        cosine: cosθ, in [−1, 1].
    """
    return gamma * amplification(lam, rho, cosine)


def critical_cosine(gamma: Numbers, lam: Numbers, rho: Numbers) -> Numbers:
    """Return the cosθ below which differential attention is the more sensitive one (Theorem 3).

    cosθ* = (1 + λ²ρ² − γ⁻²) / (2λρ): the ratio of :func:`relative_sensitivity` exceeds 1 if and only if
    cosθ < cosθ*. Above 1 it is so at every angle, at −1 or below at none. Where λρ = 0 the angle plays no
    part: infinite with the sign of 1 − γ⁻², and minus infinity where γ = 1 (the ratio is then 1).

    Args:
        gamma: γ, above 0.
        lam: λ, at least 0.
        rho: ρ, at least 0.

    >>> round(critical_cosine(1.0, 0.8, 1.0), 12)
    0.4
    """
    product = np.asarray(lam * rho, dtype=np.float64)
    excess = 1.0 - 1.0 / np.square(np.asarray(gamma, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (excess + product**2) / (2.0 * product)
    found = np.where(product > 0, found, np.where(excess > 0, np.inf, -np.inf))
    return float(found) if found.ndim == 0 else found
