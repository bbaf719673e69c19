"""The work of ``antiphase check``: build a module, find its attention, and say what is off."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from rich.table import Table
from torch import Tensor, nn

from antiphase import modules, registry, terminal
from antiphase.attention.lambdas import depth_scheduled
from antiphase.commands.check import CheckOptions
from antiphase.commands.command import Answer, Refusal
from antiphase.errors import UserError, first_line
from antiphase.models import load_model
from antiphase.models.schemes.python_code import split_spec
from antiphase.models.schemes.scheme import Wanted
from antiphase.sensitivity import detection
from antiphase.sensitivity.attention_adapters import find_adapter, guessed
from antiphase.sensitivity.layers import Call, eager_attention, first_of, gradients
from antiphase.sensitivity.maps import default_call, make_call, observe, take_apart, until

_SAME = 2e-3  # relative difference of equal numbers
_SMALL, _LARGE = 1e2, 1e4  # what maps are multiplied by to see a norm, whose eps does not count there
_HALVES = "V2 by halves, whose maps weigh other values; expected neighbours: o[:, 0::2] - lam * o[:, 1::2]"
# calls whose output has the factor of their argument; a multiple of it; that of q times that of k; or none yet
_KEEPS = re.compile(
    "view|reshape|transpose|permute|chunk|split|unbind|__getitem__|select|narrow|unflatten|flatten|contiguous|expand|"
    "expand_as|repeat|repeat_interleave|(un)?squeeze|movedim|swapaxes|to|float|double|type_as|clone|detach|__get__|cat|"
    "stack|(__i?r?)?(add|sub)(_|__)?|masked_fill_?|where|dropout|neg|roll|nan_to_num_?|max(imum)?"
)
_TIMES = re.compile("(__[ir]?)?mul(_|__)?|multiply")
_OVER = re.compile("(__i?)?(true)?(_?div)(_|__|ide)?")
_PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum", "mm")
_NONE_YET = ("linear", "layer_norm", "rms_norm", "group_norm")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: the pairing, the scale, λ, λ_init, the norm or the factor 1 − λ_init."""

    about: str
    state: Literal["right", "off", "unknown"]
    text: str


@dataclass(frozen=True)
class LayerCheck:
    """What one module, by its name in the model, was found to be; ``lam`` is the mean λ."""

    name: str
    attention: Literal["differential", "softmax", "unknown"]
    findings: tuple[Finding, ...]
    variant: Literal["V1", "V2", "grouped", "gated", "DINT"] | None = None
    lam: float | None = None


def examined_layer(call: Call, index: int | None) -> LayerCheck:
    """Examine the module of a call; ``index``: of its layer, from 0, if that is known."""
    with eager_attention():
        try:
            examined = detection.examine(call)
        except detection.NotAttention as reason:
            halves = Finding("pairing", "off", _HALVES) if paired_by_halves(call) else None
            finding = halves or Finding("attention", "unknown", f"not recognised: {reason}")
            return LayerCheck(call.name, "unknown", (finding,))
        try:
            if examined.negative:
                return _Examination(call, examined).result(index)
        except Exception as error:  # the user's code
            finding = Finding("attention", "unknown", f"cannot be run with other maps ({first_line(error)})")
            return LayerCheck(call.name, "differential", (finding,))
    finding = Finding("attention", "off", "standard attention: no map is subtracted, or its λ is 0")
    return LayerCheck(call.name, "softmax", (finding,))


