"""Train a classifier with cross-entropy (sensitivity paper, Appendix C.1), optionally adversarially (Appendix D.2)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase import precision, streams
from antiphase.arguments import NOT_EMPTY, Device, validated
from antiphase.attention import outputs_only
from antiphase.data import ImageSet
from antiphase.errors import UserError, shown
from antiphase.models import checkpoints, trained
from antiphase.models.card import mean_lambdas
from antiphase.models.vit import build
from antiphase.training import adversarial, defences, loop
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
        training = _Training(accelerator, recipe, train, model)

        def evaluate() -> dict[str, Any]:
            with averaged(training.optimizer):
                return training.measured(validation) | {"lambda": lambdas(training.bare)}

        def save(written: dict[str, Any], dtype: torch.dtype) -> None:
            with averaged(training.optimizer):
                checkpoints.save(training.bare, written, folder, dtype)

        return training.task(evaluate, save if "ema" in training.strengths else None)

    stored = {checkpoints.CLASS_NAMES: [*train.class_names], **(stored or {})}
    with torch.random.fork_rng(range(torch.cuda.device_count()), enabled=model is not None):
        return loop.train(recipe, folder, begin, stored=stored, trackers=trackers, progress=progress)


@dataclass(frozen=True)
class _Batch:
    """This process's share of a minibatch."""

    images: Tensor  # augmented, not perturbed
    labels: Tensor
    ids: Tensor
    size: int  # of the whole minibatch
    local_size: int  # of this process; with 0, it has an image of weight 0
    step: int


