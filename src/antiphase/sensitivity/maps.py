"""Attention maps of any model: find its attention modules, record their calls, split them into parts."""

import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from antiphase.arguments import validated
from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError, one_line
from antiphase.models.kinds import AttentionKind, attention_modules, is_own_code, named_attention, strongest
from antiphase.sensitivity.adapters import find_adapter, guessed
from antiphase.sensitivity.blocks import find_ends
from antiphase.sensitivity.eager import eager_attention, gradients, prepare_forward_mode
from antiphase.sensitivity.layers import Call, Layer, is_cross
from antiphase.sensitivity.splitting import HOW, no_self_attention, not_told, take_apart, unknown_attention
from antiphase.sensitivity.watching import Exit, Unrecognised, Watch, attention_calls, subtracted_outputs

Inputs = Tensor | Mapping[str, Any]
_WATCHED: weakref.WeakKeyDictionary[nn.Module, set[str | None]] = weakref.WeakKeyDictionary()  # by what ran
_PART_OF_DIFFERENCE = "its output is subtracted from that of other attention, or the other way round"
_SUBTRACTED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # attention whose output is part of a difference


def record(
    model: nn.Module,
    inputs: Inputs,
    *,
    call: Callable[..., Any] | None = None,
    tangent: Tensor | None = None,
    graph: bool = False,
) -> list[Call]:
    """Run a model once and return the calls of its attention modules in order.

    Args:
        model: any model with attention, in evaluation mode.
        inputs: one tensor, or a mapping of keyword arguments.
        call: function to run on the inputs; None: the model. For a text tower: ``model.encode_text``.
        tangent: direction of the inputs, of their shape; each call then has the derivative of its tokens along it
            (forward mode, about the cost of a second pass).
        graph: keep the graph back to the inputs.

    Raises:
        UserError: if the model has no attention, has a module that is named after attention, but is neither known nor
            found to be attention, or is in training mode.
    """
    if model.training:
        raise UserError("the model is in training mode: expected evaluation mode; call model.eval() first")
    if graph and any(parameter.is_inference() for parameter in model.parameters()):
        raise UserError(
            "the model was created in torch.inference_mode() and cannot be differentiated: load it outside"
        )
    way = getattr(call, "__qualname__", None)  # each function that runs may use other modules
    watch = way not in _WATCHED.setdefault(model, set())
    with torch.set_grad_enabled(graph):
        seen = _observed(model, inputs, call or model, tangent, watch)
    for name, module in seen.unknown:
        raise unknown_attention(name, module)
    left_out = [(one.module, not_told(one, reason)) for one, reason in seen.others]
    left_out += [(module, no_self_attention(name, module)) for name, module in seen.pooling]
    if left_out and not seen.calls:
        raise left_out[0][1]
    _WATCHED[model].add(way)
    for kind, error in {type(module): error for module, error in reversed(left_out) if watch}.items():
        warnings.warn(f"{error}; {kind.__name__} is left out of the measurement", stacklevel=2)
    if not seen.calls:
        name = getattr(getattr(model, "card", None), "name", type(model).__name__)
        raise UserError(f"{name} has no known attention module; if it has attention, {HOW}")
    return seen.calls


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
    named = attention_modules(model)
    pools: dict[nn.Module, bool] = {}  # of those that are not known by their class and run

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        pools[module] = _pools(args, output)

    hooks = [module.register_forward_hook(note) for module, kind in named if kind == "unknown"]
    try:
        with torch.no_grad():
            seen = _observed(model, inputs, call or model, None, watch=True)
    finally:
        for hook in hooks:
            hook.remove()
    kinds: set[AttentionKind] = {kind for _, kind in named if kind != "unknown"}
    by_class = {part for module, kind in named if kind != "unknown" for part in module.modules()} - {
        *_SUBTRACTED
    }
    refused = [module for _, module in seen.unknown] + [one.module for one, _ in seen.others]
    lambdas = []
    for one in seen.calls:
        try:
            with gradients(enabled=False):
                lam = take_apart(one).lam
        except UserError:
            refused.append(one.module)
            continue
        kinds.add("softmax" if lam is None else "differential")
        lambdas += [] if lam is None else [float(lam.mean())]
    examined = [*(module for _, module in seen.pooling), *(one.module for one in seen.calls)]
    inside = {part for module in examined for part in module.modules()}
    refused += [
        module for module, pooled in pools.items() if not pooled and inside.isdisjoint(module.modules())
    ]
    if any(module not in by_class for module in refused) or (not kinds and (pools or seen.pooling)):
        kinds.add("unknown")
    return strongest(kinds), tuple(lambdas)


