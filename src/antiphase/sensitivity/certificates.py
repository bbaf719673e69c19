"""Radius within which a prediction cannot change, from a margin and a Lipschitz constant or from votes under noise.

Only the votes give a certificate. Margin / L would need an upper bound of L over the whole ball, and every estimator
of this package gives a lower bound.
"""

from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from scipy import stats
from torch import Tensor

from antiphase.arguments import ANY_NUMBER, FINITE, at_least, validated
from antiphase.errors import UserError
from antiphase.sensitivity.theory import Numbers, check_range, relative_sensitivity

_STEEPER = {"logits": 2.0**0.5, "margin": 1.0}  # Lipschitz constant of the margin divided by the given one


@validated
def margins(
    logits: Annotated[Float[Tensor, "samples classes"], FINITE], labels: Int64[Tensor, " samples"]
) -> Float[Tensor, " samples"]:
    """Compute the margin m = z_y − max_{j≠y} z_j, which is positive if the label is predicted.

    Args:
        logits: z, of at least two classes.
        labels: y.

    Raises:
        UserError: for a single class, or labels that do not match the logits.

    >>> margins(torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5]]), torch.tensor([0, 1]))
    tensor([ 0.5000, -2.0000])
    """
    count, classes = logits.shape
    if classes < 2:
        raise UserError(f"logits of {classes} class: expected at least 2 classes")
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(
            f"labels from {int(labels.min())} to {int(labels.max())}: expected 0 to {classes - 1}"
        )
    own = labels[:, None]
    others = logits.scatter(1, own, -torch.inf)
    return logits.gather(1, own).squeeze(1) - others.amax(1)


@validated
def estimated_radius(
    margin: Annotated[Float[Tensor, " samples"], FINITE],
    lipschitz: Annotated[float, at_least(0), ANY_NUMBER] | Float[Tensor, " samples"],
    *,
    of: Literal["logits", "margin"],
) -> Float[Tensor, " samples"]:
    """Estimate the L2 radius within which the prediction does not change: m / (√2·L) for L of the logits.

    The factor √2: with m_j = z_y − z_j = (e_y − e_j)·z and ‖e_y − e_j‖ = √2,

        |m_j(x + δ) − m_j(x)| ≤ √2·‖z(x + δ) − z(x)‖ ≤ √2·L·‖δ‖

    and the margin is the minimum of the m_j, so it stays positive for all ‖δ‖ < m / (√2·L). The factor is tight:
    two logits ±w·x/2 have L = ‖w‖/√2, m = w·x, and their boundary lies at m/‖w‖. Appendix B of the robustness
    paper divides by L alone, which is correct only if L is the constant of the margin (``of="margin"``).

    This is not a certificate: an estimated L is a lower bound, so the true radius may be smaller. An estimate of
    L = 0 gives an infinite radius and means nothing.

    Args:
        margin: m of each sample, see :func:`margins`; the radius is 0 if it is not positive.
        lipschitz: L, at least 0, from L2 on pixels to L2 on ``of``.
        of: ``"logits"`` if L is the constant of the logit vector, ``"margin"`` if it is that of the margin.

    Raises:
        UserError: for an L that is negative or NaN, or an unknown ``of``.

    >>> estimated_radius(torch.tensor([2.0, -1.0]), 4.0, of="margin")
    tensor([0.5000, 0.0000])
    """
    constant = torch.as_tensor(lipschitz, dtype=margin.dtype, device=margin.device)
    if not bool((constant >= 0).all()):  # also true for NaN
        raise UserError(f"lipschitz {lipschitz}: expected numbers of at least 0")
    return torch.where(margin > 0, margin / (_STEEPER[of] * constant), 0.0)


