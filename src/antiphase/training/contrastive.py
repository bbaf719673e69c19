"""Contrastive training of CLIP and its differential variants: the loss, the exact gradient of a batch, the run."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int64, UInt8
from open_clip.loss import ClipLoss, SigLipLoss
from PIL import Image
from torch import Tensor

from antiphase import processes, streams
from antiphase.attention import outputs_only
from antiphase.data import PairSet, ShardStream
from antiphase.data.decoding import in_threads
from antiphase.data.images import PairBatch
from antiphase.errors import UserError
from antiphase.files import write_text
from antiphase.models.card import mean_lambdas
from antiphase.models.checkpoints import load_into
from antiphase.models.clip import CLIP, Embeddings, build_clip, tokenize
from antiphase.precision import Precision, autocast
from antiphase.training import loop
from antiphase.training.defences import Step, check_defences, in_use, penalties, values
from antiphase.training.loop import Trackers
from antiphase.training.recipe import MAX_LOGIT_SCALE, ClipRecipe, Kind, clip_learning_rate

BAD_SAMPLES_FILE = "bad-samples.txt"
_PATIENCE = 1000  # training stops after this many unreadable samples in a row
PairSource = PairSet | ShardStream
Evaluate = Callable[[CLIP], dict[str, Any]]
Number = Float[Tensor, ""]


def train_clip(
    recipe: ClipRecipe,
    pairs: PairSource,
    out: Path,
    *,
    weights: dict[str, Tensor] | None = None,
    evaluate: Evaluate | None = None,
    part: int | None = None,
    compiled: bool = False,
    checkpointing: bool = False,
    trackers: Trackers = (),
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train a dual encoder, as :func:`~antiphase.training.train_classifier` does.

    If samples are unusable, ``bad-samples.txt`` names them; 1,000 in a row, or a whole epoch, stop the training.

    Args:
        weights: to start from; None: those that the recipe's seed draws.
        evaluate: maps the model, in evaluation mode, to entries of the log at the end of an epoch.
        part: samples per pass through the towers (GradCache); None: the whole share of the process. Rounding only.
        compiled: run the towers with torch.compile.
        checkpointing: recompute each block in the backward pass, to save memory.
        trackers: experiment trackers, by name or as accelerate's objects.
    """

    def begin(accelerator: Accelerator) -> loop.Task:
        steps, world = pairs.steps_per_epoch(recipe.batch_size), accelerator.num_processes
        loop.check_divisible(recipe.batch_size, world)
        places = recipe.batch_size // world
        model = build_clip(recipe.model, recipe.seed).to(accelerator.device)
        if weights is not None:
            load_into(model, weights, "the weights to start from")
        model.visual.checkpointing = model.text.checkpointing = checkpointing
        strengths = in_use(recipe.defences or {})
        check_defences(strengths, model.visual, adversarial=False, clip=True)
        last: list[Tensor] = []  # images of the last step
        if compiled:
            model.visual.compile()
            model.text.compile(dynamic=True)
        path = out / f"{accelerator.process_index or ''}{BAD_SAMPLES_FILE}"
        # each once
        bad = dict.fromkeys(path.read_text(encoding="utf-8").splitlines() if path.exists() else [])

        def penalised(images: Tensor, step: int) -> Step:
            def features(images: Tensor) -> Tensor:
                with autocast(accelerator.device, recipe.precision):
                    return model.visual.forward(images)  # not compiled, since hooks look into it

            return Step(model.visual, images, images, images.new_zeros(len(images)).long(), features, recipe.seed, step)

        def penalise(share: Share, step: int) -> None:
            """Add the gradients of the penalties, the mean over the processes; accumulate adds those of the loss."""
            last[:] = [share.images[share.valid].to(accelerator.device).to(model.logit_scale.dtype) / 255]
            if len(last[0]):
                warm = min(1.0, (step + 1) / steps)  # strengths rise over the first epoch
                if terms := list(penalties(penalised(last[0], step), strengths, warm)):  # they share a graph
                    (sum(terms) / world).backward()

        def note_bad(lines: Iterable[str]) -> None:
            known = len(bad)
            bad.update(dict.fromkeys(lines))
            if len(bad) > known:
                write_text(path, "".join(f"{line}\n" for line in bad))

        def gradients(epoch: int, first: int) -> Iterator[tuple[Tensor, int]]:
            unread = 0  # samples in a row, counted in whole shares
            process: dict[str, Any] = {"rank": accelerator.process_index, "world": world}
            batches = pairs.batches(recipe.batch_size, seed=recipe.seed, epoch=epoch, first=first, **process)
            share_of, steps_on = partial(prepare, recipe, model, places, epoch), itertools.count(epoch * steps + first)
            for share, lines in in_threads(lambda one: (share_of(one), one.bad), batches, 2):
                note_bad(lines)
                unread = 0 if share.valid.any() else unread + len(share.valid)
                if unread >= min(_PATIENCE, steps * places):
                    fault = f"none of the last {unread:,} samples could be read, training stopped"
                    raise UserError(f"{pairs.name}: {fault}; see {path}, and download the images again")
                if strengths:
                    penalise(share, next(steps_on))
                with outputs_only():  # of the image tower's last block, only the class token is used
                    loss = accumulate(model, share, accelerator, recipe.loss, recipe.precision, part)
                yield loss, share.size

        @torch.no_grad()
        def clamp_scale(*_: Any) -> None:
            model.logit_scale.clamp_(0.0, MAX_LOGIT_SCALE)

        def measure() -> dict[str, Any]:
            numbers = {"logit_scale": float(model.logit_scale.detach().exp()), "lambda": mean_lambdas(model)}
            numbers |= {"bad_samples": len(bad)} if bad else {}
            numbers |= values(penalised(last[0], 0), strengths) if strengths and len(last[0]) else {}
            return numbers | (evaluate(model) if evaluate and accelerator.is_main_process else {})

        note_bad(getattr(pairs, "skipped", ()))
        optimizer = clip_optimizer(model, recipe)
        optimizer.register_step_post_hook(clamp_scale)
        rate = partial(clip_learning_rate, recipe, steps_per_epoch=steps)
        return loop.Task(model, optimizer, steps, rate, gradients, measure)

    return loop.train(recipe, out, begin, trackers=trackers, progress=progress)


