"""The exact gradient of one batch of pairs, computed in parts and over processes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from antiphase.models.clip import CLIP
from antiphase.precision import Precision, autocast
from antiphase.processes import sum_gradients
from antiphase.training.contrastive_loss import FeatureGradients, Kind, at_least_float32, feature_gradients


@dataclass(frozen=True)
class Share:
    """One process's share of a batch.

    Attributes:
        images: 8-bit pixels at the model's size.
        tokens: token ids of one caption per image.
        valid: False for padding in place of an unreadable sample; all processes have shares of equal length.
        keep: indices of the patches that are not dropped; None: all.
        size: samples in the whole batch.
    """

    images: UInt8[Tensor, "share 3 height width"]
    tokens: Int64[Tensor, "share length"]
    valid: Bool[Tensor, " share"]
    keep: Int64[Tensor, "share kept"] | None
    size: int


def accumulate(
    model: CLIP, share: Share, accelerator: Accelerator, *, kind: Kind, precision: Precision, part: int | None
) -> Float[Tensor, ""]:
    """Add the gradient of the whole batch's loss to the parameters, and return the loss.

    1. Each process embeds its share, ``part`` samples at a time; the graph is kept only for a single part.
    2. All processes gather all embeddings and compute the loss and its gradient with respect to them.
    3. Each process backpropagates its own rows through the towers, part by part; the parameter gradients are summed
       over the processes.

    The result does not depend on ``part`` or the number of processes, except for rounding. Memory is that of one part
    plus all embeddings.

    Args:
        model: the model, not wrapped for distributed training.
        share: this process's samples.
        accelerator: accelerator of the run.
        kind: the loss.
        precision: precision of the towers.
        part: samples per part; None: one part.
    """
    size = part or len(share.images)
    parts = list(_parts(share, size, accelerator.device, model.logit_scale.dtype))

    def features(images: Tensor, tokens: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        with autocast(accelerator.device, precision):
            image, text = model(images, tokens, keep)
        return at_least_float32(image), at_least_float32(text)

    kept = features(*parts[0]()) if len(parts) == 1 else None
    if kept is not None:
        image, text = kept
    else:
        with torch.no_grad():
            pairs = [features(*given()) for given in parts]
        image, text = (torch.cat(side) for side in zip(*pairs, strict=True))
    found, own_image, own_text = _whole_batch(model, image, text, share.valid, accelerator, kind)

    for given, *gradients in zip(parts, own_image.split(size), own_text.split(size), strict=True):
        torch.autograd.backward(kept if kept is not None else features(*given()), gradients)
    sum_gradients(model.parameters(), accelerator)
    for name, gradient in (("logit_scale", found.logit_scale), ("logit_bias", found.logit_bias)):
        if gradient is not None:
            getattr(model, name).grad = gradient.to(accelerator.device)
    return found.loss


def _parts(
    share: Share, size: int, device: torch.device, dtype: torch.dtype
) -> Iterator[Callable[[], tuple[Tensor, Tensor, Tensor | None]]]:
    """Yield for each part a function that copies it to the device, to hold one part at a time there."""
    for start in range(0, len(share.images), size):
        rows = slice(start, start + size)

        def bring(rows: slice = rows) -> tuple[Tensor, Tensor, Tensor | None]:
            keep = None if share.keep is None else share.keep[rows].to(device)
            images = share.images[rows].to(device, non_blocking=True).to(dtype) / 255
            return images, share.tokens[rows].to(device), keep

        yield bring


def _whole_batch(
    model: CLIP, image: Tensor, text: Tensor, valid: Tensor, accelerator: Accelerator, kind: Kind
) -> tuple[FeatureGradients, Tensor, Tensor]:
    """Return the batch's loss and gradients, and the gradients of this process's rows."""
    count, process = len(image), accelerator.process_index
    all_image, all_text, every = (
        _gathered(part, accelerator) for part in (image.detach(), text.detach(), valid.to(image.device))
    )
    used = every.nonzero().squeeze(1)
    found = feature_gradients(all_image[used], all_text[used], model.logit_scale, model.logit_bias, kind)
    rows = slice(process * count, (process + 1) * count)
    own_image = torch.zeros_like(all_image).index_copy_(0, used, found.image)[rows]
    own_text = torch.zeros_like(all_text).index_copy_(0, used, found.text)[rows]
    return found, own_image, own_text


def _gathered(part: Tensor, accelerator: Accelerator) -> Tensor:
    if accelerator.num_processes == 1:
        return part
    every: Any = accelerator.gather(part)
    return every
