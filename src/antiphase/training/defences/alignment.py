"""Penalties on how the gradients of the two maps relate: that they oppose each other, or that A2's is long."""

import torch
from torch import Tensor

from antiphase.training.defences.defence import Defence, Step

CAP = 0.5  # of λ·ρ, at which J_DA is at most 1.5 times as long as J1, whatever the angle
_TINY = 1e-20  # the root of 0, which a constant map gives, has no gradient


def _products(step: Step) -> Tensor:
    """Return ⟨J1, J1⟩, ⟨J2, J2⟩, ⟨J1, J2⟩ and |λ| of each layer, (layers, 4), by one random cotangent, for an image."""
    rows = []
    for layer, (maps, x) in enumerate(step.maps):
        if maps.negative is None or maps.lam is None:
            continue
        probe = step.probe(layer, maps.positive)
        one, two = (
            torch.autograd.grad(branch, x, probe, create_graph=True)[0] for branch in (maps.positive, maps.negative)
        )
        sums = [(a * b).sum() / len(x) for a, b in ((one, one), (two, two), (one, two))]
        rows.append(torch.stack([*sums, maps.lam.abs().mean()]))
    return torch.stack(rows)


def alignment_hinge(step: Step) -> Tensor:
    """Return the mean over layers of max(0, −cosθ)·‖J1‖·‖J2‖ = max(0, −⟨J1, J2⟩), in the layer's tokens.

    J1 and J2 are the Jacobians of A1 and A2. Zero where their gradients do not oppose each other (robustness paper,
    Section 3.3: cosθ < 0 enlarges the gradient of the difference).
    """
    return (-_products(step)[:, 2]).relu().mean()


def lambda_rho(step: Step) -> Tensor:
    """Return the mean over layers of max(0, |λ|·ρ − ½)², with ρ = ‖J2‖ / ‖J1‖.

    By Lemma 1 of the robustness paper ‖J_DA‖ ≤ (1 + |λ|·ρ)·‖J1‖.
    """
    first, second, _, lam = _products(step).unbind(1)
    return (lam * (second / first.clamp_min(_TINY)).clamp_min(_TINY).sqrt() - CAP).relu().square().mean()


ALIGNMENT_HINGE = Defence(alignment_hinge, needs="two maps")
LAMBDA_RHO = Defence(lambda_rho, needs="two maps")
