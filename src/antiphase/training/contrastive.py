"""Contrastive training of CLIP and its differential variants."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from antiphase.attention import outputs_only
from antiphase.data.decoding import in_threads
from antiphase.data.pairs import PairBatch, PairSource
from antiphase.errors import UserError
from antiphase.files import digest, write_json, write_text
from antiphase.models import checkpoints
from antiphase.models.clip import CLIP, build_clip, tokenize
from antiphase.models.kinds import mean_lambdas
from antiphase.processes import start_processes
from antiphase.streams import key, sample_keys, uniform
from antiphase.training import loop
from antiphase.training.augment import random_crops
from antiphase.training.clip_recipe import MAX_LOGIT_SCALE, ClipRecipe, clip_learning_rate
from antiphase.training.contrastive_step import Share, accumulate
from antiphase.training.tracking import Tracker, check_trackers, log_options, start_tracking

BAD_SAMPLES_FILE = "bad-samples.txt"
_PATIENCE = 1000  # training stops after this many unreadable samples in a row
Evaluate = Callable[[CLIP], dict[str, Any]]


def train_clip(
    recipe: ClipRecipe,
    pairs: PairSource,
    out: Path,
    *,
    evaluate: Evaluate | None = None,
    part: int | None = None,
    compiled: bool = False,
    checkpointing: bool = False,
    trackers: Sequence[Tracker] = (),
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train a dual encoder and write it to a directory.

    The directory then contains ``recipe.json``, ``metrics.jsonl``, ``model.safetensors`` (the weights of the last
    epoch) and, if samples were unusable, ``bad-samples.txt``. Calling it again resumes an interrupted run at the next
    batch, and returns the log of a finished one. Under torchrun the processes share every batch; the gradient is that
    of the whole batch.

    Args:
        recipe: model, data and hyperparameters.
        pairs: images with captions.
        out: output directory, created if missing.
        evaluate: maps the model, in evaluation mode, to entries of the log at the end of an epoch.
        part: samples per pass through the towers (GradCache); None: the whole share of the process. Affects the
            result only by rounding.
        compiled: run the towers with torch.compile.
        checkpointing: recompute each block in the backward pass, to save memory.
        trackers: experiment trackers, by name or as accelerate's objects, see :mod:`antiphase.training.tracking`.
        progress: show a progress bar on stderr.

    Returns:
        The log, one entry per epoch.

    Raises:
        UserError: if ``out`` contains a different run, the data do not match the model, 1,000 samples in a row (or a
            whole epoch) are unreadable, or the loss is not finite.
    """
    if (log := loop.finished(recipe.model_dump(mode="json"), out)) is not None:
        return log
    steps_per_epoch = pairs.steps_per_epoch(recipe.batch_size)
    check_trackers(trackers)
    accelerator = start_processes(**log_options(trackers, out))
    world = accelerator.num_processes
    if recipe.batch_size % world:
        raise UserError(
            f"batch size {recipe.batch_size}: expected a multiple of {world}, the number of processes"
        )
    model = build_clip(recipe.model, recipe.seed).to(accelerator.device)
    model.visual.checkpointing = model.text.checkpointing = checkpointing
    if accelerator.is_main_process:
        write_json(out / checkpoints.RECIPE_FILE, recipe.model_dump(mode="json"))
    track = start_tracking(accelerator, trackers, recipe.model_dump(mode="json"))
    if compiled:
        model.visual.compile()
        model.text.compile(dynamic=True)
    bad = _BadSamples(out / f"{accelerator.process_index or ''}{BAD_SAMPLES_FILE}")
    bad.add(getattr(pairs, "skipped", ()))
    stream = _Stream(recipe, pairs, accelerator, model, bad)

    def backward(epoch: int, within: int) -> tuple[Tensor, int]:
        share = stream.at(epoch, within)
        with outputs_only():  # of the image tower's last block, only the class token is used
            loss = accumulate(
                model, share, accelerator, kind=recipe.loss, precision=recipe.precision, part=part
            )
        return loss, share.size

    @torch.no_grad()
    def clamp_scale() -> None:
        model.logit_scale.clamp_(0.0, MAX_LOGIT_SCALE)

    def measure() -> dict[str, Any]:
        found = {"logit_scale": float(model.logit_scale.detach().exp()), "lambda": mean_lambdas(model)}
        found |= {"bad_samples": len(bad.lines)} if bad.lines else {}
        return found | (evaluate(model) if evaluate and accelerator.is_main_process else {})

    def note() -> str:
        lambdas = mean_lambdas(model)
        among = f" · λ {min(lambdas):.3f} to {max(lambdas):.3f}" if lambdas else ""
        return f" · scale {float(model.logit_scale.detach().exp()):.1f}{among}"

    task = loop.Task(
        model,
        clip_optimizer(model, recipe),
        digest(recipe.model_dump_json()),
        recipe.epochs,
        steps_per_epoch,
        lambda step: clip_learning_rate(recipe, step, steps_per_epoch),
        backward,
        measure,
        clamp_scale,
        note,
        track,
    )
    metrics = loop.run(task, out, accelerator, progress=progress)
    if accelerator.is_main_process:
        checkpoints.save(model, recipe.model_dump(mode="json"), out, getattr(torch, recipe.store))
        (out / loop.STATE_FILE).unlink(missing_ok=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return metrics


def clip_optimizer(model: CLIP, recipe: ClipRecipe) -> torch.optim.Optimizer:
    """Return AdamW, with weight decay only on parameters with at least two axes."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon, fused=True
    )


class _BadSamples:
    """Unusable samples, written to a file at once, without duplicates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = dict.fromkeys(path.read_text(encoding="utf-8").splitlines()) if path.exists() else {}

    def add(self, lines: tuple[str, ...]) -> None:
        known = len(self.lines)
        self.lines |= dict.fromkeys(lines)
        if len(self.lines) > known:
            write_text(self.path, "".join(f"{line}\n" for line in self.lines))


class _Stream:
    """This process's share of each step; a request for a step other than the next restarts the stream there."""

    def __init__(
        self, recipe: ClipRecipe, pairs: PairSource, accelerator: Accelerator, model: CLIP, bad: _BadSamples
    ) -> None:
        self.recipe, self.pairs, self.bad = recipe, pairs, bad
        self.rank, self.world = accelerator.process_index, accelerator.num_processes
        self.size = model.image_shape[1]
        self.patches = model.visual.pos_embed.shape[1] - 1
        self.context_length = model.text.context_length
        self.unread = 0  # unreadable samples in a row, counted in whole shares
        epoch = pairs.steps_per_epoch(recipe.batch_size) * (recipe.batch_size // self.world)
        self.patience = min(_PATIENCE, epoch)
        self.next: tuple[int, int] | None = None
        self.shares: Iterator[tuple[Share, tuple[str, ...]]] = iter(())

    def at(self, epoch: int, within: int) -> Share:
        if self.next != (epoch, within):
            batches = self.pairs.batches(
                self.recipe.batch_size,
                seed=self.recipe.seed,
                epoch=epoch,
                first=within,
                rank=self.rank,
                world=self.world,
            )
            self.shares = in_threads(lambda batch: (self.prepare(epoch, batch), batch.bad), batches, ahead=2)
        share, bad = next(self.shares)
        self.next = (epoch, within + 1)
        self.bad.add(bad)
        self.unread = 0 if share.valid.any() else self.unread + len(share.valid)
        if self.unread >= self.patience:
            raise UserError(
                f"{self.pairs.name}: none of the last {self.unread:,} samples could be read, training stopped; see "
                f"{self.bad.path}, and download the images again"
            )
        return share

    def prepare(self, epoch: int, batch: PairBatch) -> Share:
        """Crop images, choose captions and patches, all keyed by (seed, epoch, sample)."""
        recipe, places = self.recipe, self.recipe.batch_size // self.world
        good = len(batch.images)
        crop_keys = sample_keys(key(recipe.seed, "crop", epoch), batch.ids)
        images = torch.zeros(places, 3, self.size, self.size, dtype=torch.uint8)
        if good:
            images[:good] = random_crops(batch.images, crop_keys, self.size, recipe.crop)
        draws = uniform(sample_keys(key(recipe.seed, "caption", epoch), batch.ids), 1)[:, 0]
        chosen = [
            several[int(draw * len(several)) if recipe.captions == "any" else 0]
            for several, draw in zip(batch.captions, draws.tolist(), strict=True)
        ]
        chosen += [""] * (places - good)
        tokens = tokenize(chosen, self.context_length)
        return Share(
            images, tokens, torch.arange(places) < good, self._keep(epoch, batch.ids, places), batch.size
        )

    def _keep(self, epoch: int, ids: Tensor, places: int) -> Tensor | None:
        if not self.recipe.patch_dropout:
            return None
        kept = max(1, round(self.patches * (1.0 - self.recipe.patch_dropout)))
        ids = torch.cat([ids, ids.new_zeros(places - len(ids))])
        draws = uniform(sample_keys(key(self.recipe.seed, "patches", epoch), ids), self.patches)
        return draws.argsort(1)[:, :kept].sort(1).values
