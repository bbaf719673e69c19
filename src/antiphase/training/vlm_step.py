"""The exact gradient of one batch of conversations, computed in parts and over processes."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from antiphase.data.conversations import Conversation
from antiphase.errors import UserError
from antiphase.precision import Precision, autocast
from antiphase.training.processes import is_sharded, sum_gradients
from antiphase.vlm import VisionLanguageModel
from antiphase.vlm.prompt import IGNORED, IMAGE

_CPU_PART = 4  # a step of 16 takes a quarter less time than at once, its intermediate values in the cache


@dataclass(frozen=True)
class Sample:
    """A conversation, ready for the model.

    Attributes:
        ids: token ids, with ``IMAGE`` in the image's place.
        labels: ``IGNORED`` where a token is no target.
        image: pixels in [0, 1] at the model's size; None without an image.
    """

    ids: Int64[Tensor, " length"]
    labels: Int64[Tensor, " length"]
    image: Float[Tensor, "3 height width"] | None


def prepare(vlm: VisionLanguageModel, conversation: Conversation, stage: int, max_length: int) -> Sample:
    """Tokenise a conversation by the stage's format and bring its image to the model's size.

    Args:
        vlm: the model.
        conversation: in stage 1, one turn whose answer is the caption of an image.
        stage: 1 or 2.
        max_length: positions after which a conversation is cut, the image's included.

    Returns:
        The sample. It has no targets if the conversation is cut before its first answer, and no image if it is cut
        before the image.

    Raises:
        UserError: for stage 1, if there is no image, or not one turn; if an image leaves no position for words.
    """
    image = conversation.image
    if stage == 1:
        if image is None or len(conversation.turns) != 1:
            has = "no image" if image is None else f"{len(conversation.turns)} turns"
            raise UserError(
                f"conversation {conversation.id}: {has}; stage 1 expects an image with one caption"
            )
        ids, labels = vlm.prompt.caption(conversation.turns[0][1])
    else:
        ids, labels = vlm.prompt.conversation(conversation.turns, image=image is not None)
    longest = max_length - (0 if image is None else vlm.projector.count - 1)
    if longest < 2:
        raise UserError(
            f"max_length {max_length}: an image alone takes {vlm.projector.count} positions; expected more"
        )
    ids, labels = ids[:longest], labels[:longest]
    if not bool((ids == IMAGE).any()):
        image = None
    return Sample(ids, labels, None if image is None else _square(vlm, image))


def _square(vlm: VisionLanguageModel, image: Float[Tensor, "3 height width"]) -> Float[Tensor, "3 side side"]:
    if tuple(image.shape) == vlm.image_shape:
        return image
    return vlm.square((image * 255).round().to(torch.uint8)).float() / 255


class SummedLoss(nn.Module):
    """Compute the cross-entropy of a vision-language model, summed over all targets of some conversations."""

    def __init__(self, vlm: VisionLanguageModel) -> None:
        super().__init__()
        self.vlm = vlm

    def forward(
        self,
        images: Float[Tensor, "batch 3 height width"] | None,
        ids: Int64[Tensor, "batch length"],
        labels: Int64[Tensor, "batch length"],
        mask: Bool[Tensor, "batch length"],
    ) -> Float[Tensor, ""]:
        """Return the sum; for the arguments see :meth:`~antiphase.vlm.VisionLanguageModel.embed`."""
        vlm = self.vlm
        embedded, expanded, used = vlm.embed(images, ids, labels, mask)
        assert expanded is not None
        target = expanded[:, 1:]
        asked = (target != IGNORED).any(0).nonzero()[:, 0]  # logits are computed at these positions only
        keeps = "logits_to_keep" in inspect.signature(vlm.language.forward).parameters
        options = {"logits_to_keep": asked} if keeps else {}
        logits = vlm.language(inputs_embeds=embedded, attention_mask=used, use_cache=False, **options).logits
        logits = logits if keeps else logits[:, asked]
        summed = F.cross_entropy(
            logits.flatten(0, 1).float(), target[:, asked].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        if images is None:  # the projector has a gradient, though of 0, in every process
            blank = torch.zeros(1, *vlm.image_shape, device=ids.device)
            summed = summed + 0.0 * vlm.visual_tokens(blank).sum()
        return summed


def accumulate(
    model: SummedLoss,
    samples: Sequence[Sample],
    accelerator: Accelerator,
    *,
    precision: Precision,
    part: int | None,
) -> Float[Tensor, ""]:
    """Add the gradient of the whole batch's loss to the trained parameters, and return this process's part of it.

    The loss is the mean cross-entropy over all targets of the batch, whatever the processes and parts.

    Args:
        model: loss of the model; parameters that are trained require a gradient. It may be sharded.
        samples: this process's share of the batch.
        accelerator: accelerator of the run.
        precision: of the model's passes; bf16 where the device multiplies it.
        part: samples that pass through the model at a time, those of like length together; None: all, and on a
            processor ``_CPU_PART``.

    Returns:
        The sum over this process's targets, divided by the batch's mean number of targets in a process.
    """
    device = accelerator.device
    mine = sum(int((one.labels[1:] != IGNORED).sum()) for one in samples)
    every: Any = accelerator.reduce(torch.tensor(float(mine), device=device), "sum")
    total = max(float(every), 1.0)  # without any target, the loss and its gradient are 0
    loss = torch.zeros((), device=device)
    size = part or (_CPU_PART if device.type == "cpu" else len(samples))
    samples = sorted(samples, key=lambda one: len(one.ids))  # so that little is padded
    sharded = any(map(is_sharded, model.parameters()))
    scale = accelerator.num_processes if sharded else 1  # gradients are averaged in place of summed
    for start in range(0, len(samples), size):
        chosen = samples[start : start + size]
        # cached copies would keep the whole of a sharded model in memory
        with autocast(device, precision, cache=not sharded):
            summed = model(*_together(chosen, model.vlm.image_shape, device))
        (summed * scale / total).backward()
        loss += summed.detach() / total
    if not sharded:
        sum_gradients(model.parameters(), accelerator)
    return loss * accelerator.num_processes


def _together(
    samples: Sequence[Sample], shape: tuple[int, ...], device: torch.device
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Return images (None: there are none), ids, labels and mask of some samples, padded on the right."""
    length = max(len(one.ids) for one in samples)
    ids = torch.stack([F.pad(one.ids, (0, length - len(one.ids))) for one in samples])
    labels = torch.stack([F.pad(one.labels, (0, length - len(one.labels)), value=IGNORED) for one in samples])
    mask = torch.stack([torch.arange(length) < len(one.ids) for one in samples])
    images = None
    if any(one.image is not None for one in samples):
        blank = torch.zeros(shape)
        images = torch.stack([blank if one.image is None else one.image for one in samples]).to(device)
    return images, ids.to(device), labels.to(device), mask.to(device)
