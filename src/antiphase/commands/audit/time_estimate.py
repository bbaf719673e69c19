"""How long attacks take at most: the passes that are left, times the seconds of a pass."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.attacks.engine.oracle import attacked
from antiphase.attacks.engine.search_model import search_model
from antiphase.commands.audit.cells import passes_left
from antiphase.commands.audit.options import AuditOptions
from antiphase.data import ImageSet
from antiphase.models.card import card_of
from antiphase.modules import device_of
from antiphase.processes import this_process
from antiphase.terminal import duration, say

_BATCH = {"cuda": 128}  # images at once; elsewhere a batch of 16 takes as long per image as a larger one
_SHORT = 30.0  # seconds that need no warning
_PROBE = 40  # passes of a batch that must be left, so that timing four of them costs little


def say_time(
    attacks: Iterable[tuple[str, nn.Module, AuditOptions, ImageSet]], out: Path, context: Any = None
) -> None:
    """Say on stderr for how long attacks run at most, if that is known and more than half a minute.

    The bound is reached if no image is broken. ``context`` returns what a model is given with each image of a set.
    """
    process, total = this_process(), 0.0
    for name, model, options, data in attacks if process.first else ():
        classes = card_of(model).classes or len(data.class_names)
        if options.quiet:
            return
        passes = passes_left(name, model, data, options, out, classes)
        if passes is None:
            say(
                f"how long the attacks take is unknown: {options.attack} is not one of antiphase's own",
                err=True,
            )
            return
        size = min(options.batch_size or _BATCH.get(device_of(model).type, 16), len(data))
        if sum(passes) > _PROBE * size:
            given = None if context is None else context(data)[:size]
            forward, backward = _seconds_per_pass(
                model, data.images(range(size)), options, given, passes[1] > 0
            )
            total += passes[0] * forward + passes[1] * backward
    if (total := total / process.count) > _SHORT:
        say(f"the attacks take at most about {duration(total)}; broken images take less", err=True)


def _seconds_per_pass(
    model: nn.Module, images: Tensor, options: AuditOptions, context: Tensor | None, backward: bool
) -> tuple[float, float]:
    """Return the seconds of a forward pass of an image, and what a backward pass adds, in this batch."""
    device, none = device_of(model), torch.zeros(len(images))
    rows = {"forwards": none, "backwards": none}
    rows |= {} if context is None else {"context": context.to(device)}
    images = images.to(device)

    def timed(run: Callable[[], Any]) -> float:
        seconds = 0.0
        for _ in range(2):  # the first call prepares
            began = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - began
        return seconds / len(images)

    with attacked(model) as oracle:
        oracle.search_in(*search_model(oracle.model, images, context, options.precision, device))
        forward = timed(lambda: oracle.forward(rows, images))
        if not backward:
            return forward, 0.0
        both = timed(lambda: oracle.gradients(rows, images, [lambda logits: logits.logsumexp(1)]))
    return forward, max(0.0, both - forward)