def clip_optimizer(model: CLIP, recipe: ClipRecipe) -> torch.optim.Optimizer:
    """Return AdamW, with weight decay only on parameters with at least two axes."""
    groups = loop.decayed([*model.parameters()], recipe.weight_decay, range(2, 9))
    rates = {"lr": recipe.learning_rate, "betas": recipe.betas, "eps": recipe.epsilon}
    return torch.optim.AdamW(groups, **rates, fused=True)


@dataclass(frozen=True)
class Share:
    """One process's share of a batch; all processes have shares of equal length."""

    images: UInt8[Tensor, "share 3 height width"]
    tokens: Int64[Tensor, "share length"]
    valid: Bool[Tensor, " share"]  # False for padding in place of an unreadable sample
    keep: Int64[Tensor, "share kept"] | None  # indices of the patches that are not dropped
    size: int  # samples in the whole batch


def prepare(recipe: ClipRecipe, model: CLIP, places: int, epoch: int, batch: PairBatch) -> Share:
    """Crop images, choose captions and patches, all keyed by (seed, epoch, sample), for a share of ``places``."""
    ids, good = batch.ids, len(batch.images)
    size, patches = model.image_shape[1], model.visual.pos_embed.shape[1] - 1

    def keys(name: str, ids: Tensor = ids) -> Tensor:
        return streams.sample_keys(streams.key(recipe.seed, name, epoch), ids)

    images = torch.zeros(places, 3, size, size, dtype=torch.uint8)
    if good:
        images[:good] = random_crops(batch.images, keys("crop"), size, recipe.crop)
    draws = streams.uniform(keys("caption"), 1)[:, 0].tolist()
    captions = [
        several[int(draw * len(several)) if recipe.captions == "any" else 0]
        for several, draw in zip(batch.captions, draws, strict=True)
    ]
    tokens = tokenize([*captions, *[""] * (places - good)], model.text.context_length)  # pyright: ignore
    keep = None
    if recipe.patch_dropout:
        count = max(1, round(patches * (1.0 - recipe.patch_dropout)))
        padded = torch.cat([ids, ids.new_zeros(places - len(ids))])
        keep = streams.uniform(keys("patches", padded), patches).argsort(1)[:, :count].sort(1).values
    return Share(images, tokens, torch.arange(places) < good, keep, batch.size)