class _Examination:
    def __init__(self, call: Call, examined: detection.Detection) -> None:
        self.call, self.module, self.detection = call, call.module, examined
        self.replay = detection.Replay(call, examined.groups, examined.outer)
        self.maps: Tensor = self.replay(self.replay.tokens).maps
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        self.tensors = {name: one for name, one in named if one.is_floating_point()}
        self.lam, self.differs = self.lambda_now().detach(), ""

    def result(self, index: int | None) -> LayerCheck:
        if not detection.averages(self.replay, self.replay.tokens, self.maps):
            why = "values are weighted by a function of A1 − λ·A2, such as its positive part; expected A1 − λ·A2"
            return LayerCheck(self.call.name, "differential", (Finding("difference", "off", why),))
        norm, ratio = self.norm(), len(self.detection.positive) // len({*self.detection.negative})
        initial = self.initial(learned := self.learned())
        by_depth = Finding("λ_init", "off", self.differs) if self.differs else _by_depth(initial, index)
        early, factor = self.factor(initial) if norm else (False, None)
        rescaled = factor is not None and abs(factor - 1) > _SAME
        integral = self.detection.integral
        variant = "DINT" if integral else "grouped" if ratio > 1 else "V1"
        if self.detection.lam is None and (ratio > 1 or not rescaled):
            variant = "gated" if ratio > 1 else "V2"
        text = f"{ratio} maps share a subtracted one" if ratio > 1 else "pairs of maps that weigh the same values"
        findings = [Finding("pairing", "right", text), self.scale(), self.lambda_moves(learned)]
        if variant in ("V2", "gated"):
            unwanted = Finding("norm", "off", f"it removes the size of the difference; {variant} has none")
            findings.append(unwanted if norm else _of_norm(norm))
        elif early and not rescaled and not integral:
            why = f"1 − λ_init = {1 - (initial or 0.0):.4g}, which comes before it; multiply behind the norm"
            findings += [by_depth, Finding("norm", "off", f"it removes the factor {why}")]
        else:
            findings += [by_depth, _of_norm(norm)]
            findings += [] if integral or norm is False else [_of_factor(factor, initial)]
        return LayerCheck(self.call.name, "differential", tuple(findings), variant, float(self.lam.mean()))

    def scale(self) -> Finding:
        scales = score_scales(traced(self.replay, self.maps)[1])
        told = [one for one in scales if one and one[0] == one[0]]  # not NaN
        wrong = [one for one in told if abs(one[0] * one[1] ** 0.5 - 1) > _SAME]
        if not wrong and (not told or len(told) < len(scales)):
            return Finding("scale", "unknown", "what queries and keys are multiplied by cannot be told")
        factor, width = (wrong or told)[0]
        right = f"1/√{width} = {width**-0.5:.4g}, by the width of a query"
        text = f"scores are multiplied by {factor:.4g}; expected {right}" if wrong else right
        return Finding("scale", "off" if wrong else "right", text)

    def lambda_now(self) -> Tensor:
        """Return λ, (batch, heads, queries), from the slopes of the maps, with a graph to the parameters."""
        with gradients(enabled=True):
            return detection.lambda_of_tokens(self.call, self.detection)(self.replay.tokens)

    def lambda_with(self, names: Sequence[str], noise: float) -> Tensor:
        """Return λ with some parameters and buffers at 0, or at random where they are."""
        before = {name: self.tensors[name].detach().clone() for name in names}
        generator = torch.Generator().manual_seed(8)
        try:
            for name, value in before.items():
                draw = torch.randn(value.shape, generator=generator).to(value) * (value.abs() + 1)
                self.tensors[name].data.copy_(value + noise * draw if noise else torch.zeros_like(value))
            return self.lambda_now().detach()
        finally:
            for name, value in before.items():
                self.tensors[name].data.copy_(value)

    def learned(self) -> list[str]:
        """Return the parameters by which λ has a gradient that is not 0."""
        free, lam = {name: one for name, one in self.tensors.items() if one.requires_grad}, self.lambda_now()
        if not free or not lam.requires_grad:
            return []
        weights = torch.linspace(0.5, 1.5, lam.numel()).view(lam.shape).to(lam) / lam.numel()
        slopes = torch.autograd.grad(lam, list(free.values()), weights, materialize_grads=True)
        small = 1e-8 if lam.dtype == torch.float64 else 1e-3
        return [name for name, slope in zip(free, slopes, strict=True) if slope.abs().max() > small]

    def lambda_moves(self, learned: list[str]) -> Finding:
        def listed(names: list[str]) -> str:
            return ", ".join(name.removeprefix("inner.") for name in names)

        def read(*names: str) -> bool:
            return bool((self.lambda_with(names, 0.2) - self.lam).abs().max() > 1e-3 * self.lam.abs().max())

        text = f"{float(self.lam.mean()):.4g}" + ", the mean over tokens" * (self.detection.lam is None)
        if learned:
            return Finding("λ", "right", f"{text}; learned: {listed(learned)}")
        readers = [name for name in self.tensors if read(name)]
        why = f"no gradient reaches {listed(readers)}; look for detach, .data, .item() or no_grad"
        if not readers:
            zero = self.tensors and read(*self.tensors)
            why = "its gradient is 0 here, as of a product of zeros" if zero else "it depends on no parameter here"
            others = [one for one in (*self.call.args, *self.call.kwargs.values()) if isinstance(one, Tensor)]
            if any(one.is_floating_point() and not self.call.is_tokens(one) for one in others):
                return Finding(
                    "λ", "unknown", f"{text}; it cannot be told whether an argument beside the tokens moves it"
                )
        elif not any(self.tensors[name].requires_grad for name in readers):
            why = f"{listed(readers)} are buffers, or requires_grad is False; expected an nn.Parameter"
        return Finding("λ", "off", f"{text}; it never moves: {why}")

    def initial(self, learned: list[str]) -> float | None:
        """Return λ_init: an attribute of this name, or λ with the parameters that it is learned from at 0.

        Where λ is of products of parameters, as V1's, these two are to be equal; ``self.differs`` says if they are not.
        """
        values: Any = (getattr(part, "lambda_init", None) for part in self.module.modules())
        values = (one.item() if isinstance(one, Tensor) and one.numel() == 1 else one for one in values)
        stated = [float(one) for one in values if isinstance(one, int | float)]
        lam = self.lambda_with(learned, 0.0)
        same = self.detection.lam is not None and (lam - lam.mean()).abs().max() < 1e-6
        value = float(lam.mean()) if same else None
        alone = (self.lambda_with([other for other in learned if other != name], 0.0) for name in learned)
        products = len(learned) > 1 and all((one - lam).abs().max() < 1e-6 for one in alone)
        if stated and value is not None and products and abs(stated[0] - value) > _SAME:
            self.differs = f"lambda_init is {stated[0]:.4g}, but λ is {value:.4g} with its learned parameters at 0"
        return stated[0] if stated else value if value and abs(value) > 1e-6 else None

    def norm(self) -> bool | None:
        """Return whether the output forgets the size of the difference, or is linear in it; None if neither."""
        zero, one, two = (traced(self.replay, times * self.maps)[0].output for times in (0.0, _SMALL, _LARGE))
        change, more = one - zero, two - one
        if more.abs().max() < _SAME * change.abs().max():
            return True
        return False if (more - (_LARGE / _SMALL - 1) * change).abs().max() < _SAME * more.abs().max() else None

    def factor(self, initial: float | None) -> tuple[bool, float]:
        """Return whether 1 − λ_init multiplies what the norm removes, and what multiplies what the norm returns."""
        times = (_SMALL * self.maps, _LARGE * self.maps, _LARGE * self.maps.flip(-1))
        early, factor, right = False, 1.0, 1 - (initial or 0.0)
        for calls in zip(*(traced(self.replay, maps)[1] for maps in times), strict=True):
            factor = 1.0 if calls[0].is_softmax else factor  # what comes before the maps is the scale
            if (number := calls[0].number) is None:
                continue
            small, large, other = (max(one.tensors, key=Tensor.numel).double() for one in calls)
            moved, scaled = (bool((one - large).abs().max() > _SAME * large.abs().max()) for one in (other, small))
            matches = bool(initial) and abs(number - right) < 1e-5
            early |= matches and moved and scaled
            if (moved and not scaled) or (matches and not moved):  # heads, or the weight of their norm
                factor *= number
        return early, factor


