"""Inner products of the maps' gradients in every layer of a model, at the tokens or at the pixels.

The random estimators are unbiased for the Frobenius inner products, and Lemma 1 holds exactly for each probe:

- :func:`token_grams`, at a layer's tokens: the closed form, or random cotangents where there is none;
- :func:`direction_grams`, at the pixels: one forward-mode pass per probe serves all layers, heads and branches;
- :func:`cotangent_grams`, at the pixels: one backward pass per probe, layer, head and branch;
- :func:`loss_grams`, at the tokens: the cotangent is ∂loss/∂A, as an attacker sees it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.arguments import Batch, validated
from antiphase.sensitivity.alignment import Gram, cotangent_gram, exact_gram, gram_of
from antiphase.sensitivity.branches import Branch
from antiphase.sensitivity.eager import gradients, leaf
from antiphase.sensitivity.layers import Call, Layer
from antiphase.sensitivity.maps import Inputs, attention_layers, record
from antiphase.sensitivity.splitting import take_apart
from antiphase.sensitivity.traced import TracedBranch
from antiphase.streams import normal


@validated
def token_grams(
    model: nn.Module,
    inputs: Inputs,
    keys: Int64[Tensor, "batch probes"],
    *,
    call: Callable[..., Any] | None = None,
    exact: bool = True,
) -> Iterator[tuple[Layer, Gram, int]]:
    """Yield each layer, its inner products at its own tokens, and the number of probes.

    Args:
        model: any model with attention.
        inputs: as for :func:`~antiphase.sensitivity.attention_layers`.
        keys: random stream of each sample and probe.
        call: function to run on the inputs; None: the model.
        exact: use the closed form for layers with plain queries and keys. The number of probes is then 0, and the
            inner products have no probe axis.
    """
    for layer in attention_layers(model, inputs, call=call):
        with gradients(enabled=False):  # else parameters would keep an unused graph alive
            one, two = layer.positive, layer.negative
            if exact and isinstance(one, Branch) and one.plain and not isinstance(two, TracedBranch):
                gram, probes = exact_gram(one, two), 0
            else:
                gram = cotangent_gram(one, two, layer.weight, keys)
                probes = keys.shape[1]
        yield layer, gram, probes


@validated
def direction_grams(
    model: nn.Module,
    images: Batch,
    directions: Float[Tensor, "probes batch *shape"],
    *,
    call: Callable[..., Any] | None = None,
) -> Iterator[tuple[Layer, Gram]]:
    """Yield each layer with ⟨J1u, J1u⟩, ⟨J2u, J2u⟩ and ⟨J1u, J2u⟩ at the pixels for given directions u.

    J1 and J2 are the Jacobians of the attention maps A1 and A2 with respect to the pixels. For standard normal u
    (:func:`random_directions`) the three products are unbiased estimates of ‖J1‖²_F, ‖J2‖²_F and ⟨J1, J2⟩_F.
    With the δ of an attack as u, they measure the response of the two maps to that perturbation. Costs one
    forward-mode pass per direction, for any number of layers and heads.

    Returns:
        Inner products of shape (batch, heads, probes).
    """
    grams: dict[str, list[Gram]] = {}
    layers: dict[str, Layer] = {}  # only those of the last pass: maps are large
    for u in directions:
        for layer in attention_layers(model, images, call=call, tangent=u):
            with gradients(enabled=False):
                grams.setdefault(layer.name, []).append(_along(layer))
            layers[layer.name] = layer
    for name, layer in layers.items():
        yield layer, Gram.stack(grams[name])


def _along(layer: Layer) -> Gram:
    assert layer.tangent is not None
    one = layer.positive.jvp(layer.tangent)
    two = None if layer.negative is None else layer.negative.jvp(layer.tangent)
    return gram_of(one, two, layer.weight)


@validated
def random_directions(
    images: Batch, keys: Int64[Tensor, "batch probes"]
) -> Float[Tensor, "probes batch *shape"]:
    """Draw a standard normal direction for each image and probe."""
    draws = [
        normal(probe.to(images.device), images[0].numel()).view(images.shape) for probe in keys.unbind(1)
    ]
    return torch.stack(draws).to(images.dtype)


@validated
def cotangent_grams(
    model: nn.Module,
    images: Batch,
    keys: Int64[Tensor, "batch probes"],
    *,
    call: Callable[..., Any] | None = None,
) -> Iterator[tuple[Layer, Gram]]:
    """Yield each layer with ⟨J1ᵀv, J1ᵀv⟩, ⟨J2ᵀv, J2ᵀv⟩ and ⟨J1ᵀv, J2ᵀv⟩ at the pixels for random v.

    Costs one backward pass through the preceding layers per layer, head, branch and probe.

    Returns:
        Inner products of shape (batch, heads, probes).
    """
    images = leaf(images)
    for layer in attention_layers(model, images, call=call, graph=True):
        with gradients(enabled=False):
            grams = []
            for probe in keys.unbind(1):
                v = _cotangent(layer, probe)
                at_tokens = [None if b is None else b.vjp(v) for b in (layer.positive, layer.negative)]
                one, two = (None if t is None else _to_pixels(layer, t, images) for t in at_tokens)
                assert one is not None
                grams.append(gram_of(one, two, layer.weight))
            gram = Gram.stack(grams)
        yield layer, gram


def _cotangent(layer: Layer, keys: Tensor) -> Tensor:
    shape = layer.positive.attention.shape
    return normal(keys, shape[1] * shape[2] * shape[3]).to(layer.tokens).view(shape)


def _to_pixels(
    layer: Layer, at_tokens: Float[Tensor, "batch heads tokens dim"], images: Tensor
) -> Float[Tensor, "batch heads *shape"]:
    heads = [
        torch.autograd.grad(layer.tokens, images, one, retain_graph=True)[0] for one in at_tokens.unbind(1)
    ]
    return torch.stack(heads, 1)


@validated
def loss_grams(
    model: nn.Module,
    inputs: Batch,
    loss: Callable[[Tensor], Tensor],
    *,
    call: Callable[..., Any] | None = None,
) -> Iterator[tuple[Layer, Gram]]:
    """Yield each layer with the inner products at its tokens for the cotangent v = ∂loss/∂(A1 − λ·A2).

    J1ᵀv and −λ·J2ᵀv are the two parts of the loss gradient through the layer's maps, so their alignment is the one
    relevant to an attacker. Exact; one forward and one backward pass for all layers.

    Args:
        model: any model with attention.
        inputs: images, or other floating-point inputs.
        loss: maps the model's output to a scalar that is a sum over the samples.
        call: function to run on the inputs; None: the model.

    Returns:
        Inner products of shape (batch, heads).
    """
    outputs: list[Tensor] = []

    def run(x: Tensor) -> None:
        outputs.append((call or model)(x))

    with gradients(enabled=True):
        calls = record(model, leaf(inputs), call=run, graph=True)
        slopes = torch.autograd.grad(loss(outputs[0]), [one.output for one in calls], materialize_grads=True)
    for one, slope in zip(calls, slopes, strict=True):
        layer, gram = _loss_gram(one, slope)
        yield layer, gram


def _loss_gram(call: Call, slope: Tensor) -> tuple[Layer, Gram]:
    with gradients(enabled=True):
        layer = take_apart(call)
        combined = layer.maps.combined.detach().requires_grad_()
        finished = layer.finish(combined)
        slope = slope if finished.shape == slope.shape else slope.transpose(0, 1)
        (v,) = torch.autograd.grad(finished, combined, slope)
    with gradients(enabled=False):
        two = None if layer.negative is None else layer.negative.vjp(v)
        return layer, gram_of(layer.positive.vjp(v), two, layer.weight)
