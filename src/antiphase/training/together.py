"""Train models that differ only in seed and initial weights together: small ones leave a GPU idle."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from antiphase.attention import outputs_only
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.files import write_json, write_text
from antiphase.models import checkpoints
from antiphase.models.card import mean_lambdas
from antiphase.models.trained import StartingModel
from antiphase.models.vit import build
from antiphase.precision import autocast
from antiphase.streams import generator
from antiphase.training.classifier import accuracy, check_data, make_optimizer
from antiphase.training.loop import METRICS_FILE, check_finite
from antiphase.training.recipe import Recipe, learning_rate


def train_together(
    recipes: Sequence[Recipe],
    train: ImageSet,
    validation: ImageSet,
    folders: Sequence[Path],
    device: torch.device,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Train several classifiers as one and write each to its folder, as ``train_classifier`` does.

    The ``recipes`` are equal but for seed and initial weights, without adversary or augmentation. Every model has the
    initial weights, the order of the images and the learning rates of a training by itself, so that its weights differ
    from those by rounding only (which Adam may enlarge). A step computes each model's loss on its own batch with
    ``torch.func.vmap`` over the stacked weights; the optimizer acts on each number alone. All images are held on the
    device. A killed run starts again.
    """
    first, shared = recipes[0], set()
    for recipe in recipes:
        model = recipe.model.model_copy(update={"initial_weights": "uniform"})
        shared.add(recipe.model_copy(update={"seed": 0, "model": model}).model_dump_json())
    if len(shared) > 1:
        raise UserError("recipes trained together: expected equal ones but for seed and initial weights")
    if first.adversarial is not None or first.augment != "none":
        raise UserError("recipes trained together: expected neither an adversary nor augmentation")
    check_data(first, train)
    if isinstance(first.model, StartingModel):
        raise UserError("recipes trained together: expected models of ours")
    models = [build(recipe.model, recipe.seed).to(device).train() for recipe in recipes]  # pyright: ignore
    for module in (one for model in models for one in model.modules() if hasattr(one, "backend")):
        module.backend = "eager"  # pyright: ignore (fused attention has no stacked form on every GPU)
    weights, buffers = stack_module_state(models)  # pyright: ignore[reportArgumentType]
    optimizer = make_optimizer([*weights.values()], first, axes=(3, 5))  # stacked, they have one axis more
    everything = torch.arange(len(train))
    pixels, classes = train.images(everything).to(device), train.labels[everything].to(device)

    def summed_loss(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = vmap(lambda own, held, batch: functional_call(models[0], (own, held), (batch,)))(
            weights, buffers, images
        )
        losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
        means = losses.view(labels.shape).mean(1)  # one for each model
        return means.sum(), means.detach()

    steps = -(-len(train) // first.batch_size)
    logs: list[list[dict[str, Any]]] = [[] for _ in recipes]
    for epoch in range(first.epochs):
        began, sums = time.monotonic(), torch.zeros(len(recipes), device=device)
        orders = torch.stack(
            [torch.randperm(len(train), generator=generator(one.seed, "order", epoch)) for one in recipes]
        ).to(device)
        for step, batch in enumerate(orders.split(first.batch_size, 1)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(first, epoch * steps + step, steps)
            optimizer.zero_grad()
            with autocast(device, first.precision), outputs_only():
                loss, means = summed_loss(pixels[batch], classes[batch])
            loss.backward()
            optimizer.step()
            sums += means
        check_finite(sums.tolist(), (epoch + 1) * steps)
        rate = len(train) / (time.monotonic() - began)
        say(
            f"epoch {epoch + 1}/{first.epochs} · loss {float(sums.mean()) / steps:.4f} · {rate:.0f} images/s each"
        )
        last = epoch + 1 == first.epochs
        with torch.no_grad():
            for place, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(weights[name][place])
        for model, log, mean in zip(models, logs, (sums / steps).tolist(), strict=True):
            row = {"epoch": epoch + 1, "loss": mean, "learning_rate": optimizer.param_groups[0]["lr"]}
            row |= {"accuracy": accuracy(model, validation, device)} if last else {}
            log.append(row | {"lambda": mean_lambdas(model), "images_per_second": round(rate, 1)})
            model.train()
    names = {checkpoints.CLASS_NAMES: [*train.class_names]}
    for recipe, model, log, folder in zip(recipes, models, logs, folders, strict=True):
        fields = recipe.model_dump(mode="json") | names
        write_json(folder / checkpoints.RECIPE_FILE, fields)
        write_text(folder / METRICS_FILE, "".join(json.dumps(row) + "\n" for row in log))
        checkpoints.save(model, fields, folder, getattr(torch, recipe.store))
