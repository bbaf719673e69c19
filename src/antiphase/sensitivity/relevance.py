"""Which patches of an image speak for a text: maps of the image tower of any dual encoder."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.errors import UserError
from antiphase.models.zeroshot import DualEncoder, as_dual_encoder
from antiphase.sensitivity.eager import gradients, leaf
from antiphase.sensitivity.layers import Call, Layer
from antiphase.sensitivity.maps import record, take_apart

Part = Literal["combined", "positive", "negative"]


class NoSecondMap(UserError):
    """Standard attention was asked for A2, which it does not have."""


@gradients(enabled=False)
def chefer_relevance(
    model: nn.Module,
    images: Float[Tensor, "batch 3 height width"],
    texts: Sequence[str],
    part: Part = "combined",
    start: int = 0,
) -> Float[Tensor, "texts batch rows columns"]:
    """Return how relevant each patch is to how well an image and a text fit, at least 0.

    With y = exp(logit_scale)·cos(image, text), A the map of a layer (A1 − λ·A2, with its sign) and E_h the mean
    over its heads, from layer ``start`` to the last:

        cam = E_h max(∂y/∂A ⊙ A, 0),    R ← R + cam·R,    R = 1 at the start

    and the result is R[CLS, 1:]. ∂y/∂A is the whole derivative, through all layers behind: the gradient at the
    attention module's output is carried back to the map by what stands between the two alone, so no module is
    patched and any backend will do. One forward pass, and one backward pass a text. Of R only the row of the
    class token is formed, from the last layer to the first: e·(1 + cam_L)···(1 + cam_1).

    Source: H. Chefer, S. Gur, L. Wolf, *Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers*, ICCV 2021, Section 3, the rule of self-attention; the target is that of their
    notebook for CLIP, whose default is ``start=-1``. The signed map of differential attention, and its parts,
    are ours.

    Args:
        model: a dual encoder in evaluation mode.
        images: in [0, 1].
        texts: as they are, with no prompt around them; at least one.
        part: ``"combined"`` as above; ``"positive"``: A1 in the place of A, with the derivative by A1;
            ``"negative"``: A2, with the derivative by A2, which is −λ·∂y/∂A.
        start: the first layer that counts, from 0; −1: the last alone.

    Raises:
        UserError: another kind of model, a tower without a class token in front of a square grid, attention
            without adapter, no text, a layer that does not exist.
        NoSecondMap: ``"negative"`` of standard attention.
    """
    if not texts or isinstance(texts, str):
        raise UserError(f"texts {texts!r}: expected a list of one or more")
    encoder = as_dual_encoder(model)
    calls, embeddings, side = _watch(encoder, model, images)
    calls = calls[_layer(start, len(calls)) :]
    with torch.no_grad():
        directions = F.normalize(encoder.encode_text(list(texts)).to(embeddings.dtype), dim=-1)
    with torch.enable_grad():
        logits = encoder.logit_scale.exp() * (F.normalize(embeddings, dim=-1) @ directions.T)
        targets = logits.sum(0)  # of an image's logits none depends on another image
    outputs = [call.output for call in calls]
    seeds = torch.eye(len(texts)).to(targets)
    slopes = [
        torch.autograd.grad(targets, outputs, seed, retain_graph=True, allow_unused=True) for seed in seeds
    ]
    rows = embeddings.new_zeros(len(texts), len(images), 1 + side**2)
    rows[..., 0] = 1.0
    for place in reversed(range(len(calls))):
        cotangents = [slope[place] for slope in slopes]
        for row, cam in zip(rows, _cams(calls[place], part, cotangents), strict=True):
            row += (row[:, None] @ cam)[:, 0]
    return rows[..., 1:].unflatten(-1, (side, side))


@gradients(enabled=False)
def attention_map(
    model: nn.Module, images: Float[Tensor, "batch 3 height width"], part: Part = "combined", layer: int = -1
) -> Float[Tensor, "batch rows columns"]:
    """Return the attention of the class token to the patches, the mean over the heads; it knows of no text.

    Args:
        model: a dual encoder in evaluation mode.
        images: in [0, 1].
        part: ``"combined"``: A1 − λ·A2, of either sign; ``"positive"``: A1, ``"negative"``: A2, both in [0, 1].
        layer: of the image tower, from 0; negative numbers count from the last, which is −1.

    Raises:
        UserError: as :func:`chefer_relevance`, and for a layer that does not exist.
        NoSecondMap: ``"negative"`` of standard attention.
    """
    calls, _, side = _watch(as_dual_encoder(model), model, images)
    with torch.no_grad():
        chosen, _ = _part(take_apart(calls[_layer(layer, len(calls))]), part)
        return chosen[:, :, 0, 1:].mean(1).unflatten(-1, (side, side))


@dataclass(frozen=True)
class Method:
    """One way to draw a map.

    Attributes:
        label: what a figure calls it.
        asks: whether the map depends on the text.
        maps: function of (model, images, texts, layer); the layer is that of raw attention.
    """

    label: str
    asks: bool
    maps: Callable[[nn.Module, Tensor, Sequence[str], int], Float[Tensor, "texts batch rows columns"]]


def _relevance(
    part: Part, start: int, model: nn.Module, images: Tensor, texts: Sequence[str], layer: int
) -> Tensor:
    return chefer_relevance(model, images, texts, part, start)


def _attention(part: Part, model: nn.Module, images: Tensor, texts: Sequence[str], layer: int) -> Tensor:
    return attention_map(model, images, part, layer).expand(len(texts), -1, -1, -1)


METHODS: dict[str, Method] = {
    "relevance": Method("relevance", True, partial(_relevance, "combined", 0)),
    "relevance-last": Method("relevance, last layer", True, partial(_relevance, "combined", -1)),
    "relevance-positive": Method("relevance of A1", True, partial(_relevance, "positive", 0)),
    "relevance-negative": Method("relevance of A2", True, partial(_relevance, "negative", 0)),
    "attention": Method("attention A1 − λ·A2", False, partial(_attention, "combined")),
    "positive": Method("attention A1", False, partial(_attention, "positive")),
    "negative": Method("attention A2", False, partial(_attention, "negative")),
}


def _watch(encoder: DualEncoder, model: nn.Module, images: Tensor) -> tuple[list[Call], Tensor, int]:
    """Return the calls of the image tower with their graph, the embeddings, and the side of the patch grid."""
    kept: list[Tensor] = []
    # the images ask for a gradient, so that there is a graph even where the weights are frozen
    calls = record(
        model,
        leaf(images),
        call=lambda x: kept.append(encoder.encode_image(x)),
        graph=True,
    )
    (embeddings,) = kept
    shapes = {_batch_first(call, call.tokens).shape[:2] for call in calls}
    tokens = max(count for _, count in shapes)
    side = math.isqrt(tokens - 1)
    square = shapes == {(len(images), 1 + side**2)}
    if not square or not _read_at_first_token(calls[-1], embeddings):
        raise UserError(
            f"{type(model).__name__}: its image tower has {tokens} tokens; expected one class token, the first, "
            "that the embedding is read from, and a square grid of patches behind it"
        )
    return calls, embeddings, side


def _read_at_first_token(last: Call, embeddings: Tensor) -> bool:
    """Whether nothing but the first token of the last attention layer reaches the embedding."""
    (slope,) = torch.autograd.grad(
        embeddings, last.output, torch.ones_like(embeddings), retain_graph=True, materialize_grads=True
    )
    return not _batch_first(last, slope)[:, 1:].any()


def _batch_first(call: Call, tensor: Tensor) -> Tensor:
    """Return a module's tokens with the batch in front; ``nn.MultiheadAttention`` may have it second."""
    return tensor.transpose(0, 1) if getattr(call.module, "batch_first", True) is False else tensor


