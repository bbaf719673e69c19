"""How long a measurement will take, told before it starts; one that cannot end is refused."""

import time
from collections.abc import Sequence

import torch
from torch import nn

from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.modules import device_of
from antiphase.progress import duration
from antiphase.runs.sense_plan import SensePlan
from antiphase.sensitivity.estimators import all_estimators
from antiphase.sensitivity.layers import eager_attention
from antiphase.sensitivity.maps import attention_layers

_LONGEST = 365 * 86400.0  # seconds


def check_ends(seconds: float, what: str) -> None:
    """Refuse a run that takes longer than a year.

    Raises:
        UserError: naming what takes so long.
    """
    if seconds > _LONGEST:
        raise UserError(
            f"{what}: about {seconds / _LONGEST:,.0f} years; expected at most one, so ask for fewer"
        )


def sense_seconds(
    models: Sequence[nn.Module], data: ImageSet, plan: SensePlan, parts: Sequence[str], batch_size: int
) -> float:
    """Return about how long a sensitivity run takes in one process, from one timed forward pass of each model."""
    total = 0.0
    for model in models:
        device = device_of(model)
        images = data.images(range(min(batch_size, len(data)))).to(device)
        layers = len(list(attention_layers(model, images[:1])))
        with eager_attention(), torch.no_grad():
            float(model(images).sum())  # the first pass is slower
            began = time.perf_counter()
            float(model(images).sum())
        each = (time.perf_counter() - began) / len(images)
        for part in parts:
            count = min(len(data), plan.lipschitz_limit) if part == "lipschitz" else len(data)
            total += each * count * passes(part, plan, layers)
    return total


def passes(part: str, plan: SensePlan, layers: int) -> int:
    """Return about how many forward passes one image of a part costs; a backward pass counts as two.

    >>> plan = SensePlan(probes=32, samples=100, steps=10, points=2)
    >>> [passes(part, plan, 4) for part in ("alignment", "lipschitz", "depth")]
    [294, 1000, 366]
    """
    if part == "alignment":  # directions at the pixels, and cotangents at the tokens, through both maps
        return 6 + 9 * plan.probes
    if part == "lipschitz":  # samples for all functions at once, the rest for each map and the logits
        costs = [estimator.passes for estimator in all_estimators() if estimator.passes is not None]
        return plan.samples + (layers + 1) * sum(cost(plan.steps, plan.points) for cost in costs)
    return 6 * layers * plan.steps + 63 * len(
        plan.travel
    )  # each block's norm, and 20 steps of PGD for each ε


def sense_expectation(
    models: Sequence[nn.Module], data: ImageSet, plan: SensePlan, parts: Sequence[str], batch_size: int
) -> str | None:
    """Say how long a sensitivity run takes, if that is a minute or more.

    Raises:
        UserError: it would take more than a year.
    """
    seconds = sense_seconds(models, data, plan, parts, batch_size)
    counts = {
        "alignment": f"probes {plan.probes:,}",
        "lipschitz": f"samples {plan.samples:,}, steps {plan.steps:,}, points {plan.points:,}",
        "depth": f"steps {plan.steps:,}",
    }
    check_ends(seconds, f"{len(data):,} images, {', '.join(counts[part] for part in parts)}")
    return (
        None if seconds < 60 else f"about {duration(seconds)} for {len(data):,} images, less what is on disk"
    )