def unrecognised(
    model: nn.Module, inputs: Inputs, call: Callable[..., Any] | None = None
) -> dict[str, nn.Module]:
    """Return by name the modules that compute softmax maps or are named after attention, but are not recognised.

    Args:
        model: the model.
        inputs: what it is run on.
        call: runs it; None: the model itself.
    """
    seen = _observed(model, inputs, call or model, None, watch=True)
    return dict(seen.unknown) | {one.name: one.module for one, _ in seen.others}


@dataclass(frozen=True)
class _Seen:
    """What one run of a model showed.

    Attributes:
        calls: calls of self-attention.
        others: other calls that compute softmax maps, with the reason why they are no attention; if they were watched.
        unknown: names and modules that are named after attention, but neither known nor found to be attention.
        pooling: names and modules that are known or named after attention, but are no self-attention.
    """

    calls: list[Call]
    others: list[Unrecognised]
    unknown: list[tuple[str, nn.Module]]
    pooling: list[tuple[str, nn.Module]]


def _observed(
    model: nn.Module, inputs: Inputs, call: Callable[..., Any], tangent: Tensor | None, watch: bool
) -> _Seen:
    """Run a model once; with ``watch`` look for attention that is not known, too."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise UserError(
            f"{type(model).__name__} holds TorchScript, whose attention cannot be observed; expected the module that "
            "it was made from"
        )
    exits: list[Exit] = []
    unknown: list[tuple[str, nn.Module]] = []
    pooling: list[tuple[str, nn.Module]] = []
    inside: list[nn.Module] = []  # running attention modules; attention nested in them is not recorded
    ends: list[Tensor] = []  # tokens and output of attention that is not a module of its own

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inside.append(module)

    def after(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            inside.pop()
            if inside or find_adapter(module) is None:
                return
            if find_ends(module):
                args, output = (ends[-2], *args[1:]), ends[-1]
                ends.clear()
            if isinstance(find_adapter(module), str):
                (pooling if _pools((*args, *kwargs.values()), output) else unknown).append((name, module))
            elif is_cross(one := _call(name, module, args, kwargs, output)):
                pooling.append((name, module))
            else:
                exits.append(Exit(one))

        return keep

    hooks = []
    for name, module in model.named_modules():
        if _is_known(module) or (named_attention(module) and not _holds_known(module)):
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(after(name), with_kwargs=True))
            for part in find_ends(module) or ():
                hooks.append(part.register_forward_pre_hook(lambda _, args: ends.append(args[0])))
    try:
        with eager_attention(), Watch(model, _is_known, _call, exits) if watch else nullcontext():
            _run(call, inputs, tangent)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{type(model).__name__} failed on the inputs ({one_line(error)[:200]}); expected what its forward takes: "
            "a tensor, or a mapping of all arguments; or pass call, such as model.encode_image"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    calls, others = attention_calls(exits)
    if watch and len(set(map(_block_name, calls))) < len(calls) and is_own_code(model):
        _SUBTRACTED.update(
            subtracted_outputs([one.module for one in calls], lambda: _run(call, inputs, None))
        )
    others += [(one, _PART_OF_DIFFERENCE) for one in calls if one.module in _SUBTRACTED]
    calls = [one for one in calls if one.module not in _SUBTRACTED]
    inner = {id(part) for one in calls for part in one.module.modules()}
    unknown, pooling = (
        [(name, module) for name, module in found if id(module) not in inner and not _holds_known(module)]
        for found in (unknown, pooling)
    )
    return _Seen(_titled(calls), others, unknown, pooling)


def _block_name(call: Call) -> str:
    """Return the name of a call's module up to its first number, or that of the module's parent."""
    numbered = re.match(r"(.*?\.)?\d+(?=\.|$)", call.name)
    return numbered[0] if numbered else call.name.rpartition(".")[0]


def _pools(args: tuple[Any, ...], output: Any) -> bool:
    """Return whether a module returns something else than one vector for each of its tokens."""
    tokens = next((one for one in args if isinstance(one, Tensor)), None)
    first = output[0] if isinstance(output, tuple) else output
    if tokens is None or not isinstance(first, Tensor):
        return False
    return first.ndim != tokens.ndim or first.shape[:2] != tokens.shape[:2]


def _is_known(module: nn.Module) -> bool:
    """Return whether a module has an adapter, or is to be ignored."""
    return not isinstance(find_adapter(module), str)


def _titled(calls: list[Call]) -> list[Call]:
    """Append ``@2`` to the name of a module's second call, and so on."""
    seen: dict[str, int] = {}
    titled = []
    for one in calls:
        seen[one.name] = seen.get(one.name, 0) + 1
        titled.append(one if seen[one.name] == 1 else replace(one, name=f"{one.name}@{seen[one.name]}"))
    return titled


