"""Calls of the attention modules of any model, recorded while it runs."""

import itertools
import re
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge

from antiphase.arguments import validated
from antiphase.attention.modules import AttentionMaps
from antiphase.errors import UserError, one_line
from antiphase.models.card import AttentionKind, attention_modules, is_hooked, is_own_code, named_attention, strongest
from antiphase.models.zeroshot import as_dual_encoder, is_dual_encoder
from antiphase.modules import hooked
from antiphase.sensitivity import detection
from antiphase.sensitivity.attention_adapters import Adapter, block_ends, find_adapter, is_known
from antiphase.sensitivity.layers import Call, Layer, eager_attention, first_of, gradients, prepare_forward_mode

Inputs = Tensor | Mapping[str, Any]
Exit = tuple[Call, set[int]]
"""A call, in the order in which modules return, and numbers of the softmax maps in it if it is not known."""
HOW = "give its class an adapter with antiphase.sensitivity.register, or None in place of one to ignore it"
_PARTS = 4  # modules of standard attention that one of differential attention may be made of
_OPPOSED = -0.8  # cosine of two outputs' slopes below which one is subtracted from the other
# the modules that were there when calls of a kind were watched
_WATCHED: weakref.WeakKeyDictionary[nn.Module, dict[Any, weakref.WeakSet[nn.Module]]] = weakref.WeakKeyDictionary()
_HIDING: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # attention that shows no maps when it runs
_SUBTRACTED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # attention whose output is part of a difference


def default_call(model: nn.Module, inputs: Inputs) -> Callable[..., Any]:
    """Return what to run on the inputs: the image tower of a CLIP for images alone, else the model."""
    images = isinstance(inputs, Tensor) and inputs.is_floating_point()
    return as_dual_encoder(model).encode_image if images and is_dual_encoder(model) else model


def record(
    model: nn.Module,
    inputs: Inputs,
    *,
    call: Callable[..., Any] | None = None,
    tangent: Tensor | None = None,
    graph: bool = False,
) -> list[Call]:
    """Run a model once and return the calls of its attention modules in order; see :func:`attention_layers`."""
    if model.training:
        raise UserError("the model is in training mode: expected evaluation mode; call model.eval() first")
    if graph and any(parameter.is_inference() for parameter in model.parameters()):
        raise UserError("the model was created in torch.inference_mode(), without gradients: load it outside")
    call = call or default_call(model, inputs)
    way, parts = _way(call), set(model.modules())
    watch = way is None or set(_WATCHED.setdefault(model, {}).get(way, ())) != parts
    with torch.set_grad_enabled(graph):
        calls, left_out = observe(model, inputs, call, tangent, watch)
    for one in left_out:
        if one.why == "unknown" or not calls:
            raise one.error
    if watch and way is not None:
        _WATCHED[model][way] = weakref.WeakSet(parts)
    for kind, error in {type(one.module): one.error for one in reversed(left_out) if watch}.items():
        warnings.warn(f"{error}; {kind.__name__} is left out of the measurement", stacklevel=2)
    if not calls:
        name = getattr(getattr(model, "card", None), "name", type(model).__name__)
        raise UserError(f"{name} has no known attention module; if it has attention, {HOW}")
    return calls


_WHY = {
    "unknown": "attention module {kind} has no adapter; " + HOW,
    "other": "{kind} computes softmax maps, but not as standard or differential attention with a λ of a head or token: "
    "{reason}; if it is attention, " + HOW,
    "pairs": "{kind} multiplies pairs of tokens and has no known attention module; if it has attention, " + HOW,
    "grid": "{kind} is named attention, but is given no tokens (batch, tokens, channels)",
    "pooling": "{kind}: cross-attention is not supported, nor keys that are not the values; expected attn(x, x, x)",
}


class LeftOut(NamedTuple):
    """A module that is no known self-attention and was not recognised as such; ``why`` is a key of ``_WHY``."""

    name: str
    module: nn.Module
    why: str
    reason: str = ""

    @property
    def error(self) -> UserError:
        kind = type(self.module)
        why = _WHY[self.why].format(kind=f"{kind.__module__}.{kind.__qualname__}", reason=self.reason)
        return UserError(f"{self.name or kind.__name__}: {why}")


def _way(call: Callable[..., Any]) -> Any:
    """Return what calls that run the same modules share: a method of a module, or a function of ours; else None."""
    owner, name = getattr(call, "__self__", call), getattr(call, "__qualname__", "")
    if isinstance(owner, nn.Module):
        return id(owner), name
    return name if str(getattr(call, "__module__", "")).startswith("antiphase.") else None


