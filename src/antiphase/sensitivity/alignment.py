"""Gradient alignment of the two maps of every layer, at its tokens or at the pixels.

J1 and J2 are the Jacobians of A1 and A2. ρ and cosθ are computed from averages of the Frobenius inner products ⟨J1,
J1⟩, ⟨J2, J2⟩ and ⟨J1, J2⟩, for which the random estimators are unbiased; Lemma 1 holds exactly for each probe.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from scipy import stats
from torch import Tensor, nn

from antiphase.arguments import Batch, validated
from antiphase.errors import UserError
from antiphase.sensitivity.layers import AnyBranch, Branch, Layer, WeightedBranch, gradients, leaf
from antiphase.sensitivity.maps import Inputs, attention_layers, default_call, one_set_each, record, take_apart
from antiphase.streams import normal

AnyShape = Float[Tensor, "*shape"]
Subtracted = AnyBranch | WeightedBranch
Probes = Int64[Tensor, "batch probes"]
Directions = Float[Tensor, "probes batch *shape"]
Gradient = Callable[[Subtracted], Tensor]


@validated
@dataclass(frozen=True)
class Gram:
    """Inner products of two gradients; the last axis is that of the random probes, if any."""

    first: AnyShape  # ⟨J1, J1⟩
    second: AnyShape  # ⟨J2, J2⟩; 0 for standard attention, as is cross
    cross: AnyShape  # ⟨J1, J2⟩
    moved: AnyShape | None = None  # ‖J1 − λ·J2‖² from the difference; None for closed forms

    @classmethod
    def stack(cls, probes: "Sequence[Gram]") -> "Gram":
        """Stack the inner products of several probes, which have a difference, along a new last axis."""
        return cls(*(torch.stack([getattr(probe, name) for probe in probes], -1) for name in cls.__dataclass_fields__))

    def mean(self) -> "Gram":
        """Return the average over the probes."""
        return Gram(*(None if part is None else part.mean(-1) for part in vars(self).values()))  # pyright: ignore

    def difference(self, lam: AnyShape | float) -> AnyShape:
        """Return ‖J1 − λ·J2‖² = ⟨J1, J1⟩ + λ²⟨J2, J2⟩ − 2λ⟨J1, J2⟩ (sensitivity paper, Lemma 1)."""
        return self.first + lam**2 * self.second - 2.0 * lam * self.cross


@dataclass(frozen=True)
class Alignment:
    """Angle and length ratio of two gradients."""

    cosine: AnyShape  # cosθ, in [−1, 1]
    low: AnyShape  # 95 % interval of cosθ over the probes; equal to cosθ without probes
    high: AnyShape
    rho: AnyShape  # ρ = ‖J2‖ / ‖J1‖
    probes: int  # K; 0 for exact inner products


@validated
def align(gram: Gram, probes: bool) -> Alignment:
    """Compute cosθ = m₁₂ / √(m₁₁·m₂₂) and ρ = √(m₂₂ / m₁₁) from inner products, m their means over the probes.

    The 95 % interval is Student's t on the linearised ratio: cosθ ± t_{.975, K−1}·s_r / √K, clipped to [−1, 1], with
    r_k = (g₁₂ − ½·cosθ·(g₁₁·m₂₂ + g₂₂·m₁₁) / √(m₁₁·m₂₂))_k / √(m₁₁·m₂₂). ``probes``: whether the last axis is that of
    random probes, at least 2, to be averaged.
    """
    gram = Gram(gram.first.double(), gram.second.double(), gram.cross.double())
    first, second, cross, *_ = vars(gram.mean() if probes else gram).values()
    scale, rho = first.sqrt() * second.sqrt(), (second / first).sqrt()
    cosine = cross / scale
    if not probes:
        cosine = cosine.clamp(-1.0, 1.0)
        return Alignment(cosine, cosine, cosine, rho, 0)
    if (count := gram.cross.shape[-1]) < 2:
        raise UserError(f"probes {count}: expected at least 2, to compute an interval")
    balanced = gram.first * (second / first).sqrt()[..., None] + gram.second * (first / second).sqrt()[..., None]
    residual = (gram.cross - 0.5 * cosine[..., None] * balanced) / scale[..., None]
    half = float(stats.t.ppf(0.975, count - 1)) * residual.std(-1) / count**0.5
    low, high = (cosine - half).clamp(-1.0, 1.0), (cosine + half).clamp(-1.0, 1.0)
    return Alignment(cosine, low, high, rho, count)


def _gram(positive: AnyBranch, negative: Subtracted | None, lam: Tensor, gradient: Gradient) -> Gram:
    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).flatten(2).sum(-1)

    one = gradient(positive)
    first = inner(one, one)
    if negative is None:
        return Gram(first, torch.zeros_like(first), torch.zeros_like(first), first)
    two = gradient(negative)
    difference = one - lam.view(*lam.shape, *[1] * (one.ndim - 2)) * two
    return Gram(first, inner(two, two), inner(one, two), inner(difference, difference))


def _layer_gram(layer: Layer, gradient: Gradient) -> Gram:
    return _gram(layer.positive, layer.subtracted, layer.weight, gradient)


@validated
def exact_gram(positive: Branch, negative: Branch | None) -> Gram:
    """Compute the Frobenius inner products of the Jacobians by the tokens, (batch, heads), in closed form, in float64.

    With a_i row i of a map, P_i = diag(a_i) − a_i·a_iᵀ, u_i the derivative of its scores by the key tokens and M that
    by the query token, the Jacobian of a_i by token m is P_i·(e_m·u_iᵀ + δ_im·M), so that

    ⟨J1, J2⟩ = Σ_i ⟨P1_i, P2_i⟩·⟨u1_i, u2_i⟩ + ⟨P1_i·M1, P2_i·M2⟩ + u1_iᵀ(P2_i·M2)ᵀP1_i·e_i + u2_iᵀ(P1_i·M1)ᵀP2_i·e_i.
    """
    positive = positive.double()
    first = _inner(positive, positive).clamp_min(0.0)
    if negative is None:
        return Gram(first, torch.zeros_like(first), torch.zeros_like(first))
    negative = negative.double()
    return Gram(first, _inner(negative, negative).clamp_min(0.0), _inner(positive, negative))


def _inner(one: Branch, two: Branch) -> Tensor:
    a, b = one.attention, two.attention
    both = a * b
    total = both.sum(-1)
    # ⟨P1, P2⟩ of each row, written out
    products = total - (both * b).sum(-1) - (a * both).sum(-1) + total.square()
    towards = (one.by_key * two.by_key).sum(-1)
    m_one, m_two = one.by_query, two.by_query
    mean_one, mean_two = a @ m_one, b @ m_two  # row i: Σ_j a_ij·M_j
    # Σ_j a_ij·b_ij·(M1_j − mean1_i)·(M2_j − mean2_i), multiplied out
    pairs = (m_one * m_two).sum(-1)
    centred = (both @ pairs[..., None]).squeeze(-1) - ((both @ m_one) * mean_two).sum(-1)
    centred = centred - ((both @ m_two) * mean_one).sum(-1) + total * (mean_one * mean_two).sum(-1)
    crossed = _crossed(one, two, both, mean_two) + _crossed(two, one, both, mean_one)
    return (products * towards + centred + crossed).sum(-1)


def _crossed(one: Branch, two: Branch, both: Tensor, mean_two: Tensor) -> Tensor:
    """Return u1_iᵀ(P2_i·M2)ᵀP1_i·e_i = Σ_j a_ij(δ_ij − a_ii)·b_ij·u1_i·(M2_j − mean2_i) of each row i."""
    diagonal = one.attention.diagonal(dim1=-2, dim2=-1)
    projected = one.by_key @ two.by_query.mT - (one.by_key * mean_two).sum(-1, keepdim=True)
    weighted = both * projected
    return weighted.diagonal(dim1=-2, dim2=-1) - diagonal * weighted.sum(-1)


@validated
def cotangent_gram(
    positive: AnyBranch, negative: Subtracted | None, lam: Float[Tensor, "*batch heads"], keys: Probes
) -> Gram:
    """Compute ⟨J1ᵀv, J1ᵀv⟩, ⟨J2ᵀv, J2ᵀv⟩ and ⟨J1ᵀv, J2ᵀv⟩, (batch, heads, probes), for v shared by both maps.

    v is standard normal, keyed by sample and probe, so that each value is unbiased for the Frobenius inner product.
    """
    maps = positive.attention
    if lam.shape[-1] != maps.shape[1]:
        raise UserError(f"lam of {lam.shape[-1]} heads: expected {maps.shape[1]}, as in the map")
    cotangents = _normal(maps, keys)
    return Gram.stack([_gram(positive, negative, lam, lambda branch, v=v: branch.vjp(v)) for v in cotangents])


def _normal(like: Tensor, keys: Tensor) -> Iterator[Tensor]:
    for probe in keys.to(like.device).unbind(1):
        yield normal(probe, like[0].numel()).to(like.dtype).view(like.shape)


@validated
def token_grams(
    model: nn.Module, inputs: Inputs, keys: Probes, *, exact: bool = True
) -> Iterator[tuple[Layer, Gram, int]]:
    """Yield each layer, its inner products at its own tokens, and the number of probes.

    ``keys`` are the random streams of each sample and probe. ``exact``: take the closed form for layers with plain
    queries and keys, without probes and their axis.
    """
    for layer in attention_layers(model, inputs):
        with gradients(enabled=False):  # else parameters would keep an unused graph alive
            one, two = one_set_each(layer, len(keys)).positive, layer.subtracted
            if exact and isinstance(one, Branch) and one.plain and isinstance(two, Branch | None):
                gram, probes = exact_gram(one, two), 0
            else:
                gram, probes = cotangent_gram(one, two, layer.weight, keys), keys.shape[1]
        yield layer, gram, probes


@validated
def direction_grams(model: nn.Module, images: Batch, directions: Directions) -> Iterator[tuple[Layer, Gram]]:
    """Yield each layer with ⟨J1u, J1u⟩, ⟨J2u, J2u⟩ and ⟨J1u, J2u⟩ at the pixels for given directions u.

    For standard normal u the products, (batch, heads, probes), are unbiased for the Frobenius inner products; with an
    attack's δ as u they measure the response to it. One forward-mode pass per direction, for all layers and heads.
    """

    def measure(layer: Layer) -> Gram:
        return _layer_gram(layer, lambda branch: branch.jvp(layer.tangent))  # pyright: ignore

    for layer, grams in _along(model, images, directions, measure):
        yield layer, Gram.stack(grams)


def _along(
    model: nn.Module, images: Tensor, directions: Tensor, measure: Callable[[Layer], Any]
) -> Iterator[tuple[Layer, list[Any]]]:
    measured: dict[str, list[Any]] = {}
    layers: dict[str, Layer] = {}  # only those of the last pass: maps are large
    for u in directions:
        for layer in attention_layers(model, images, tangent=u):
            with gradients(enabled=False):
                measured.setdefault(layer.name, []).append(measure(one_set_each(layer, len(images))))
            layers[layer.name] = layer
    yield from ((layer, measured[name]) for name, layer in layers.items())


@validated
@dataclass(frozen=True)
class GradientTerms:
    """The three terms of J_DA = J1 − λ·J2 − A2 ⊗ ∇λ along directions u, (batch, heads, probes) each.

    ``first``, ``second`` and ``third`` are the inner products of the terms with J_DA, and add up to ‖J_DA‖² exactly. A
    negative one makes the layer less sensitive. ``third`` is 0 where λ does not depend on the input.
    """

    first: AnyShape  # ⟨J1·u, J_DA·u⟩
    second: AnyShape  # −⟨λ·J2·u, J_DA·u⟩
    third: AnyShape  # −⟨(A2 ⊗ ∇λ)·u, J_DA·u⟩

    @property
    def share(self) -> Float[Tensor, "batch heads"]:
        """The third term's part of ‖J_DA‖², from means over the probes."""
        return self.third.mean(-1) / (self.first + self.second + self.third).mean(-1)


