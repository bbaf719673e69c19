"""Inner products of the maps' gradients in every layer of a model, at the tokens or at the pixels.

Four estimators, all unbiased for the Frobenius inner products where they draw at random, and all with Lemma 1
exact for each probe:

- at a layer's tokens, the closed form (:func:`token_grams`), or cotangent probes where it does not exist;
- at the pixels, directions that all layers, heads and branches share (:func:`direction_grams`): one forward-mode
  pass a probe serves them all, where a cotangent needs a backward pass for each (:func:`cotangent_grams`);
- the cotangent that the data gives, ∂loss/∂A, what an attacker sees (:func:`loss_grams`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.sensitivity.alignment import Gram, cotangent_gram, exact_gram, gram_of
from antiphase.sensitivity.eager import gradients, leaf
from antiphase.sensitivity.layers import Call, Layer
from antiphase.sensitivity.maps import Inputs, attention_layers, record, take_apart
from antiphase.streams import normal


def token_grams(
    model: nn.Module, inputs: Inputs, keys: Int64[Tensor, "batch probes"], *, call: Callable[..., Any] | None = None,
    exact: bool = True,
) -> Iterator[tuple[Layer, Gram, int]]:  # fmt: skip
    """Yield each layer with its inner products at its own tokens, and how many probes they took.

    Args:
        model: any model with attention.
        inputs: as of :func:`~antiphase.sensitivity.attention_layers`.
        keys: one random stream for each sample and probe.
        call: what is run on the inputs; the model where not given.
        exact: whether the closed form is taken where there is one (plain queries and keys); its probes are 0,
            and its inner products have no probe axis.
    """
    for layer in attention_layers(model, inputs, call=call):
        with gradients(enabled=False):  # parameters may ask for a graph, which would be kept for nothing
            if exact and layer.positive.plain:
                gram, probes = exact_gram(layer.positive, layer.negative), 0
            else:
                gram = cotangent_gram(layer.positive, layer.negative, layer.weight, keys)
                probes = keys.shape[1]
        yield layer, gram, probes


def direction_grams(
    model: nn.Module, images: Float[Tensor, "batch *shape"], directions: Float[Tensor, "probes batch *shape"], *,
    call: Callable[..., Any] | None = None,
) -> Iterator[tuple[Layer, Gram]]:  # fmt: skip
    """Yield each layer with ⟨J1u, J1u⟩, ⟨J2u, J2u⟩ and ⟨J1u, J2u⟩ at the pixels, for given directions u.

    For standard normal u (:func:`random_directions`) each is an unbiased estimate of the Frobenius inner
    product; an attack's δ says how the two maps answer to that perturbation. Costs one forward-mode pass for
    each direction, whatever the number of layers and heads.

    Returns:
        Inner products of shape (batch, heads, probes).
    """
    grams: dict[str, list[Gram]] = {}
    layers: dict[str, Layer] = {}  # of the last pass alone: its maps are large
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


def random_directions(
    images: Tensor, keys: Int64[Tensor, "batch probes"]
) -> Float[Tensor, "probes batch *shape"]:
    """Return standard normal directions, one for each image and probe."""
    draws = [
        normal(probe.to(images.device), images[0].numel()).view(images.shape) for probe in keys.unbind(1)
    ]
    return torch.stack(draws).to(images.dtype)


def basis_directions(images: Tensor) -> Iterator[Float[Tensor, "1 batch *shape"]]:
    """Yield every unit direction of the pixels: with :func:`direction_grams` the sum is exact, in D passes."""
    for pixel in range(images[0].numel()):
        unit = torch.zeros_like(images).flatten(1)
        unit[:, pixel] = 1.0
        yield unit.view(1, *images.shape)


def cotangent_grams(
    model: nn.Module, images: Float[Tensor, "batch *shape"], keys: Int64[Tensor, "batch probes"], *,
    call: Callable[..., Any] | None = None,
) -> Iterator[tuple[Layer, Gram]]:  # fmt: skip
    """Yield each layer with ⟨J1ᵀv, J1ᵀv⟩, ⟨J2ᵀv, J2ᵀv⟩ and ⟨J1ᵀv, J2ᵀv⟩ at the pixels, for random v.

    Costs a backward pass through the layers below for each layer, head, branch and probe.

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


def loss_grams(
    model: nn.Module, inputs: Float[Tensor, "batch *shape"], loss: Callable[[Tensor], Tensor], *,
    call: Callable[..., Any] | None = None,
) -> Iterator[tuple[Layer, Gram]]:  # fmt: skip
    """Yield each layer with the inner products for the cotangent v = ∂loss/∂(A1 − λ·A2), at its tokens.

    J1ᵀv and −λ·J2ᵀv are the two parts of the loss's gradient that flow through the layer's maps: their
    alignment is what an attacker meets. Exact; one forward and one backward pass for all layers.

    Args:
        model: any model with attention.
        inputs: images, or other floating inputs.
        loss: from the model's output to one number, a sum over the samples.
        call: what is run on the inputs; the model where not given.

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