@validated
def radius_ratio(
    margin_ratio: Numbers, gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers
) -> Numbers:
    """Compute R_DA / R_base = Δm / (γ·√(1 + λ²ρ² − 2λρ·cosθ)), the corrected equation (6) (Theorem 5).

    This is the ratio of the radii of two models that are linear around the image. The paper's Appendix B differs in
    three points:

    - Its equation (6) has −2λρ·cosθ outside the root. At cosθ = −1 that gives √(1 + λ²ρ²) + 2λρ, but its text
      says 1 + λρ, which is the value with the term inside the root.
    - Its radius lacks √2 if L is the constant of the logits (see :func:`estimated_radius`). The factor cancels
      in the ratio.
    - It claims a lower bound (≥). A bound would need the ratio of two Lipschitz constants, not of two gradient
      norms (see :func:`~antiphase.sensitivity.relative_sensitivity`).

    Args:
        margin_ratio: Δm = m_DA / m_base, at least 0.
        gamma: γ, above 0.
        lam: λ.
        rho: ρ, at least 0.
        cosine: cosθ, in [−1, 1].

    Returns:
        The ratio; infinite if the differential layer's gradient vanishes (λρ = 1, cosθ = 1) and Δm > 0.

    Raises:
        UserError: for Δm, γ, ρ or cosθ out of range.

    >>> radius_ratio(1.8, 1.0, 0.8, 1.0, -1.0)
    1.0
    """
    check_range("margin_ratio", margin_ratio, "at least 0", np.less(margin_ratio, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.divide(margin_ratio, relative_sensitivity(gamma, lam, rho, cosine))
    ratio = np.where(np.equal(margin_ratio, 0.0), 0.0, ratio)
    return float(ratio) if ratio.ndim == 0 else ratio


@validated
def printed_radius_ratio(
    margin_ratio: Numbers, gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers
) -> Numbers:
    """Compute Δm / (γ·√(1 + λ²ρ²) − 2λρ·cosθ), equation (6) as the paper prints it.

    For comparison with :func:`radius_ratio` only, whose arguments it takes. The denominator is the ratio of no two
    gradients: for 2λρ·cosθ ≥ γ·√(1 + λ²ρ²) it is 0 or negative, and so is the ratio, or infinite.

    >>> printed_radius_ratio(1.8, 1.0, 0.75, 1.0, -1.0) < radius_ratio(1.8, 1.0, 0.75, 1.0, -1.0)
    True
    """
    check_range("margin_ratio", margin_ratio, "at least 0", np.less(margin_ratio, 0))
    check_range("gamma", gamma, "above 0", np.less_equal(gamma, 0))
    bottom = gamma * np.hypot(1.0, lam * rho) - 2.0 * lam * rho * cosine
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.divide(margin_ratio, bottom)
    return float(ratio) if np.ndim(ratio) == 0 else ratio


def lower_bound(count: Int[np.ndarray, "..."] | int, samples: int, alpha: float) -> Float[np.ndarray, "..."]:
    """Compute the one-sided Clopper–Pearson (1934) lower bound of a probability at confidence 1 − α.

    The bound is the α-quantile of Beta(count, samples − count + 1), and 0 for no successes.

    Args:
        count: successes, 0 to ``samples``.
        samples: trials, at least 1.
        alpha: α, in (0, 1).

    >>> round(float(lower_bound(100, 100, 0.001)), 6), round(0.001 ** (1 / 100), 6)
    (0.933254, 0.933254)
    """
    successes = np.asarray(count, dtype=np.float64)
    found = stats.beta.ppf(alpha, np.maximum(successes, 1), samples - successes + 1)
    return np.where(successes > 0, found, 0.0)


def certified_radius(
    count: Int[np.ndarray, "..."] | int, samples: int, sigma: float, alpha: float
) -> Float[np.ndarray, "..."]:
    """Compute the certified L2 radius R = σ·Φ⁻¹(p_low); NaN (abstain) if p_low < ½.

    Source: J. Cohen, E. Rosenfeld, J. Z. Kolter, *Certified Adversarial Robustness via Randomized Smoothing*
    (ICML 2019), Theorem 1: σ/2·(Φ⁻¹(p_A) − Φ⁻¹(p_B)), with their bound p_B ≤ 1 − p_A.

    Args:
        count: votes for the class, 0 to ``samples``.
        samples: votes cast, at least 1.
        sigma: σ of the noise, above 0.
        alpha: α, probability that p_low is wrong, in (0, 1).

    >>> certified_radius(np.array([990, 520]), 1000, 0.25, 0.001).round(4)
    array([0.4945,    nan])
    """
    bound = lower_bound(count, samples, alpha)
    return np.where(bound < 0.5, np.nan, sigma * stats.norm.ppf(np.maximum(bound, 0.5)))
