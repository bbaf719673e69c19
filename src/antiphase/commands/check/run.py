"""The work of ``antiphase check``: build a module, find its attention, and say what is off."""

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from antiphase.commands.check import CheckOptions
from antiphase.commands.check.examination import LayerCheck, examined_layer
from antiphase.commands.command import Answer, Refusal
from antiphase.errors import UserError, first_line
from antiphase.models import load_model
from antiphase.models.schemes.python_code import split_spec
from antiphase.models.schemes.scheme import Wanted
from antiphase.registry import MODELS, find
from antiphase.sensitivity.attention_adapters import find_adapter, guessed
from antiphase.sensitivity.detection import detected_layer
from antiphase.sensitivity.layers import Call, eager_attention, first_of, gradients
from antiphase.sensitivity.maps import default_call, make_call, observe, take_apart, until
from antiphase.terminal import console, say

_INDEX = ("depth", "layer_idx", "layer_index", "layer", "layer_id", "layer_number")  # arguments


@dataclass(frozen=True)
class ModuleCheck:
    """What was found in a module: ``layers`` has each attention in it, with its findings."""

    model: str
    layers: tuple[LayerCheck, ...]

    @property
    def off(self) -> bool:
        """Whether something is off, or not all attention is known to be differential."""
        states = {finding.state for layer in self.layers for finding in layer.findings}
        return "off" in states or any(layer.attention != "differential" for layer in self.layers)


def check(model: Any, **options: Any) -> ModuleCheck:
    """Say whether a module computes differential attention, which variant, and what is off.

    ``model`` is a module of tokens (batch, tokens, dim) or of images, or a specification such as
    ``"python:attention.py:DiffAttention?dim=64"``; a UserError says why it cannot be built or run.
    """
    own = isinstance(model, nn.Module)
    chosen = CheckOptions(model=type(model).__name__ if own else model, **options)
    return _checked(chosen, copy.deepcopy(model) if own else None)


def answer(options: CheckOptions, _: str) -> Answer:
    """Print what was found, and return it; a ``Refusal`` if something is off."""
    result = _checked(options)
    for layer in result.layers:
        say(f"{layer.name or result.model}: {', '.join(filter(None, (layer.attention, layer.variant)))}")
        table = Table(box=None, show_header=False)
        for finding in layer.findings:
            table.add_row(finding.state, finding.about, finding.text)
        console().print(table)
    content = {**asdict(result), "off": result.off}
    return Refusal(content) if result.off else content


def _checked(options: CheckOptions, module: nn.Module | None = None) -> ModuleCheck:
    spec, index, name = options.model, options.layer, options.model.removeprefix("python:")
    if module is None and name != spec:
        module = find(MODELS, "python", "scheme").load(Wanted(spec, name, as_built=True))
        settings = split_spec(name)[2]
        stated = [settings[key] for key in _INDEX if isinstance(settings.get(key), int)]
        index = stated[0] if index is None and stated else index
    module = (load_model(spec) if module is None else module).eval()
    with eager_attention(), gradients(enabled=False):
        try:
            calls = list(_calls(module.to("cpu", torch.float64), options, torch.float64))
        except Exception:  # the user's code may make float32 tensors; what else is wrong is said now
            calls = list(_calls(module.float(), options, torch.float32))
    single = len(calls) == 1 and not calls[0].name
    checks = [examined_layer(call, index if single else number) for number, call in enumerate(calls)]
    return ModuleCheck(spec, tuple(checks))


def _calls(module: nn.Module, options: CheckOptions, dtype: torch.dtype) -> Iterator[Call]:
    """Yield the call of an attention module on random tokens, or those in a model on random images."""
    shape: Any = getattr(module, "image_shape", getattr(getattr(module, "card", None), "image_shape", None))
    if shape is None:
        call = _of_tokens(module, options, dtype)
        if isinstance(call, Call):
            yield _in_view(call)
            return
        try:
            module = load_model(options.model).to(dtype)
        except UserError:
            why = f"does not run on tokens of shape (2, {options.tokens}, dim) ({call})"
            fix = "give --dim or --tokens, or an attribute image_shape to a model of images"
            raise UserError(f"model {options.model}: {why}; {fix}") from None
        card: Any = module.card
        shape = (card.image_shape[0], 32, 32) if card.any_size else card.image_shape
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    run = default_call(module, images)
    calls, others = observe(module, images, run, None, watch=True)
    for one in others:
        args, kwargs = until(run, one.module, images)
        calls.append(make_call(one.name, one.module, args, kwargs, one.module(*args, **kwargs)))
    if not calls:
        expected = "expected a module that computes softmax maps"
        raise UserError(f"model {options.model}: has no attention; {expected}")
    order = [name for name, _ in module.named_modules()]
    yield from map(_in_view, sorted(calls, key=lambda call: order.index(call.name.partition("@")[0])))


def _of_tokens(module: nn.Module, options: CheckOptions, dtype: torch.dtype) -> Call | str:
    """Return the call of a module on tokens of the first width that it takes, or why it takes none."""
    linear = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    sizes = [size for parameter in module.parameters() for size in parameter.shape[::-1]]
    why = "it has no parameters"
    for dim in [options.dim] if options.dim else dict.fromkeys([*linear, *sizes]):
        x = torch.randn(2, options.tokens, dim, generator=torch.Generator().manual_seed(0)).to(dtype)
        try:
            output: Any = first_of(module(x))
        except Exception as error:  # the user's code
            why = f"{type(error).__name__}: {first_line(error)}"
            continue
        if isinstance(output, Tensor) and output.ndim == 3 and output.shape[:2] == x.shape[:2]:
            return Call("", module, x, None, (), {}, output)
        why = "its output is not of shape (batch, tokens, channels)"
    return why


class _FromParts(nn.Module):
    """Attention of a known class, computed from its parts with every map formed."""

    def __init__(self, inner: nn.Module, adapter: Any) -> None:
        super().__init__()
        self.inner, self.adapter = inner, adapter

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        layer = self.adapter(self.inner, Call("", self.inner, x, None, args, kwargs, x))
        if layer.negative is None:
            return layer.finish(layer.positive.attention)
        lam = layer.lam[..., None] if layer.lam.ndim == 3 else layer.lam[..., None, None]
        return layer.finish(layer.positive.attention - lam * layer.negative.attention)


def _in_view(call: Call) -> Call:
    """Return the call with its maps in view if the module is of a known class, which may use kernels of its own."""
    adapter = find_adapter(call.module)
    if adapter in (None, "unknown", guessed, detected_layer):
        return call
    try:
        take_apart(call)  # refuses parts that do not make the module's output
    except UserError:
        return call
    module = _FromParts(call.module, adapter)
    return replace(call, module=module, output=module(call.tokens, *call.args, **call.kwargs))
