"""Attention maps of any model: its attention layers are found, watched in one pass and taken apart."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError
from antiphase.models.kinds import named_attention
from antiphase.sensitivity.adapters import find_adapter, find_ends, guessed
from antiphase.sensitivity.eager import eager_attention, gradients, prepare_forward_mode
from antiphase.sensitivity.layers import Call, Layer

Inputs = Tensor | Mapping[str, Any]
# foreign modules compute parts in float32 even where their weights are wider
_AGREEMENT = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def record(
    model: nn.Module, inputs: Inputs, *, call: Callable[..., Any] | None = None, tangent: Tensor | None = None,
    graph: bool = False,
) -> list[Call]:  # fmt: skip
    """Run a model once and return the calls of its attention modules, in order.

    Args:
        model: in evaluation mode.
        inputs: one tensor, or the keyword arguments.
        call: what is run on the inputs; the model where not given (for a text tower: ``model.encode_text``).
        tangent: direction of the inputs, of their shape: each call then says how its tokens move along it,
            by forward-mode differentiation, at about the price of a second pass.
        graph: whether the calls keep the graph that leads back to the inputs.

    Raises:
        UserError: where there is no attention, an attention module that has no adapter, or a module that
            is in training mode.
    """
    found: list[Call] = []
    seen: dict[str, int] = {}
    inside: list[nn.Module] = []  # attention modules that are running: what they are made of is theirs
    ends: list[Tensor] = []  # of attention within a block: its tokens, its output

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
        raise UserError("the model is in training mode: expected model.eval(), so that its maps are its own")
    if graph and any(parameter.is_inference() for parameter in model.parameters()):
        raise UserError(
            "the model was made in torch.inference_mode(), so nothing can be differentiated: load it outside"
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
        raise UserError(f"{name} has no attention that is known; if it has attention, {_HOW}")
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
    """Return a copy of a tensor made in inference mode, which autograd refuses."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def _call(name: str, module: nn.Module, args: tuple, kwargs: Mapping[str, Any], output: Any) -> Call:
    rest = dict(kwargs)
    tokens = (
        args[0] if args else next((rest.pop(k) for k in ("hidden_states", "query", "x") if k in rest), None)
    )
    if not isinstance(tokens, Tensor):
        raise UserError(f"{name} ({type(module).__name__}): expected its tokens as the first argument")
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
    """Run a model once and yield its attention layers at their tokens; arguments as of :func:`record`.

    Each is checked on the spot: what it is made of must give the module's own output.

    Raises:
        UserError: as :func:`record`, and where a layer's parts do not give its output.
    """
    for one in record(model, inputs, call=call, tangent=tangent, graph=graph):
        with gradients(enabled=graph):
            layer = take_apart(one)
        yield layer


def take_apart(call: Call, check: bool = True) -> Layer:
    """Return the layer behind a call, checked against what the module returned."""
    adapter = find_adapter(call.module)
    if adapter is None or isinstance(adapter, str):
        raise _unknown(call.name, call.module)
    try:
        layer = adapter(call.module, call)
        combined = layer.maps.combined  # cached in the branches, with the graph that is asked for
        if check:
            _check(call, layer, combined)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if adapter is not guessed or isinstance(error, UserError | torch.OutOfMemoryError):
            raise
        raise UserError(
            f"{call.name} ({type(call.module).__name__}): it has q_proj, k_proj and v_proj but does not fit what is "
            f"usual for such attention ({str(error).partition(chr(10))[0]}); {_HOW}"
        ) from error
    return layer


@torch.no_grad()
def _check(call: Call, layer: Layer, combined: Tensor) -> None:
    """Refuse a layer that does not give the call's output.

    The difference is compared with what the attention adds to the output, which may be little: a residual
    path or an MLP beside it may be part of the module.
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
            f"{call.name} ({type(call.module).__name__}): its maps give another output than its own, off by "
            f"{float(error / own):.1e} of what the attention adds to it, where {allowed:.0e} is allowed; {_HOW}"
        )


_HOW = (
    "write an adapter and call antiphase.sensitivity.register(its class, adapter), or register(its class, None) "
    "to leave it out"
)


def _unknown(name: str, module: nn.Module) -> UserError:
    kind = type(module)
    return UserError(
        f"{name}: {kind.__module__}.{kind.__qualname__} is an attention module without adapter; {_HOW}"
    )


def attention_maps(
    model: nn.Module, inputs: Inputs, *, call: Callable[..., Any] | None = None, graph: bool = False
) -> dict[str, AttentionMaps]:
    """Return the maps of every attention layer by the name of its module; arguments as of :func:`record`.

    With ``graph=True`` they are differentiable in the inputs.
    """
    return {layer.name: layer.maps for layer in attention_layers(model, inputs, call=call, graph=graph)}


class _Reached(Exception):
    """Ends a pass where enough is known."""


def until(model: Callable[..., Any], module: nn.Module, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a module is first given when a model runs on x; the rest of the model does not run."""
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
    raise UserError(f"{type(module).__name__}: the model runs without it")


def map_function(model: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
    """Return the function from inputs to one layer's combined map over the root of its heads, with a graph.

    f(x) = (A1 − λ·A2)(x) / √H, all H heads in one vector: ‖f(x + ξ) − f(x)‖ is then the root mean square over
    the maps, and a layer of three differential heads compares with its twin's six.

    Args:
        model: any model with attention.
        name: of the layer, as in :func:`attention_maps`.
    """
    if "@" in name:
        raise UserError(f"{name}: a module that runs twice has no one map; expected one that runs once")
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
    """Return the model's output and every layer's map as :func:`map_function` gives it, from one pass, unchecked."""
    outputs: list[Tensor] = []
    calls = record(model, x, call=lambda x: outputs.append(model(x)))
    return [outputs[0], *(_flat(take_apart(call, check=False)) for call in calls)]


def _flat(layer: Layer) -> Tensor:
    return layer.maps.combined.flatten(1) * layer.heads**-0.5
