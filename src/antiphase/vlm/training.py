"""Training of a vision-language model: stage 1 aligns the projector, stage 2 tunes it with the language model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from antiphase.data.conversations import Conversation, Conversations
from antiphase.data.decoding import in_threads
from antiphase.errors import UserError
from antiphase.precision import Precision, autocast
from antiphase.processes import sum_gradients
from antiphase.streams import generator
from antiphase.training import loop
from antiphase.training.loop import Trackers
from antiphase.vlm.checkpoint import LORA, VlmRecipe, save_vlm, vlm_learning_rate
from antiphase.vlm.model import IGNORED, IMAGE, Ids, Images, Mask, VisionLanguageModel

_FITTED = 4096  # captions to which the projector's start is fitted
_TOGETHER = 64  # of them at a time
_CPU_PART = 4  # a step of 16 takes a quarter less time than at once, its intermediate values in the cache


def train_vlm(
    recipe: VlmRecipe,
    vlm: VisionLanguageModel,
    conversations: Conversations,
    out: Path,
    *,
    part: int | None = None,
    checkpointing: bool = False,
    trackers: Trackers = (),
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train one stage, as :func:`~antiphase.training.train_classifier` does, for :func:`~antiphase.vlm.load_vlm`.

    ``model.safetensors`` has the image tower, the projector, and what else was trained.

    Args:
        vlm: the model before training; changed in place.
        part: samples of a process that pass through the model at a time, see :func:`accumulate`; rounding only.
        checkpointing: recompute the language model's layers in the backward pass, to save memory.
        trackers: experiment trackers, by name or as accelerate's objects.
    """

    def sample(row: int) -> Sample:
        return prepare(vlm, conversations[row], recipe.stage, recipe.max_length)

    def begin(accelerator: Accelerator) -> loop.Task:
        blocks = decoder_blocks(vlm.language) if checkpointing else []
        _check(recipe, len(conversations), accelerator.num_processes)
        if checkpointing and not blocks:
            raise UserError("checkpointing: the model has no known blocks; leave out --checkpointing")
        vlm.eval()  # without dropout, so that a step depends on nothing but its number
        sample(0)  # refuses data of another stage
        trained = trained_parameters(vlm, recipe)
        model = SummedLoss(vlm)
        model.to(accelerator.device)
        if recipe.projector_start == "captions":
            _start_at_captions(vlm, [*range(min(_FITTED, len(conversations)))], sample)

        def gradients(epoch: int, first: int) -> Iterator[tuple[Tensor, int]]:
            size, count = recipe.batch_size, accelerator.num_processes
            order = drawn_order(recipe, conversations, epoch)
            starts = range(first * size, len(order) - size + 1, size)
            rows = [row for start in starts for row in order[start : start + size][accelerator.process_index :: count]]
            samples = in_threads(sample, rows, ahead=2 * size)
            for _ in starts:
                share = list(islice(samples, size // count))
                with _recomputed(blocks):
                    loss = accumulate(model, share, accelerator, precision=recipe.precision, part=part)
                torch.nn.utils.clip_grad_norm_(trained.values(), recipe.gradient_norm)
                yield loss, size

        steps = len(conversations) // recipe.batch_size
        rates = {"lr": recipe.learning_rate, "betas": recipe.betas, "eps": recipe.epsilon}
        optimizer = torch.optim.AdamW(list(trained.values()), weight_decay=recipe.weight_decay, fused=True, **rates)
        # what is trained and nothing else: a saved state needs no frozen weights
        parameters = nn.ParameterDict({name.replace(".", "/"): value for name, value in trained.items()})
        about = (parameters, optimizer, steps, partial(vlm_learning_rate, recipe, steps_per_epoch=steps), gradients)
        return loop.Task(*about, save=lambda written, dtype: save_vlm(vlm, written, out, dtype))

    return loop.train(recipe, out, begin, trackers=trackers, progress=progress)


def _check(recipe: VlmRecipe, conversations: int, processes: int) -> None:
    size, projector = recipe.batch_size, recipe.model.projector
    loop.check_divisible(size, processes)
    if conversations < size:
        raise UserError(f"batch size {size}: expected 1 to {conversations}, the number of conversations")
    if recipe.projector_start == "captions" and recipe.stage == 2:
        raise UserError("projector-start captions: only stage 1 can start so; leave out --projector-start")
    if recipe.projector_start == "captions" and projector != "linear":
        raise UserError(f"projector {projector}: --projector-start captions expects a linear one")


def drawn_order(recipe: VlmRecipe, conversations: Conversations, epoch: int) -> list[int]:
    """Return the order of an epoch's conversations."""
    order = torch.randperm(len(conversations), generator=generator(recipe.seed, "order", epoch)).tolist()
    if recipe.text_first and epoch == 0:
        order.sort(key=conversations.has_image)  # stable: drawn order within each kind
    return order


def decoder_blocks(language: nn.Module) -> list[nn.Module]:
    """Return the blocks of a language model: those that transformers keeps on one device, else those it recomputes."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # an extra

    names = getattr(language, "_no_split_modules", None) or ()
    named = [part for part in language.modules() if type(part).__name__ in names]
    return named or [part for part in language.modules() if isinstance(part, GradientCheckpointingLayer)]


@contextmanager
def _recomputed(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Compute blocks again in the backward pass. transformers can do so in training mode only, with dropout."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def trained_parameters(vlm: VisionLanguageModel, recipe: VlmRecipe) -> dict[str, nn.Parameter]:
    """Return what a stage trains, the projector and in stage 2 adapters or language model; freeze all else."""
    for name, parameter in vlm.named_parameters():
        tuned = recipe.stage == 2 and name.startswith("language.") and (recipe.model.lora is None or LORA in name)
        parameter.requires_grad_(tuned or name.startswith("projector."))
    return {name: parameter for name, parameter in vlm.named_parameters() if parameter.requires_grad}


def _start_at_captions(vlm: VisionLanguageModel, rows: list[int], sample: Callable[[int], "Sample"]) -> None:
    embeddings = vlm.language.get_input_embeddings().weight.detach()
    labels = (sample(row).labels.to(embeddings.device) for row in rows)
    captions = [embeddings[ids[ids != IGNORED]].float() for ids in labels]
    words = torch.cat(captions)
    norm = float((words - words.mean(0)).square().sum(1).mean().sqrt())

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(rows), _TOGETHER):
            some = rows[start : start + _TOGETHER]
            images = [image for row in some if (image := sample(row).image) is not None]
            with torch.no_grad():
                tokens = vlm.tower(torch.stack(images).to(embeddings.device))
            yield tokens, torch.stack([captions[row].mean(0) for row in some])

    vlm.projector.start_at_words(batches(), norm)


class Sample(NamedTuple):
    """A conversation, ready for the model, with ``IMAGE`` in the image's place and ``IGNORED`` where no target is."""

    ids: Int64[Tensor, " length"]
    labels: Int64[Tensor, " length"]
    image: Float[Tensor, "3 height width"] | None  # in [0, 1] at the model's size


def prepare(vlm: VisionLanguageModel, conversation: Conversation, stage: int, max_length: int) -> Sample:
    """Tokenise a conversation by the stage's format, cut to ``max_length`` positions, and resize its image.

    The sample has no targets if it is cut before its first answer, and no image if it is cut before the image.
    """
    image, turns = conversation.image, conversation.turns
    if stage == 1:
        if image is None or len(turns) != 1:
            has = "no image" if image is None else f"{len(turns)} turns"
            raise UserError(f"conversation {conversation.id}: {has}; stage 1 expects an image with one turn")
        ids, labels = vlm.prompt.caption(turns[0][1])
    else:
        ids, labels = vlm.prompt.conversation(turns, image=image is not None)
    if (longest := max_length - (0 if image is None else vlm.projector.count - 1)) < 2:
        raise UserError(f"max_length {max_length}: an image alone takes {vlm.projector.count} positions")
    ids, labels = ids[:longest], labels[:longest]
    if not bool((ids == IMAGE).any()):
        image = None
    elif image is not None and tuple(image.shape) != vlm.image_shape:
        image = vlm.square((image * 255).round().to(torch.uint8)).float() / 255
    return Sample(ids, labels, image)


class SummedLoss(nn.Module):
    """Compute the cross-entropy of a vision-language model, summed over all targets of some conversations."""

    def __init__(self, vlm: VisionLanguageModel) -> None:
        super().__init__()
        self.vlm = vlm

    def forward(self, images: Images | None, ids: Ids, labels: Ids, mask: Mask) -> Float[Tensor, ""]:
        vlm = self.vlm
        embedded, expanded, used = vlm.embed(images, ids, labels, mask)
        assert expanded is not None
        target = expanded[:, 1:]
        columns = (target != IGNORED).any(0).nonzero()[:, 0]  # logits are computed at these positions only
        how = {"attention_mask": used, "use_cache": False, "logits_to_keep": columns}
        logits = vlm.language(inputs_embeds=embedded, **how).logits
        flat, target_ids = logits.flatten(0, 1).float(), target[:, columns].flatten()
        summed = F.cross_entropy(flat, target_ids, ignore_index=IGNORED, reduction="sum")
        if images is None:  # the projector has a gradient, though of 0, in every process
            summed = summed + 0.0 * vlm.visual_tokens(torch.zeros(1, *vlm.image_shape, device=ids.device)).sum()
        return summed


def accumulate(
    model: SummedLoss, samples: Sequence[Sample], accelerator: Accelerator, precision: Precision, part: int | None
) -> Float[Tensor, ""]:
    """Add the gradient of the whole batch's loss to the trained parameters, and return this process's part of it.

    The loss is the mean cross-entropy over all targets of the batch, whatever the processes and parts; a process's
    part is the sum over its targets, divided by the mean number of targets in a process. ``part`` samples of like
    length pass through the model at a time; None: all, and on a processor ``_CPU_PART``.
    """
    device = accelerator.device
    mine = sum(int((sample.labels[1:] != IGNORED).sum()) for sample in samples)
    every: Any = accelerator.reduce(torch.tensor(float(mine), device=device), "sum")
    total = max(float(every), 1.0)  # without any target, the loss and its gradient are 0
    loss = torch.zeros((), device=device)
    size = part or (_CPU_PART if device.type == "cpu" else len(samples))
    samples = sorted(samples, key=lambda sample: len(sample.ids))  # so that little is padded
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)  # on the right
    blank = torch.zeros(model.vlm.image_shape)
    for start in range(0, len(samples), size):
        chosen = samples[start : start + size]
        ids = pad([one.ids for one in chosen])
        labels = pad([one.labels for one in chosen], padding_value=IGNORED)
        mask = pad([torch.ones_like(one.ids, dtype=torch.bool) for one in chosen])
        some = any(one.image is not None for one in chosen)
        stacked = torch.stack([blank if one.image is None else one.image for one in chosen]).to(device)
        with autocast(device, precision):
            summed = model(stacked if some else None, ids.to(device), labels.to(device), mask.to(device))
        (summed / total).backward()
        loss += summed.detach() / total
    sum_gradients(model.parameters(), accelerator)
    return loss * accelerator.num_processes
