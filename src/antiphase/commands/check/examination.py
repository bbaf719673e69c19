"""What is right and what is off in one attention module, found by running it with other maps and other parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.attention.lambdas import depth_scheduled
from antiphase.commands.check.traced import (
    TorchCall,
    score_scales,
    traced,
    values_of_maps,
    values_width,
)
from antiphase.sensitivity.detection import Detection, NotAttention, Replay, examine
from antiphase.sensitivity.layers import Call, eager_attention, gradients, leaf

_PROBES = 8
_SAME = 2e-3  # relative difference of numbers that are one
_TOTAL = (1e2, 1e4)  # by which maps are multiplied to see a norm, so large that its eps does not count


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: the scale, λ, λ_init, the norm, the factor or the pairing."""

    about: str
    state: Literal["right", "off", "unknown"]
    text: str


@dataclass(frozen=True)
class LayerCheck:
    """What one module was found to be.

    Attributes:
        name: of the module in the model.
        attention: differential, softmax or unknown.
        variant: V1, V2, grouped, gated or DINT; None if it is not differential.
        lam: mean λ; None if there is none.
        findings: what was looked at.
    """

    name: str
    attention: Literal["differential", "softmax", "unknown"]
    variant: str | None
    lam: float | None
    findings: tuple[Finding, ...]


def examined_layer(call: Call, index: int | None) -> LayerCheck:
    """Examine the module of a call; ``index``: of its layer, from 0, if it is known."""
    with eager_attention():
        try:
            detection = examine(call)
        except NotAttention as reason:
            return LayerCheck(call.name, "unknown", None, None, tuple(_why_not(call, str(reason))))
        if not detection.negative:
            finding = Finding("attention", "off", "standard attention: no map is subtracted")
            return LayerCheck(call.name, "softmax", None, None, (finding,))
        return _Examination(call, detection).result(index)


def _why_not(call: Call, reason: str) -> Iterator[Finding]:
    """Yield why a module is not recognised, and the pairs if it subtracts maps of other values."""
    try:
        found = values_of_maps(call)
    except Exception:  # the user's code, with maps that it never had
        found = None
    if found is not None:
        pairs, equal = found
        apart = [pair for pair in pairs if not equal[pair]]
        if apart:
            one, two = apart[0]
            text = f"map {two} is subtracted from map {one}, and they weigh other values"
            half = len(equal) // 2
            neighbours = all(equal[at, at + 1] for at in range(0, 2 * half, 2))
            if all(second - first == half for first, second in pairs) and neighbours:
                text = f"V2 by halves: {text}. Expected neighbours, maps 2i and 2i + 1, which share keys and values: "
                text += "o[:, 0::2] - lam * o[:, 1::2]"
            yield Finding("pairing", "off", text)
            return
    yield Finding("attention", "unknown", reason)