def observe(
    model: nn.Module, inputs: Inputs, call: Callable[..., Any], tangent: Tensor | None, watch: bool
) -> tuple[list[Call], list[LeftOut]]:
    """Run a model once and return the calls of self-attention; with ``watch`` look for unknown attention, too."""
    parts = [*model.modules()]
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        raise UserError(f"{type(model).__name__} holds TorchScript: expected the module it was made from")
    attention = {one for one in parts if is_known(one) or (named_attention(one) and not _holds_known(one))}
    exits: list[Exit] = []
    left_out: list[LeftOut] = []
    pairs: dict[nn.Module, tuple[str, set[int]]] = {}  # what multiplies pairs of how many tokens without known maps
    inside: list[nn.Module] = []  # running attention modules; attention nested in them is not recorded
    ends: list[Tensor] = []  # tokens and output of attention that is not a module of its own
    maps: list[set[int]] = [set()]  # numbers of the square softmax maps of each running module
    numbers = itertools.count()
    subtracted: set[torch.Size] = set()  # shapes of both sides of a subtraction outside attention
    paired: list[set[int]] = [set()]  # of how many tokens each running module itself multiplies pairs
    single = set[nn.Module]()  # attention in which one query attends to several keys
    loops: Counter[int] = Counter()  # square softmax maps of two axes in each running module
    given = [inputs] if isinstance(inputs, Tensor) else [*inputs.values()]
    samples = max((len(one) for one in given if isinstance(one, Tensor)), default=1)
    shown = list[Tensor]()  # what attention returns beside its output, such as its maps

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        paired[-1] |= set() if inside else detection.pairs_tokens(func, args, output)
        minus = None if inside else detection.subtraction(func, args, kwargs)
        if minus is not None and minus[0].shape == minus[1].shape:
            subtracted.add(minus[0].shape)
        queries, keys = detection.attended(func, args, kwargs, output) or (0, 0)
        if queries == keys > 0 and output.ndim == 2:  # of one sample, if there is one for each
            loops[id(maps[-1])] += 1
            if loops[id(maps[-1])] < samples and not torch._C._functorch.is_batchedtensor(output):  # pyright: ignore
                queries = keys = 0
        single.update(inside if queries == 1 < keys else ())
        if 1 < queries != keys > 2 and not inside:  # no map of all tokens, as of chunks of queries or of pooling
            paired[-1].add(keys)
        hidden = getattr(func, "__name__", "") in detection.HIDES_MAPS
        if (hidden or queries == keys > 0) and not any(map(is_known, inside)):
            maps[-1].add(next(numbers))
        return output

    def enter(module: nn.Module, args: Any) -> None:
        maps.append(set())
        paired.append(set())
        if module in attention:
            inside.append(module)

    def leave(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        inner = maps.pop()
        maps[-1].update(inner)
        if (counts := paired.pop()) and not inner:
            pairs[module] = name, counts
        if module in attention:
            inside.pop()
            if not inside and find_adapter(module) is not None:
                leave_attention(name, module, args, kwargs, output, pooled=module in single and not inner)
        if inner:
            try:
                exits.append((make_call(name, module, args, kwargs, output), inner))
            except (UserError, AttributeError, IndexError):  # its arguments are no tokens
                pairs.update({module: (name, counts)} if counts else {})

    def leave_attention(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any, pooled: bool) -> None:
        if block_ends(module):
            args, output = (ends[-2], *args[1:]), ends[-1]
            ends.clear()
        call = make_call(name, module, args, kwargs, output) if is_known(module) else None
        if call is not None and not call.is_cross:
            exits.append((call, set()))
            shown.extend(one for one in (output[1:] if isinstance(output, tuple) else ()) if isinstance(one, Tensor))
        else:
            given = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
            pooled = pooled or call is not None or pools((*args, *kwargs.values()), output)
            why = "pooling" if pooled else "grid" if given is not None and given.ndim != 3 else "unknown"
            left_out.append(LeftOut(name, module, why))

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if watch or module in attention:
                stack.enter_context(module.register_forward_pre_hook(enter))
                stack.enter_context(module.register_forward_hook(partial(leave, name), with_kwargs=True))
            for part in block_ends(module) or ():
                stack.enter_context(part.register_forward_pre_hook(lambda _, args: ends.append(args[0])))
        stack.enter_context(eager_attention())
        if "torch._dynamo" in sys.modules:  # while it traces, hooks do not run
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if watch:
            stack.enter_context(detection.TorchCalls(note))
        try:
            _run(call, inputs, tangent)
        except UserError:
            raise
        except Exception as error:  # the model's own code
            fix = "a tensor, a mapping of all arguments of its forward, or a call such as model.encode_image"
            why = f"{type(model).__name__} failed on the inputs ({one_line(error)[:200]})"
            raise UserError(f"{why}; expected {fix}") from error
    calls, others = _attention_calls(exits)
    alike = [{*map(_block_name, calls)}, {tuple(re.findall(r"\d+", one.name)) for one in calls}]
    several = min(map(len, alike)) < len(calls) or any(len(shape) > 2 for shape in subtracted)
    if watch and (several or shown) and is_own_code(model):
        holders = [kept for part in parts for kept in (part._buffers, vars(part))]
        graphs = {id(x) for kept in holders for x in kept.values() if isinstance(x, Tensor) and not x.is_leaf}
        with suppress(*() if several else (RuntimeError,)):  # it may have no gradients
            _SUBTRACTED.update(_subtracted_outputs(calls, lambda: _run(call, inputs, None)))
        for kept in holders:  # without the graphs of this run
            new = {key: x for key, x in kept.items() if isinstance(x, Tensor) and not x.is_leaf and id(x) not in graphs}
            kept.update({key: x.detach() for key, x in new.items()})
    reason = "its output is subtracted from that of other attention, or a part of it, or may be, or its maps are used"
    others += [(one, reason) for one in calls if one.module in _SUBTRACTED]
    calls = [one for one in calls if one.module not in _SUBTRACTED]
    inner = {id(part) for one in calls for part in one.module.modules()}
    left_out = [one for one in left_out if id(one.module) not in inner and not _holds_known(one.module)]
    refused = [LeftOut(one.name, one.module, "other", reason) for one, reason in others]
    pairs |= {model: ("", paired[0])} if paired[0] else {}
    if calls or not (attention or refused or left_out):
        inner |= {id(part) for one in refused + left_out for part in one.module.modules()}
        inner |= {id(part) for one in pairs for part in one.modules() if part is not one}
        seen = {one.tokens.shape[-2] for one in calls}
        some = [(name or type(one).__name__, one) for one, (name, sizes) in pairs.items() if not calls or sizes & seen]
        left_out += [LeftOut(name, one, "pairs") for name, one in some if id(one) not in inner]
    counts: Counter[str] = Counter()
    for place, one in enumerate(calls):
        counts[one.name] += 1
        calls[place] = replace(one, name=one.name + (f"@{counts[one.name]}" if counts[one.name] > 1 else ""))
    return calls, refused + left_out


def _block_name(call: Call) -> str:
    numbered = re.match(r"(.*?\.)?\d+(?=\.|$)", call.name)
    return numbered[0] if numbered else call.name.rpartition(".")[0]


def pools(args: tuple[Any, ...], output: Any) -> bool:
    """Return whether a module returns something else than one vector for each of its tokens."""
    tokens = next((one for one in args if isinstance(one, Tensor)), None)
    first = first_of(output)
    if tokens is None or not isinstance(first, Tensor):
        return False
    return first.ndim != tokens.ndim or first.shape[:2] != tokens.shape[:2]


def _holds_known(module: nn.Module) -> bool:
    return any(is_known(part) for part in module.modules() if part is not module)


def _run(call: Callable[..., Any], inputs: Inputs, tangent: Tensor | None) -> Any:
    """Run on copies of the inputs: the model may write to them, and autograd refuses those of inference mode."""
    if not isinstance(inputs, Tensor):
        return call(**{name: one.clone() if isinstance(one, Tensor) else one for name, one in inputs.items()})
    if tangent is None:
        return call(inputs.clone())
    prepare_forward_mode()
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(inputs.clone(), tangent.clone().to(inputs.dtype)))


