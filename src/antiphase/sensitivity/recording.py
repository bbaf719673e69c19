"""Calls of the attention modules of any model, recorded while it runs."""

import re
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from antiphase.errors import UserError, one_line
from antiphase.models.kinds import is_own_code, named_attention
from antiphase.sensitivity.attention_adapters import block_ends, find_adapter, is_known
from antiphase.sensitivity.detection import DETECTIONS, NotAttention, examine, softmax_rows, subtraction
from antiphase.sensitivity.layers import Call, eager_attention, gradients, is_cross, prepare_forward_mode

Inputs = Tensor | Mapping[str, Any]
Exit = tuple[Call, set[int]]
"""A call, in the order in which modules return, and numbers of the softmax maps in it if it is not known."""
HOW = (
    "write an adapter and call antiphase.sensitivity.register(its class, adapter), or register(its class, None) "
    "to ignore it"
)
_PARTS = 4  # modules of standard attention that one of differential attention may be made of
_PLUS = {"add", "__add__", "__radd__", "add_", "__iadd__"}
_WATCHED: weakref.WeakKeyDictionary[nn.Module, set[str | None]] = weakref.WeakKeyDictionary()  # by what ran
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
        calls, left_out = observe(model, inputs, call or model, tangent, watch)
    for one in left_out:
        if one.why == "unknown" or not calls:
            raise one.error
    _WATCHED[model].add(way)
    for kind, error in {type(one.module): one.error for one in reversed(left_out) if watch}.items():
        warnings.warn(f"{error}; {kind.__name__} is left out of the measurement", stacklevel=2)
    if not calls:
        name = getattr(getattr(model, "card", None), "name", type(model).__name__)
        raise UserError(f"{name} has no known attention module; if it has attention, {HOW}")
    return calls


def unknown_attention(name: str, module: nn.Module) -> UserError:
    """Return the error for a module without an adapter."""
    kind = type(module)
    return UserError(f"{name}: attention module {kind.__module__}.{kind.__qualname__} has no adapter; {HOW}")


def _no_self_attention(name: str, module: nn.Module) -> UserError:
    kind = type(module).__name__
    return UserError(f"{name} ({kind}): cross-attention is not supported; expected self-attention")


def _not_recognised(call: Call, reason: str) -> UserError:
    kind = type(call.module)
    return UserError(
        f"{call.name}: {kind.__module__}.{kind.__qualname__} computes softmax maps, but not as standard or "
        f"differential attention with one λ for each head: {reason}; if it is attention, {HOW}"
    )


class LeftOut(NamedTuple):
    """A module that is no self-attention that is known or found.

    Attributes:
        why: ``"unknown"``: named after attention, but without an adapter; ``"other"``: computes softmax maps, but is
            not recognised; ``"pooling"``: attends to or for other tokens.
    """

    module: nn.Module
    why: Literal["unknown", "other", "pooling"]
    error: UserError


def observe(
    model: nn.Module, inputs: Inputs, call: Callable[..., Any], tangent: Tensor | None, watch: bool
) -> tuple[list[Call], list[LeftOut]]:
    """Run a model once and return the calls of self-attention; with ``watch`` look for unknown attention, too."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise UserError(
            f"{type(model).__name__} holds TorchScript, whose attention cannot be observed; expected the module that "
            "it was made from"
        )
    exits: list[Exit] = []
    left_out: list[LeftOut] = []
    inside: list[nn.Module] = []  # running attention modules; attention nested in them is not recorded
    ends: list[Tensor] = []  # tokens and output of attention that is not a module of its own

    def leave(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        inside.pop()
        if inside or find_adapter(module) is None:
            return
        if block_ends(module):
            args, output = (ends[-2], *args[1:]), ends[-1]
            ends.clear()
        known = is_known(module)
        call = make_call(name, module, args, kwargs, output) if known else None
        if call is not None and not is_cross(call):
            exits.append((call, set()))
        elif known or pools((*args, *kwargs.values()), output):
            left_out.append(LeftOut(module, "pooling", _no_self_attention(name, module)))
        else:
            left_out.append(LeftOut(module, "unknown", unknown_attention(name, module)))

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if is_known(module) or (named_attention(module) and not _holds_known(module)):
                stack.enter_context(module.register_forward_pre_hook(lambda module, _: inside.append(module)))
                stack.enter_context(module.register_forward_hook(partial(leave, name), with_kwargs=True))
                for part in block_ends(module) or ():
                    stack.enter_context(part.register_forward_pre_hook(lambda _, args: ends.append(args[0])))
        stack.enter_context(eager_attention())
        if watch:
            mode = _Watch(exits)
            for name, module in model.named_modules():
                stack.enter_context(module.register_forward_pre_hook(mode.enter))
                stack.enter_context(module.register_forward_hook(partial(mode.leave, name), with_kwargs=True))
            stack.enter_context(mode)
        try:
            _run(call, inputs, tangent)
        except UserError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise UserError(
                f"{type(model).__name__} failed on the inputs ({one_line(error)[:200]}); expected what its forward "
                "takes: a tensor, or a mapping of all arguments; or pass call, such as model.encode_image"
            ) from error
    calls, others = _attention_calls(exits)
    if watch and len(set(map(_block_name, calls))) < len(calls) and is_own_code(model):
        _SUBTRACTED.update(
            _subtracted_outputs([one.module for one in calls], lambda: _run(call, inputs, None))
        )
    reason = "its output is subtracted from that of other attention, or the other way round"
    others += [(one, reason) for one in calls if one.module in _SUBTRACTED]
    calls = [one for one in calls if one.module not in _SUBTRACTED]
    inner = {id(part) for one in calls for part in one.module.modules()}
    left_out = [one for one in left_out if id(one.module) not in inner and not _holds_known(one.module)]
    refused = [LeftOut(one.module, "other", _not_recognised(one, reason)) for one, reason in others]
    return _numbered(calls), refused + left_out


def is_subtracted(module: nn.Module) -> bool:
    """Return whether a module's output was found to be part of a difference of attention modules."""
    return module in _SUBTRACTED


