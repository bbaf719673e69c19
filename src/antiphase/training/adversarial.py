"""Adversarial training: a classifier learns from images moved, within ε, to where its loss is high.

min_θ E_(x,y) max_δ CE(f_θ(x + δ), y) subject to ‖δ‖∞ ≤ ε and x + δ in [0, 1]. The three variants differ in how
they search for the inner maximum and what the search costs. The robustness paper (Appendix D.2, Table 3)
trains DiffViT by PGD at ε = .25, .5 and 1 /255 and names neither steps, step size nor warm-up: all defaults
here are ours, or those of the variant's authors where a docstring names them.

Nothing is carried from one minibatch to the next: where a sample's perturbation starts depends on the
recipe's seed, the sample's id and the pass over the data, so that a killed run goes on exactly where it was.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor, nn

from antiphase.data import ImageSet
from antiphase.streams import key, sample_keys, uniform

Variant = Literal["pgd", "fast", "free"]
Logits = Callable[[Tensor], Tensor]  # of images (batch, C, H, W)

_TAKEN_BY: dict[str, Variant] = {"steps": "pgd", "replays": "free"}
_EVALUATION_IMAGES = 500
_EVALUATION_STEPS = 10


class Adversary(BaseModel):
    """How the training images are perturbed; part of a recipe.

    - ``"pgd"``: from a random point of the ball, ``steps`` steps of α·sign(∇ₓ CE); the weights learn from the
      last point alone. A parameter update costs ``steps + 1`` passes each way. (A. Madry et al., *Towards
      Deep Learning Models Resistant to Adversarial Attacks*, ICLR 2018.)
    - ``"fast"``: the same with one step of 1.25·ε. (E. Wong, L. Rice, J. Z. Kolter, *Fast is better than
      free: Revisiting adversarial training*, ICLR 2020, Algorithm 3.) Known to overfit to its one step where
      ε is large: watch ``robust_accuracy``.
    - ``"free"``: each minibatch is replayed ``replays`` times in a row, and the one backward pass of a replay
      gives both the update of the weights and δ's step of ε, so that a parameter update costs one pass each
      way. (A. Shafahi et al., *Adversarial Training for Free!*, NeurIPS 2019, Algorithm 1.) A run of E epochs
      has as many updates as a natural one, hence makes E / ``replays`` passes over the data. One thing
      differs from the authors': they hand δ from the last replay of a minibatch to the first of the next,
      whose images are others; here each minibatch starts from a random point of its own. A δ that is handed
      on is hidden state: it would have to be saved with the weights, one for each process, and a sample's
      perturbation would depend on its neighbours.

    Attributes:
        eps: ε, the largest change of a pixel, in (0, 1], in units of the [0, 1] pixel.
        variant: one of the above.
        steps: of ``"pgd"``, at least 1; 3 is ours.
        step_size: α in units of the [0, 1] pixel. None: max(ε/4, 2·ε/``steps``) for ``"pgd"``: Madry's ε/4
            where that is enough to cross the whole ball, and just enough with fewer than 8 steps; 1.25·ε
            for ``"fast"``, ε for ``"free"`` (both as the authors have it).
        warmup_epochs: ε rises linearly from 0 over so many epochs, and α with it; at least 0. A transformer
            that meets the whole ε on its first step may learn to ignore its images.
        replays: of ``"free"``, at least 1; 4 is among the authors' own for CIFAR (Table 1).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    eps: float = Field(gt=0, le=1)
    variant: Variant = "pgd"
    steps: int = Field(default=3, ge=1)
    step_size: float | None = Field(default=None, gt=0)
    warmup_epochs: float = Field(default=1.0, ge=0)
    replays: int = Field(default=4, ge=1)

    @field_validator("steps", "replays")
    @classmethod
    def _refuse_what_has_no_effect(cls, value: int, info: ValidationInfo) -> int:
        """Two recipes that train the same weights have one identity."""
        name = info.field_name or ""
        variant = info.data.get("variant", _TAKEN_BY[name])
        if variant != _TAKEN_BY[name] and value != cls.model_fields[name].default:
            raise ValueError(f"only {_TAKEN_BY[name]} takes {name}, {variant} does not")
        return value

    @property
    def updates_per_batch(self) -> int:
        """How many parameter updates are made of one minibatch."""
        return self.replays if self.variant == "free" else 1

    def eps_at(self, update: int, updates_per_epoch: int) -> float:
        """Return ε of a parameter update counted from 0: linear warm-up, then constant."""
        warmup = self.warmup_epochs * updates_per_epoch
        return self.eps * min(1.0, (update + 1) / warmup) if warmup else self.eps

    def step_size_at(self, eps: float) -> float:
        """Return α where the warm-up has come to ``eps``: the same share of it as later of the whole ε."""
        defaults = {"pgd": max(self.eps / 4, 2.0 * self.eps / self.steps), "fast": 1.25 * self.eps}
        whole = self.step_size if self.step_size is not None else defaults.get(self.variant, self.eps)
        return whole * eps / self.eps


