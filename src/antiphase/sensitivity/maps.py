"""Attention maps of any model: its layers, split into parts that reproduce the output of their modules."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError
from antiphase.models.kinds import AttentionKind, attention_modules, strongest
from antiphase.sensitivity.attention_adapters import Adapter, block_ends, find_adapter, guessed
from antiphase.sensitivity.detection import NotAttention, detect, detected_layer
from antiphase.sensitivity.layers import Call, Layer, gradients
from antiphase.sensitivity.recording import (
    HOW,
    Inputs,
    is_subtracted,
    make_call,
    observe,
    pools,
    record,
    unknown_attention,
)

# relative tolerance; other libraries compute parts in float32 even for float64 weights
_AGREEMENT = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@validated
def attention_layers(
    model: nn.Module,
    inputs: Inputs,
    *,
    call: Callable[..., Any] | None = None,
    tangent: Tensor | None = None,
    graph: bool = False,
) -> Iterator[Layer]:
    """Run a model once and yield its attention layers; arguments as for :func:`~.recording.record`.

    Raises:
        UserError: as :func:`~.recording.record`, or if the parts of a layer do not reproduce its module's output.
    """
    for one in record(model, inputs, call=call, tangent=tangent, graph=graph):
        with gradients(enabled=graph):
            layer = take_apart(one)
        yield layer


@validated
def attention_maps(
    model: nn.Module, inputs: Inputs, *, call: Callable[..., Any] | None = None, graph: bool = False
) -> dict[str, AttentionMaps]:
    """Return the attention maps of every layer by module name.

    Args:
        model: any model with attention, in evaluation mode.
        inputs: one tensor, or a mapping of keyword arguments.
        call: function to run on the inputs; None: the model. For a text tower: ``model.encode_text``.
        graph: make the maps differentiable with respect to the inputs.

    Raises:
        UserError: as :func:`attention_layers`.
    """
    return {layer.name: layer.maps for layer in attention_layers(model, inputs, call=call, graph=graph)}


def attention_of(
    model: nn.Module, inputs: Inputs, call: Callable[..., Any] | None = None
) -> tuple[AttentionKind, tuple[float, ...]]:
    """Return the kind of attention by what the modules do on the inputs, and the mean λ of each differential layer.

    Modules of other libraries that are known by their class, but have no adapter, have the kind of their class.

    Args:
        model: the model, in evaluation mode.
        inputs: what it is run on.
        call: runs it; None: the model itself.
    """
    by_class = dict(attention_modules(model))
    pooling: dict[nn.Module, bool] = {}  # of those that are not known by their class and run

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        pooling[module] = pools(args, output)

    hooks = [module.register_forward_hook(note) for module, kind in by_class.items() if kind == "unknown"]
    try:
        with torch.no_grad():
            calls, left_out = observe(model, inputs, call or model, None, watch=True)
    finally:
        for hook in hooks:
            hook.remove()
    known = [module for module, kind in by_class.items() if kind != "unknown"]
    kinds: set[AttentionKind] = {by_class[module] for module in known}
    parts_of_known = {part for module in known for part in module.modules() if not is_subtracted(part)}
    pooled = [one.module for one in left_out if one.why == "pooling"]
    refused = [one.module for one in left_out if one.why != "pooling"]
    lambdas = []
    for one in calls:
        try:
            with gradients(enabled=False):
                lam = take_apart(one).lam
        except UserError:
            refused.append(one.module)
            continue
        kinds.add("softmax" if lam is None else "differential")
        lambdas += [] if lam is None else [float(lam.mean())]
    inside = {part for module in [*pooled, *(one.module for one in calls)] for part in module.modules()}
    refused += [
        module for module, pools in pooling.items() if not pools and inside.isdisjoint(module.modules())
    ]
    if not parts_of_known.issuperset(refused) or (not kinds and (pooling or pooled)):
        kinds.add("unknown")
    return strongest(kinds), tuple(lambdas)


def take_apart(call: Call, check: bool = True) -> Layer:
    """Split a call into the parts of its layer, and check that they reproduce the module's output."""
    adapter = find_adapter(call.module)
    if adapter is None or isinstance(adapter, str):
        raise unknown_attention(call.name, call.module)
    try:
        return _split(adapter, call, check)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if adapter is not guessed or isinstance(error, torch.OutOfMemoryError):
            raise
        try:
            detect(call)
        except NotAttention as reason:
            raise UserError(
                f"{call.name} ({type(call.module).__name__}): has q_proj, k_proj and v_proj, but does not work like "
                f"attention of transformers, and {reason}; {HOW}"
            ) from error
        return _split(detected_layer, call, check)