def _block_name(call: Call) -> str:
    """Return the name of a call's module up to its first number, or that of the module's parent."""
    numbered = re.match(r"(.*?\.)?\d+(?=\.|$)", call.name)
    return numbered[0] if numbered else call.name.rpartition(".")[0]


def pools(args: tuple[Any, ...], output: Any) -> bool:
    """Return whether a module returns something else than one vector for each of its tokens."""
    tokens = next((one for one in args if isinstance(one, Tensor)), None)
    first = output[0] if isinstance(output, tuple) else output
    if tokens is None or not isinstance(first, Tensor):
        return False
    return first.ndim != tokens.ndim or first.shape[:2] != tokens.shape[:2]


def _numbered(calls: list[Call]) -> list[Call]:
    """Append ``@2`` to the name of a module's second call, and so on."""
    counts: Counter[str] = Counter()
    numbered = []
    for one in calls:
        counts[one.name] += 1
        count = counts[one.name]
        numbered.append(one if count == 1 else replace(one, name=f"{one.name}@{count}"))
    return numbered


def _holds_known(module: nn.Module) -> bool:
    return any(is_known(part) for part in module.modules() if part is not module)


def _run(call: Callable[..., Any], inputs: Inputs, tangent: Tensor | None) -> None:
    """Run on copies of the inputs: the model may write to them, and autograd refuses those of inference mode."""
    if not isinstance(inputs, Tensor):
        call(**{name: one.clone() if isinstance(one, Tensor) else one for name, one in inputs.items()})
    elif tangent is None:
        call(inputs.clone())
    else:
        prepare_forward_mode()
        with forward_ad.dual_level():
            call(forward_ad.make_dual(inputs.clone(), tangent.clone().to(inputs.dtype)))