class _Training:
    """A model, its optimizer, and what a step does to them.

    An epoch has as many updates as in natural training. A step is a minibatch with all its replays, so that no state is
    lost between steps; the last step of an epoch may have fewer.
    """

    def __init__(self, accelerator: Accelerator, recipe: Recipe, train: ImageSet, model: nn.Module | None) -> None:
        bare: Any = model if isinstance(recipe.model, trained.StartingModel) else build(recipe.model, recipe.seed)
        if bare is None or not any(parameter.requires_grad for parameter in bare.parameters()):
            raise UserError("the model: expected a module with weights that can be trained")
        defences.check_defences(recipe.defences or {}, bare, recipe.adversarial is not None)
        self.recipe, self.train, self.bare, self.is_foreign = recipe, train, bare, model is not None
        self.strengths = defences.in_use(recipe.defences or {})
        kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
        groups = loop.decayed([*bare.parameters()], recipe.weight_decay, (2, 4))  # matrices and convolutions
        self.optimizer = kind(groups, lr=recipe.learning_rate, fused=True)
        if "ema" in self.strengths:
            keep_average(self.optimizer, self.strengths["ema"])
        self.accelerator, self.device = accelerator, accelerator.device
        self.wrapped, self.prepared = accelerator.prepare(bare, self.optimizer)
        self.replays = recipe.adversarial.updates_per_batch if recipe.adversarial else 1
        self.updates = -(-len(train) // recipe.batch_size)  # of an epoch
        self.steps = -(-self.updates // self.replays)
        self.order_of = lru_cache(1)(self._order)
        self.defence_time: float | None = None

    def task(self, evaluate: Callable[[], dict[str, Any]], save: Callable[..., None] | None) -> loop.Task:
        return loop.Task(self.wrapped, self.prepared, self.steps, self._rate, self._gradients, evaluate, save)

    def _first_update(self, step: int) -> int:
        return step // self.steps * self.updates + step % self.steps * self.replays

    def _rate(self, step: int) -> float:
        return learning_rate(self.recipe, self._first_update(step), self.updates)

    def _order(self, sweep: int) -> Tensor:
        return torch.randperm(len(self.train), generator=streams.generator(self.recipe.seed, "order", sweep))

    def _gradients(self, epoch: int, first: int) -> Iterator[tuple[Tensor, int]]:
        for step in range(epoch * self.steps + first, (epoch + 1) * self.steps):
            sweep, place = divmod(step, self.updates)  # pass over the data; equals the epoch without replays
            whole = self.order_of(sweep)[place * self.recipe.batch_size : (place + 1) * self.recipe.batch_size]
            yield self._backward(whole, sweep, step)

    def _backward(self, whole: Tensor, sweep: int, step: int) -> tuple[Tensor, int]:
        recipe, accelerator, adversary = self.recipe, self.accelerator, self.recipe.adversarial
        share = whole[accelerator.process_index :: accelerator.num_processes]
        # a process may have none of the last batch: it learns from an image of weight 0, since all exchange alike
        local_size, share = len(share), share if len(share) else whole[:1]
        if self.is_foreign:  # it may draw random numbers, such as dropout's
            torch.manual_seed(streams.key(recipe.seed, "step", step, accelerator.process_index))
        images, labels, ids = self.train.images(share), self.train.labels[share], self.train.ids[share]
        if recipe.augment == "flip-crop":
            images = flip_crop(images, ids, recipe.seed, sweep)
        images = images.to(self.device)
        batch = _Batch(images, labels.to(self.device), ids, len(whole), local_size, step)
        if adversary is None:
            return self._learn(batch, images), len(whole)
        keys = adversarial.start_keys(recipe.seed, sweep, ids).to(self.device)
        eps = adversary.eps_at(self._first_update(step), self.updates)
        if adversary.variant == "free":
            count = min(self.replays, self.updates - step % self.steps * self.replays)
            learn = partial(self._learn, batch)
            return adversarial.replay(learn, self._update, images, adversary, eps, keys, count), count * len(whole)
        perturbed = adversarial.perturb(self._logits, images, batch.labels, adversary, eps, keys)
        return self._learn(batch, perturbed), len(whole)

    def _learn(self, batch: _Batch, images: Tensor) -> Tensor:
        """Add the gradients of the loss on perturbed images, and return it."""
        loss = self._loss(batch, images)
        self.accelerator.backward(loss)
        if self.strengths.get("awp"):
            images.grad = None  # a free replay follows the gradient of the pass that trains
            with adversarial_weights(self.bare, self.strengths["awp"]):
                self.accelerator.backward(self._loss(batch, images))
        return loss.detach()

    def _loss(self, batch: _Batch, images: Tensor) -> Tensor:
        # processes average their gradients, so n times the share's sum gives the mean over the batch
        processes, local_size = self.accelerator.num_processes, batch.local_size
        logits = partial(self._logits, network=self.wrapped)
        if not self.strengths:
            loss = F.cross_entropy(logits(images), batch.labels, reduction="sum")
            return loss * (processes if local_size else 0) / batch.size
        state = defences.Step(self.wrapped, images, batch.images, batch.labels, logits, self.recipe.seed, batch.step)
        warm = min(1.0, (self._first_update(batch.step) + 1) / self.updates)  # strengths rise over the first epoch
        return defences.defended_loss(state, self.strengths, warm) * local_size * processes / batch.size

    def _logits(self, images: Tensor, network: nn.Module | None = None) -> Tensor:
        with precision.autocast(self.device, self.recipe.precision), outputs_only():
            return (self.bare if network is None else network)(images).float()

    def _update(self) -> None:
        self.prepared.step()
        self.prepared.zero_grad()

    def measured(self, validation: ImageSet | None) -> dict[str, Any]:
        """Return accuracies on validation images, and the value of each penalty on the first images of the training."""
        numbers: dict[str, Any] = {}
        recipe, train, adversary = self.recipe, self.train, self.recipe.adversarial
        if validation is not None:
            numbers["accuracy"] = accuracy(self.bare, validation, self.device)
        if validation is not None and adversary is not None:
            how = {"eps": adversary.eps, "device": self.device, "seed": recipe.seed}
            numbers["robust_accuracy"] = adversarial.robust_accuracy(self.bare, validation, **how)
        if self.strengths:
            some = torch.arange(min(len(train), recipe.batch_size))
            images, labels = train.images(some).to(self.device), train.labels[some].to(self.device)
            begin = partial(defences.Step, self.bare, images, images, labels, self._logits, recipe.seed)
            if self.defence_time is None:  # measured once: it takes several steps
                self.defence_time = defences.share_of_time(begin, self.strengths)
            numbers |= defences.values(begin(0), self.strengths) | {"defence_time": self.defence_time}
        return numbers


def check_data(recipe: Recipe, train: ImageSet) -> None:
    """Refuse images or classes that the recipe's model does not fit."""
    model, classes = recipe.model, len(train.class_names)
    ours = not isinstance(model, trained.StartingModel)
    shape = (model.in_channels, *2 * [model.image_size]) if ours else model.image_shape
    if train.image_shape != shape:
        raise UserError(f"{train.name} has images of shape {train.image_shape}; the model expects {shape}")
    if classes < 2:
        raise UserError(f"{train.name} has one class, {shown(train.class_names[0])}; expected two or more")
    if classes != model.num_classes:
        raise UserError(f"{train.name} has {classes} classes; the model expects {model.num_classes}")


def flip_crop(
    images: Float[Tensor, "batch channels height width"], ids: Int64[Tensor, " batch"], seed: int, epoch: int
) -> Float[Tensor, "batch channels height width"]:
    """Flip each image left to right with probability ½ and shift it by up to 4 pixels, with zero padding."""
    draws = streams.uniform(streams.sample_keys(streams.key(seed, "flip-crop", epoch), ids), 3)
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
