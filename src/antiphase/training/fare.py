"""FARE: fine-tuning of a CLIP's image tower so that a perturbed image keeps the embedding of the clean one.

Source: C. Schlarmann, N. D. Singh, F. Croce, M. Hein, *Robust CLIP: Unsupervised Adversarial Fine-Tuning of Vision
Embeddings for Robust Large Vision-Language Models*, ICML 2024, equation (3). No label and no text is used.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from pydantic import Field
from torch import Tensor

from antiphase import precision, processes, streams
from antiphase.attention import outputs_only
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.models.card import mean_lambdas
from antiphase.models.clip import CLIP, ClipConfig
from antiphase.training import adversarial, contrastive, loop
from antiphase.training.adversarial import Adversary
from antiphase.training.recipe import AnyRecipe, Count, NonNegative, Positive, half_cosine

# of the authors, whose PGD has a momentum of 0.9 besides
ADVERSARY = {"steps": 10, "step_size": 1 / 255, "warmup_epochs": 0.0}


class FareRecipe(AnyRecipe):
    """Hyperparameters of FARE, as the authors' but for the weight decay: here that of matrices alone."""

    kind: Literal["clip"] = "clip"
    model: ClipConfig
    start: str  # SHA-256 of the weights that it starts from
    fare: Adversary
    epochs: Count = 2
    batch_size: Count = 128
    learning_rate: Positive = 1e-5
    weight_decay: NonNegative = 1e-4
    warmup: float = Field(default=0.07, ge=0, le=1)  # share of the steps, before half a cosine
    store: Literal["float32", "float16"] = "float32"


def fine_tune(
    recipe: FareRecipe, model: CLIP, images: ImageSet, out: Path, *, trackers: loop.Trackers = (), progress: bool = True
) -> list[dict[str, Any]]:
    """Fine-tune φ, the image tower with its projection, in place; the rest is as in :func:`train_clip`.

    Minimises the mean over images of max ‖φ(x + δ) − φ₀(x)‖² subject to ‖δ‖∞ ≤ ε and x + δ in [0, 1]; φ₀ is φ before.
    The log has that ``loss``, and ``drift``: the mean of ‖φ(x) − φ₀(x)‖² on a batch of clean images.
    """
    if images.image_shape != model.image_shape:
        raise UserError(f"{images.name}: has images of shape {images.image_shape}; expected {model.image_shape}")

    def begin(accelerator: Accelerator) -> loop.Task:
        device, world = accelerator.device, accelerator.num_processes
        model.to(device)
        original = copy.deepcopy(model).eval().requires_grad_(False)
        tower = [*model.visual.parameters(), model.image_projection]
        groups = loop.decayed(tower, recipe.weight_decay, range(2, 9))
        optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
        steps = -(-len(images) // recipe.batch_size)

        def distances(x: Tensor, target: Tensor) -> Tensor:
            with precision.autocast(device, recipe.precision), outputs_only():
                return (contrastive.at_least_float32(model.encode_image(x)) - target).square().sum(1)

        def targets(x: Tensor) -> Tensor:
            with torch.no_grad(), outputs_only():
                return original.encode_image(x)

        def gradients(epoch: int, first: int) -> Iterator[tuple[Tensor, int]]:
            order = torch.randperm(len(images), generator=streams.generator(recipe.seed, "order", epoch))
            for batch in order.split(recipe.batch_size)[first:]:
                share = batch[accelerator.process_index :: world]
                weight, share = float(len(share) > 0), share if len(share) else batch[:1]  # as in training.classifier
                x, keys = images.images(share).to(device), adversarial.start_keys(recipe.seed, epoch, images.ids[share])
                target = targets(x)

                def slope(point: Tensor, target: Tensor = target) -> Tensor:
                    return torch.autograd.grad(distances(point, target).sum(), point)[0]

                adversary = recipe.fare
                point = adversarial.ascend(x, adversary, adversary.eps, keys.to(device), slope, adversary.steps)
                loss = weight * distances(point, target).sum() / len(batch)
                loss.backward()
                processes.sum_gradients(tower, accelerator)
                yield loss.detach() * world, len(batch)  # the loop takes the mean over the processes

        def rate(step: int) -> float:
            return recipe.learning_rate * half_cosine(step, steps * recipe.epochs, recipe.warmup)

        def measure() -> dict[str, Any]:
            some = images.images(range(min(len(images), recipe.batch_size))).to(device)
            with torch.no_grad():
                drift = distances(some, targets(some)).mean()
            return {"drift": float(drift), "lambda": mean_lambdas(model)}

        return loop.Task(model, optimizer, steps, rate, gradients, measure)

    return loop.train(recipe, out, begin, trackers=trackers, progress=progress)
