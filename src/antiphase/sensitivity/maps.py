"""Attention maps of any model: find its attention modules, record their calls, split them into parts."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError
from antiphase.models.kinds import named_attention
from antiphase.sensitivity.adapters import find_adapter, guessed
from antiphase.sensitivity.blocks import find_ends
from antiphase.sensitivity.eager import eager_attention, gradients, prepare_forward_mode
from antiphase.sensitivity.layers import Call, Layer

Inputs = Tensor | Mapping[str, Any]
# relative tolerance; other libraries compute parts in float32 even for float64 weights
_AGREEMENT = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def record(
    model: nn.Module, inputs: Inputs, *, call: Callable[..., Any] | None = None, tangent: Tensor | None = None,
    graph: bool = False,
) -> list[Call]:  # fmt: skip
    """Run a model once and return the calls of its attention modules in order.

    Args:
        model: any model with attention, in evaluation mode.
        inputs: one tensor, or a mapping of keyword arguments.
        call: function to run on the inputs; None: the model. For a text tower: ``model.encode_text``.
        tangent: direction of the inputs, of their shape; each call then has the derivative of its tokens along it
            (forward mode, about the cost of a second pass).
        graph: keep the graph back to the inputs.

    Raises:
        UserError: if the model has no known attention, has an attention module without an adapter, or is in training
            mode.
    """
    found: list[Call] = []
    seen: dict[str, int] = {}
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
                raise _unknown(name, module)
            seen[name] = seen.get(name, 0) + 1
            title = name if seen[name] == 1 else f"{name}@{seen[name]}"
            found.append(_call(title, module, args, kwargs, output))

        return keep

    if model.training:
        raise UserError("the model is in training mode: expected evaluation mode; call model.eval() first")
    if graph and any(parameter.is_inference() for parameter in model.parameters()):
        raise UserError(
            "the model was created in torch.inference_mode() and cannot be differentiated: load it outside"
        )
    hooks = []
    for name, module in model.named_modules():
        known = not isinstance(find_adapter(module), str)
        if known or (named_attention(module) and not _holds_known(module)):
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(after(name), with_kwargs=True))
            for part in find_ends(module) or ():
                hooks.append(part.register_forward_pre_hook(lambda _, args: ends.append(args[0])))
    try:
        with eager_attention(), torch.set_grad_enabled(graph):
            _run(call or model, inputs, tangent)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        name = getattr(getattr(model, "card", None), "name", type(model).__name__)
        raise UserError(f"{name} has no known attention module; if it has attention, {_HOW}")
    return found


def _holds_known(module: nn.Module) -> bool:
    return any(not isinstance(find_adapter(part), str) for part in module.modules() if part is not module)


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
    """Copy a tensor created in inference mode, which autograd would refuse."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


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


def attention_layers(
    model: nn.Module, inputs: Inputs, *, call: Callable[..., Any] | None = None, tangent: Tensor | None = None,
    graph: bool = False,
) -> Iterator[Layer]:  # fmt: skip
    """Run a model once and yield its attention layers; arguments as for :func:`record`.

    Raises:
        UserError: as :func:`record`, or if the parts of a layer do not reproduce its module's output.
    """
    for one in record(model, inputs, call=call, tangent=tangent, graph=graph):
        with gradients(enabled=graph):
            layer = take_apart(one)
        yield layer


def take_apart(call: Call, check: bool = True) -> Layer:
    """Split a call into the parts of its layer, and check that they reproduce the module's output."""
    adapter = find_adapter(call.module)
    if adapter is None or isinstance(adapter, str):
        raise _unknown(call.name, call.module)
    try:
        layer = adapter(call.module, call)
        combined = layer.maps.combined  # cached in the branches, with the requested graph
        if check:
            _check(call, layer, combined)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if adapter is not guessed or isinstance(error, UserError | torch.OutOfMemoryError):
            raise
        raise UserError(
            f"{call.name} ({type(call.module).__name__}): has q_proj, k_proj and v_proj, but does not work like "
            f"attention of transformers ({str(error).partition(chr(10))[0]}); {_HOW}"
        ) from error
    return layer


@torch.no_grad()
def _check(call: Call, layer: Layer, combined: Tensor) -> None:
    """Refuse a layer that does not reproduce the call's output.

    The error is relative to the attention's share of the output, since the module may include a residual path or
    a parallel MLP.
    """
    mine, without = layer.finish(combined), layer.finish(torch.zeros_like(combined))
    if getattr(call.module, "batch_first", True) is False:
        mine, without = (
            mine.transpose(0, 1),
            without.transpose(0, 1),
        )  # nn.MultiheadAttention: the tokens come first
    own = (call.output - without.nan_to_num()).abs().max()
    rounding = 4 * torch.finfo(call.output.dtype).eps * call.output.abs().max()
    error, allowed = (mine - call.output).abs().max(), _AGREEMENT[call.output.dtype]
    if not error <= allowed * own + rounding:
        raise UserError(
            f"{call.name} ({type(call.module).__name__}): its maps do not reproduce its output, relative error "
            f"{float(error / own):.1e} of the attention's share; expected at most {allowed:.0e}; {_HOW}"
        )


_HOW = (
    "write an adapter and call antiphase.sensitivity.register(its class, adapter), or register(its class, None) "
    "to ignore it"
)


def _unknown(name: str, module: nn.Module) -> UserError:
    kind = type(module)
    return UserError(f"{name}: attention module {kind.__module__}.{kind.__qualname__} has no adapter; {_HOW}")


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
        model(x)
    except _Reached:
        return kept[0]
    finally:
        hook.remove()
    raise UserError(f"{type(module).__name__}: the model's forward pass does not call it")


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
    module = dict(model.named_modules())[name]
    adapter = find_adapter(module)
    if adapter is None or isinstance(adapter, str):
        raise _unknown(name, module)

    ends = find_ends(module)

    def function(x: Tensor) -> Tensor:
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
