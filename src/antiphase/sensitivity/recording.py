"""Calls of the attention modules of any model, recorded while it runs."""

import re
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from antiphase.errors import UserError, one_line
from antiphase.models.kinds import is_own_code, named_attention
from antiphase.sensitivity.attention_adapters import block_ends, find_adapter, is_known
from antiphase.sensitivity.detection import (
    NotAttention,
    examine,
    is_detected,
    is_differential,
    remember,
    softmax_rows,
    subtraction,
)
from antiphase.sensitivity.layers import Call, eager_attention, gradients, is_cross, prepare_forward_mode

Inputs = Tensor | Mapping[str, Any]
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
        observation = observe(model, inputs, call or model, tangent, watch)
    for name, module in observation.unknown:
        raise unknown_attention(name, module)
    left_out = [(one.module, _not_recognised(one, reason)) for one, reason in observation.others]
    left_out += [(module, _no_self_attention(name, module)) for name, module in observation.pooling]
    if left_out and not observation.calls:
        raise left_out[0][1]
    _WATCHED[model].add(way)
    for kind, error in {type(module): error for module, error in reversed(left_out) if watch}.items():
        warnings.warn(f"{error}; {kind.__name__} is left out of the measurement", stacklevel=2)
    if not observation.calls:
        name = getattr(getattr(model, "card", None), "name", type(model).__name__)
        raise UserError(f"{name} has no known attention module; if it has attention, {HOW}")
    return observation.calls


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


@dataclass(frozen=True)
class Observation:
    """What one run of a model showed.

    Attributes:
        calls: calls of self-attention.
        others: other calls that compute softmax maps, with the reason why they are no attention; if they were watched.
        unknown: names and modules that are named after attention, but neither known nor found to be attention.
        pooling: names and modules that are known or named after attention, but are no self-attention.
    """

    calls: list[Call]
    others: list[tuple[Call, str]]
    unknown: list[tuple[str, nn.Module]]
    pooling: list[tuple[str, nn.Module]]


def observe(
    model: nn.Module, inputs: Inputs, call: Callable[..., Any], tangent: Tensor | None, watch: bool
) -> Observation:
    """Run a model once; with ``watch`` look for attention that is not known, too."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise UserError(
            f"{type(model).__name__} holds TorchScript, whose attention cannot be observed; expected the module that "
            "it was made from"
        )
    exits: list[_Exit] = []
    unknown: list[tuple[str, nn.Module]] = []
    pooling: list[tuple[str, nn.Module]] = []
    inside: list[nn.Module] = []  # running attention modules; attention nested in them is not recorded
    ends: list[Tensor] = []  # tokens and output of attention that is not a module of its own

    def leave(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        inside.pop()
        if inside or find_adapter(module) is None:
            return
        if block_ends(module):
            args, output = (ends[-2], *args[1:]), ends[-1]
            ends.clear()
        if not is_known(module):
            (pooling if pools((*args, *kwargs.values()), output) else unknown).append((name, module))
        elif is_cross(one := make_call(name, module, args, kwargs, output)):
            pooling.append((name, module))
        else:
            exits.append(_Exit(one))

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
    unknown, pooling = (
        [(name, module) for name, module in named if id(module) not in inner and not _holds_known(module)]
        for named in (unknown, pooling)
    )
    return Observation(_numbered(calls), others, unknown, pooling)


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


@dataclass
class _Exit:
    """A call, in the order in which modules return, and numbers of the softmax maps in it if it is not known."""

    call: Call
    maps: set[int] = field(default_factory=set)


class _Watch(TorchFunctionMode):
    """Note the calls of modules that compute square softmax maps outside of known attention."""

    def __init__(self, exits: list[_Exit]) -> None:
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
                self.exits.append(_Exit(make_call(name, module, args, kwargs, output), maps))
            except (UserError, AttributeError, IndexError):  # its arguments are no tokens
                return


def _attention_calls(exits: list[_Exit]) -> tuple[list[Call], list[tuple[Call, str]]]:
    """Return the calls of attention, and the other innermost ones that compute softmax maps, with the reason.

    Attention are known modules and the innermost ones that are found to be attention. Several modules that are found to
    be standard attention belong to one that holds them if that is found to be differential.
    """
    claimed: dict[int, _Exit] = {}
    reasons: dict[int, str] = {}
    for exit in exits:
        module = exit.call.module
        rivals = {id(claimed[number]): claimed[number].call for number in exit.maps & claimed.keys()}
        parts = len(rivals) + bool(exit.maps - claimed.keys())
        if not exit.maps or (rivals and not 1 < parts <= _PARTS):
            continue
        if not is_detected(module):
            try:
                detection = examine(exit.call)
            except NotAttention as reason:
                reasons[id(exit)] = str(reason)
                continue
            if rivals and not detection.negative:
                continue
            remember(module, detection)
        if not any(is_differential(rival.module) for rival in rivals.values()):
            claimed |= dict.fromkeys(exit.maps, exit)
    chosen = {id(exit) for exit in claimed.values()}
    others: list[tuple[Call, str]] = []
    explained = set(claimed)
    for exit in exits:
        if exit.maps - explained and not type(exit.call.module).__module__.startswith("torch.nn."):
            others.append((exit.call, reasons.get(id(exit), "it holds attention that is recognised")))
            explained |= exit.maps
    return [exit.call for exit in exits if not exit.maps or id(exit) in chosen], others


class _Sum(NamedTuple):
    left: Tensor
    right: Tensor
    total: Tensor
    minus: bool


class _Sums(TorchFunctionMode):
    """Note each addition and subtraction that has a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[_Sum] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sides = subtraction(func, args)
        minus = sides is not None
        if getattr(func, "__name__", "") in _PLUS and all(isinstance(side, Tensor) for side in args[:2]):
            sides = args[0].clone(), args[1]
        output = func(*args, **(kwargs or {}))
        if sides is not None and output.requires_grad:
            self.sums.append(_Sum(*sides, output, minus))
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
    for one in mode.sums:
        left, right = _leaves_of(one.left, numbers), _leaves_of(one.right, numbers)
        sides = [leaves[number] for number in left - right], [leaves[number] for number in right - left]
        if all(sides) and (one.minus or _opposed(one.total, *sides)):
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
    signs = [(slope * u).sign() if slope.shape == u.shape else u.new_zeros(1) for slope in slopes]
    least, most = (torch.stack([fold(sign) for sign in signs]) for fold in (torch.min, torch.max))
    up, down = (least >= 0) & (most > 0), (most <= 0) & (least < 0)
    parts = [slice(len(left)), slice(len(left), None)]
    return any(bool(up[one].any() and down[two].any()) for one, two in (parts, parts[::-1]))
