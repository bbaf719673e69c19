"""The work of ``antiphase check``: build a module, find its attention, and say what is off."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from antiphase.commands.check import CheckOptions
from antiphase.commands.check.examination import LayerCheck, examined_layer, in_double
from antiphase.commands.command import Answer, Refusal
from antiphase.errors import UserError, first_line
from antiphase.models.schemes.python_code import built_module, split_spec
from antiphase.models.schemes.scheme import Wanted
from antiphase.sensitivity.layers import Call, eager_attention, first_of, gradients
from antiphase.sensitivity.maps import record
from antiphase.terminal import console, say

_INDEX = ("depth", "layer_idx", "layer_index", "layer", "layer_id", "layer_number")  # of arguments


@dataclass(frozen=True)
class ModuleCheck:
    """What the attention of a module was found to be.

    Attributes:
        model: as it was given.
        layers: each attention module.
    """

    model: str
    layers: tuple[LayerCheck, ...]

    @property
    def off(self) -> bool:
        """Whether something is off, or not all attention is differential."""
        found = [finding.state for layer in self.layers for finding in layer.findings]
        return "off" in found or any(layer.attention != "differential" for layer in self.layers)


def check(model: Any, **options: Any) -> ModuleCheck:
    """Say whether a module computes differential attention, which variant, and what is off.

    Args:
        model: a module, or a specification such as ``"python:attention.py:DiffAttention?dim=64"``.
        **options: fields of :class:`~antiphase.commands.check.CheckOptions`.

    Raises:
        UserError: the module cannot be built or run.
    """
    if isinstance(model, nn.Module):
        return _checked(CheckOptions(model=type(model).__name__, **options), model)
    return _checked(CheckOptions(model=model, **options), None)


def answer(options: CheckOptions, _: str) -> Answer:
    """Print what was found, and return it; a ``Refusal`` if something is off."""
    result = _checked(options, None)
    for layer in result.layers:
        variant = f", {layer.variant}" if layer.variant else ""
        say(f"{layer.name or result.model}: {layer.attention} attention{variant}")
        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in layer.findings:
            table.add_row(finding.state, finding.about, finding.text)
        console().print(table)
    content = {**asdict(result), "off": result.off}
    return Refusal(content) if result.off else content


def _checked(options: CheckOptions, module: nn.Module | None) -> ModuleCheck:
    spec, index = options.model, options.layer
    if module is None and spec.startswith("python:"):
        module = built_module(Wanted(spec, spec.removeprefix("python:")))
        settings = split_spec(spec.removeprefix("python:"))[2]
        stated = [settings[name] for name in _INDEX if isinstance(settings.get(name), int)]
        index = stated[0] if index is None and stated else index
    elif module is None:
        from antiphase.models import load_model

        module = load_model(spec)
    was = module.training
    try:
        calls = list(_calls(module.eval(), options))
    finally:
        module.train(was)
    alone = len(calls) == 1
    layers = [examined_layer(in_double(call), index if alone else number) for number, call in enumerate(calls)]
    return ModuleCheck(spec, tuple(layers))


def _calls(module: nn.Module, options: CheckOptions) -> Iterator[Call]:
    """Yield the call of an attention module on random tokens, or those in a model on random images."""
    generator = torch.Generator().manual_seed(0)
    shape: Any = getattr(module, "image_shape", None) or getattr(getattr(module, "card", None), "image_shape", None)
    if shape is None:
        widths = [options.dim] if options.dim else list(_widths(module))
        failure = "it has no parameters; give --dim"
        for dim in widths:
            x = torch.randn(2, options.tokens, dim, generator=generator)
            try:
                with gradients(enabled=False), eager_attention():
                    output: Any = first_of(module(x))
            except Exception as error:  # the user's code
                failure = f"{type(error).__name__}: {first_line(error)}"
                continue
            if isinstance(output, Tensor) and output.shape[:2] == x.shape[:2]:
                yield Call("", module, x, None, (), {}, output)
                return
            failure = "its output is not (batch, tokens, channels)"
        raise UserError(
            f"model {options.model}: does not run on tokens of shape (2, {options.tokens}, "
            f"{options.dim or 'dim'}) ({failure}); give --dim, or an attribute image_shape if it takes images"
        )
    yield from record(module, torch.rand(2, *shape, generator=generator))


def _widths(module: nn.Module) -> Iterator[int]:
    """Yield the widths that the tokens may have, the likeliest first."""
    linear = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    sizes = [size for parameter in module.parameters() for size in parameter.shape[::-1]]
    yield from dict.fromkeys([*linear, *sizes])