def _split(adapter: Adapter, call: Call, check: bool) -> Layer:
    layer = adapter(call.module, call)
    combined = layer.maps.combined  # cached in the branches, with the requested graph
    if check:
        _check(call, layer, combined)
    return layer


@torch.no_grad()
def _check(call: Call, layer: Layer, combined: Tensor) -> None:
    """Refuse a layer that does not reproduce the call's output.

    The error is relative to the attention's share of the output, since the module may include a residual path or
    a parallel MLP.
    """
    output = call.output
    mine, without = (call.batch_first(layer.finish(maps)) for maps in (combined, torch.zeros_like(combined)))
    share = (output - without.nan_to_num()).abs().max()
    rounding = 4 * torch.finfo(output.dtype).eps * output.abs().max()
    error, allowed = (mine - output).abs().max(), _AGREEMENT[output.dtype]
    if not error <= allowed * share + rounding:
        raise UserError(
            f"{call.name} ({type(call.module).__name__}): its maps do not reproduce its output, relative error "
            f"{float(error / share):.1e} of the attention's share; expected at most {allowed:.0e}; {HOW}"
        )


class _Reached(Exception):
    """Stop a forward pass early."""


def until(model: Callable[..., Any], module: nn.Module, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run a model on x up to the first call of a module, and return the arguments of that call."""

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _Reached(args, kwargs)

    with module.register_forward_pre_hook(stop, with_kwargs=True):
        try:
            model(x.clone())
        except _Reached as reached:
            return reached.args
    raise UserError(f"{type(module).__name__}: the model's forward pass does not call it")


@validated
def map_function(model: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
    """Return the function f(x) = (A1 − λ·A2)(x) / √H of one layer, with all H heads in one vector per sample.

    The factor makes ‖f(x + ξ) − f(x)‖ a root mean square over the heads, so that layers with different numbers of
    heads are comparable. The result has a graph back to x.

    Args:
        model: any model with attention.
        name: name of the layer, as in :func:`attention_maps`.

    Raises:
        UserError: if the module is called twice in one pass, or has no adapter.
    """
    if "@" in name:
        raise UserError(f"{name}: the module is called more than once; expected a module that is called once")
    module = dict(model.named_modules()).get(name)
    if module is None:
        raise UserError(f"name {name!r}: the model has no such module; attention_maps gives the names")
    if find_adapter(module) is None:
        raise unknown_attention(name, module)
    ends = block_ends(module)
    settled = find_adapter(module) not in ("unknown", guessed)

    def function(x: Tensor) -> Tensor:
        nonlocal settled
        if not settled:  # find out what it is, or that it is what it seems
            settled = all(layer.name for layer in attention_layers(model, x))
        args, kwargs = until(model, module, x)
        if ends:
            (tokens, *_), _ = until(lambda _: module(*args, **kwargs), ends[0], x)
            args = (tokens, *args[1:])
        return _flat(take_apart(make_call(name, module, args, kwargs, x), check=False))

    return function


def all_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output and every layer's map (see :func:`map_function`) from one pass, without the check."""
    outputs: list[Tensor] = []
    calls = record(model, x, call=lambda x: outputs.append(model(x)))
    return [outputs[0], *(_flat(take_apart(call, check=False)) for call in calls)]


def _flat(layer: Layer) -> Tensor:
    return layer.maps.combined.flatten(1) * layer.heads**-0.5