def _of_norm(norm: bool | None) -> Finding:
    if norm is None:
        return Finding("norm", "unknown", "whether one follows the heads cannot be told")
    return Finding("norm", "right", "one follows the heads" if norm else "none")


def _of_factor(factor: float | None, initial: float | None) -> Finding:
    """Compare the factor behind the norm with 1 − λ_init; either is None where it cannot be told."""
    if factor is None or (initial is None and abs(factor - 1) > _SAME):
        return Finding("factor", "unknown", "whether heads are multiplied by 1 − λ_init cannot be told")
    value = "" if initial is None else f" = {1 - initial:.4g}"
    if initial is not None and abs(factor - 1 + initial) < _SAME:
        return Finding("factor", "right", f"1 − λ_init{value}")
    return Finding("factor", "off", f"heads are multiplied by {factor:.4g}; expected 1 − λ_init{value}")


def _by_depth(value: float | None, index: int | None) -> Finding:
    """Compare λ_init with 0.8 − 0.6·exp(−0.3·index)."""
    if value is None or index is None:
        text = f"{value:.4g}; give --layer to compare it with the layer's" if value is not None else "cannot be told"
        return Finding("λ_init", "unknown", text)
    right = f"0.8 − 0.6·exp(−0.3·{index}) = {depth_scheduled(index):.4g}"
    if abs(value - depth_scheduled(index)) < 1e-4:
        return Finding("λ_init", "right", right)
    if abs(value - depth_scheduled(index + 1)) < 1e-4:
        return Finding("λ_init", "off", f"{value:.4g}, counted from 1; expected {right}, the first layer being 0")
    return Finding("λ_init", "right", f"{value:.4g}, not by depth")


