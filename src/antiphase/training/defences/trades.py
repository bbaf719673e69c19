"""TRADES and MART: losses of adversarial training that weigh clean against perturbed predictions."""

import torch.nn.functional as F
from torch import Tensor

from antiphase.training.defences import Defence, Step


def trades(step: Step, strength: float) -> Tensor:
    """Return CE(f(x), y) + β·KL(f(x) ‖ f(x′)), β the strength, averaged over the images.

    x′ is what the recipe's adversary found, which maximises the cross-entropy; the authors maximise the divergence.
    Source: H. Zhang et al., *Theoretically Principled Trade-off between Robustness and Accuracy*, ICML 2019, equation
    (5).
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


TRADES = Defence(trades, "whole loss", "adversary")
MART = Defence(mart, "whole loss", "adversary")
