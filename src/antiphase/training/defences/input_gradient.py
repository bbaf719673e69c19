"""A penalty on the gradient of the loss in the pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphase.training.defences.defence import Defence, Step


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


INPUT_GRADIENT = Defence(input_gradient)
