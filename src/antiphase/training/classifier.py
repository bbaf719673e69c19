"""Train a classifier with cross-entropy (robustness paper, Appendix C.1), optionally adversarially (Appendix D.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, Device, Size, validated
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.models import checkpoints
from antiphase.models.kinds import mean_lambdas
from antiphase.models.vit import build
from antiphase.precision import autocast
from antiphase.streams import generator
from antiphase.training import adversarial, loop
from antiphase.training.augment import flip_crop
from antiphase.training.recipe import Recipe, learning_rate
from antiphase.training.tracking import Tracker


@validated
def train_classifier(
    recipe: Recipe,
    train: ImageSet,
    validation: ImageSet,
    out: str | Path,
    *,
    trackers: Sequence[Tracker] = (),
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train a classifier and write it to a directory.

    The directory then contains ``recipe.json``, ``metrics.jsonl`` and ``model.safetensors``, the weights of the last
    epoch. Calling it again resumes an interrupted run, and returns the log of a finished one. Under torchrun the
    processes share every batch; the gradient is that of the whole batch.

    If the recipe has an adversary, the model is trained on perturbed images only, and the log contains
    ``robust_accuracy`` at the recipe's ε. An epoch always has as many parameter updates as in natural training, so an
    adversary with n replays sees n times fewer images.

    Args:
        validation: images on which accuracy is logged.
        trackers: experiment trackers, by name or as accelerate's objects.

    Raises:
        UserError: ``out`` contains a different run, the data do not match the model, or the loss is not finite.
    """
    out = Path(out)
    if train.image_shape != (shape := (recipe.model.in_channels, *2 * [recipe.model.image_size])):
        raise UserError(f"{train.name} has images of shape {train.image_shape}; the model expects {shape}")
    if (count := len(train.class_names)) != (wanted := recipe.model.num_classes):
        raise UserError(f"{train.name} has {count} classes; the model expects {wanted}")
    fields, names = recipe.model_dump(mode="json"), {checkpoints.CLASS_NAMES: list(train.class_names)}
    if (log := loop.finished(fields, out)) is not None:
        return log
    model = build(recipe.model, recipe.seed)  # fails on incompatible sizes before anything is written
    accelerator, track = loop.start(fields, out, trackers, **names)
    model, optimizer = accelerator.prepare(model, _optimizer(model, recipe))
    bare = accelerator.unwrap_model(model)
    adversary = recipe.adversarial
    replays = adversary.updates_per_batch if adversary else 1
    steps = _Steps(batches=-(-len(train) // recipe.batch_size), replays=replays)
    orders: dict[int, Tensor] = {}  # this sweep's order of the samples

    def logits(images: Tensor, network: nn.Module = bare) -> Tensor:
        with autocast(accelerator.device, recipe.precision):
            return network(images).float()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def backward(epoch: int, within: int) -> tuple[Tensor, int]:
        step = epoch * steps.per_epoch + within
        sweep, place = divmod(step, steps.batches)  # pass over the data; equals the epoch without replays
        if sweep not in orders:
            orders.clear()
            orders[sweep] = torch.randperm(len(train), generator=generator(recipe.seed, "order", sweep))
        batch = orders[sweep][place * recipe.batch_size : (place + 1) * recipe.batch_size]
        share = batch[accelerator.process_index :: accelerator.num_processes]
        images, labels = train.images(share), train.labels[share].to(accelerator.device)
        if recipe.augment == "flip-crop":
            images = flip_crop(images, train.ids[share], recipe.seed, sweep)
        images = images.to(accelerator.device)

        def learn(images: Tensor) -> Tensor:
            total = F.cross_entropy(logits(images, model), labels, reduction="sum")
            # processes average their gradients, so n times the share's sum gives the mean over the batch
            loss = total * accelerator.num_processes / len(batch)
            accelerator.backward(loss)
            return loss.detach()

        if adversary is None:
            return learn(images), len(batch)
        keys = adversarial.start_keys(recipe.seed, sweep, train.ids[share]).to(accelerator.device)
        eps = adversary.eps_at(steps.first_update(step), steps.batches)
        if adversary.variant == "free":
            count = steps.replays_of(within)
            loss = adversarial.replay(learn, update, images, adversary, eps, keys, count)
            return loss, count * len(batch)
        return learn(adversarial.perturb(logits, images, labels, adversary, eps, keys)), len(batch)

    def evaluate() -> dict[str, Any]:
        numbers: dict[str, Any] = {"accuracy": accuracy(bare, validation, accelerator.device)}
        if adversary is not None:
            numbers["robust_accuracy"] = adversarial.robust_accuracy(
                bare, validation, adversary.eps, accelerator.device, seed=recipe.seed
            )
        return numbers | {"lambda": mean_lambdas(bare)}

    def rate(step: int) -> float:
        return learning_rate(recipe, steps.first_update(step), steps.batches)

    length = (recipe.epochs, steps.per_epoch)
    identity = digest(recipe.model_dump_json())
    task = loop.Task(model, optimizer, identity, *length, rate, backward, evaluate, track=track)
    metrics = loop.run(task, out, accelerator, progress=progress)
    loop.finish(bare, fields, out, accelerator, **names)
    if trackers:
        accelerator.end_training()
    return metrics


@validated
def accuracy(
    model: nn.Module, data: Annotated[ImageSet, NOT_EMPTY], device: Device = "cpu", batch_size: Size = 256
) -> float:
    """Return the fraction of correct predictions, in [0, 1], computed in float32."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for _, images, labels in data.batches(batch_size):
            correct += int((model(images.to(device)).argmax(1).cpu() == labels).sum())
    return correct / len(data)


@dataclass(frozen=True)
class _Steps:
    """Steps of the loop; a step is a minibatch with all its replays, so no state is lost between steps.

    An epoch has ``batches`` parameter updates, so with replays it has fewer steps, and its last step may have fewer
    replays.
    """

    batches: int
    replays: int

    @property
    def per_epoch(self) -> int:
        return -(-self.batches // self.replays)

    def first_update(self, step: int) -> int:
        """Return the number of a step's first update (from 0), which sets its learning rate and ε."""
        epoch, within = divmod(step, self.per_epoch)
        return epoch * self.batches + within * self.replays

    def replays_of(self, within: int) -> int:
        return min(self.replays, self.batches - within * self.replays)


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return Adam or AdamW, with weight decay on matrices and convolutions only."""
    groups = loop.decayed(model, recipe.weight_decay, lambda parameter: parameter.ndim in (2, 4))
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.learning_rate, fused=True)
