"""Initial weights that modules draw themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from antiphase.streams import generator


def draw_own(model: nn.Module, seed: int) -> set[str]:
    """Let the modules that have a method ``draw_parameters(stream)`` draw all of their parameters.

    ``stream(name)`` is the random generator of the parameter of that name in the module: each has its own, given by the
    seed and the parameter's name in the model.

    Args:
        model: any model.
        seed: of its weights.

    Returns:
        the names of the parameters that were drawn.

    Raises:
        TypeError: a λ module (named ``lam``) has parameters, but no method that draws them.
    """
    drawn: set[str] = set()
    for name, module in model.named_modules():
        if hasattr(type(module), "draw_parameters"):
            prefix = f"{name}." if name else ""
            own: Any = module
            own.draw_parameters(_streams(seed, prefix))
            drawn |= {prefix + parameter for parameter, _ in module.named_parameters()}
    for name, _ in model.named_parameters():
        if "lam" in name.split(".") and name not in drawn:
            kind = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise TypeError(f"{name}: {kind} does not draw its parameters; give it draw_parameters(stream)")
    return drawn


def _streams(seed: int, prefix: str) -> Callable[[str], torch.Generator]:
    return lambda name: generator(seed, "initialise", prefix + name)
