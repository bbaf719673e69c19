"""Any ``torch.nn.Module`` as it comes: its device, its weights and its evaluation mode."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from antiphase.errors import UserError, first_line

Module = TypeVar("Module", bound=nn.Module)


def device_of(model: object, default: torch.device | str = "cpu") -> torch.device:
    """Return the device of a model's first parameter or buffer; ``default`` if it has none or is a plain function.

    A UserError names a weight without values, on the meta device or of a lazy module that has not run yet.
    """
    weights = dict(_weights(model))
    for name, weight in weights.items():
        if is_lazy(weight):
            fix = "expected a model that has run once: call it on a batch of images"
            raise UserError(f"{type(model).__name__}: {name} is lazy and has no values yet; {fix}")
        if weight.is_meta:
            fix = "expected weights: call model.to_empty(device='cpu') and model.load_state_dict(…)"
            raise UserError(f"{type(model).__name__}: {name} is on the meta device, without values; {fix}")
    return next((weight.device for weight in weights.values()), torch.device(default))


def differentiable(model: Module) -> Module:
    """Return the model; if its weights were made under ``torch.inference_mode()``, a copy that has gradients."""
    if not any(weight.is_inference() for _, weight in _weights(model) if not is_lazy(weight)):
        return model
    with torch.inference_mode(mode=False):
        return copied(model)


def copied(model: Module) -> Module:
    """Return a copy of a model; refuse one that stores a tensor with a graph, such as a map that it keeps to show."""
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        why = "it stores a tensor with its graph, or memory is short; clear that, or load the model anew"
        raise UserError(f"{type(model).__name__}: cannot be copied: {why}") from error


def to_evaluation(model: Module) -> Module:
    """Put a model in evaluation mode; exported programs and frozen TorchScript, which refuse, compute as exported."""
    try:
        return model.eval()
    except Exception:
        for part in model.children():
            to_evaluation(part)
        with suppress(Exception):
            model.training = False
        return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a block; in the end each of its parts is in the mode it was in."""
    modes = [(part, part.training) for part in model.modules() if hasattr(part, "training")]
    try:
        to_evaluation(model)
        yield
    finally:
        for part, mode in modes:
            with suppress(Exception):
                if part.training != mode:
                    part.train(mode)  # may do more than set the attribute, such as separate merged weights
            with suppress(Exception):
                part.training = mode


@contextmanager
def hooked(hooks: Iterable[RemovableHandle]) -> Iterator[None]:
    """Keep the hooks of modules for a block."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook)
        yield


@contextmanager
def running(model: object, images: Tensor, name: str = "", inputs: str = "images") -> Iterator[None]:
    """Report what a model raises within a block as a ``UserError``: one line that names the model and its images."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the user's code
        name = name or f"model {getattr(model, '__name__', type(model).__name__)}"
        why = f"of shape {tuple(images.shape[1:])} ({type(error).__name__}: {first_line(error)})"
        fix = advice(model, images.dtype, error) or "expected a classifier of such images, in batches of any size"
        raise UserError(f"{name}: fails on {inputs} {why}; {fix}") from error


def advice(model: object, dtype: torch.dtype, error: BaseException) -> str:
    """Return what helps a model that raised an error on images of a type; empty if that is not known."""
    kinds = {weight.dtype for _, weight in _weights(model) if weight.is_floating_point()}
    if len(kinds) == 1 and dtype not in kinds:
        weights = kinds.pop()
        told = f"images of {dtype} for weights of {weights}: convert it with model.to({dtype}), or the images"
        return f"{told} with images.to({weights})"
    if "Guard failed" in str(error):
        return "export it for batches of any size, with dynamic_shapes=({0: torch.export.Dim('batch')},)"
    return ""


def _weights(model: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(model, nn.Module):
        yield from chain(model.named_parameters(), model.named_buffers())
