"""The exact gradient of one batch of conversations, computed in parts and over processes."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.conversations import Conversation
from antiphase.errors import UserError
from antiphase.models.vlm import VisionLanguageModel
from antiphase.models.vlm.prompt import IGNORED, IMAGE


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

    Raises:
        UserError: for stage 1, if there is no image, or not one turn; if no target is left.
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
    ids, labels = ids[:longest], labels[:longest]
    if not bool((labels[1:] != IGNORED).any()) or (image is not None and not bool((ids == IMAGE).any())):
        raise UserError(
            f"conversation {conversation.id}: no answer within {max_length} positions; leave it out of the data"
        )
    return Sample(ids, labels, None if image is None else _square(vlm, image))


def _square(vlm: VisionLanguageModel, image: Float[Tensor, "3 height width"]) -> Float[Tensor, "3 side side"]:
    if tuple(image.shape) == vlm.image_shape:
        return image
    return vlm.square((image * 255).round().to(torch.uint8)).float() / 255


def accumulate(
    vlm: VisionLanguageModel,
    samples: Sequence[Sample],
    accelerator: Accelerator,
    *,
    bf16: bool,
    part: int | None,
) -> Float[Tensor, ""]:
    """Add the gradient of the whole batch's loss to the trained parameters, and return this process's part of it.

    The loss is the mean cross-entropy over all targets of the batch, whatever the processes and parts.

    Args:
        vlm: the model; parameters that are trained require a gradient.
        samples: this process's share of the batch.
        accelerator: accelerator of the run.
        bf16: run the model in bfloat16.
        part: samples that pass through the model at a time; None: all.

    Returns:
        The sum over this process's targets, divided by the batch's mean number of targets in a process.
    """
    device = accelerator.device
    mine = sum(int((one.labels[1:] != IGNORED).sum()) for one in samples)
    every: Any = accelerator.reduce(torch.tensor(float(mine), device=device), "sum")
    total = float(every)
    loss = torch.zeros((), device=device)
    size = part or len(samples)
    for start in range(0, len(samples), size):
        chosen = samples[start : start + size]
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            summed = _summed_loss(vlm, chosen, device)
        (summed / total).backward()
        loss += summed.detach() / total
    trained = [p for p in vlm.parameters() if p.requires_grad]
    for parameter in trained:
        if parameter.grad is None:  # a batch without an image, for the projector
            parameter.grad = torch.zeros_like(parameter)
    _sum_over_processes(trained, accelerator)
    return loss * accelerator.num_processes


def _summed_loss(
    vlm: VisionLanguageModel, samples: Sequence[Sample], device: torch.device
) -> Float[Tensor, ""]:
    """Return the cross-entropy summed over all targets of some samples."""
    length = max(len(one.ids) for one in samples)
    ids = torch.stack([F.pad(one.ids, (0, length - len(one.ids))) for one in samples])
    labels = torch.stack([F.pad(one.labels, (0, length - len(one.labels)), value=IGNORED) for one in samples])
    mask = torch.stack([torch.arange(length) < len(one.ids) for one in samples])
    images = None
    if any(one.image is not None for one in samples):
        blank = torch.zeros(vlm.image_shape)
        images = torch.stack([blank if one.image is None else one.image for one in samples]).to(device)
    embedded, expanded, used = vlm.embed(images, ids.to(device), labels.to(device), mask.to(device))
    assert expanded is not None
    target = expanded[:, 1:]
    asked = (target != IGNORED).any(0).nonzero()[:, 0]  # logits are computed at these positions only
    keeps = "logits_to_keep" in inspect.signature(vlm.language.forward).parameters
    options = {"logits_to_keep": asked} if keeps else {}
    logits = vlm.language(inputs_embeds=embedded, attention_mask=used, use_cache=False, **options).logits
    logits = logits if keeps else logits[:, asked]
    return F.cross_entropy(
        logits.flatten(0, 1).float(), target[:, asked].flatten(), ignore_index=IGNORED, reduction="sum"
    )


def _sum_over_processes(trained: Sequence[nn.Parameter], accelerator: Accelerator) -> None:
    if accelerator.num_processes == 1:
        return
    gradients = [p.grad for p in trained if p.grad is not None]
    flat: Any = accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
