"""Contrastive training of CLIP and its differential variants."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int64, UInt8
from open_clip.loss import ClipLoss, SigLipLoss
from torch import Tensor

from antiphase.attention import outputs_only
from antiphase.data.pairs import PairBatch, PairSource
from antiphase.data.prefetch import in_threads
from antiphase.errors import UserError
from antiphase.files import digest, write_json, write_text
from antiphase.models import checkpoints
from antiphase.models.clip import CLIP, build_clip
from antiphase.models.lambdas import mean_lambdas
from antiphase.models.text import tokenize
from antiphase.precision import Precision, autocast
from antiphase.streams import key, sample_keys, uniform
from antiphase.training import loop
from antiphase.training.augment import random_crops
from antiphase.training.processes import (
    Tracker,
    check_trackers,
    log_options,
    start_processes,
    start_tracking,
    sum_gradients,
)
from antiphase.training.recipe import MAX_LOGIT_SCALE, ClipRecipe, clip_learning_rate

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
        trackers: experiment trackers, by name or as accelerate's objects, see :mod:`antiphase.training.processes`.
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


Kind = Literal["clip", "siglip", "slip_exact"]
Loss = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # directions, directions, scale, bias


class FeatureGradients(NamedTuple):
    """Loss of a batch, and its gradients with respect to each input; None for an absent bias."""

    loss: Float[Tensor, ""]
    image: Float[Tensor, "batch embed"]
    text: Float[Tensor, "batch embed"]
    logit_scale: Float[Tensor, ""]
    logit_bias: Float[Tensor, ""] | None


def at_least_float32(x: Tensor) -> Tensor:
    """Convert x to float32 unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def feature_gradients(
    image: Float[Tensor, "batch embed"],
    text: Float[Tensor, "batch embed"],
    logit_scale: Float[Tensor, ""],
    logit_bias: Float[Tensor, ""] | None = None,
    kind: Kind = "clip",
) -> FeatureGradients:
    """Compute the loss of a batch of embeddings and its gradients with respect to them.

    Given these gradients, the towers can be differentiated in parts and on several processes: L. Gao et al.,
    *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*, RepL4NLP 2021 (GradCache).

    Args:
        image: image embeddings, not normalised.
        text: caption embeddings in the same order, not normalised.
        logit_scale: natural logarithm of the factor on the cosines.
        logit_bias: added to the logits; for ``"siglip"``.
        kind: ``"clip"``: symmetric cross-entropy (CLIP, Figure 3); ``"siglip"``: X. Zhai et al., *Sigmoid
            Loss for Language Image Pre-Training*, ICCV 2023; ``"slip_exact"``: cross-entropy with constant keys, as
            SLIP's training code computes it on several devices, since its gather stops gradients.
    """
    if not len(image):  # all samples of the batch were unreadable
        bias = None if logit_bias is None else torch.zeros_like(logit_bias)
        return FeatureGradients(image.new_zeros(()), image, text, torch.zeros_like(logit_scale), bias)
    with torch.enable_grad():
        given = (image, text, logit_scale, *([] if logit_bias is None else [logit_bias]))
        leaves = [at_least_float32(each.detach()).requires_grad_() for each in given]
        one, two = (F.normalize(leaf, dim=-1) for leaf in leaves[:2])
        loss = _LOSSES[kind](one, two, leaves[2].exp(), leaves[3] if logit_bias is not None else None)
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
    own = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
    return FeatureGradients(loss.detach(), own[0], own[1], own[2], own[3] if logit_bias is not None else None)


def _clip(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return ClipLoss()(image, text, scale, bias)


def _siglip(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return SigLipLoss()(image, text, scale, 0.0 if bias is None else bias)


def _slip_exact(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    own = torch.arange(len(image), device=image.device)
    by_image = F.cross_entropy(scale * image @ text.detach().T, own)
    by_text = F.cross_entropy(scale * text @ image.detach().T, own)
    return (by_image + by_text) / 2


_LOSSES: dict[str, Loss] = {"clip": _clip, "siglip": _siglip, "slip_exact": _slip_exact}


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
