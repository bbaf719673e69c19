"""Training of a vision-language model: stage 1 aligns the projector, stage 2 tunes it with the language model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from antiphase.data.conversations import Conversations
from antiphase.data.decoding import in_threads
from antiphase.errors import UserError
from antiphase.files import digest, write_json
from antiphase.models import checkpoints
from antiphase.streams import generator
from antiphase.training import loop
from antiphase.training.processes import (
    Tracker,
    check_trackers,
    log_options,
    shard,
    start_processes,
    start_tracking,
)
from antiphase.training.vlm_step import Sample, SummedLoss, accumulate, prepare
from antiphase.vlm import VisionLanguageModel, save_vlm
from antiphase.vlm.language import is_lora
from antiphase.vlm.prompt import IGNORED
from antiphase.vlm.recipe import VlmRecipe, vlm_learning_rate

_FITTED = 4096  # captions to which the projector's start is fitted
_TOGETHER = 64  # of them at a time


def train_vlm(
    recipe: VlmRecipe,
    vlm: VisionLanguageModel,
    conversations: Conversations,
    out: Path,
    *,
    part: int | None = None,
    checkpointing: bool = False,
    sharded: bool = False,
    trackers: Sequence[Tracker] = (),
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train one stage and write a directory that :func:`~antiphase.vlm.load_vlm` takes.

    The directory then contains ``recipe.json``, ``metrics.jsonl`` and ``model.safetensors`` (image tower, projector,
    and the adapters or the language model if they were trained). Calling it again resumes an interrupted run at the
    step that was saved last, and returns the log of a finished one. Under torchrun the processes share every batch;
    the gradient is that of the whole batch.

    Args:
        recipe: model, data and hyperparameters.
        vlm: the model before training; changed in place.
        conversations: captions for stage 1, instructions for stage 2.
        out: output directory, created if missing.
        part: samples of a process that pass through the model at a time, see
            :func:`~antiphase.training.vlm_step.accumulate`. Affects the result only by rounding.
        checkpointing: recompute the language model's layers in the backward pass, to save memory.
        sharded: divide weights, gradients and optimizer state among the processes, for a language model that does not
            fit one device; implies checkpointing. Affects the result only by rounding.
        trackers: experiment trackers, by name or as accelerate's objects, see :mod:`antiphase.training.processes`.
        progress: show a progress bar on stderr.

    Returns:
        The log, one entry per epoch.

    Raises:
        UserError: if ``out`` contains a different run, the data do not fit the stage or the batch size, stage 2 is to
            begin at captions, the language model has no known blocks to recompute, a single process is to be sharded,
            an image is unreadable, or the loss is not finite.
    """
    if (log := loop.finished(recipe.model_dump(mode="json"), out)) is not None:
        return log
    check_trackers(trackers)
    accelerator = start_processes(**log_options(trackers, out))
    world = accelerator.num_processes
    if recipe.batch_size % world:
        raise UserError(
            f"batch size {recipe.batch_size}: expected a multiple of {world}, the number of processes"
        )
    if len(conversations) < recipe.batch_size:
        raise UserError(
            f"batch size {recipe.batch_size}: expected 1 to {len(conversations)}, the number of conversations"
        )
    steps_per_epoch = len(conversations) // recipe.batch_size
    if sharded and world == 1:
        raise UserError(
            "shard: there is one process; start several with torchrun --nproc-per-node, or leave out --shard"
        )
    if recipe.stage == 2 and recipe.projector_start == "captions":
        raise UserError("projector-start captions: only stage 1 can start so; leave out --projector-start")
    vlm.eval()  # without dropout, so that a step depends on nothing but its number
    trained = trained_parameters(vlm, recipe)
    blocks = decoder_blocks(vlm.language) if checkpointing or sharded else []
    if (checkpointing or sharded) and not blocks:
        raise UserError(
            f"checkpointing: no blocks of {type(vlm.language).__name__} are known; leave out --checkpointing and "
            "--shard"
        )
    prepare(vlm, conversations[0], recipe.stage, recipe.max_length)  # before anything is written
    fitted = recipe.stage == 1 and recipe.projector_start == "captions"
    if fitted and recipe.model.projector != "linear":
        raise UserError(
            f"projector {recipe.model.projector}: --projector-start captions expects a linear one; add "
            "--projector-start default"
        )
    model = SummedLoss(vlm)
    if not sharded:
        model.to(accelerator.device)
    if fitted:
        _start_at_captions(vlm, conversations, recipe)
    if sharded:
        shard(model, blocks, accelerator)
        trained = trained_parameters(vlm, recipe)  # others have taken their places
    stream = _Stream(recipe, vlm, conversations, accelerator.process_index, world)
    if accelerator.is_main_process:
        write_json(out / checkpoints.RECIPE_FILE, recipe.model_dump(mode="json"))
    track = start_tracking(accelerator, trackers, recipe.model_dump(mode="json"))

    def backward(epoch: int, within: int) -> tuple[Tensor, int]:
        samples = stream.at(epoch, within)
        loss = accumulate(model, samples, accelerator, precision=recipe.precision, part=part)
        torch.nn.utils.clip_grad_norm_(trained.values(), recipe.gradient_norm)
        return loss, recipe.batch_size

    optimizer = torch.optim.AdamW(
        list(trained.values()),
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    # holds what is trained and nothing else: a saved state needs no frozen weights
    parts = nn.ParameterDict({name.replace(".", "/"): value for name, value in trained.items()})
    task = loop.Task(
        parts,
        optimizer,
        digest(recipe.model_dump_json()),
        recipe.epochs,
        steps_per_epoch,
        lambda step: vlm_learning_rate(recipe, step, steps_per_epoch),
        backward,
        dict,
        track=track,
    )
    with _recomputed(blocks):
        metrics = loop.run(task, out, accelerator, progress=progress)
    main = accelerator.is_main_process
    save_vlm(vlm, recipe.model_dump(mode="json"), out, getattr(torch, recipe.store), write=main)
    if main:
        (out / loop.STATE_FILE).unlink(missing_ok=True)
    accelerator.wait_for_everyone()
    if trackers:
        accelerator.end_training()
    return metrics


def decoder_blocks(language: nn.Module) -> list[nn.Module]:
    """Return the blocks of a language model: those that transformers keeps on one device, else those it recomputes."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # an extra

    names = set(getattr(language, "_no_split_modules", None) or ())
    named = [module for module in language.modules() if type(module).__name__ in names]
    return named or [
        module for module in language.modules() if isinstance(module, GradientCheckpointingLayer)
    ]


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
    """Return what a stage trains by name; all other parameters no longer require a gradient.

    Stage 1 trains the projector; stage 2 also the adapters, or else the whole language model.
    """
    found: dict[str, nn.Parameter] = {}
    for name, parameter in vlm.named_parameters():
        language = name.startswith("language.") and recipe.stage == 2
        own = language and (is_lora(name) if recipe.model.lora else True)
        parameter.requires_grad_(own or name.startswith("projector."))
        if parameter.requires_grad:
            found[name] = parameter
    return found


def _start_at_captions(vlm: VisionLanguageModel, conversations: Conversations, recipe: VlmRecipe) -> None:
    """Let the projector begin with the least squares fit to the words of the first captions."""
    embeddings = vlm.language.get_input_embeddings().weight.detach()
    rows = range(min(_FITTED, len(conversations)))

    def sample(row: int) -> Sample:
        return prepare(vlm, conversations[row], recipe.stage, recipe.max_length)

    labels = (sample(row).labels.to(embeddings.device) for row in rows)
    captions = [embeddings[each[each != IGNORED]].float() for each in labels]
    words = torch.cat(captions)
    norm = float((words - words.mean(0)).square().sum(1).mean().sqrt())

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(rows), _TOGETHER):
            some = rows[start : start + _TOGETHER]
            images = torch.stack(
                [image for image in (sample(row).image for row in some) if image is not None]
            )
            with torch.no_grad():
                tokens = vlm.tower(images.to(embeddings.device))
            yield tokens, torch.stack([captions[row].mean(0) for row in some])

    vlm.projector.start_at_words(batches(), norm)


class _Stream:
    """This process's share of each step; a request for a step other than the next restarts the stream there."""

    def __init__(
        self, recipe: VlmRecipe, vlm: VisionLanguageModel, conversations: Conversations, rank: int, world: int
    ) -> None:
        self.recipe, self.vlm, self.conversations = recipe, vlm, conversations
        self.rank, self.world = rank, world
        self.next: tuple[int, int] | None = None
        self.samples: Iterator[Sample] = iter(())

    def at(self, epoch: int, within: int) -> list[Sample]:
        size = self.recipe.batch_size
        if self.next != (epoch, within):
            draw = generator(self.recipe.seed, "order", epoch)
            order = torch.randperm(len(self.conversations), generator=draw).tolist()
            if self.recipe.text_first and epoch == 0:
                order.sort(key=self.conversations.has_image)  # stable: drawn order within each kind
            steps = range(within, len(order) // size)
            rows = [
                row
                for step in steps
                for row in order[step * size : (step + 1) * size][self.rank :: self.world]
            ]
            self.samples = in_threads(self._prepared, rows, ahead=2 * size)
        self.next = (epoch, within + 1)
        return [next(self.samples) for _ in range(size // self.world)]

    def _prepared(self, row: int) -> Sample:
        return prepare(self.vlm, self.conversations[row], self.recipe.stage, self.recipe.max_length)