def _holds_known(module: nn.Module) -> bool:
    return any(_is_known(part) for part in module.modules() if part is not module)


def _run(call: Callable[..., Any], inputs: Inputs, tangent: Tensor | None) -> None:
    if not isinstance(inputs, Tensor):
        call(**{name: _ordinary(value) for name, value in inputs.items()})
    elif tangent is None:
        call(_ordinary(inputs))
    else:
        prepare_forward_mode()
        with forward_ad.dual_level():
            call(forward_ad.make_dual(_ordinary(inputs), _ordinary(tangent).to(inputs.dtype)))


def _ordinary(value: Any) -> Any:
    """Copy a tensor: the model may write to it, and autograd would refuse one created in inference mode."""
    return value.clone() if isinstance(value, Tensor) else value


def _call(name: str, module: nn.Module, args: tuple, kwargs: Mapping[str, Any], output: Any) -> Call:
    rest = dict(kwargs)
    tokens = (
        args[0] if args else next((rest.pop(k) for k in ("hidden_states", "query", "x") if k in rest), None)
    )
    if not isinstance(tokens, Tensor):
        raise UserError(f"{name} ({type(module).__name__}): expected the tokens as the first argument")
    first = output[0] if isinstance(output, tuple) else output
    if forward_ad._current_level < 0:
        return Call(name, module, tokens, None, args[1:], rest, first)
    dual = forward_ad.unpack_dual(tokens)
    tangent = torch.zeros_like(dual.primal) if dual.tangent is None else dual.tangent
    return Call(name, module, dual.primal, tangent, args[1:], rest, forward_ad.unpack_dual(first).primal)


@validated
def attention_layers(
    model: nn.Module,
    inputs: Inputs,
    *,
    call: Callable[..., Any] | None = None,
    tangent: Tensor | None = None,
    graph: bool = False,
) -> Iterator[Layer]:
    """Run a model once and yield its attention layers; arguments as for :func:`record`.

    Raises:
        UserError: as :func:`record`, or if the parts of a layer do not reproduce its module's output.
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


class _Reached(Exception):
    """Stop a forward pass early."""


def until(model: Callable[..., Any], module: nn.Module, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run a model on x up to the first call of a module, and return the arguments of that call."""
    kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept.append((args, kwargs))
        raise _Reached

    hook = module.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(x.clone())
    except _Reached:
        return kept[0]
    finally:
        hook.remove()
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

    ends = find_ends(module)
    settled = find_adapter(module) not in ("unknown", guessed)

    def function(x: Tensor) -> Tensor:
        nonlocal settled
        if not settled:  # find out what it is, or that it is what it seems
            settled = all(layer.name for layer in attention_layers(model, x))
        args, kwargs = until(model, module, x)
        if ends:
            (tokens, *_), _ = until(lambda _: module(*args, **kwargs), ends[0], x)
            args = (tokens, *args[1:])
        return _flat(take_apart(_call(name, module, args, kwargs, x), check=False))

    return function


def all_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output and every layer's map (see :func:`map_function`) from one pass, without the check."""
    outputs: list[Tensor] = []
    calls = record(model, x, call=lambda x: outputs.append(model(x)))
    return [outputs[0], *(_flat(take_apart(call, check=False)) for call in calls)]


def _flat(layer: Layer) -> Tensor:
    return layer.maps.combined.flatten(1) * layer.heads**-0.5
