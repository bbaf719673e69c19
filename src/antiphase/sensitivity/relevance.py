"""Relevance of image patches for a text, and attention maps, of a dual encoder's image tower; how they localise."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, UNIT_RANGE, validated
from antiphase.attention.maps import per_head
from antiphase.errors import UserError
from antiphase.models.zeroshot import DualEncoder, as_dual_encoder
from antiphase.sensitivity.layers import Call, Layer, gradients, leaf
from antiphase.sensitivity.maps import record, take_apart

Images = Annotated[Float[Tensor, "batch 3 height width"], NOT_EMPTY, UNIT_RANGE]
Part = Literal["combined", "positive", "negative"]


class NoSecondMap(UserError):
    """A2 was requested from standard attention, which has one map."""


@validated
@gradients(enabled=False)
def chefer_relevance(
    model: nn.Module,
    images: Images,
    texts: Annotated[Sequence[str], NOT_EMPTY],
    part: Part = "combined",
    start: int = 0,
) -> Float[Tensor, "texts batch rows columns"]:
    """Compute the relevance of each patch for the similarity of an image and a text; values are at least 0.

    Let y = exp(logit_scale)·cos(image, text), A the map of a layer (A1 − λ·A2, with its sign) and E_h the mean over its
    heads. From R = 1, for the layers from ``start`` (−1: the last alone) on, with the full derivative ∂y/∂A,

        cam = E_h max(∂y/∂A ⊙ A, 0),    R ← R + cam·R;    the result is R[CLS, 1:].

    Source: H. Chefer, S. Gur, L. Wolf, *Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers*, ICCV 2021, Section 3; the target is that of their CLIP notebook, whose default is
    ``start=-1``. The signed map of differential attention is our extension.

    ``texts`` are used without a prompt template. ``part``: ``"combined"`` as above, ``"positive"``: A1 and ∂y/∂A1,
    ``"negative"``: A2 and −λ·∂y/∂A. A UserError refuses a tower without a class token and a square grid of patches,
    attention that is not known and a layer that does not exist; NoSecondMap: ``"negative"`` of standard attention.
    """
    encoder = as_dual_encoder(model)
    calls, embeddings, side = _watch(encoder, model, images)
    calls = calls[_layer(start, len(calls)) :]
    with torch.no_grad():
        directions = F.normalize(encoder.encode_text(list(texts)).to(embeddings.dtype), dim=-1)
    with torch.enable_grad():
        logits = encoder.logit_scale.exp() * (F.normalize(embeddings, dim=-1) @ directions.T)
        targets = logits.sum(0)  # the logits of an image do not depend on other images
    outputs = [call.output for call in calls]
    seeds = torch.eye(len(texts)).to(targets)
    slopes = [torch.autograd.grad(targets, outputs, seed, retain_graph=True, allow_unused=True) for seed in seeds]
    rows = embeddings.new_zeros(len(texts), len(images), 1 + side**2)
    rows[..., 0] = 1.0
    for place in reversed(range(len(calls))):
        for row, cam in zip(rows, _cams(calls[place], part, [slope[place] for slope in slopes]), strict=True):
            row += (row[:, None] @ cam)[:, 0]
    return rows[..., 1:].unflatten(-1, (side, side))


@validated
@gradients(enabled=False)
def attention_map(
    model: nn.Module, images: Images, part: Part = "combined", layer: int = -1
) -> Float[Tensor, "batch rows columns"]:
    """Return the attention of the class token to the patches, averaged over the heads; independent of the text.

    ``part``: A1 − λ·A2 (``"combined"``), A1 or A2; ``layer`` of the image tower, negative from the end; errors as
    :func:`chefer_relevance`.
    """
    calls, _, side = _watch(as_dual_encoder(model), model, images)
    with torch.no_grad():
        chosen, _ = _part(take_apart(calls[_layer(layer, len(calls))]), part)
        return chosen[:, :, 0, 1:].mean(1).unflatten(-1, (side, side))


@dataclass(frozen=True)
class Method:
    """A kind of map that a figure can show."""

    label: str  # in figures, of differential attention
    asks: bool  # whether the map depends on the text: relevance, and not attention
    part: Part
    start: int = 0  # first layer of relevance

    def label_for(self, attention: str) -> str:
        """Return the label for a kind of attention; the one map of standard attention is A."""
        return re.sub(r"A1( − λ·A2)?", "A", self.label) if attention == "softmax" else self.label

    def maps(
        self, model: nn.Module, images: Tensor, texts: Sequence[str], layer: int
    ) -> Float[Tensor, "texts batch rows columns"]:
        if self.asks:
            return chefer_relevance(model, images, texts, self.part, self.start)
        return attention_map(model, images, self.part, layer).expand(len(texts), -1, -1, -1)


METHODS: dict[str, Method] = {
    "relevance": Method("relevance", True, "combined"),
    "relevance-last": Method("relevance, last layer", True, "combined", start=-1),
    "relevance-positive": Method("relevance of A1", True, "positive"),
    "relevance-negative": Method("relevance of A2", True, "negative"),
    "attention": Method("attention A1 − λ·A2", False, "combined"),
    "positive": Method("attention A1", False, "positive"),
    "negative": Method("attention A2", False, "negative"),
}


def _watch(encoder: DualEncoder, model: nn.Module, images: Tensor) -> tuple[list[Call], Tensor, int]:
    kept: list[Tensor] = []
    # leaf(images) requires a gradient, so that there is a graph even if the weights are frozen
    calls = record(model, leaf(images), call=lambda x: kept.append(encoder.encode_image(x)), graph=True)
    embeddings = kept[0]  # it may have run again, to find out what subtracts
    shapes = {call.batch_first(call.tokens).shape[:2] for call in calls}
    tokens = max(count for _, count in shapes)
    side = math.isqrt(tokens - 1)
    last, ones = calls[-1], torch.ones_like(embeddings)
    (slope,) = torch.autograd.grad(embeddings, last.output, ones, retain_graph=True, materialize_grads=True)
    read_elsewhere = bool(last.batch_first(slope)[:, 1:].any())
    if shapes != {(len(images), 1 + side**2)} or read_elsewhere:
        fix = "expected one class token, which alone gives the embedding, followed by a square grid of patches"
        raise UserError(f"{type(model).__name__}: its image tower has {tokens} tokens; {fix}")
    return calls, embeddings, side


def _layer(number: int, count: int) -> int:
    if not -count <= number < count:
        raise UserError(f"layer {number}: expected {-count} to {count - 1}, as the image tower has {count}")
    return number % count


def _part(layer: Layer, part: Part) -> tuple[Tensor, Tensor | float]:
    if part == "negative":
        if layer.maps.negative is None or layer.lam is None:
            raise NoSecondMap(f"{layer.name}: standard attention has no A2; expected differential attention")
        return layer.maps.negative, -per_head(layer.lam.detach())
    return (layer.maps.combined if part == "combined" else layer.maps.positive), 1.0


def _cams(call: Call, part: Part, cotangents: Sequence[Tensor | None]) -> Iterator[Tensor]:
    with torch.no_grad():
        layer = take_apart(call)
        attention, factor = _part(layer, part)
        combined = layer.maps.combined.clone()
    with torch.enable_grad():
        output = call.batch_first(layer.finish(combined.requires_grad_()))
    for cotangent in cotangents:
        if cotangent is None:  # the target does not depend on this layer
            yield torch.zeros_like(attention[:, 0])
            continue
        (slope,) = torch.autograd.grad(output, combined, cotangent, retain_graph=True)
        yield (factor * slope * attention).clamp_min(0).mean(1)


def localise(values: Float[np.ndarray, "rows columns"], mask: Bool[np.ndarray, "height width"]) -> tuple[bool, float]:
    """Return pointing game and average precision of a map, enlarged to the size of its mask.

    The *pointing game* is whether the largest value (of equal ones, the first) lies in the mask, without the authors'
    margin of 15 pixels. *Average precision*, in (0, 1], is that of the values as scores for the object's pixels.

    Sources: J. Zhang et al., *Top-down Neural Attention by Excitation Backprop*, ECCV 2016, Section 4.1; H. Chefer, S.
    Gur, L. Wolf, *Transformer Interpretability Beyond Attention Visualization*, CVPR 2021, Section 4.
    """
    if not mask.any():
        raise UserError("empty mask: expected at least one pixel on the object")
    if not np.isfinite(values).all():
        raise ValueError("map: expected finite values")
    pixels = enlarge(values, *mask.shape).ravel()
    return bool(mask.ravel()[pixels.argmax()]), float(average_precision_score(mask.ravel(), pixels))


def enlarge(values: Float[np.ndarray, "rows columns"], height: int, width: int) -> np.ndarray:
    """Resize a map bilinearly, aligned at cell centres, with border values extended outwards."""
    grid = torch.from_numpy(np.array(values, np.float64))[None, None]
    return F.interpolate(grid, (height, width), mode="bilinear", align_corners=False)[0, 0].numpy()
