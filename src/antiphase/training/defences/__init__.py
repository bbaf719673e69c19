"""Defences, which ``antiphase train --defend NAME=STRENGTH`` adds to a training: what one is, and the loss with all."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError
from antiphase.modules import hooked
from antiphase.registry import DEFENCES, find
from antiphase.streams import generator

# a penalty on maps reads every 16th image of a batch, at every second step: docs/defences.md says what that costs
SHARE, EVERY = 16, 2
_LEAST = 4  # images, of small batches
_OF_MAPS = ("maps", "two maps")
Strengths = Mapping[str, float]  # by the name of the defence


@dataclass(frozen=True)
class Defence:
    """A defence, as registered in :data:`antiphase.registry.DEFENCES`; its strength is less than ``below``.

    ``term`` of a step is added to the loss times the strength; as the whole loss, it is a function of the strength,
    too. ``needs`` is a model with attention of this package (``"maps"``), a differential one, or an adversary.
    """

    term: Callable[..., Tensor] | None = None  # None: it acts on the weights
    acts_on: Literal["loss", "whole loss", "weights", "average"] = "loss"
    needs: Literal["maps", "two maps", "adversary"] | None = None
    below: float = math.inf


@dataclass
class Step:
    """One step of training, as a defence sees it.

    ``images``, in [0, 1], are those that the model learns from, ``clean`` the same before an adversary changed them;
    ``logits`` is a pass in the precision of training, ``output`` its value at ``images``, with a graph. ``seed`` and
    ``number``, the step's from 0, name its random numbers.
    """

    model: nn.Module
    images: Float[Tensor, "batch channels height width"]
    clean: Float[Tensor, "batch channels height width"]
    labels: Int64[Tensor, " batch"]
    logits: Callable[[Tensor], Tensor]
    seed: int = 0
    number: int = 0

    @cached_property
    def output(self) -> Float[Tensor, "batch classes"]:
        return self.logits(self.images)

    @cached_property
    def clean_output(self) -> Float[Tensor, "batch classes"]:
        return self.output if self.clean is self.images else self.logits(self.clean)

    @cached_property
    def layers(self) -> list[tuple[nn.Module, Tensor, tuple[Any, ...]]]:
        """Every attention layer that shows its maps, and the tokens that it sees, of some of the images.

        The tokens are held fixed: a penalty on a layer's maps trains its queries, keys and λ.
        """
        seen: list[tuple[nn.Module, Tensor, tuple[Any, ...]]] = []
        modules = attention_modules(self.model)

        def note(module: nn.Module, given: tuple[Any, ...]) -> None:
            seen.append((module, given[0].detach().to(module.qkv.weight.dtype), given[1:]))  # pyright: ignore
            if len(seen) == len(modules):
                raise _AllSeen

        with hooked(module.register_forward_pre_hook(note) for module in modules), suppress(_AllSeen), torch.no_grad():
            self.logits(self.images[:: min(SHARE, max(1, len(self.images) // _LEAST))])
        return seen

    @cached_property
    def maps(self) -> list[tuple[AttentionMaps, Tensor]]:
        """The maps of each layer, and the tokens that they are differentiable in; computed in float32."""
        both = []
        with torch.autocast(self.images.device.type, enabled=False):
            for module, tokens, rest in self.layers:
                x = tokens.requires_grad_(True)
                both.append((module.maps(x, *rest), x))  # pyright: ignore[reportCallIssue]
        return both

    def probe(self, layer: int, like: Tensor) -> Tensor:
        """Return N(0, 1) numbers, of this step and layer, shaped as a map."""
        return torch.randn(like.shape, generator=generator(self.seed, "defence", self.number, layer)).to(like)


class _AllSeen(Exception):
    """The last layer's tokens are known: what follows need not be computed."""


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Return the attention layers that can show their maps."""
    return [module for module in model.modules() if hasattr(module, "maps") and hasattr(module, "layout")]


def in_use(strengths: Strengths) -> dict[str, float]:
    """Return the defences that have an effect: those of strength 0 have none, unless they are the whole loss."""
    whole = {name for name in strengths if find(DEFENCES, name, "defence").acts_on == "whole loss"}
    return {name: strength for name, strength in strengths.items() if strength or name in whole}


def defended_loss(step: Step, strengths: Strengths, warm: float = 1.0) -> Tensor:
    """Return the mean cross-entropy of a step with what each defence adds, its strength multiplied by ``warm``."""
    loss = None
    for name, strength in strengths.items():
        if (one := find(DEFENCES, name, "defence")).acts_on == "whole loss":
            loss = one.term(step, warm * strength)
    return sum(penalties(step, strengths, warm), F.cross_entropy(step.output, step.labels) if loss is None else loss)


def penalties(step: Step, strengths: Strengths, warm: float = 1.0) -> Iterator[Tensor]:
    """Yield what each defence adds to the loss at a step."""
    for name, strength in strengths.items():
        one: Defence = find(DEFENCES, name, "defence")
        times = EVERY if one.needs in _OF_MAPS else 1
        if one.acts_on == "loss" and one.term is not None and step.number % times == 0:
            yield times * warm * strength * one.term(step)


def share_of_time(begin: Callable[[int], Step], strengths: Strengths) -> float:
    """Return the share of a step's time, for loss and gradient, that the defences take, in [0, 1].

    ``begin`` returns the step of a number. The time of the adversary, and of AWP's second pass, is not in it.
    """

    def now() -> float:
        if not torch.cuda.is_available():
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(strengths: Strengths) -> float:
        began = now()
        for number in range(2 * EVERY):
            step = begin(number)
            weights = [weight for weight in step.model.parameters() if weight.requires_grad]
            torch.autograd.grad(defended_loss(step, strengths), weights, allow_unused=True)
        return now() - began

    return max(0.0, 1.0 - seconds({}) / seconds(strengths))


def values(step: Step, strengths: Strengths) -> dict[str, float]:
    """Return the value of each term that is added to the loss, at one step, by the defence's name."""
    chosen = {name: find(DEFENCES, name, "defence") for name in strengths}
    return {name: float(one.term(step).detach()) for name, one in chosen.items() if one.acts_on == "loss"}


