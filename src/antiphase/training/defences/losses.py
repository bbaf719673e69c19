"""Losses of defences: penalties on gradients of maps, softmax and loss; and TRADES and MART, which are whole losses."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphase.training.defences import Defence, Step

CAP = 0.5  # of λ·ρ, at which J_DA is at most 1.5 times as long as J1, whatever the angle
_TINY = 1e-20  # the root of 0, which a constant map gives, has no gradient


def map_jacobian(step: Step) -> Tensor:
    """Return the mean over layers and images of ‖J_DAᵀ·v‖², J_DA the Jacobian of A1 − λ·A2 in the layer's tokens.

    v ~ N(0, 1) has the shape of the map, so that the value is an unbiased estimate of ‖J_DA‖², summed over heads. With
    standard attention it is that of A1. Ours, after the sensitivity paper's Lemma 1: ‖J_DA‖² is what the subtraction
    enlarges if the gradients of the two maps oppose each other.
    """
    values = []
    for layer, (maps, x) in enumerate(step.maps):
        combined = maps.combined
        (gradient,) = torch.autograd.grad(combined, x, step.probe(layer, combined), create_graph=True)
        values.append(gradient.square().sum() / len(x))
    return torch.stack(values).mean()


def _products(step: Step) -> Tensor:
    """Return ⟨J1, J1⟩, ⟨J2, J2⟩, ⟨J1, J2⟩ and |λ| of each layer, (layers, 4), by one random cotangent, for an image."""
    rows = []
    for layer, (maps, x) in enumerate(step.maps):
        if maps.negative is None or maps.lam is None:
            continue
        probe = step.probe(layer, maps.positive)
        both = maps.positive, maps.negative
        one, two = (torch.autograd.grad(branch, x, probe, create_graph=True)[0] for branch in both)
        sums = [(a * b).sum() / len(x) for a, b in ((one, one), (two, two), (one, two))]
        rows.append(torch.stack([*sums, maps.lam.abs().mean()]))
    return torch.stack(rows)


def alignment_hinge(step: Step) -> Tensor:
    """Return the mean over layers of max(0, −cosθ)·‖J1‖·‖J2‖ = max(0, −⟨J1, J2⟩), in the layer's tokens.

    J1 and J2 are the Jacobians of A1 and A2. Zero where their gradients do not oppose each other (sensitivity paper,
    Section 4.1, Theorem 1: cosθ < 0 enlarges the gradient of the difference).
    """
    return (-_products(step)[:, 2]).relu().mean()


def lambda_rho(step: Step) -> Tensor:
    """Return the mean over layers of max(0, |λ|·ρ − ½)², with ρ = ‖J2‖ / ‖J1‖.

    By Lemma 1 of the sensitivity paper ‖J_DA‖ ≤ (1 + |λ|·ρ)·‖J1‖.
    """
    first, second, _, lam = _products(step).unbind(1)
    return (lam * (second / first.clamp_min(_TINY)).clamp_min(_TINY).sqrt() - CAP).relu().square().mean()


def jasmin(step: Step) -> Tensor:
    """Return the mean of ln(p₁·(1 − p₁ + p₂)) over the rows of A1, and of A2, p₁ ≥ p₂ ≥ … being a row's weights.

    p₁·(1 − p₁ + p₂) bounds the spectral norm of the softmax's Jacobian, diag(p) − p·pᵀ. Source of the bound: N. Yudin
    et al., *Pay Attention to Attention Distribution: A New Local Lipschitz Bound for Transformers*, arXiv 2507.07814.
    That the mean over rows is taken is our choice: the paper was not at hand to compare. DINT's second map, whose
    rows are no softmax, is left out.
    """
    branches: list[Tensor] = []
    for (module, _, _), (maps, _) in zip(step.layers, step.maps, strict=True):
        branches += [maps.positive, *([] if module.integral or maps.negative is None else [maps.negative])]
    return torch.stack([_bound(branch).log().mean() for branch in branches]).mean()


def _bound(rows: Tensor) -> Tensor:
    largest, places = rows.topk(2, -1)
    others = rows.scatter(-1, places[..., :1], 0.0).sum(-1)  # 1 − p₁, without cancellation
    return (largest[..., 0] * (others + largest[..., 1])).clamp_min(1e-12)


def input_gradient(step: Step) -> Tensor:
    """Return the mean over images of ‖∇ₓ CE(f(x), y)‖², pixels in [0, 1].

    Source: A. S. Ross, F. Doshi-Velez, *Improving the Adversarial Robustness and Interpretability of Deep Neural
    Networks by Regularizing their Input Gradients*, AAAI 2018, equation (4).
    """
    x = step.images.detach().requires_grad_(True)
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivatives
        loss = F.cross_entropy(step.logits(x), step.labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return gradient.square().sum() / len(x)


def trades(step: Step, strength: float) -> Tensor:
    """Return CE(f(x), y) + β·KL(f(x) ‖ f(x′)), β the strength, averaged over the images.

    x′ is what the recipe's adversary found, which maximises the cross-entropy; the authors maximise the divergence.
    Source: H. Zhang et al., *Theoretically Principled Trade-off between Robustness and Accuracy*, ICML 2019, eq. (5).
    """
    clean = step.clean_output
    return F.cross_entropy(clean, step.labels) + strength * _divergence(clean, step.output).mean()


def mart(step: Step, strength: float) -> Tensor:
    """Return BCE(f(x′), y) + λ·KL(f(x) ‖ f(x′))·(1 − p_y(x)), λ the strength, averaged over the images.

    BCE = −ln p_y(x′) − ln(1 − max over k ≠ y of p_k(x′)), with 1.0001 for 1 as in the authors' code. Source: Y. Wang et
    al., *Improving Adversarial Robustness Requires Revisiting Misclassified Examples*, ICLR 2020, equation (11).
    """
    labels, clean = step.labels[:, None], step.clean_output
    others = step.output.softmax(1).scatter(1, labels, 0.0).amax(1)
    boosted = F.cross_entropy(step.output, step.labels, reduction="none") - (1.0001 - others).log()
    doubt = 1.0 - clean.softmax(1).gather(1, labels)[:, 0]
    return (boosted + strength * doubt * _divergence(clean, step.output)).mean()


def _divergence(clean: Tensor, perturbed: Tensor) -> Tensor:
    log_p, log_q = clean.log_softmax(1), perturbed.log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


MAP_JACOBIAN = Defence(map_jacobian, needs="maps")
ALIGNMENT_HINGE = Defence(alignment_hinge, needs="two maps")
LAMBDA_RHO = Defence(lambda_rho, needs="two maps")
JASMIN = Defence(jasmin, needs="maps")
INPUT_GRADIENT = Defence(input_gradient)
TRADES = Defence(trades, "whole loss", "adversary")
MART = Defence(mart, "whole loss", "adversary")