def _layer(number: int, count: int) -> int:
    if not -count <= number < count:
        raise UserError(
            f"layer {number}: expected {-count} to {count - 1}, the image tower has {count} attention layers"
        )
    return number % count


def _part(layer: Layer, part: Part) -> tuple[Tensor, Tensor | float]:
    """Return the map, and what the derivative by the combined map is multiplied by to be the one by this map."""
    if part == "negative":
        if layer.maps.negative is None:
            raise NoSecondMap(f"{layer.name}: standard attention has one map; A2 is differential attention's")
        return layer.maps.negative, -layer.weight[:, None, None]
    return (layer.maps.combined if part == "combined" else layer.maps.positive), 1.0


def _cams(call: Call, part: Part, cotangents: Sequence[Tensor | None]) -> Iterator[Tensor]:
    """Yield cam, ``(batch, tokens, tokens)``, for each gradient at the module's output."""
    with torch.no_grad():
        layer = take_apart(call)
        attention, factor = _part(layer, part)
        combined = layer.maps.combined.clone()
    with torch.enable_grad():
        output = _batch_first(call, layer.finish(combined.requires_grad_()))  # as the module returned it
    for cotangent in cotangents:
        if cotangent is None:  # what the target does not depend on
            yield torch.zeros_like(attention[:, 0])
            continue
        (slope,) = torch.autograd.grad(output, combined, cotangent, retain_graph=True)
        yield (factor * slope * attention).clamp_min(0).mean(1)