def make_call(name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> Call:
    """Return the call of a module, with the tangents of its tokens in forward mode."""
    rest = dict(kwargs)
    tokens = args[0] if args else next((rest.pop(key) for key in ("hidden_states", "query", "x") if key in rest), None)
    if not isinstance(tokens, Tensor):
        raise UserError(f"{name} ({type(module).__name__}): expected the tokens as the first argument")
    first = first_of(output)
    if forward_ad._current_level < 0:
        return Call(name, module, tokens, None, args[1:], rest, first)
    dual = forward_ad.unpack_dual(tokens)
    tangent = torch.zeros_like(dual.primal) if dual.tangent is None else dual.tangent
    return Call(name, module, dual.primal, tangent, args[1:], rest, forward_ad.unpack_dual(first).primal)


def _attention_calls(exits: list[Exit]) -> tuple[list[Call], list[tuple[Call, str]]]:
    """Return the calls of attention, and the other innermost ones that compute softmax maps, with the reason.

    Several modules found to be standard attention belong to one that holds them if that is found to be differential.
    """
    claimed: dict[int, int] = {}  # from maps to exits
    reasons: dict[int, str] = {}
    for number, (call, maps) in enumerate(exits):
        rivals = {claimed[one] for one in maps & claimed.keys()}
        parts = len(rivals) + bool(maps - claimed.keys())
        if not maps or (rivals and not 1 < parts <= _PARTS):
            continue
        if call.module not in detection.DETECTIONS:
            try:
                examined = detection.examine(call)
            except detection.NotAttention as reason:
                reasons[number] = str(reason)
                continue
            if rivals and not examined.negative:
                continue
            detection.DETECTIONS[call.module] = examined
        detections = [detection.DETECTIONS.get(exits[rival][0].module) for rival in rivals]
        if not any(one and one.negative for one in detections):
            claimed |= dict.fromkeys(maps, number)
    chosen, explained = set(claimed.values()), set(claimed)
    others: list[tuple[Call, str]] = []
    for number, (call, maps) in enumerate(exits):
        if maps - explained and not type(call.module).__module__.startswith("torch.nn."):
            others.append((call, reasons.get(number, "it holds attention that is recognised")))
            explained |= maps
    return [call for number, (call, maps) in enumerate(exits) if not maps or number in chosen], others


def _subtracted_outputs(calls: Sequence[Call], run: Callable[[], Any]) -> set[nn.Module]:
    """Return the modules whose returned maps are used, and those that are subtracted.

    That is written so, or of two in one block, or one after the other, one raises what the other lowers.
    """
    modules: list[nn.Module] = []
    leaves: list[Tensor] = []
    beside: list[tuple[nn.Module, Tensor]] = []  # modules, and leaves on what they return beside their output
    differences: list[tuple[Tensor, Tensor]] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        differences.extend(filter(None, [detection.subtraction(func, args, kwargs)]))
        return func(*args, **kwargs)

    def add_leaf(module: nn.Module, args: Any, output: Any) -> Any:
        first, *rest = output if isinstance(output, tuple) else (output,)
        modules.append(module)
        leaves.append(torch.zeros_like(first, requires_grad=True))
        for place, part in enumerate(rest):
            if isinstance(part, Tensor) and part.is_floating_point():
                beside.append((module, torch.zeros_like(part, requires_grad=True)))
                rest[place] = part + beside[-1][1]
        return (first + leaves[-1], *rest) if isinstance(output, tuple) else first + leaves[-1]

    blocks = {one.module: _block_name(one) for one in calls}
    places = {one.module: (one.tokens.data_ptr(), one.tokens.shape) for one in calls}
    with hooked(module.register_forward_hook(add_leaf) for module in blocks), gradients(enabled=True):
        with detection.TorchCalls(note):
            output = run()
        parts = output.values() if isinstance(output, Mapping) else output
        parts = parts if isinstance(parts, Iterable) and not isinstance(parts, Tensor) else (parts,)
        ends = [one for one in parts if isinstance(one, Tensor) and one.requires_grad]
        generator = torch.Generator().manual_seed(5)
        seeds = [torch.randn(one.shape, generator=generator).to(one) for one in ends]
        keep: dict[str, Any] = {"retain_graph": True, "materialize_grads": True}
        slopes = (
            torch.autograd.grad(ends, leaves, seeds, **keep) if ends and leaves else [*map(torch.zeros_like, leaves)]
        )
        used = torch.autograd.grad(ends[:1], [leaf for _, leaf in beside], seeds[:1], **keep) if ends and beside else ()
    numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
    subtracted = {module for (module, _), slope in zip(beside, used, strict=False) if slope.any()}
    for sides in differences:
        left, right = (_leaves_of(side, numbers) for side in sides)
        if left - right and right - left:
            subtracted |= {modules[number] for number in left ^ right}
        elif left and left == right and sides[0].shape == sides[1].shape:  # two parts of the last output, as halves
            last = leaves[max(left)]
            draws = [torch.randn(side.shape, generator=generator).to(side) for side in sides]
            slopes_of = [torch.autograd.grad(side, last, u, **keep)[0] for side, u in zip(sides, draws, strict=True)]
            one, two = ((slope != 0).any(-2) for slope in slopes_of)  # tokens apart from others are no parts
            subtracted |= {modules[max(left)]} if one.any() and two.any() and not (one & two).any() else set()
    for (i, one, left), (j, two, right) in itertools.combinations(zip(itertools.count(), modules, slopes), 2):
        near = j == i + 1 or (one is not two and blocks[one] == blocks[two]) or places[one] == places[two]
        if near and left.shape == right.shape:
            signs = {*(left * right).sign().unique().tolist()} - {0.0}
            cosine = F.cosine_similarity(left.flatten(), right.flatten(), dim=0)
            unseen = one is not two and places[one] == places[two] and not (left.any() and right.any())  # as of no_grad
            subtracted |= {one, two} if unseen or cosine < _OPPOSED or signs == {-1.0} else set()
    return subtracted


def _leaves_of(tensor: Tensor, numbers: Mapping[int, int]) -> set[int]:
    todo: list[Any] = [get_gradient_edge(tensor).node] if tensor.requires_grad else []
    nodes = {*todo}
    for node in todo:  # grows by the nodes that each leads to
        new = {one for one, _ in node.next_functions if one is not None} - nodes
        nodes |= new
        todo += new
    return {numbers[one] for node in nodes if (one := id(getattr(node, "variable", None))) in numbers}


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
    """Run a model in evaluation mode once and yield its attention layers.

    Args:
        model: any model with attention.
        inputs: one tensor, or a mapping of keyword arguments.
        call: what to run on the inputs, such as ``model.encode_text``; None: the model, or of a CLIP its image tower.
        tangent: direction of the inputs; each layer then has the derivative of its tokens along it (forward mode).
        graph: keep the graph back to the inputs.

    Raises:
        UserError: the model is in training mode, has no attention or some that is named so and not recognised, or the
            parts of a layer do not reproduce its module's output.
    """
    for one in record(model, inputs, call=call, tangent=tangent, graph=graph):
        with gradients(enabled=graph):
            layer = take_apart(one)
        yield layer


@validated
def attention_maps(
    model: nn.Module, inputs: Inputs, *, call: Callable[..., Any] | None = None, graph: bool = False
) -> dict[str, AttentionMaps]:
    """Return the attention maps of every layer by module name; arguments and errors as :func:`attention_layers`."""
    return {layer.name: layer.maps for layer in attention_layers(model, inputs, call=call, graph=graph)}


def attention_of(
    model: nn.Module, inputs: Inputs, call: Callable[..., Any] | None = None
) -> tuple[AttentionKind, tuple[float, ...]]:
    """Return the kind of attention by what the modules do on the inputs, and the mean λ of each differential layer.

    Modules of other libraries that are known by their class, but have no adapter, have the kind of their class.
    """
    by_class = dict(attention_modules(model))
    pooling: dict[nn.Module, bool] = {}  # of those that are not known by their class and run

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        pooling[module] = pools(args, output)

    known = [module for module, kind in by_class.items() if kind != "unknown"]
    with hooked(module.register_forward_hook(note) for module in by_class.keys() - known), torch.no_grad():
        calls, left_out = observe(model, inputs, call or model, None, watch=True)
    kinds: set[AttentionKind] = {by_class[module] for module in known}
    parts_of_known = {part for module in known for part in module.modules() if part not in _SUBTRACTED}
    pooled = [one.module for one in left_out if one.why == "pooling"]
    refused = [one.module for one in left_out if one.why != "pooling"]
    lambdas = []
    for one in calls:
        try:
            with gradients(enabled=False):
                lam = take_apart(one).lam
        except UserError:
            kinds |= {"unknown"} if is_own_code(one.module) or is_hooked(one.module) else set()
            refused.append(one.module)
            continue
        kinds.add("softmax" if lam is None else "differential")
        lambdas += [] if lam is None else [float(lam.mean())]
    inside = {part for module in [*pooled, *(one.module for one in calls)] for part in module.modules()}
    refused += [one for one, pools in pooling.items() if not pools and inside.isdisjoint(one.modules())]
    if not parts_of_known.issuperset(refused) or (not kinds and (pooling or pooled)):
        kinds.add("unknown")
    return strongest(kinds), tuple(lambdas)


def one_set_each(layer: Layer, samples: int) -> Layer:
    """Return a layer; refuse one without one set of tokens for each sample, as of windows."""
    if (sets := len(layer.positive.attention)) != samples:
        why = f"attends within {sets} sets of tokens of {samples} samples, such as windows or views"
        raise UserError(f"{layer.name}: {why}; expected one set for each sample; attention_maps gives its maps")
    return layer


def take_apart(call: Call, check: bool = True) -> Layer:
    """Split a call into parts that are checked to reproduce its output; a user's class or forward is examined first."""
    adapter = find_adapter(call.module)
    if adapter is None or isinstance(adapter, str):
        raise LeftOut(call.name, call.module, "unknown").error
    ours = getattr(adapter, "__module__", "").startswith("antiphase.sensitivity.")
    examined = call.module in detection.DETECTIONS or call.module in _HIDING
    if ours and not examined and dict(attention_modules(call.module)).get(call.module, "unknown") == "unknown":
        try:
            detection.DETECTIONS[call.module] = detection.examine(call)
        except detection.NotAttention as reason:
            if not str(reason).endswith(detection.HIDDEN):
                raise LeftOut(call.name, call.module, "other", str(reason)).error from None
            _HIDING.add(call.module)
    adapter = detection.detected_layer if ours and call.module in detection.DETECTIONS else adapter
    try:
        return _split(adapter, call, check)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if not ours or isinstance(error, torch.OutOfMemoryError):
            raise
        try:  # a subclass may do something else, and λ may have changed
            detection.DETECTIONS[call.module] = detection.examine(call)
        except detection.NotAttention as reason:
            if isinstance(error, UserError):
                raise error from None
            who, why = f"{call.name} ({type(call.module).__name__})", one_line(error)
            raise UserError(f"{who}: does not work like others of its class ({why}), and {reason}; {HOW}") from error
        return _split(detection.detected_layer, call, check)


def _split(adapter: Adapter, call: Call, check: bool) -> Layer:
    """Split a call; refuse a layer that does not reproduce its output, relative to the attention's share of that."""
    layer = adapter(call.module, call)
    combined = layer.maps.combined  # cached in the branches, with the requested graph
    if not check:
        return layer
    with torch.no_grad():
        output, allowed = call.output, _AGREEMENT[call.output.dtype]
        mine, without = (call.batch_first(layer.finish(maps)) for maps in (combined, torch.zeros_like(combined)))
        share = (output - without.nan_to_num()).abs().max()
        rounding = 4 * torch.finfo(output.dtype).eps * output.abs().max()
        error = (mine - output).abs().max()
    if not error <= allowed * share + rounding:
        gap = f"relative error {float(error / share):.1e} of the attention's share; expected at most {allowed:.0e}"
        who = f"{call.name} ({type(call.module).__name__})"
        raise UserError(f"{who}: its maps do not reproduce its output, {gap}; {HOW}")
    return layer


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
    """Return f(x) = (A1 − λ·A2)(x) / √H of the layer ``name`` of :func:`attention_maps`, one vector per sample.

    The factor makes ‖f(x + ξ) − f(x)‖ a root mean square over the H heads. f has a graph back to x. A UserError refuses
    a module that is called twice in one pass or has no adapter.
    """
    module = dict(model.named_modules()).get(name)
    if module is None:  # a module that is called twice has no name with @2
        raise UserError(f"name {name!r}: the model has no such module that it calls once; see attention_maps")
    if find_adapter(module) is None:
        raise LeftOut(name, module, "unknown").error
    ends, settled = block_ends(module), False

    def function(x: Tensor) -> Tensor:
        nonlocal settled
        if not settled:  # find out what it is, and that it is what it seems
            settled = all(layer.name for layer in attention_layers(model, x))
        args, kwargs = until(default_call(model, x), module, x)
        if ends:
            (tokens, *_), _ = until(lambda _: module(*args, **kwargs), ends[0], x)
            args = (tokens, *args[1:])
        return _flat(take_apart(make_call(name, module, args, kwargs, x), check=False))

    return function


def all_maps(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output and every layer's map (see :func:`map_function`) from one pass, without the check."""
    outputs: list[Tensor] = []
    calls = record(model, x, call=lambda x: outputs.append(default_call(model, x)(x)))
    return [outputs[0], *(_flat(take_apart(call, check=False)) for call in calls)]


def _flat(layer: Layer) -> Tensor:
    return layer.maps.combined.flatten(1) * layer.heads**-0.5
