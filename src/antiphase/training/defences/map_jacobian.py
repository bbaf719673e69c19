"""A penalty on the gradient of the combined map."""

import torch
from torch import Tensor

from antiphase.training.defences.defence import Defence, Step


def map_jacobian(step: Step) -> Tensor:
    """Return the mean over layers and images of ‖J_DAᵀ·v‖², J_DA the Jacobian of A1 − λ·A2 in the layer's tokens.

    v ~ N(0, 1) has the shape of the map, so that the value is an unbiased estimate of ‖J_DA‖², summed over heads. With
    standard attention it is that of A1. Ours, after the robustness paper's Lemma 1: ‖J_DA‖² is what the subtraction
    enlarges if the gradients of the two maps oppose each other.
    """
    values = []
    for layer, (maps, x) in enumerate(step.maps):
        combined = maps.combined
        (gradient,) = torch.autograd.grad(combined, x, step.probe(layer, combined), create_graph=True)
        values.append(gradient.square().sum() / len(x))
    return torch.stack(values).mean()


MAP_JACOBIAN = Defence(map_jacobian, needs="maps")
