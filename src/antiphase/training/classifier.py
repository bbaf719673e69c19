"""Training a classifier by cross-entropy (robustness paper, Appendix C.1)."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.files import digest, write_json
from antiphase.models import checkpoints
from antiphase.models.factories import build
from antiphase.models.lambdas import mean_lambdas
from antiphase.streams import generator
from antiphase.training import loop
from antiphase.training.augment import flip_crop
from antiphase.training.processes import start_processes
from antiphase.training.recipe import Recipe, learning_rate


def train_classifier(
    recipe: Recipe, train: ImageSet, validation: ImageSet, out: Path, *, progress: bool = True
) -> list[dict[str, Any]]:
    """Train what the recipe says into the directory ``out`` and return the log, one entry an epoch.

    The directory then holds ``recipe.json``, ``metrics.jsonl`` and ``model.safetensors``: the last epoch's
    weights, nothing selected by the validation accuracy. Called again after a kill, it goes on where it
    was; called again after the end, it returns the log. Under torchrun each process takes its share of
    every batch, and the gradient is that of the whole batch.

    Args:
        recipe: what to train.
        train: training images.
        validation: images whose accuracy is logged.
        out: directory, made if missing.
        progress: whether to show a progress bar on stderr.

    Raises:
        UserError: if ``out`` holds another run, data and model do not fit, or the loss is not finite.
    """
    if train.image_shape != (shape := (recipe.model.in_channels, *2 * [recipe.model.image_size])):
        raise UserError(f"{train.name} has images of shape {train.image_shape}, the model takes {shape}")
    if len(train.class_names) != recipe.model.num_classes:
        raise UserError(
            f"{train.name} has {len(train.class_names)} classes, the model {recipe.model.num_classes}"
        )
    identity = digest(recipe.model_dump_json())
    if (log := loop.finished(recipe.model_dump(mode="json"), out)) is not None:
        return log
    model = build(recipe.model, recipe.seed)  # before anything is written: the sizes may not fit together
    accelerator = start_processes()
    if accelerator.is_main_process:
        write_json(out / checkpoints.RECIPE_FILE, recipe.model_dump(mode="json"))
    model, optimizer = accelerator.prepare(model, _optimizer(model, recipe))
    steps_per_epoch = -(-len(train) // recipe.batch_size)
    orders: dict[int, Tensor] = {}  # this epoch's order of the samples

    def backward(epoch: int, within: int) -> tuple[Tensor, int]:
        if epoch not in orders:
            orders.clear()
            orders[epoch] = torch.randperm(len(train), generator=generator(recipe.seed, "order", epoch))
        batch = orders[epoch][within * recipe.batch_size : (within + 1) * recipe.batch_size]
        share = batch[accelerator.process_index :: accelerator.num_processes]
        images, labels = train.images(share), train.labels[share]
        if recipe.augment == "flip-crop":
            images = flip_crop(images, train.ids[share], recipe.seed, epoch)
        with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            logits = model(images.to(accelerator.device)).float()
        total = F.cross_entropy(logits, labels.to(accelerator.device), reduction="sum")
        # processes average their gradients; with the mean over the whole batch in mind, each multiplies by n
        loss = total * accelerator.num_processes / len(batch)
        accelerator.backward(loss)
        return loss.detach(), len(batch)

    def evaluate() -> dict[str, Any]:
        bare = accelerator.unwrap_model(model)
        return {"accuracy": accuracy(bare, validation, accelerator.device), "lambda": mean_lambdas(bare)}

    task = loop.Task(
        model, optimizer, identity, recipe.epochs, steps_per_epoch,
        lambda step: learning_rate(recipe, step, steps_per_epoch), backward, evaluate,
    )  # fmt: skip
    metrics = loop.run(task, out, accelerator, progress=progress)
    if accelerator.is_main_process:
        bare = accelerator.unwrap_model(model)
        checkpoints.save(bare, recipe.model_dump(mode="json"), out, getattr(torch, recipe.store))
        (out / loop.STATE_FILE).unlink(missing_ok=True)
    accelerator.wait_for_everyone()
    return metrics


def accuracy(
    model: nn.Module, data: ImageSet, device: torch.device | str = "cpu", batch_size: int = 256
) -> float:
    """Return the share of correct predictions, in [0, 1], in float32."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for _, images, labels in data.batches(batch_size):
            correct += int((model(images.to(device)).argmax(1).cpu() == labels).sum())
    return correct / len(data)


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Adam or AdamW; weight decay spares biases, norms, λ, positions: all that is not a matrix or a convolution."""
    matrices = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return kind(groups, lr=recipe.learning_rate, fused=True)
