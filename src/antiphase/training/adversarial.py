"""Adversarial training: min_θ E_(x,y) max_δ CE(f_θ(x + δ), y) subject to ‖δ‖∞ ≤ ε and x + δ in [0, 1].

The sensitivity paper (Appendix D.2, Table 3) trains DiffViT with PGD at ε = 0.25/255, 0.5/255 and 1/255, but gives
neither steps, step size nor warm-up: defaults are ours unless a docstring names a source.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, Device, Fields, NonNegative, Seed, validated
from antiphase.attacks.pgd import pgd
from antiphase.attacks.threat import Keys, Threat, project, random_point, steepest
from antiphase.data import ImageSet
from antiphase.streams import key, sample_keys

Variant = Literal["pgd", "fast", "free"]
Images = Float[Tensor, "batch channels height width"]
Labels = Int64[Tensor, " batch"]

_TAKEN_BY: dict[str, Variant] = {"steps": "pgd", "replays": "free"}
_EVALUATION_IMAGES = 500
_EVALUATION_STEPS = 10
_EVALUATION_BATCH = 128


class Adversary(Fields):
    """Settings of adversarial training; part of a recipe.

    - ``"pgd"``: ``steps`` steps of α·sign(∇ₓ CE) from a random point of the ball; the weights are updated at the last
      point. (A. Madry et al., *Towards Deep Learning Models Resistant to Adversarial Attacks*, ICLR 2018.)
    - ``"fast"``: the same with one step of 1.25·ε, to which it can overfit at large ε. (E. Wong, L. Rice, J. Z. Kolter,
      *Fast is better than free: Revisiting adversarial training*, ICLR 2020, Algorithm 3.)
    - ``"free"``: each minibatch is replayed ``replays`` times in a row, and the backward pass of a replay gives both
      the gradient of the weights and δ's step of ε. (A. Shafahi et al., *Adversarial Training for Free!*, NeurIPS 2019,
      Algorithm 1.) A run of E epochs has as many updates as natural training, hence E / ``replays`` passes over the
      data. Unlike with the authors, each minibatch starts from its own random point.

    ``eps`` and ``step_size`` α (None: max(ε/4, 2·ε/``steps``) for ``"pgd"``, for the others the authors') are in units
    of [0, 1]. They rise linearly from 0 over ``warmup_epochs``, else a transformer may ignore its images.
    """

    eps: float = Field(gt=0, le=1)
    variant: Variant = "pgd"
    steps: int = Field(default=3, ge=1)
    step_size: float | None = Field(default=None, gt=0)
    warmup_epochs: float = Field(default=1.0, ge=0)
    replays: int = Field(default=4, ge=1)

    @field_validator("steps", "replays")
    @classmethod
    def _refuse_without_effect(cls, value: int, info: ValidationInfo) -> int:
        # two recipes that train the same weights must have one identity
        name = info.field_name or ""
        taken_by = _TAKEN_BY[name]
        variant = info.data.get("variant", taken_by)
        if variant != taken_by and value != cls.model_fields[name].default:
            raise ValueError(f"{name} has no effect on variant {variant}; leave it out, or use {taken_by}")
        return value

    @property
    def updates_per_batch(self) -> int:
        return self.replays if self.variant == "free" else 1

    def eps_at(self, update: int, updates_per_epoch: int) -> float:
        """Return ε of a parameter update (from 0): linear warm-up, then constant."""
        warmup = self.warmup_epochs * updates_per_epoch
        return self.eps * min(1.0, (update + 1) / warmup) if warmup else self.eps

    def step_size_at(self, eps: float) -> float:
        """Return α at ``eps`` during warm-up; α / ε is constant."""
        defaults = {"pgd": max(self.eps / 4, 2.0 * self.eps / self.steps), "fast": 1.25 * self.eps}
        whole = self.step_size if self.step_size is not None else defaults.get(self.variant, self.eps)
        return whole * eps / self.eps


def start_keys(seed: int, sweep: int, ids: Keys) -> Keys:
    """Return the random stream of each sample in one pass over the data (``sweep``, from 0)."""
    return sample_keys(key(seed, "adversary", sweep), ids)


def ascend(
    images: Images, adversary: Adversary, eps: float, keys: Keys, gradient: Callable[..., Images], steps: int
) -> Images:
    """Take steps of α·sign(gradient) within ‖x − images‖∞ ≤ ε and [0, 1] from a point drawn uniformly there."""
    radius, alpha = images.new_full((len(images),), eps), adversary.step_size_at(eps)
    x = random_point(images, radius, "linf", (0.0, 1.0), keys)
    for _ in range(steps):
        slope = gradient(x.requires_grad_(True))
        x = project(x.detach() + alpha * steepest(slope, "linf"), images, radius, "linf", (0.0, 1.0))
    return x


def perturb(
    logits: Callable[..., Tensor], images: Images, labels: Labels, adversary: Adversary, eps: float, keys: Keys
) -> Images:
    """Return the perturbed images of ``"pgd"`` or ``"fast"``, by x_{t+1} = Π(x_t + α·sign ∇ₓ CE(f(x_t), y)).

    x₀ is uniform in the ball around x, by ``keys`` of :func:`start_keys`, and Π the projection onto it and [0, 1].
    Parameter gradients are not touched.
    """

    def gradient(x: Images) -> Images:
        return torch.autograd.grad(F.cross_entropy(logits(x), labels, reduction="sum"), x)[0]

    return ascend(images, adversary, eps, keys, gradient, adversary.steps if adversary.variant == "pgd" else 1)


def replay(
    backward: Callable[[Images], Tensor],
    update: Callable[[], None],
    images: Images,
    adversary: Adversary,
    eps: float,
    keys: Keys,
    count: int,
) -> Float[Tensor, ""]:
    """Replay a minibatch ``count`` times as in ``"free"`` and return the mean loss of the replays.

    ``update`` updates the parameters; the update after the last replay is left to the caller.
    """
    losses: list[Tensor] = []

    def gradient(x: Images) -> Images:
        if losses:
            update()
        losses.append(backward(x))
        if x.grad is None:
            raise RuntimeError("the images have no gradient after backward: the loss must depend on them")
        return x.grad

    ascend(images, adversary, eps, keys, gradient, count)
    return torch.stack(losses).mean()


@validated
def robust_accuracy(
    model: nn.Module, data: Annotated[ImageSet, NOT_EMPTY], eps: NonNegative, device: Device = "cpu", *, seed: Seed = 0
) -> float:
    """Return the fraction of images that are classified correctly and stay so under PGD, in [0, 1], for monitoring.

    At most 500 images, 10 L∞ steps of ε/4 from one random start, in float32; the model stays in evaluation mode.
    """
    model.eval()
    some = data.subset(_EVALUATION_IMAGES, 0)
    images, how = some.images(range(len(some))).to(device), {"seed": seed, "batch_size": _EVALUATION_BATCH}
    result = pgd(model, images, some.labels, Threat(eps=eps), steps=_EVALUATION_STEPS, ids=some.ids, **how)  # pyright: ignore
    return int((~result.success).sum()) / len(some)
