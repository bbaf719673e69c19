"""Interventions on a trained model's differential attention: another λ, another A2, no gradient through a map.

With m the margin of the prediction over the runner-up and g = ∂m/∂image, m / ‖g‖₁ is the least max-norm perturbation of
the linearised model. With one differential layer g = g_V + g_1 + g_2: g_1 passes through A1, g_2 through −λ·A2.
"""

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.attention import AttentionMaps, DifferentialAttention
from antiphase.attention.lambdas import Stream, lambda_at
from antiphase.errors import UserError
from antiphase.modules import hooked
from antiphase.sensitivity.layers import gradients

Branch = Literal["positive", "negative"]
BRANCHES: tuple[Branch, ...] = ("positive", "negative")
Tokens = Float[Tensor, "batch tokens dim"]
MapOfLayer = Float[Tensor, "heads queries keys"]
OfBatch = Float[Tensor, " batch"]
Vectors = Float[Tensor, "batch size"]
Images = Float[Tensor, "batch channels height width"]


class ScaledLambda(nn.Module):
    """λ times a factor."""

    reads_tokens = True  # hands the tokens to a λ that reads them

    def __init__(self, lam: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = lam, factor

    def extra_repr(self) -> str:
        return f"factor={self.factor!r}"

    def draw_parameters(self, stream: Stream) -> None:
        raise UserError("a scaled λ belongs to a trained model: expected no new initial weights")

    def forward(self, x: Tokens) -> Float[Tensor, "..."]:
        return self.factor * lambda_at(self.inner, x)


class ReplacedMap(nn.Module):
    """Differential attention with a given A2: (A1 − λ·A2)·V, then the layer's own norm, factor and projection."""

    negative: Tensor

    def __init__(self, attention: DifferentialAttention, negative: MapOfLayer) -> None:
        super().__init__()
        self.attention = attention
        self.register_buffer("negative", negative)

    def forward(self, x: Tokens, mask: Tensor | None = None) -> Tokens:
        maps = self.attention.maps(x, mask)
        negative = self.negative.to(maps.positive.dtype).expand_as(maps.positive)
        return _attended(self.attention, maps._replace(negative=negative), x)


class StoppedGradient(nn.Module):
    """Differential attention that passes no gradient through some maps; where none is asked for, the layer itself."""

    def __init__(self, attention: DifferentialAttention, branches: Sequence[Branch]) -> None:
        super().__init__()
        self.attention = attention
        self.branches = tuple(branches)

    def extra_repr(self) -> str:
        return f"branches={self.branches!r}"

    def forward(self, x: Tokens, mask: Tensor | None = None) -> Tokens:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.attention(x, mask)
        maps = self.attention.maps(x, mask)
        stopped = {branch: getattr(maps, branch).detach() for branch in self.branches}
        return _attended(self.attention, maps._replace(**stopped), x)


def _attended(attention: DifferentialAttention, maps: AttentionMaps, x: Tensor) -> Tensor:
    values = attention.parts(attention.qkv(x))[2]
    return attention.finish(maps.combined.to(values.dtype) @ values, x)


def differential_layers(model: nn.Module) -> dict[str, DifferentialAttention]:
    """Return the layers that can be intervened on, by name: those not replaced or stopped already."""
    named = dict(model.named_modules())
    changed = tuple(f"{name}." for name, one in named.items() if isinstance(one, ReplacedMap | StoppedGradient))
    layers = {name: one for name, one in named.items() if isinstance(one, DifferentialAttention)}
    return {name: one for name, one in layers.items() if not name.startswith(changed)}


def _layers(model: nn.Module) -> dict[str, DifferentialAttention]:
    if layers := differential_layers(model):
        return layers
    raise UserError(f"{type(model).__name__}: expected a model with differential attention, not intervened on yet")


def scale_lambda(model: nn.Module, factor: float) -> None:
    """Multiply λ of every differential layer by a finite factor, in place."""
    if not torch.tensor(factor).isfinite():
        raise UserError(f"factor {factor} of λ: expected a finite number")
    for attention in _layers(model).values():
        attention.lam = ScaledLambda(attention.lam, factor)


def replace_negative(model: nn.Module, maps: Iterable[MapOfLayer]) -> None:
    """Replace A2 of every differential layer, first layer first, by a constant map, in place."""
    for (name, attention), negative in zip(_layers(model).items(), maps, strict=True):
        model.set_submodule(name, ReplacedMap(attention, negative))


def stop_gradient(model: nn.Module, branches: Sequence[Branch]) -> None:
    """Let no gradient through A1 (``"positive"``) or A2 (``"negative"``) of any differential layer, in place.

    In DINT, ``"negative"`` is what it subtracts, A2 − mean of A1: with ``"positive"`` alone, its mean keeps a gradient.
    """
    if not branches or not set(branches) <= set(BRANCHES):
        raise UserError(f"branches {tuple(branches)}: expected positive, negative or both")
    for name, attention in _layers(model).items():
        model.set_submodule(name, StoppedGradient(attention, branches))


def mean_negatives(model: nn.Module, batches: Iterable[Images]) -> list[MapOfLayer]:
    """Return A2 of every differential layer, averaged over at least one image."""
    layers = _layers(model).values()
    sums: dict[nn.Module, Tensor] = {}

    def add(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, DifferentialAttention)
        negative = module.maps(args[0]).negative
        assert negative is not None
        sums[module] = sums.get(module, 0) + negative.double().sum(0)

    count = 0
    with hooked(attention.register_forward_pre_hook(add) for attention in layers), torch.no_grad():
        for images in batches:
            model(images.clone())
            count += len(images)
    if not count:
        raise UserError("no images to average A2 over: expected at least one")
    return [(sums[attention] / count).float() for attention in layers]


def uniform_like(maps: Iterable[MapOfLayer]) -> list[MapOfLayer]:
    """Return maps of the same shapes in which every query attends to every key alike."""
    return [torch.full_like(one, 1.0 / one.shape[-1]) for one in maps]


class Margins(NamedTuple):
    """Margins of some images; the last four are None unless the model has one differential layer as trained."""

    prediction: Int64[Tensor, " batch"]  # class with the largest logit
    margin: OfBatch  # its logit − the next largest
    norm1: OfBatch | None = None  # ‖g‖₁, logits per unit of the [0, 1] pixel
    norm2: OfBatch | None = None  # ‖g‖₂
    positive: OfBatch | None = None  # ‖g_1‖₂
    negative: OfBatch | None = None  # ‖g_2‖₂
    inner: OfBatch | None = None  # ⟨g_1, g_2⟩; below 0 the subtraction cancels, above 0 it amplifies
    right1: OfBatch | None = None  # ‖g°‖₁ with g_1 and g_2 turned to a right angle, see right_angle


def margins_of(logits: Float[Tensor, "batch classes"]) -> Margins:
    """Return predictions and margins of logits, without gradients."""
    top = logits.topk(2, -1)
    return Margins(top.indices[:, 0], top.values[:, 0] - top.values[:, 1])


class MarginGradients:
    """Margins and their gradients of one model, in float64."""

    def __init__(self, model: nn.Module) -> None:
        self._whole = copy.deepcopy(model).eval().double().requires_grad_(False)
        self._stopped: list[nn.Module] = []
        for branch in BRANCHES if len(differential_layers(model)) == 1 else ():
            stopped = copy.deepcopy(self._whole)
            stop_gradient(stopped, [branch])
            self._stopped.append(stopped)

    def __call__(self, images: Images) -> Margins:
        images = images.double()
        prediction, margin, whole = _gradient(self._whole, images)
        margins = Margins(prediction, margin, whole.norm(1, -1), whole.norm(2, -1))
        if not self._stopped:
            return margins
        first, second = (whole - _gradient(stopped, images)[2] for stopped in self._stopped)
        straight = whole - first - second + sum(right_angle(first, second))
        inner = (first * second).sum(-1)
        return Margins(*margins[:4], first.norm(2, -1), second.norm(2, -1), inner, straight.norm(1, -1))


def right_angle(first: Vectors, second: Vectors) -> tuple[Vectors, Vectors]:
    """Turn two vectors to a right angle within their plane, both by the same angle, with their lengths kept.

    With e1, e2 their directions, u, w = those of e1 ± e2, the new ones are (u ± w)/√2; parallel vectors stay.
    """
    limits = torch.finfo(first.dtype)
    direction = partial(F.normalize, dim=-1, eps=limits.tiny)
    one, two = direction(first), direction(second)
    total, apart = one + two, one - two
    length1, length2, *sizes = (x.norm(2, -1, keepdim=True) for x in (first, second, total, apart))
    defined = (torch.minimum(length1, length2) > 0) & (torch.minimum(*sizes) > limits.eps**0.5)
    u, w = direction(total), direction(apart)
    turned = length1 * (u + w) * 0.5**0.5, length2 * (u - w) * 0.5**0.5
    return torch.where(defined, turned[0], first), torch.where(defined, turned[1], second)


def _gradient(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with gradients(enabled=True):
        x = images.detach().clone().requires_grad_()
        prediction, margin, *_ = margins_of(model(x.clone()))
        (gradient,) = torch.autograd.grad(margin.sum(), x)
    return prediction, margin.detach(), gradient.flatten(1)