@validated
def gradient_terms(model: nn.Module, images: Batch, directions: Directions) -> Iterator[tuple[Layer, GradientTerms]]:
    """Yield each layer with the terms of its map's Jacobian at the pixels, unbiased with :func:`random_directions`."""

    def measure(layer: Layer) -> Tensor:
        lam = layer.weight.expand(len(images), -1)[..., None, None]
        branches: Any = layer.positive, layer.subtracted, layer.term
        one, two, three = (0.0 if one is None else one.jvp(layer.tangent) for one in branches)
        whole, third = one - lam * two, -lam * three
        parts = one, whole - one - third, third
        return torch.stack([((term + 0 * whole) * whole).flatten(2).sum(-1) for term in parts])

    for layer, terms in _along(model, images, directions, measure):
        yield layer, GradientTerms(*torch.stack(terms, -1))


@validated
def random_directions(images: Batch, keys: Probes) -> Directions:
    """Draw a standard normal direction for each image and probe."""
    return torch.stack([*_normal(images, keys)])


@validated
def loss_grams(model: nn.Module, inputs: Batch, loss: Callable[[Tensor], Tensor]) -> Iterator[tuple[Layer, Gram]]:
    """Yield each layer with the inner products, (batch, heads), at its tokens for v = ∂loss/∂(A1 − λ·A2).

    J1ᵀv and −λ·J2ᵀv are the parts of the loss gradient through the layer's maps, those that matter to an attacker.
    Exact; one forward and one backward pass. ``loss`` maps the model's output to a sum over the samples.
    """
    outputs: list[Tensor] = []
    forward = default_call(model, inputs)
    with gradients(enabled=True):
        calls = record(model, leaf(inputs), call=lambda x: outputs.append(forward(x)), graph=True)
        if (value := loss(outputs[0])).numel() != 1:
            raise UserError(f"the loss has shape {tuple(value.shape)}: expected one number, a sum over the samples")
        if not value.requires_grad:
            raise UserError("the model's output has no gradient: remove no_grad or detach from its forward pass")
        slopes = torch.autograd.grad(value, [one.output for one in calls], materialize_grads=True)
    for one, slope in zip(calls, slopes, strict=True):
        with gradients(enabled=True):
            layer = one_set_each(take_apart(one), len(inputs))
            combined = layer.maps.combined.detach().requires_grad_()
            (v,) = torch.autograd.grad(layer.finish(combined), combined, one.batch_first(slope))
        with gradients(enabled=False):
            gram = _layer_gram(layer, lambda branch, v=v: branch.vjp(v))
        yield layer, gram