class _Examination:
    """A module that computes differential attention."""

    def __init__(self, call: Call, detection: Detection) -> None:
        self.call, self.detection = call, detection
        self.module, self.x = call.module, call.tokens
        self.maps = traced(call, groups=detection.groups)[0].maps
        self.run, self.calls = traced(call, self.maps, detection.groups)
        self.ratio = len(detection.positive) // len(set(detection.negative))
        self.scales = score_scales(self.calls)
        self.lam = self.lambda_now()
        self.of_tokens = detection.lam is None
        self.norm = self.norm_kind()

    def result(self, index: int | None) -> LayerCheck:
        variant = self.variant()
        findings = [self.pairing(), self.scale(), *self.lambda_findings(index)]
        findings += self.norm_and_factor(variant)
        return LayerCheck(self.call.name, "differential", variant, float(self.lam.mean()), tuple(findings))

    def variant(self) -> str:
        """Return the variant; V2 has values as wide as queries, V1 twice as wide."""
        if self.detection.integral:
            return "DINT"
        if not self.of_tokens:
            return "grouped" if self.ratio > 1 else "V1"
        wide = {scale[1] for scale in self.scales if scale}
        width = values_width(self.calls, self.x.shape[1])
        if self.ratio == 1 and self.norm == "norm" and width and len(wide) == 1 and width == 2 * min(wide):
            return "V1"
        return "gated" if self.ratio > 1 else "V2"

    def pairing(self) -> Finding:
        pairs = list(zip(self.detection.positive, self.detection.negative, strict=True))
        half = len(pairs)
        if self.ratio > 1:
            text = f"{self.ratio} signal maps share one noise map"
        elif all(two == one + 1 for one, two in pairs):
            text = "neighbours: map 2i + 1 is subtracted from map 2i"
        elif all(two == one + half for one, two in pairs):
            text = f"halves: map i + {half} is subtracted from map i, and they weigh the same values"
        else:
            text = "pairs " + ", ".join(f"{one} − {two}" for one, two in pairs)
        return Finding("pairing", "right", f"{text} (in the order in which the maps are computed)")

    def scale(self) -> Finding:
        unknown = Finding("scale", "unknown", "how queries and keys are scaled cannot be told")
        if not self.scales or None in self.scales:
            return unknown
        wrong = [s for s in self.scales if s and abs(s[0] * s[1] ** 0.5 - 1) > _SAME]
        factor, width = wrong[0] if wrong else self.scales[0] or (1.0, 1)
        right = f"1/√{width} = {width**-0.5:.4g}, {width} being the width of a query"
        if not wrong:
            return Finding("scale", "right", f"scores are multiplied by {right}")
        if not factor == factor:
            return unknown
        return Finding("scale", "off", f"scores are multiplied by {factor:.4g}; expected {right}")

    def lambda_of(self) -> Tensor:
        """Return λ, of shape (heads,) or (batch, heads, queries), with a graph to the parameters."""
        groups, positive, negative = self.detection.groups, self.detection.positive, self.detection.negative
        run, generator = Replay(self.call, groups), torch.Generator().manual_seed(7)
        with gradients(enabled=True):
            maps = leaf(self.maps)
            output = run(self.x, maps).output
            squares: Any = 0.0
            products: Any = 0.0
            subtrahends = sorted(set(negative))
            for _ in range(_PROBES):
                u = torch.randn(output.shape, generator=generator).to(output)
                (slopes,) = torch.autograd.grad(output, maps, u, create_graph=True)
                one, two = slopes[:, positive], slopes[:, subtrahends]
                if self.detection.integral:
                    one = one + slopes[:, negative].mean(2, keepdim=True)
                kept = "bgij,bhij->bigh" if self.detection.lam is None else "bgij,bhij->gh"
                squares, products = squares + torch.einsum(kept, one, one), products + torch.einsum(kept, one, two)
            size = squares.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].detach()
            ridge = 1e-13 * size * torch.eye(len(positive)).to(size)
            weights = -torch.linalg.solve(squares + ridge, products)
            heads = [weights[..., at, subtrahends.index(other)] for at, other in enumerate(negative)]
            return torch.stack(heads, 1 if weights.ndim > 2 else 0)

    def lambda_now(self) -> Tensor:
        """Return λ without a graph."""
        return self.lambda_of().detach()

    def moved(self, change: Any, names: list[str]) -> Tensor:
        """Return λ with some parameters and buffers changed by a function of their values."""
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        kept = {name: tensors[name].detach().clone() for name in names}
        try:
            with gradients(enabled=False):
                for name in names:
                    tensors[name].copy_(change(kept[name]))
            return self.lambda_now()
        finally:
            with gradients(enabled=False):
                for name, value in kept.items():
                    tensors[name].copy_(value)

    def lambda_findings(self, index: int | None) -> Iterator[Finding]:
        """Yield whether λ is learned, and its λ_init by the layer."""
        named = {n: p for n, p in self.module.named_parameters() if p.is_floating_point()}
        learned: list[str] = []
        with_gradient = {name: p for name, p in named.items() if p.requires_grad}
        lam = self.lambda_of()
        if with_gradient and lam.requires_grad:
            u = torch.linspace(0.5, 1.5, lam.numel()).view(lam.shape).to(lam)
            slopes = torch.autograd.grad(lam, list(with_gradient.values()), u, allow_unused=True)
            small = 1e-7 if lam.dtype == torch.float64 else 1e-3
            learned = [n for n, s in zip(with_gradient, slopes, strict=True) if s is not None and s.abs().max() > small]
        what = f"λ = {float(self.lam.mean()):.4g}" + (" on average over tokens" if self.of_tokens else "")
        if learned:
            yield Finding("λ", "right", f"{what}, learned: {', '.join(learned)}")
        else:
            yield Finding("λ", "off", f"{what}, and it never moves: {self.why_fixed(named)}")
        self.lambda_init = self.initial(learned)
        if self.of_tokens and self.lambda_init is None:
            return
        yield self.by_depth(index)

    def why_fixed(self, named: dict[str, nn.Parameter]) -> str:
        def changes(names: list[str]) -> bool:
            generator = torch.Generator().manual_seed(8)
            lam = self.moved(lambda v: v + torch.randn(v.shape, generator=generator).to(v) * (0.2 + v.abs()), names)
            return bool((lam - self.lam).abs().max() > 1e-3 * self.lam.abs().max())

        buffers = [name for name, one in self.module.named_buffers() if one.is_floating_point()]
        readers = [name for name in named if changes([name])]
        if frozen := [name for name in readers if not named[name].requires_grad]:
            return f"{', '.join(frozen)} has requires_grad = False"
        if readers:
            return f"no gradient reaches {', '.join(readers)}; look for detach, .data, .item() or no_grad"
        if held := [name for name in buffers if changes([name])]:
            return f"{', '.join(held)} is a buffer; expected an nn.Parameter"
        if named and changes(list(named)):
            return "its gradient is 0 at these initial values, as of a product whose factors are both 0"
        return "it depends on no parameter; expected an nn.Parameter"

    def initial(self, learned: list[str]) -> float | None:
        """Return λ_init: an attribute of this name, or λ with the parameters that it is learned from at 0."""
        for part in self.module.modules():
            value: Any = getattr(part, "lambda_init", None)
            if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
                return float(value)
        if self.of_tokens:
            return None
        lam = self.moved(torch.zeros_like, learned) if learned else self.lam
        value = float(lam.mean())
        return value if 1e-6 < abs(value) and (lam - value).abs().max() < 1e-6 else None

    def by_depth(self, index: int | None) -> Finding:
        if (value := self.lambda_init) is None:
            return Finding("λ_init", "unknown", "λ has no λ_init that can be told from its parameters")
        if index is None:
            late = abs(value - depth_scheduled(1)) < 1e-4
            more = ", which is that of layer 1, the second one" if late else ""
            return Finding("λ_init", "unknown" if late else "right", f"λ_init = {value:.4g}{more}; give --layer to check it")
        right, late = depth_scheduled(index), depth_scheduled(index + 1)
        formula = f"0.8 − 0.6·exp(−0.3·{index}) = {right:.4g}"
        if abs(value - right) > 1e-4 and abs(value - late) < 1e-4:
            text = f"λ_init = {value:.4g} is counted from 1; expected {formula} for layer {index}, the first being 0"
            return Finding("λ_init", "off", text)
        if abs(value - right) < 1e-4:
            return Finding("λ_init", "right", f"λ_init = {formula}")
        return Finding("λ_init", "right", f"λ_init = {value:.4g}, not by depth")

    def output(self, times: float) -> Tensor:
        return traced(self.call, times * self.maps, self.detection.groups)[0].output

    def norm_kind(self) -> Literal["norm", "none", "unknown"]:
        """Return whether the output forgets the size of the difference, or is linear in it."""
        zero, one, two = (self.output(times) for times in (0.0, *_TOTAL))
        change, more = one - zero, two - one
        size = change.abs().max()
        if more.abs().max() < _SAME * size:
            return "norm"
        times = (_TOTAL[1] - _TOTAL[0]) / _TOTAL[0]
        return "none" if (more - times * change).abs().max() < _SAME * times * size else "unknown"

    def projected(self, calls: list[TorchCall], others: list[TorchCall]) -> Tensor | None:
        """Return what the last projection is given, of those whose input depends on the maps; else the output."""
        last = None
        for one, other in zip(calls, others, strict=True):
            weights = any(isinstance(t, nn.Parameter) for t in one.tensors[1:])
            linear = one.name in ("linear", "matmul", "__matmul__") and weights
            if linear and one.tensors[0].shape == other.tensors[0].shape and _differ(one.tensors[0], other.tensors[0]):
                last = one.tensors[0]
        return last

    def factor(self) -> float | None:
        """Return the number that the heads are multiplied by behind norm or difference; None if it cannot be told."""
        groups, large = self.detection.groups, _TOTAL[1] * self.maps
        if self.norm == "unknown":
            return None
        calls, others = (traced(self.call, maps, groups)[1] for maps in (large, large.flip(-1)))
        if len(calls) != len(others):
            return None
        end = self.projected(calls, others)
        if end is None:
            end = traced(self.call, large, groups)[0].output
        heads, tokens = len(self.detection.positive), self.x.shape[1]
        if self.norm == "norm":
            weights = [p for p in self.module.parameters() if p.ndim < 3 and p.numel() > 1]
            for weight in [torch.ones(1).to(end), *weights]:
                width = end.shape[-1] // heads
                flat = end.reshape(-1, heads, width) if end.numel() % (heads * width) == 0 else None
                if flat is None or weight.numel() not in (1, width, heads * width):
                    continue
                shape = (heads, width) if weight.numel() == heads * width else (-1,)
                sizes = (flat / weight.detach().view(shape)).square().mean(-1).sqrt()
                if sizes.isfinite().all() and sizes.std() < _SAME * sizes.mean():
                    return float(sizes.mean())
            return None
        alone = torch.zeros_like(self.maps)
        alone[:, self.detection.positive[0]] = self.maps[:, self.detection.positive[0]]
        run, calls = traced(self.call, alone, groups)
        for one in calls:
            if one.name in ("matmul", "__matmul__", "bmm") and len(two := one.tensors) == 2:
                if two[0].shape[-2:] == (tokens, tokens) and two[1].shape[-1] != tokens:
                    product = one.output.norm()
                    others = traced(self.call, 2 * alone, groups)[1]
                    last = self.projected(calls, others)
                    last = run.output if last is None else last
                    return float(last.norm() / product) if product > 0 else None
        return None

    def early_factor(self, value: float) -> bool:
        """Return whether a number multiplies the difference, or heads made of it, before a norm."""
        groups, positive, negative = self.detection.groups, self.detection.positive, self.detection.negative
        runs = [self.calls]
        for numbers in (positive, sorted(set(negative))):
            maps = self.maps.clone()
            maps[:, numbers] = maps[:, numbers].flip(-1)
            runs.append(traced(self.call, maps, groups)[1])
        for one, *rest in zip(*runs, strict=False):
            if (number := one.number) is not None and abs(number - value) < 1e-5:
                if all(_differ(one.output, other.output) for other in rest):
                    return True
        return False

    def norm_and_factor(self, variant: str) -> Iterator[Finding]:
        """Yield what is right and off behind the difference."""
        factor, initial = self.factor(), self.lambda_init
        if self.norm == "unknown":
            yield Finding("norm", "unknown", "whether a norm follows the difference cannot be told")
        elif self.norm == "norm" and variant in ("V2", "gated"):
            text = f"a norm follows the heads and removes the size of the difference; {variant} has none"
            yield Finding("norm", "off", text)
        elif self.norm == "norm":
            early = factor is not None and abs(factor - 1) < _SAME and initial and self.early_factor(1 - initial)
            if early and variant != "DINT":
                text = f"it removes the factor 1 − λ_init = {1 - initial:.4g}, which comes before it; multiply behind it"
                yield Finding("norm", "off", text)
                return
            yield Finding("norm", "right", "a norm follows each head")
        else:
            yield Finding("norm", "right", "none")
        if variant not in ("V1", "grouped"):
            return
        if factor is None:
            yield Finding("factor", "unknown", "whether the heads are multiplied by 1 − λ_init cannot be told")
        elif self.norm == "none" and abs(factor - 1) < _SAME:
            yield Finding("factor", "right", "neither norm nor factor, as in the papers' formula")
        elif abs(factor - 1) < _SAME and not (initial is not None and abs(initial) < _SAME):
            more = "" if initial is None else f" = {1 - initial:.4g}"
            yield Finding("factor", "off", f"1 − λ_init{more} is missing behind the norm")
        elif initial is None:
            yield Finding("factor", "unknown", f"heads are multiplied by {factor:.4g}; λ_init is not known")
        elif abs(factor - (1 - initial)) < _SAME:
            yield Finding("factor", "right", f"1 − λ_init = {factor:.4g}")
        else:
            text = f"heads are multiplied by {factor:.4g}; expected 1 − λ_init = {1 - initial:.4g}"
            yield Finding("factor", "off", text)


def _differ(one: Any, two: Any) -> bool:
    tensors = isinstance(one, Tensor) and isinstance(two, Tensor) and one.shape == two.shape
    return tensors and bool((one - two).abs().max() > 1e-9 * one.abs().max())


def in_double(call: Call) -> Call:
    """Return the call in float64, or as it is if the module does not run in it."""
    import copy

    try:
        module = copy.deepcopy(call.module).double()
        wide = [
            part.double() if isinstance(part, Tensor) and part.is_floating_point() else part
            for part in (call.tokens, *call.args)
        ]
        kwargs = {
            name: part.double() if isinstance(part, Tensor) and part.is_floating_point() else part
            for name, part in call.kwargs.items()
        }
        with gradients(enabled=False):
            output = module(*wide, **kwargs)
        output = output[0] if isinstance(output, tuple) else output
        return replace(call, module=module, tokens=wide[0], args=tuple(wide[1:]), kwargs=kwargs, output=output)
    except Exception:  # the user's code
        return call