class TorchCall(NamedTuple):
    """One call of torch; ``is_softmax``: of a map."""

    name: str
    args: tuple[Any, ...]
    tensors: list[Tensor]  # among the arguments, those in lists included
    output: Any
    is_softmax: bool

    @property
    def width(self) -> int:
        """How long the rows are that a product multiplies; 0 if it cannot be told."""
        inputs, _, output = str(self.args[0]).partition("->") if self.name == "einsum" else ("d,", "", "")
        return 0 if inputs.partition(",")[0].strip()[-1:] in output else self.tensors[0].shape[-1]

    @property
    def number(self) -> float | None:
        """The number by which a tensor is multiplied; None for any other call."""
        over = _OVER.fullmatch(self.name)
        if len(self.args) < 2 or not (over or _TIMES.fullmatch(self.name)):
            return None
        for factor in self.args[1:] if over else self.args[1::-1]:
            constant = type(factor) is Tensor and factor.numel() == 1 and not factor.requires_grad  # else it is learned
            if isinstance(factor, int | float) or constant:
                return 1 / (float(factor) or 1.0) if over else float(factor)
        return None


def traced(replay: detection.Replay, maps: Tensor | None = None) -> tuple[Any, list[TorchCall]]:
    """Run a module again, with ``maps`` in place of its own; return the run and its calls of torch."""
    calls: list[TorchCall] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        parts = [one if isinstance(one, list | tuple) else (one,) for one in (*args, *kwargs.values())]
        tensors = [one for one in itertools.chain(*parts) if isinstance(one, Tensor)]
        is_softmax = detection.softmax_rows(func, args, kwargs, output)
        calls.append(TorchCall(getattr(func, "__name__", ""), args, tensors, output, is_softmax))
        return output

    with gradients(enabled=True), detection.TorchCalls(note):  # what depends on parameters requires them
        return replay(replay.tokens, maps), calls


def score_scales(calls: list[TorchCall]) -> list[tuple[float, int] | None]:
    """Return for each softmax map the factor of its scores q·k and the width of q; None where it cannot be told."""
    known: dict[int, tuple[float, int]] = {}  # factor and width, 0 before the product, by id of tensors
    scales: list[tuple[float, int] | None] = []
    for one in calls:
        tensors = one.tensors[:1] if one.name in ("to", "type_as") else one.tensors  # the others tell a dtype
        states = [known[id(tensor)] for tensor in tensors if id(tensor) in known]
        state = float("nan"), 0
        if one.is_softmax:
            scales.append(states[0] if states and states[0][1] else None)
        elif one.name in _NONE_YET or (one.name in _PRODUCTS and len(states) < 2):
            state = 1.0, 0
        elif one.name in _PRODUCTS and (width := one.width):
            state = states[0][0] * states[1][0], width
        elif states and (number := one.number) is not None:
            state = states[0][0] * number, states[0][1]
        elif len(states) > 1 and states[0][1] and re.search("add|sub", one.name):
            pass  # a sum of scores
        elif states and all(other == states[0] for other in states) and _KEEPS.fullmatch(one.name):
            state = states[0]
        elif len(states) == 1 and _TIMES.fullmatch(one.name):  # such as by cosines of rotary positions
            others = [tensor for tensor in tensors if id(tensor) not in known]
            state = state if any(tensor.requires_grad for tensor in others) else states[0]
        elif not states:
            continue
        outputs = one.output if isinstance(one.output, tuple | list) else (one.output,)
        known |= {id(part): state for part in outputs if isinstance(part, Tensor)}
    return scales


def paired_by_halves(call: Call) -> bool:
    """Return whether output i + h is subtracted from output i of 2h maps, and neighbours alone weigh the same values.

    If all maps but one are 0, what is left of both sides of the subtraction are the values of that map, in its place.
    """
    runs, replay = [], detection.Replay(call)
    try:
        maps = traced(replay)[0].maps
        for number in range(maps.shape[1]):
            alone, generator = torch.zeros_like(maps), torch.Generator().manual_seed(6)
            alone[:, number] = torch.rand(maps[:, 0].shape, generator=generator).to(maps)
            runs.append(traced(replay, alone)[0].differences)
    except Exception:  # the user's code, with maps that it never had
        return False
    half, batch = maps.shape[1] // 2, call.tokens.shape[:2].numel()
    for sides in zip(*runs, strict=True):
        flat = [side[number >= half].flatten() for number, side in enumerate(sides)]
        places = [one.nonzero().flatten().tolist() for one in flat]
        if places[:half] == places[half:] and all(place and len(place) % batch == 0 for place in places):
            rows = [nn.functional.normalize(one[one != 0].view(batch, -1).double(), dim=-1) for one in flat]
            same = [[bool(((a * b).sum(-1).abs() > 1 - 1e-6).all()) for b in rows] for a in rows]
            apart = not all(same[index][index + half] for index in range(half))
            return apart and all(same[index][index + 1] for index in range(0, 2 * half, 2))
    return False


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
    is_module = isinstance(model, nn.Module)
    chosen = CheckOptions(model=type(model).__name__ if is_module else model, **options)
    return _checked(chosen, modules.copied(model) if is_module else None)