def random_crops(
    images: Sequence[UInt8[Tensor, "3 height width"]], keys: streams.Keys, size: int, scale: tuple[float, float]
) -> UInt8[Tensor, "batch 3 size size"]:
    """Crop a random part of each image and resize it to a square, bilinearly with antialiasing.

    Like torchvision's RandomResizedCrop, with an area of ``scale`` times the image's and an aspect ratio between 3/4
    and 4/3, but pixels just outside the crop contribute to its border.
    """
    draws = streams.uniform(keys, 2 * 10 + 2).double()  # ten attempts to fit an area in
    crops = []
    for image, draw in zip(images, draws, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        box = _crop_box(picture.height, picture.width, draw, scale)
        square = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
        crops.append(torch.from_numpy(np.array(square)))
    return torch.stack(crops).permute(0, 3, 1, 2)


def _crop_box(height: int, width: int, draws: Tensor, scale: tuple[float, float]) -> tuple[int, int, int, int]:
    log_ratio = math.log(4.0 / 3.0)
    for area_draw, ratio_draw in draws[:-2].view(-1, 2).tolist():
        area = height * width * (scale[0] + (scale[1] - scale[0]) * area_draw)
        ratio = math.exp(log_ratio * (2.0 * ratio_draw - 1.0))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            across, down = draws[-2:].tolist()
            left, top = int(across * (width - w + 1)), int(down * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


class FeatureGradients(NamedTuple):
    """Loss of a batch, and its gradients with respect to each input; None for an absent bias."""

    loss: Number
    image: Embeddings
    text: Embeddings
    logit_scale: Number
    logit_bias: Number | None = None


def at_least_float32(x: Tensor) -> Tensor:
    """Convert x to float32 unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def feature_gradients(
    image: Embeddings, text: Embeddings, logit_scale: Number, logit_bias: Number | None = None, kind: Kind = "clip"
) -> FeatureGradients:
    """Compute the loss of a batch of embeddings, not normalised, and its gradients with respect to them.

    ``logit_scale`` is the natural logarithm of the factor on the cosines. Kinds: ``"clip"``, symmetric cross-entropy
    (CLIP, Figure 3); ``"siglip"``, X. Zhai et al., *Sigmoid Loss for Language Image Pre-Training*, ICCV 2023;
    ``"slip_exact"``, cross-entropy with constant keys, as SLIP's code computes it on several devices.
    """
    inputs = [image, text, logit_scale, *([] if logit_bias is None else [logit_bias])]
    with torch.enable_grad():
        leaves = [at_least_float32(one.detach()).requires_grad_() for one in inputs]
        if not len(image):  # all samples of the batch were unreadable
            return FeatureGradients(image.new_zeros(()), *map(torch.zeros_like, leaves))
        directions = [F.normalize(leaf, dim=-1) for leaf in leaves[:2]]
        loss = _loss(kind, *directions, leaves[2].exp(), *leaves[3:])  # pyright: ignore
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
    return FeatureGradients(loss.detach(), *gradients)


def _loss(kind: Kind, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    if kind == "clip":
        return ClipLoss()(image, text, scale, bias)
    if kind == "siglip":
        return SigLipLoss()(image, text, scale, 0.0 if bias is None else bias)
    targets = torch.arange(len(image), device=image.device)
    by_image = F.cross_entropy(scale * image @ text.detach().T, targets)
    by_text = F.cross_entropy(scale * text @ image.detach().T, targets)
    return (by_image + by_text) / 2


def accumulate(
    model: CLIP, share: Share, accelerator: Accelerator, kind: Kind, precision: Precision, part: int | None
) -> Number:
    """Add the gradient of the whole batch's loss to the parameters, and return the loss.

    Processes embed their shares, ``part`` samples at a time, and gather all embeddings for the loss and its gradient.
    Then each backpropagates its own rows, part by part, and the gradients are summed. So ``part`` and the number of
    processes matter by rounding only (GradCache: L. Gao et al., *Scaling Deep Contrastive Learning Batch Size under
    Memory Limited Setup*, RepL4NLP 2021).
    """
    count, device = len(share.images), accelerator.device
    size = part or count
    starts = range(0, count, size)

    def features(start: int) -> tuple[Tensor, Tensor]:
        rows = slice(start, start + size)  # copied to the device now, to hold one part at a time there
        keep = None if share.keep is None else share.keep[rows].to(device)
        images = share.images[rows].to(device, non_blocking=True).to(model.logit_scale.dtype) / 255
        with autocast(device, precision):
            image, text = model(images, share.tokens[rows].to(device), keep)
        return at_least_float32(image), at_least_float32(text)

    with torch.set_grad_enabled(len(starts) == 1):
        parts = [features(start) for start in starts]
    sides = [torch.cat(side).detach() for side in zip(*parts, strict=True)]
    gathered: Any = [accelerator.gather(tensor) for tensor in (*sides, share.valid.to(device))]
    used = gathered[2].nonzero().squeeze(1)
    image, text = (tensor[used] for tensor in gathered[:2])
    whole = feature_gradients(image, text, model.logit_scale, model.logit_bias, kind)
    first = accelerator.process_index * count
    rows = [
        torch.zeros_like(every).index_copy_(0, used, gradient)[first : first + count].split(size)
        for every, gradient in zip(gathered, (whole.image, whole.text), strict=False)
    ]
    for start, *gradients in zip(starts, *rows, strict=True):
        torch.autograd.backward(parts[0] if len(starts) == 1 else features(start), gradients)
    processes.sum_gradients(model.parameters(), accelerator)
    model.logit_scale.grad = whole.logit_scale.to(device)
    if whole.logit_bias is not None and model.logit_bias is not None:
        model.logit_bias.grad = whole.logit_bias.to(device)
    return whole.loss