def start_keys(seed: int, sweep: int, ids: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
    """Return the random stream of each sample in one pass (``sweep``, from 0) over the data."""
    return sample_keys(key(seed, "adversary", sweep), ids)


def perturb(
    logits: Logits,
    images: Float[Tensor, "batch channels height width"],
    labels: Int64[Tensor, " batch"],
    adversary: Adversary,
    eps: float,
    keys: Int64[Tensor, " batch"],
) -> Float[Tensor, "batch channels height width"]:
    """Return the images that ``"pgd"`` or ``"fast"`` trains on.

    x₀ is uniform in the ball around x; x_{t+1} = Π(x_t + α·sign ∇ CE(f(x_t), y)), Π the projection onto
    ‖x' − x‖∞ ≤ ε within [0, 1]. The gradient is that by the images alone: the parameters' is left as it is.
    The model is asked in the mode that it is in, which is that of training. Ours, without dropout and batch
    norm, are the same function in both; a model with either would be perturbed as it is trained.

    Source: as :class:`Adversary`.

    Args:
        logits: the model, in the precision of training, its logits in float32.
        images: clean images in [0, 1].
        labels: their true classes.
        adversary: variant, steps and step size.
        eps: ε of this update, at most the adversary's, in units of the [0, 1] pixel.
        keys: one random stream a sample, see :func:`start_keys`; on the images' device.
    """
    step_size = adversary.step_size_at(eps)
    x = _random_start(images, eps, keys)
    for _ in range(adversary.steps if adversary.variant == "pgd" else 1):
        x = _climb(x, _ask(logits, x, labels)[1], images, eps, step_size)
    return x


def replay(
    backward: Callable[[Tensor], Tensor],
    update: Callable[[], None],
    images: Float[Tensor, "batch channels height width"],
    adversary: Adversary,
    eps: float,
    keys: Int64[Tensor, " batch"],
    count: int,
) -> Float[Tensor, ""]:
    """Replay a minibatch as ``"free"`` does, and return the mean of the replays' losses.

    x₀ is uniform in the ball; replay k adds the gradient at x_k to the parameters', and with the same pass
    x_{k+1} = Π(x_k + α·sign ∇ₓ loss). The update after the last replay is left to the caller.

    Source: as :class:`Adversary`.

    Args:
        backward: adds the gradient of the loss at some images to the parameters' and to the images', and
            returns the loss without a graph.
        update: moves the parameters, then forgets their gradient.
        images: clean images in [0, 1].
        adversary: gives the step size.
        eps: ε of these updates, at most the adversary's, in units of the [0, 1] pixel.
        keys: one random stream a sample, see :func:`start_keys`; on the images' device.
        count: replays, at least 1.

    Raises:
        RuntimeError: if ``backward`` gives the images no gradient.
    """
    x, losses = _random_start(images, eps, keys), []
    for turn in range(count):
        if turn:
            update()
        x.requires_grad_(True)
        losses.append(backward(x))
        if x.grad is None:
            raise RuntimeError("the backward pass gave the images no gradient")
        x = _climb(x.detach(), x.grad, images, eps, adversary.step_size_at(eps))
    return torch.stack(losses).mean()


def robust_accuracy(
    model: nn.Module, data: ImageSet, eps: float, device: torch.device | str = "cpu", *, seed: int = 0,
    batch_size: int = 128,
) -> float:  # fmt: skip
    """Return the share of images, in [0, 1], that are classified correctly and stay so under PGD.

    At most 500 images, drawn once and for all (``data.subset(500, 0)``: folders come sorted by class); 10
    steps of ε/4 in L∞ from one random start, up the cross-entropy at the true label, in float32. An image
    falls at the first point that is misclassified. The verdicts are those of
    ``attacks.pgd(model, images, labels, Threat(eps=eps), steps=10, seed=seed, ids=data.ids)``, without its
    records and checks: a number to watch a training by, an upper bound on what a stronger attack would leave.

    Args:
        model: a classifier; left in evaluation mode.
        data: images with true labels.
        eps: ε in units of the [0, 1] pixel.
        device: the model's.
        seed: of the random starts.
        batch_size: images at a time.
    """
    model.eval()
    chosen = data.subset(_EVALUATION_IMAGES, 0)
    robust = 0
    for ids, images, labels in chosen.batches(batch_size):
        images, labels = images.to(device), labels.to(device)
        x = _random_start(images, eps, sample_keys(key(seed, "pgd", 0), ids).to(device))
        with torch.no_grad():
            right = model(images).argmax(1) == labels
        images, labels, x = images[right], labels[right], x[right]
        for _ in range(_EVALUATION_STEPS + 1):
            if not len(x):
                break
            found, gradient = _ask(model, x, labels)
            right = found.argmax(1) == labels
            x = _climb(x, gradient, images, eps, eps / 4)
            images, labels, x = images[right], labels[right], x[right]
        robust += len(x)
    return robust / len(chosen)


def _ask(logits: Logits, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits, without a graph, and the gradient of each image's own loss."""
    x = x.detach().requires_grad_(True)
    found = logits(x)
    (gradient,) = torch.autograd.grad(F.cross_entropy(found, labels, reduction="sum"), x)
    return found.detach(), gradient


def _random_start(images: Tensor, eps: float, keys: Tensor) -> Tensor:
    delta = (2.0 * uniform(keys, images.shape[1:].numel()) - 1.0).view_as(images)
    return (images + eps * delta).clamp(0.0, 1.0)


def _climb(x: Tensor, gradient: Tensor, images: Tensor, eps: float, step_size: float) -> Tensor:
    moved = x + step_size * gradient.sign()
    return torch.minimum(torch.maximum(moved, images - eps), images + eps).clamp(0.0, 1.0)
