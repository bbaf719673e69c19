"""The current λ of each differential attention layer, own or of a library that is known."""

from typing import Any

import torch
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.attention.lambdas import lambda_at, lambda_of, reads_tokens
from antiphase.models.kinds import known_lambda


@validated
def layer_lambdas(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Return λ of every differential attention layer, first layer first.

    Each has the shape ``()``, ``(heads,)`` or, if it depends on the tokens, ``(batch, heads, queries)``.

    Args:
        model: any model.
        inputs: of the model. They are needed for layers whose λ depends on the tokens: without inputs these are
            left out.
    """
    tokens = _tokens(model, inputs)
    found: list[Tensor] = []
    with torch.no_grad():
        for module in model.modules():
            lam = lambda_of(module)
            if lam is not None and not reads_tokens(lam):
                found.append(lam().detach())
            elif lam is not None and lam in tokens:
                found.append(lambda_at(lam, tokens[lam]).detach())
            elif (known := known_lambda(module)) is not None:
                found.append(known.detach())
    return found


@validated
def mean_lambdas(model: nn.Module, *inputs: Tensor) -> list[float]:
    """Return one number per layer: λ averaged over heads, samples and queries; arguments of :func:`layer_lambdas`.

    Of a user's own attention, which has no λ module, they are those that were measured when the model was loaded.
    """
    found = [float(lam.mean()) for lam in layer_lambdas(model, *inputs)]
    measured = getattr(getattr(model, "card", None), "lambdas", ())
    return list(measured) if len(measured) > len(found) else found


def _tokens(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[nn.Module, Tensor]:
    """Return what each λ module that depends on the tokens is given when the model runs on the inputs."""
    found: dict[nn.Module, Tensor] = {}
    readers = [module for module in model.modules() if reads_tokens(module)]
    if not (inputs and readers):
        return found

    def keep(module: nn.Module, given: tuple[Any, ...]) -> None:
        found[module] = given[0]

    hooks = [module.register_forward_pre_hook(keep) for module in readers]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found