def answer(options: CheckOptions, _: str) -> Answer:
    """Print what was found, and return it; a ``Refusal`` if something is off."""
    result = _checked(options)
    for layer in result.layers:
        terminal.say(f"{layer.name or result.model}: {', '.join(filter(None, (layer.attention, layer.variant)))}")
        table = Table(box=None, show_header=False)
        for finding in layer.findings:
            table.add_row(finding.state, finding.about, finding.text)
        terminal.console().print(table)
    content = {**asdict(result), "off": result.off}
    return Refusal(content) if result.off else content


def _checked(options: CheckOptions, module: nn.Module | None = None) -> ModuleCheck:
    spec, index, name = options.model, options.layer, options.model.removeprefix("python:")
    if module is None and name != spec:
        module = registry.find(registry.MODELS, "python", "scheme").load(Wanted(spec, name, as_built=True))
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
    numbers = [index] if single else _layer_numbers([call.name.partition("@")[0] for call in calls])
    checks = [examined_layer(call, number) for call, number in zip(calls, numbers, strict=True)]
    return ModuleCheck(spec, tuple(checks))


def _layer_numbers(names: list[str]) -> list[int | None]:
    """Return the layer of each module, by the first number in its name; None for a list's own: layers, or heads."""
    blocks = [(re.match(r"(.*?\.)?\d+(?=\.)", name) or [name])[0] for name in names]
    number = {block: number for number, block in enumerate(dict.fromkeys(blocks))}
    return [None if re.search(r"(^|\.)\d+$", block) and block in names else number[block] for block in blocks]


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
            why = f"does not run on tokens of shape (4, {options.tokens}, dim) ({call})"
            fix = "give --dim or --tokens, or an attribute image_shape to a model of images"
            raise UserError(f"model {options.model}: {why}; {fix}") from None
        card: Any = module.card
        shape = (card.image_shape[0], 32, 32) if card.any_size else card.image_shape
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    run = default_call(module, images)
    calls, others = observe(module, images, run, None, watch=True)
    for one in {one.module: one for one in others}.values():
        args, kwargs = until(run, one.module, images)
        calls.append(make_call(one.name, one.module, args, kwargs, one.module(*args, **kwargs)))
    if not calls:
        raise UserError(f"model {options.model}: has no attention; expected a module that computes softmax maps")
    order = [name for name, _ in module.named_modules()]
    yield from map(_in_view, sorted(calls, key=lambda call: order.index(call.name.partition("@")[0])))


def _of_tokens(module: nn.Module, options: CheckOptions, dtype: torch.dtype) -> Call | str:
    """Return the call of a module on tokens of the first width that it takes, or why it takes none."""
    linear = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    sizes = [size for parameter in module.parameters() for size in parameter.shape[::-1]]
    why = ""  # of the first, which is the likeliest
    for dim in [options.dim] if options.dim else dict.fromkeys([*linear, *sizes]):
        x = torch.randn(4, options.tokens, dim, generator=torch.Generator().manual_seed(0)).to(dtype)
        try:
            output: Any = first_of(module(x))
        except Exception as error:  # the user's code
            why = why or f"{type(error).__name__}: {first_line(error)}"
            continue
        if isinstance(output, Tensor) and output.ndim == 3 and output.shape[:2] == x.shape[:2]:
            return Call("", module, x, None, (), {}, output)
        why = why or "its output is not of shape (batch, tokens, channels)"
    return why or "it has no parameters"


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
    if adapter in (None, "unknown", guessed, detection.detected_layer):
        return call
    try:
        take_apart(call)  # refuses parts that do not make the module's output
    except UserError:
        return call
    module = _FromParts(call.module, adapter)
    return replace(call, module=module, output=module(call.tokens, *call.args, **call.kwargs))