def check_defences(strengths: Strengths, model: nn.Module | None, adversarial: bool, clip: bool = False) -> None:
    """Refuse defences that are unknown or that the model (None: not known yet; a CLIP's image tower) cannot have."""
    chosen: dict[str, Defence] = {name: find(DEFENCES, name, "defence") for name in strengths}
    if len(whole := [name for name, one in chosen.items() if one.acts_on == "whole loss"]) > 1:
        raise UserError(f"defend {', '.join(whole)}: each is a whole loss; expected one of them")
    for name, one in chosen.items():
        if not (math.isfinite(strengths[name]) and 0 <= strengths[name] < one.below):
            most = f"at least 0, below {one.below:g}" if one.below < math.inf else "a finite number of at least 0"
            raise UserError(f"defend {name}={strengths[name]:g}: expected {most}")
        if clip and one.needs not in _OF_MAPS:
            penalties = [key for key in DEFENCES if find(DEFENCES, key, "defence").needs in _OF_MAPS]
            raise UserError(f"defend {name}: is of classifiers; expected one of {', '.join(penalties)}")
        if one.needs == "adversary" and not adversarial:
            raise UserError(f"defend {name}: learns from perturbed images; give --adversarial too, such as 2/255")
        if model is None or one.needs not in _OF_MAPS:
            continue
        layers, has = attention_modules(model), "no attention whose maps can be seen"
        if one.needs == "two maps":
            layers, has = [layer for layer in layers if layer.layout.noise], "no differential attention"  # pyright: ignore
        if not layers:
            raise UserError(f"defend {name}: this model has {has}; leave it out, or train vit or diffvit")
