"""How long attacks take at most: the passes that are left, and the time of a pass of each model."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.attacks.engine.oracle import attacked
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


@dataclass(frozen=True)
class Work:
    """A model under an attack; ``context`` is what the model is given with each image, if anything."""

    name: str
    model: nn.Module
    options: AuditOptions
    data: ImageSet
    context: Tensor | None = None

    def seconds(self, out: Path) -> float | None:
        """Return for how long it runs at most; None if that is not known."""
        classes = card_of(self.model).num_classes or len(self.data.class_names)
        passes = passes_left(self.name, self.model, self.data, self.options, out, classes)
        size = min(self.options.batch_size or _BATCH.get(device_of(self.model).type, 16), len(self.data))
        if passes is None or sum(passes) < _PROBE * size:
            return passes and 0.0
        forward, backward = self._seconds_per_pass(size, passes[1] > 0)
        return passes[0] * forward + passes[1] * backward

    def _seconds_per_pass(self, size: int, backward: bool) -> tuple[float, float]:
        """Return the seconds of a forward pass of an image, and what a backward pass adds, in a batch of this size."""
        device = device_of(self.model)
        images = self.data.images(range(size)).to(device)
        rows: dict[str, Any] = {"forwards": torch.zeros(size), "backwards": torch.zeros(size)}
        rows |= {} if self.context is None else {"context": self.context[:size].to(device)}

        def timed(run: Callable[[], Any]) -> float:
            seconds = 0.0
            for _ in range(2):  # the first call prepares
                began = time.perf_counter()
                run()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds = time.perf_counter() - began
            return seconds / size

        with attacked(self.model, self.options.precision) as oracle:
            forward = timed(lambda: oracle.forward(rows, images))
            if not backward:
                return forward, 0.0
            both = timed(lambda: oracle.gradients(rows, images, [lambda logits: logits.logsumexp(1)]))
        return forward, max(0.0, both - forward)


def say_time(works: Iterable[Work], out: Path) -> None:
    """Say on stderr for how long the attacks run at most, if that is more than half a minute and known.

    The bound is reached if no image is broken, since a broken image is not attacked further.
    """
    process, total = this_process(), 0.0
    for work in works if process.first else ():
        seconds = work.seconds(out)
        if seconds is None:
            return
        total += seconds
    if (total := total / process.count) > _SHORT:
        say(f"the attacks take at most about {duration(total)}; broken images take less", err=True)
