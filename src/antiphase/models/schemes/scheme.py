"""What a scheme of model specifications is, such as ``timm:`` in ``timm:vit_tiny_patch16_224``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn


@dataclass(frozen=True)
class Wanted:
    """What a caller of ``load_model`` asked of a scheme.

    Attributes:
        spec: the whole specification.
        name: its part after the scheme.
        random_weights: whether to build the model with random weights, without a download.
        seed: random seed of these weights.
        lambda_init: λ_init of a checkpoint that does not contain it.
    """

    spec: str
    name: str
    random_weights: bool = False
    seed: int = 0
    lambda_init: float | Literal["depth"] | None = None

    @property
    def drawn(self) -> int | None:
        """The seed if the weights are random."""
        return self.seed if self.random_weights else None

    def split(self) -> tuple[str, str]:
        """Return NAME and FILE of ``SCHEME:NAME@FILE``; FILE is empty if there is none."""
        name, _, file = self.name.partition("@")
        return name, file


@dataclass(frozen=True)
class Scheme:
    """A kind of specification.

    Attributes:
        form: how it is written.
        description: what it is, in one line.
        load: returns the model with its card, in evaluation mode.
        random: whether it can build models with random weights.
    """

    form: str
    description: str
    load: Callable[[Wanted], nn.Module]
    random: bool = False


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which other libraries draw weights, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
