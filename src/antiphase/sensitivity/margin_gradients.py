"""How far a prediction is from changing, to first order, and which part of the gradient comes through which map.

With m the margin of the prediction over the runner-up and g = ∂m/∂image, a perturbation of max-norm ε changes the
margin by at most ε·‖g‖₁ to first order, so m / ‖g‖₁ is the least perturbation of the linearised model. In a model with
one differential layer g = g_V + g_1 + g_2: g_1 passes through A1, g_2 through −λ·A2 and g_V through neither.
"""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.sensitivity.eager import gradients
from antiphase.sensitivity.interventions import BRANCHES, differential_layers, stop_gradient


class Margins(NamedTuple):
    """Margins of some images; the last four are None unless the model has one differential layer as trained.

    Attributes:
        prediction: class with the largest logit.
        margin: its logit − the next largest.
        norm1: ‖g‖₁, logits per unit of the [0, 1] pixel.
        norm2: ‖g‖₂.
        positive: ‖g_1‖₂.
        negative: ‖g_2‖₂.
        inner: ⟨g_1, g_2⟩; below 0 the subtraction cancels, above 0 it amplifies.
        right1: ‖g°‖₁ of the gradient with g_1 and g_2 turned to a right angle, see :func:`right_angle`.
    """

    prediction: Int64[Tensor, " batch"]
    margin: Float[Tensor, " batch"]
    norm1: Float[Tensor, " batch"] | None = None
    norm2: Float[Tensor, " batch"] | None = None
    positive: Float[Tensor, " batch"] | None = None
    negative: Float[Tensor, " batch"] | None = None
    inner: Float[Tensor, " batch"] | None = None
    right1: Float[Tensor, " batch"] | None = None


def margins_of(logits: Float[Tensor, "batch classes"]) -> Margins:
    """Return predictions and margins of logits, without gradients."""
    top = logits.topk(2, -1)
    return Margins(top.indices[:, 0], top.values[:, 0] - top.values[:, 1])


class MarginGradients:
    """Margins and their gradients of one model, in float64.

    Args:
        model: from images in [0, 1] to logits; it is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._whole = copy.deepcopy(model).eval().double().requires_grad_(False)
        self._stopped: list[nn.Module] = []
        for branch in BRANCHES if len(differential_layers(model)) == 1 else ():
            stopped = copy.deepcopy(self._whole)
            stop_gradient(stopped, [branch])
            self._stopped.append(stopped)

    def __call__(self, images: Float[Tensor, "batch channels height width"]) -> Margins:
        """Return the margins of images in [0, 1]."""
        images = images.double()
        prediction, margin, whole = _gradient(self._whole, images)
        norms = whole.norm(1, -1), whole.norm(2, -1)
        if not self._stopped:
            return Margins(prediction, margin, *norms)
        first, second = (whole - _gradient(stopped, images)[2] for stopped in self._stopped)
        straight = whole - first - second + sum(right_angle(first, second))
        inner = (first * second).sum(-1)
        parts = (first.norm(2, -1), second.norm(2, -1), inner, straight.norm(1, -1))
        return Margins(prediction, margin, *norms, *parts)


def right_angle(
    first: Float[Tensor, "batch size"], second: Float[Tensor, "batch size"]
) -> tuple[Float[Tensor, "batch size"], Float[Tensor, "batch size"]]:
    """Turn two vectors to a right angle: both by the same angle, within their plane, with their lengths kept.

    With e1, e2 their directions, u = (e1 + e2)/‖e1 + e2‖ and w = (e1 − e2)/‖e1 − e2‖, the new directions are
    (u ± w)/√2, the nearest orthogonal pair. Vectors of length 0, or parallel to each other, stay as they are.

    >>> first, second = right_angle(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, -3.0]]))
    >>> first.round(decimals=6).tolist(), second.round(decimals=6).tolist()
    ([[2.0, 0.0]], [[0.0, -3.0]])
    """
    lengths = first.norm(2, -1, keepdim=True), second.norm(2, -1, keepdim=True)
    tiny = torch.finfo(first.dtype).tiny
    units = first / lengths[0].clamp_min(tiny), second / lengths[1].clamp_min(tiny)
    total, apart = units[0] + units[1], units[0] - units[1]
    sizes = total.norm(2, -1, keepdim=True), apart.norm(2, -1, keepdim=True)
    rounding = torch.finfo(first.dtype).eps ** 0.5
    defined = (torch.minimum(*lengths) > 0) & (torch.minimum(*sizes) > rounding)
    u, w = total / sizes[0].clamp_min(tiny), apart / sizes[1].clamp_min(tiny)
    turned = lengths[0] * (u + w) * 0.5**0.5, lengths[1] * (u - w) * 0.5**0.5
    return torch.where(defined, turned[0], first), torch.where(defined, turned[1], second)


def _gradient(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return prediction, margin and the margin's gradient, one row of pixels for each image."""
    with gradients(enabled=True):
        x = images.detach().clone().requires_grad_()
        prediction, margin, *_ = margins_of(model(x.clone()))
        (found,) = torch.autograd.grad(margin.sum(), x)
    return prediction, margin.detach(), found.flatten(1)
