"""JaSMin: a penalty on the norm of the softmax's Jacobian."""

import torch
from torch import Tensor

from antiphase.training.defences.defence import Defence, Step


def jasmin(step: Step) -> Tensor:
    """Return the mean of ln(p₁·(1 − p₁ + p₂)) over the rows of A1, and of A2, p₁ ≥ p₂ ≥ … being a row's weights.

    p₁·(1 − p₁ + p₂) bounds the spectral norm of the softmax's Jacobian, diag(p) − p·pᵀ. Source of the bound: N. Yudin
    et al., *Pay Attention to Attention Distribution: A New Local Lipschitz Bound for Transformers*, arXiv 2507.07814.
    That the mean over rows is taken is our choice: the paper was not at hand to compare. DINT's second map, whose
    rows are no softmax, is left out.
    """
    branches = [
        branch
        for (module, _, _), (maps, _) in zip(step.layers, step.maps, strict=True)
        for branch in (maps.positive, None if module.integral else maps.negative)
        if branch is not None
    ]
    return torch.stack([_bound(branch).log().mean() for branch in branches]).mean()


def _bound(rows: Tensor) -> Tensor:
    largest, places = rows.topk(2, -1)
    others = rows.scatter(-1, places[..., :1], 0.0).sum(-1)  # 1 − p₁, without cancellation
    return (largest[..., 0] * (others + largest[..., 1])).clamp_min(1e-12)


JASMIN = Defence(jasmin, needs="maps")