def make_call(
    name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> Call:
    """Return the call of a module, with the tangents of its tokens in forward mode."""
    rest = dict(kwargs)
    named = (rest.pop(key) for key in ("hidden_states", "query", "x") if key in rest)
    tokens = args[0] if args else next(named, None)
    if not isinstance(tokens, Tensor):
        raise UserError(f"{name} ({type(module).__name__}): expected the tokens as the first argument")
    first = output[0] if isinstance(output, tuple) else output
    if forward_ad._current_level < 0:
        return Call(name, module, tokens, None, args[1:], rest, first)
    dual = forward_ad.unpack_dual(tokens)
    tangent = torch.zeros_like(dual.primal) if dual.tangent is None else dual.tangent
    return Call(name, module, dual.primal, tangent, args[1:], rest, forward_ad.unpack_dual(first).primal)


class _Watch(TorchFunctionMode):
    """Note the calls of modules that compute square softmax maps outside of known attention."""

    def __init__(self, exits: list[Exit]) -> None:
        super().__init__()
        self.exits = exits
        self.stack: list[set[int]] = [set()]
        self.count, self.quiet = 0, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        fused = func is scaled_dot_product_attention and args[0].shape[-2] == args[1].shape[-2]
        if not self.quiet and (fused or softmax_rows(func, args, kwargs, output)):
            self.stack[-1].add(self.count)
            self.count += 1
        return output

    def enter(self, module: nn.Module, args: Any) -> None:
        self.stack.append(set())
        self.quiet += is_known(module)

    def leave(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        self.quiet -= is_known(module)
        maps = self.stack.pop()
        self.stack[-1] |= maps
        if maps:
            try:
                self.exits.append((make_call(name, module, args, kwargs, output), maps))
            except (UserError, AttributeError, IndexError):  # its arguments are no tokens
                return


def _attention_calls(exits: list[Exit]) -> tuple[list[Call], list[tuple[Call, str]]]:
    """Return the calls of attention, and the other innermost ones that compute softmax maps, with the reason.

    Attention are known modules and the innermost ones that are found to be attention. Several modules that are found to
    be standard attention belong to one that holds them if that is found to be differential.
    """
    claimed: dict[int, int] = {}  # from maps to exits
    reasons: dict[int, str] = {}
    for number, (call, maps) in enumerate(exits):
        rivals = {claimed[one] for one in maps & claimed.keys()}
        parts = len(rivals) + bool(maps - claimed.keys())
        if not maps or (rivals and not 1 < parts <= _PARTS):
            continue
        if call.module not in DETECTIONS:
            try:
                detection = examine(call)
            except NotAttention as reason:
                reasons[number] = str(reason)
                continue
            if rivals and not detection.negative:
                continue
            DETECTIONS[call.module] = detection
        found = [DETECTIONS.get(exits[rival][0].module) for rival in rivals]
        if not any(detection and detection.negative for detection in found):
            claimed |= dict.fromkeys(maps, number)
    chosen, explained = set(claimed.values()), set(claimed)
    others: list[tuple[Call, str]] = []
    for number, (call, maps) in enumerate(exits):
        if maps - explained and not type(call.module).__module__.startswith("torch.nn."):
            others.append((call, reasons.get(number, "it holds attention that is recognised")))
            explained |= maps
    return [call for number, (call, maps) in enumerate(exits) if not maps or number in chosen], others


class _Sums(TorchFunctionMode):
    """Note each addition and subtraction that has a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[tuple[Tensor, Tensor, Tensor, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sides = subtraction(func, args)
        minus = sides is not None
        if getattr(func, "__name__", "") in _PLUS and all(isinstance(side, Tensor) for side in args[:2]):
            sides = args[0].clone(), args[1]
        output = func(*args, **(kwargs or {}))
        if sides is not None and output.requires_grad:
            self.sums.append((*sides, output, minus))
        return output


def _subtracted_outputs(modules: Sequence[nn.Module], run: Callable[[], Any]) -> set[nn.Module]:
    """Return the modules, none within another, of which one's output is subtracted from another's."""
    leaves: list[Tensor] = []
    owners: list[nn.Module] = []

    def add_leaf(module: nn.Module, args: Any, output: Any) -> Any:
        first, *rest = output if isinstance(output, tuple) else (output,)
        leaves.append(torch.zeros_like(first, requires_grad=True))
        owners.append(module)
        return (first + leaves[-1], *rest) if isinstance(output, tuple) else first + leaves[-1]

    with ExitStack() as hooks, gradients(enabled=True), _Sums() as mode:
        for module in dict.fromkeys(modules):
            hooks.enter_context(module.register_forward_hook(add_leaf))
        run()
    numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
    subtracted = set[nn.Module]()
    for one, two, total, minus in mode.sums:
        left, right = _leaves_of(one, numbers), _leaves_of(two, numbers)
        sides = [leaves[number] for number in left - right], [leaves[number] for number in right - left]
        if all(sides) and (minus or _opposed(total, *sides)):
            subtracted |= {owners[number] for number in left ^ right}
    return subtracted


def _leaves_of(tensor: Tensor, numbers: Mapping[int, int]) -> set[int]:
    """Return the numbers of the leaves that a tensor is computed from."""
    todo: list[Any] = [get_gradient_edge(tensor).node] if tensor.requires_grad else []
    nodes = set(todo)
    while todo:
        new = {node for node, _ in todo.pop().next_functions if node is not None} - nodes
        nodes |= new
        todo += new
    variables = (id(getattr(node, "variable", None)) for node in nodes)
    return {numbers[variable] for variable in variables if variable in numbers}


def _opposed(total: Tensor, left: list[Tensor], right: list[Tensor]) -> bool:
    """Return whether a sum has its two sides with weights of opposite signs everywhere."""
    u = torch.randn(total.shape, generator=torch.Generator().manual_seed(5)).to(total)
    slopes = torch.autograd.grad(total, [*left, *right], u, retain_graph=True)
    products = [slope * u if slope.shape == u.shape else u.new_zeros(1) for slope in slopes]
    up = [bool((one >= 0).all() and (one > 0).any()) for one in products]
    down = [bool((one <= 0).all() and (one < 0).any()) for one in products]
    count = len(left)
    return (any(up[:count]) and any(down[count:])) or (any(down[:count]) and any(up[count:]))
