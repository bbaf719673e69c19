"""From a margin and a Lipschitz constant, or from votes under noise, to the radius that a prediction stands.

Of the two only the votes certify. A margin over a Lipschitz constant is a certificate where the constant is an
upper bound over the whole ball, and every estimator of this package gives a lower bound.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from scipy import stats
from torch import Tensor

from antiphase.errors import UserError
from antiphase.sensitivity.theory import Numbers, check_range, relative_sensitivity

_STEEPER = {"logits": 2.0**0.5, "margin": 1.0}  # the margin's Lipschitz constant, in units of the given one


def margins(
    logits: Float[Tensor, "samples classes"], labels: Int64[Tensor, " samples"]
) -> Float[Tensor, " samples"]:
    """Return m = z_y − max_{j≠y} z_j: positive where the label is predicted.

    Args:
        logits: z, of two classes or more.
        labels: y.

    Raises:
        UserError: for a single class, or labels that do not fit the logits.

    >>> margins(torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5]]), torch.tensor([0, 1]))
    tensor([ 0.5000, -2.0000])
    """
    count, classes = logits.shape
    if classes < 2:
        raise UserError(f"logits of {classes} class: a margin needs two or more")
    if len(labels) != count:
        raise UserError(f"{len(labels)} labels for the logits of {count} samples: expected one each")
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(
            f"labels from {int(labels.min())} to {int(labels.max())}: expected 0 to {classes - 1}"
        )
    own = labels[:, None]
    others = logits.scatter(1, own, -torch.inf)
    return logits.gather(1, own).squeeze(1) - others.amax(1)


def estimated_radius(
    margin: Float[Tensor, " samples"],
    lipschitz: float | Float[Tensor, " samples"],
    *,
    of: Literal["logits", "margin"],
) -> Float[Tensor, " samples"]:
    """Return the L2 radius within which a prediction would stand were L the Lipschitz constant: m / (√2·L).

    Why √2: with m_j = z_y − z_j = (e_y − e_j)·z and ‖e_y − e_j‖ = √2,

        |m_j(x + δ) − m_j(x)| ≤ √2·‖z(x + δ) − z(x)‖ ≤ √2·L·‖δ‖

    and the margin, the least of the m_j, changes no faster than they do. It stays positive for all
    ‖δ‖ < m / (√2·L), and no smaller factor will do: two logits ±w·x/2 have L = ‖w‖/√2, m = w·x, and their
    boundary lies at m/‖w‖. Appendix B of the robustness paper divides by L alone, which is right only where
    L is the constant of the margin itself (``of="margin"``).

    It over-estimates: an estimated L is a lower bound of the true one, so that the true radius may be
    smaller. That is why it is not called certified. Where L is estimated as 0 nothing is known, and the
    quotient is infinite.

    Args:
        margin: m of each sample, as :func:`margins` gives it; where it is not positive the radius is 0.
        lipschitz: L, at least 0, from L2 of the pixels to L2 of what ``of`` names.
        of: what L is the constant of: the vector of ``"logits"``, or the ``"margin"``.

    Raises:
        UserError: for an L that is negative or NaN, or an unknown ``of``.

    >>> estimated_radius(torch.tensor([2.0, -1.0]), 4.0, of="margin")
    tensor([0.5000, 0.0000])
    """
    if of not in _STEEPER:
        raise UserError(f"of {of!r}: expected 'logits' or 'margin'")
    constant = torch.as_tensor(lipschitz, dtype=margin.dtype, device=margin.device)
    if not bool((constant >= 0).all()):  # written so that NaN is refused
        raise UserError(f"lipschitz {lipschitz}: expected numbers of at least 0")
    return torch.where(margin > 0, margin / (_STEEPER[of] * constant), 0.0)


def radius_ratio(
    margin_ratio: Numbers, gamma: Numbers, lam: Numbers, rho: Numbers, cosine: Numbers
) -> Numbers:
    """Return R_DA / R_base = Δm / (γ·√(1 + λ²ρ² − 2λρ·cosθ)), what equation (6) should read (Theorem 5).

    Three things of the paper's Appendix B do not hold:

    - its equation (6) puts −2λρ·cosθ outside the root. At cosθ = −1 that gives √(1 + λ²ρ²) + 2λρ, where the
      text below it says 1 + λρ; inside the root it is so.
    - its radius lacks √2 where L is the constant of the logits (see :func:`estimated_radius`). The factor
      is the same for both models and cancels here.
    - it is stated as a lower bound (≥). It is none: it needs the ratio of two Lipschitz constants, and has
      the ratio of two gradient norms (see :func:`~antiphase.sensitivity.relative_sensitivity`). What is
      returned is the ratio of the radii of two models that are linear around the image.

    Args:
        margin_ratio: Δm = m_DA / m_base, at least 0.
        gamma: γ, above 0.
        lam: λ.
        rho: ρ, at least 0.
        cosine: cosθ, in [−1, 1].

    Returns:
        Infinite where the differential layer's gradient vanishes (λρ = 1, cosθ = 1) and Δm > 0.

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


def lower_bound(count: Int[np.ndarray, "..."] | int, samples: int, alpha: float) -> Float[np.ndarray, "..."]:
    """Return Clopper and Pearson's (1934) one-sided lower bound of a probability at confidence 1 − α.

    It is the p at which ``count`` or more successes among ``samples`` have probability α: the α-quantile of
    Beta(count, samples − count + 1), and 0 where nothing succeeded.

    Args:
        count: successes, 0 to ``samples``.
        samples: trials, at least 1.
        alpha: in (0, 1).

    >>> round(float(lower_bound(100, 100, 0.001)), 6), round(0.001 ** (1 / 100), 6)
    (0.933254, 0.933254)
    """
    successes = np.asarray(count, dtype=np.float64)
    found = stats.beta.ppf(alpha, np.maximum(successes, 1), samples - successes + 1)
    return np.where(successes > 0, found, 0.0)


def certified_radius(
    count: Int[np.ndarray, "..."] | int, samples: int, sigma: float, alpha: float
) -> Float[np.ndarray, "..."]:
    """Return R = σ·Φ⁻¹(p_low), or NaN where p_low < ½ and nothing can be said.

    Theorem 1 of J. Cohen, E. Rosenfeld, J. Z. Kolter, *Certified Adversarial Robustness via Randomized
    Smoothing* (ICML 2019), has σ/2·(Φ⁻¹(p_A) − Φ⁻¹(p_B)); with p_B at most 1 − p_A, as they bound it, that is
    σ·Φ⁻¹(p_A).

    Args:
        count: votes for the class, 0 to ``samples``.
        samples: votes cast, at least 1.
        sigma: σ, above 0.
        alpha: in (0, 1).

    >>> certified_radius(np.array([990, 520]), 1000, 0.25, 0.001).round(4)
    array([0.4945,    nan])
    """
    bound = lower_bound(count, samples, alpha)
    return np.where(bound < 0.5, np.nan, sigma * stats.norm.ppf(np.maximum(bound, 0.5)))
