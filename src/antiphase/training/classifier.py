"""Train a classifier with cross-entropy (robustness paper, Appendix C.1), optionally adversarially (Appendix D.2)."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, Device, validated
from antiphase.attention import outputs_only
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.models import checkpoints
from antiphase.models.card import mean_lambdas
from antiphase.models.trained import StartingModel
from antiphase.models.vit import build
from antiphase.precision import autocast
from antiphase.streams import generator, key, sample_keys, uniform
from antiphase.training import adversarial, loop
from antiphase.training.defences import Step, check_defences, defended_loss, in_use, share_of_time, values
from antiphase.training.defences.weights import adversarial_weights, averaged, keep_average
from antiphase.training.loop import Trackers
from antiphase.training.recipe import Recipe, learning_rate

_TOGETHER = 256  # images of which the accuracy is measured at a time
_SHIFT = 4  # pixels, the usual choice for 32-pixel images


@validated
def train_classifier(
    recipe: Recipe,
    train: ImageSet,
    validation: ImageSet | None,
    out: str | Path,
    *,
    model: nn.Module | None = None,
    stored: dict[str, Any] | None = None,
    lambdas: Callable[[nn.Module], list[float]] = mean_lambdas,
    trackers: Trackers = (),
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train a classifier and write it to a directory; a ``UserError`` if that has another run or the data do not fit.

    The directory then contains ``recipe.json``, ``metrics.jsonl`` and ``model.safetensors``, the weights of the last
    epoch. Calling it again resumes an interrupted run, and returns the log of a finished one. Under torchrun the
    processes share every batch; the gradient is that of the whole batch.

    With defences, the log has the value of each penalty, and as ``defence_time`` their share of a step's time; with an
    adversary, ``robust_accuracy`` at the recipe's ε. With n replays the model sees n times fewer images.

    Args:
        validation: images on which accuracy is logged; None: there are none.
        model: with the recipe's initial weights, trained in place; built from the recipe if it is of ours.
        stored: what is written with the recipe besides.
        lambdas: returns the mean λ of each layer, for the log.
        trackers: experiment trackers, by name or as accelerate's objects.
    """
    check_data(recipe, train)
    folder = Path(out)

    def begin(accelerator: Accelerator) -> loop.Task:
        bare: Any = model if isinstance(recipe.model, StartingModel) else build(recipe.model, recipe.seed)
        if bare is None or not any(parameter.requires_grad for parameter in bare.parameters()):
            raise UserError("the model: expected a module with weights that can be trained")
        check_defences(recipe.defences or {}, bare, recipe.adversarial is not None)
        strengths, times = in_use(recipe.defences or {}), list[float]()
        kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
        groups = loop.decayed([*bare.parameters()], recipe.weight_decay, (2, 4))  # matrices and convolutions
        own = kind(groups, lr=recipe.learning_rate, fused=True)
        if "ema" in strengths:
            keep_average(own, strengths["ema"])
        wrapped, optimizer = accelerator.prepare(bare, own)
        adversary, device = recipe.adversarial, accelerator.device
        replays = adversary.updates_per_batch if adversary else 1
        # an epoch has as many updates as in natural training; a step is a minibatch with all its replays, so that no
        # state is lost between steps, and the last of an epoch may have fewer
        updates = -(-len(train) // recipe.batch_size)
        steps = -(-updates // replays)

        def first_update(step: int) -> int:
            return step // steps * updates + step % steps * replays

        def logits(images: Tensor, network: nn.Module = bare) -> Tensor:
            with autocast(device, recipe.precision), outputs_only():
                return network(images).float()

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        @lru_cache(1)
        def order_of(sweep: int) -> Tensor:
            return torch.randperm(len(train), generator=generator(recipe.seed, "order", sweep))

        def gradients(epoch: int, first: int) -> Iterator[tuple[Tensor, int]]:
            for step in range(epoch * steps + first, (epoch + 1) * steps):
                sweep, place = divmod(step, updates)  # pass over the data; equals the epoch without replays
                batch = order_of(sweep)[place * recipe.batch_size : (place + 1) * recipe.batch_size]
                yield backward(batch, sweep, step)

        def backward(batch: Tensor, sweep: int, step: int) -> tuple[Tensor, int]:
            share = batch[accelerator.process_index :: accelerator.num_processes]
            if model is not None:  # it may draw random numbers, such as dropout's
                torch.manual_seed(key(recipe.seed, "step", step, accelerator.process_index))
            images, labels, ids = train.images(share), train.labels[share].to(device), train.ids[share]
            if recipe.augment == "flip-crop":
                images = flip_crop(images, ids, recipe.seed, sweep)
            clean = images = images.to(device)

            def loss_of(images: Tensor) -> Tensor:
                # processes average their gradients, so n times the share's sum gives the mean over the batch
                if not (strengths and len(share)):  # a process may have none of the last batch
                    total = F.cross_entropy(logits(images, wrapped), labels, reduction="sum")
                    return total * accelerator.num_processes / len(batch)
                state = Step(wrapped, images, clean, labels, partial(logits, network=wrapped), recipe.seed, step)
                warm = min(1.0, (first_update(step) + 1) / updates)  # strengths rise over the first epoch
                return defended_loss(state, strengths, warm) * len(share) * accelerator.num_processes / len(batch)

            def learn(images: Tensor) -> Tensor:
                loss = loss_of(images)
                accelerator.backward(loss)
                if strengths.get("awp"):
                    images.grad = None  # a free replay follows the gradient of the pass that trains
                    with adversarial_weights(bare, strengths["awp"]):
                        accelerator.backward(loss_of(images))
                return loss.detach()

            if adversary is None:
                return learn(images), len(batch)
            keys = adversarial.start_keys(recipe.seed, sweep, ids).to(device)
            eps = adversary.eps_at(first_update(step), updates)
            if adversary.variant == "free":
                count = min(replays, updates - step % steps * replays)
                return adversarial.replay(learn, update, images, adversary, eps, keys, count), count * len(batch)
            return learn(adversarial.perturb(logits, images, labels, adversary, eps, keys)), len(batch)

        def evaluate() -> dict[str, Any]:
            numbers: dict[str, Any] = {}
            with averaged(own):
                if validation is not None:
                    numbers["accuracy"] = accuracy(bare, validation, device)
                if validation is not None and adversary is not None:
                    how = {"eps": adversary.eps, "device": device, "seed": recipe.seed}
                    numbers["robust_accuracy"] = adversarial.robust_accuracy(bare, validation, **how)
                if strengths:
                    some = torch.arange(min(len(train), recipe.batch_size))
                    images, labels = train.images(some).to(device), train.labels[some].to(device)
                    begin = partial(Step, bare, images, images, labels, logits, recipe.seed)
                    if not times:  # once: it takes several steps
                        times.append(share_of_time(begin, strengths))
                    numbers |= values(begin(0), strengths) | {"defence_time": times[0]}
                return numbers | {"lambda": lambdas(bare)}

        def rate(step: int) -> float:
            return learning_rate(recipe, first_update(step), updates)

        def save(written: dict[str, Any], dtype: torch.dtype) -> None:
            with averaged(own):
                checkpoints.save(bare, written, folder, dtype)

        return loop.Task(wrapped, optimizer, steps, rate, gradients, evaluate, save if "ema" in strengths else None)

    stored = {checkpoints.CLASS_NAMES: [*train.class_names], **(stored or {})}
    with torch.random.fork_rng(range(torch.cuda.device_count()), enabled=model is not None):
        return loop.train(recipe, folder, begin, stored=stored, trackers=trackers, progress=progress)


def check_data(recipe: Recipe, train: ImageSet) -> None:
    """Refuse images or classes that the recipe's model does not fit."""
    model, classes = recipe.model, len(train.class_names)
    ours = not isinstance(model, StartingModel)
    shape = (model.in_channels, *2 * [model.image_size]) if ours else model.image_shape
    if train.image_shape != shape:
        raise UserError(f"{train.name} has images of shape {train.image_shape}; the model expects {shape}")
    if classes != model.num_classes:
        raise UserError(f"{train.name} has {classes} classes; the model expects {model.num_classes}")


def flip_crop(
    images: Float[Tensor, "batch channels height width"], ids: Int64[Tensor, " batch"], seed: int, epoch: int
) -> Float[Tensor, "batch channels height width"]:
    """Flip each image left to right with probability ½ and shift it by up to 4 pixels, with zero padding."""
    draws = uniform(sample_keys(key(seed, "flip-crop", epoch), ids), 3)
    images = torch.where(draws[:, 0, None, None, None] < 0.5, images.flip(-1), images)
    padded = F.pad(images, [_SHIFT] * 4)
    offsets = (draws[:, 1:] * (2 * _SHIFT + 1)).long()
    rows, columns = (offsets[:, axis, None] + torch.arange(images.shape[2 + axis]) for axis in (0, 1))
    batch = torch.arange(len(images))[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@validated
def accuracy(model: nn.Module, data: Annotated[ImageSet, NOT_EMPTY], device: Device = "cpu") -> float:
    """Return the fraction of correct predictions, in [0, 1], computed in float32."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for _, images, labels in data.batches(_TOGETHER):
            correct += int((model(images.to(device)).argmax(1).cpu() == labels).sum())
    return correct / len(data)
