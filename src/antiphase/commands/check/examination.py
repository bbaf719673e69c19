"""What is right and what is off in one attention module, found by running it with other maps and other parameters."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.attention.lambdas import depth_scheduled
from antiphase.commands.check.traced import TorchCall, paired_by_halves, score_scales, traced
from antiphase.sensitivity.detection import Detection, NotAttention, Replay, examine
from antiphase.sensitivity.layers import Call, eager_attention, gradients, leaf

_SAME = 2e-3  # relative difference of equal numbers
_SMALL, _LARGE = 1e2, 1e4  # what maps are multiplied by to see a norm; its eps does not count there


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
    variant: Literal["V1", "V2", "grouped", "gated", "DINT"] | None
    lam: float | None
    findings: tuple[Finding, ...]


def examined_layer(call: Call, index: int | None) -> LayerCheck:
    """Examine the module of a call; ``index``: of its layer, from 0, if that is known."""
    with eager_attention():
        try:
            detection = examine(call)
        except NotAttention as reason:
            finding = Finding("attention", "unknown", f"not recognised: {reason}")
            if _by_halves(call):
                text = "o[:, 0::2] - lam * o[:, 1::2]"
                text = f"V2 by halves, whose maps weigh other values; expected neighbours, which share them: {text}"
                finding = Finding("pairing", "off", text)
            return LayerCheck(call.name, "unknown", None, None, (finding,))
        if not detection.negative:
            finding = Finding("attention", "off", "standard attention: no map is subtracted")
            return LayerCheck(call.name, "softmax", None, None, (finding,))
        return _Examination(call, detection).result(index)


def _by_halves(call: Call) -> bool:
    try:
        return paired_by_halves(call)
    except Exception:  # the user's code, with maps that it never had
        return False


class _Examination:
    """A module that computes differential attention."""

    def __init__(self, call: Call, detection: Detection) -> None:
        self.call, self.module, self.detection = call, call.module, detection
        self.positive, self.negative = list(detection.positive), list(detection.negative)
        self.maps: Tensor = Replay(call, detection.groups)(call.tokens).maps
        self.calls = self.run(self.maps)[1]
        self.lam = self.lambda_now().detach()
        self.of_tokens, self.ratio = detection.lam is None, len(self.positive) // len({*self.negative})
        self.names = {
            name: one
            for name, one in (*self.module.named_parameters(), *self.module.named_buffers())
            if one.is_floating_point()
        }

    def run(self, maps: Tensor) -> tuple[Tensor, list[TorchCall]]:
        run, calls = traced(self.call, maps, self.detection.groups)
        return run.output, calls

    def result(self, index: int | None) -> LayerCheck:
        norm, factor = self.norm(), self.factor()
        if self.detection.integral:
            variant = "DINT"
        elif self.of_tokens:  # V1 with a λ of each token has both norm and factor
            of_v1 = norm and factor is not None and abs(factor - 1) > _SAME
            variant = "gated" if self.ratio > 1 else "V1" if of_v1 else "V2"
        else:
            variant = "grouped" if self.ratio > 1 else "V1"
        findings = [self.pairing(), self.scale(), *self.lambdas(index)]
        findings += self.behind(variant, norm, factor)
        return LayerCheck(self.call.name, "differential", variant, float(self.lam.mean()), tuple(findings))

    def pairing(self) -> Finding:
        steps = {two - one for one, two in zip(self.positive, self.negative, strict=True)}
        text = (
            {1: "neighbours", len(self.positive): "halves"}.get(*steps, "pairs")
            if len(steps) == 1
            else "pairs"
        )
        text += " whose maps weigh the same values"
        return Finding(
            "pairing", "right", f"{self.ratio} maps share a subtracted one" if self.ratio > 1 else text
        )

    def scale(self) -> Finding:
        scales = score_scales(self.calls)
        told = [one for one in scales if one and one[0] == one[0]]
        wrong = [one for one in told if abs(one[0] * one[1] ** 0.5 - 1) > _SAME]
        if not wrong and (not told or len(told) < len(scales)):
            return Finding("scale", "unknown", "what queries and keys are multiplied by cannot be told")
        factor, width = (wrong or told)[0]
        right = f"1/√{width} = {width**-0.5:.4g}, by the width of a query"
        if wrong:
            return Finding("scale", "off", f"scores are multiplied by {factor:.4g}; expected {right}")
        return Finding("scale", "right", f"scores are multiplied by {right}")

    def lambda_now(self) -> Tensor:
        """Return λ, (heads,) or (batch, heads, queries), with a graph to the parameters: what solves for the slopes."""
        generator, subtrahends = torch.Generator().manual_seed(7), sorted({*self.negative})
        kept = "bigh" if self.detection.lam is None else "gh"
        squares: Any = 0.0
        products: Any = 0.0
        with gradients(enabled=True):
            maps = leaf(self.maps)
            output = Replay(self.call, self.detection.groups)(self.call.tokens, maps).output
            for _ in range(8):
                u = torch.randn(output.shape, generator=generator).to(output)
                (slopes,) = torch.autograd.grad(output, maps, u, create_graph=True)
                one, two = slopes[:, self.positive], slopes[:, subtrahends]
                if self.detection.integral:
                    one = one + slopes[:, self.negative].mean(2, keepdim=True)
                squares = squares + torch.einsum(f"bgij,bhij->{kept}", one, one)
                products = products + torch.einsum(f"bgij,bhij->{kept}", one, two)
            size = squares.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].detach()
            ridge = 1e-13 * size * torch.eye(len(self.positive)).to(size)
            weights = -torch.linalg.solve(squares + ridge, products)
            heads = [weights[..., at, subtrahends.index(other)] for at, other in enumerate(self.negative)]
            return torch.stack(heads, 1 if weights.ndim > 2 else 0)

    def lambda_with(self, names: Collection[str], change: Callable[[Tensor], Tensor]) -> Tensor:
        """Return λ with some parameters and buffers changed by a function of their values."""
        before = {name: self.names[name].detach().clone() for name in names}
        try:
            for name, value in before.items():
                self.names[name].data.copy_(change(value))
            return self.lambda_now().detach()
        finally:
            for name, value in before.items():
                self.names[name].data.copy_(value)

    def lambdas(self, index: int | None) -> Iterator[Finding]:
        """Yield whether λ is learned, and whether λ_init is that of the layer."""
        free = {name: one for name, one in self.names.items() if one.requires_grad}
        lam, learned = self.lambda_now(), list[str]()
        if free and lam.requires_grad:
            u = torch.linspace(0.5, 1.5, lam.numel()).view(lam.shape).to(lam)
            slopes = torch.autograd.grad(lam, list(free.values()), u, materialize_grads=True)
            small = 1e-7 if lam.dtype == torch.float64 else 1e-3
            learned = [name for name, slope in zip(free, slopes, strict=True) if slope.abs().max() > small]
        text = f"{float(self.lam.mean()):.4g}" + ", the mean over tokens" * self.of_tokens
        if learned:
            yield Finding("λ", "right", f"{text}; learned: {', '.join(map(_shown, learned))}")
        else:
            yield Finding("λ", "off", f"{text}; it never moves: {self.why_fixed()}")
        self.lambda_init = self.initial(learned)
        if (value := self.lambda_init) is None:
            if not self.of_tokens:
                yield Finding("λ_init", "unknown", "cannot be told from an attribute or the parameters of λ")
        elif index is not None and abs(value - (right := depth_scheduled(index))) < 1e-4:
            yield Finding("λ_init", "right", f"{right:.4g} = 0.8 − 0.6·exp(−0.3·{index})")
        elif index is not None and abs(value - depth_scheduled(index + 1)) < 1e-4:
            text = f"{value:.4g}, counted from 1; expected 0.8 − 0.6·exp(−0.3·{index}) = {depth_scheduled(index):.4g}"
            yield Finding("λ_init", "off", text)
        elif index is None:
            yield Finding(
                "λ_init", "unknown", f"{value:.4g}; give --layer to compare it with that of the layer"
            )
        else:
            yield Finding("λ_init", "right", f"{value:.4g}, not by depth")

    def why_fixed(self) -> str:
        def read(*names: str) -> bool:
            generator = torch.Generator().manual_seed(8)
            lam = self.lambda_with(
                names, lambda v: v + torch.randn(v.shape, generator=generator).to(v) * (v.abs() + 0.2)
            )
            return bool((lam - self.lam).abs().max() > 1e-3 * self.lam.abs().max())

        readers = {name: one for name, one in self.names.items() if read(name)}
        which = ", ".join(map(_shown, readers))
        if not readers:
            zero = "its gradient is 0 at these initial values, as of a product of zeros"
            return zero if self.names and read(*self.names) else "it depends on no parameter"
        if not any(isinstance(one, nn.Parameter) for one in readers.values()):
            return f"it depends on buffers, {which}; expected an nn.Parameter"
        if not any(one.requires_grad for one in readers.values()):
            return f"requires_grad is False: {which}"
        return f"no gradient reaches {which}; look for detach, .data, .item() or no_grad"

    def initial(self, learned: list[str]) -> float | None:
        """Return λ_init: an attribute of this name, or λ with the parameters that it is learned from at 0."""
        for part in self.module.modules():
            value: Any = getattr(part, "lambda_init", None)
            if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
                return float(value)
        if self.of_tokens:
            return None
        lam = self.lambda_with(learned, torch.zeros_like) if learned else self.lam
        same = (lam - lam.mean()).abs().max() < 1e-6 < lam.mean().abs()
        return float(lam.mean()) if same else None

    def norm(self) -> bool | None:
        """Return whether the output forgets the size of the difference, or is linear in it; None if neither."""
        zero, one, two = (self.run(times * self.maps)[0] for times in (0.0, _SMALL, _LARGE))
        change, more, times = one - zero, two - one, _LARGE / _SMALL - 1
        if more.abs().max() < _SAME * change.abs().max():
            return True
        return False if (more - times * change).abs().max() < _SAME * more.abs().max() else None

    def heads(self, maps: Tensor) -> Tensor:
        """Return the last tensor that depends on the maps and is projected; the output if there is none."""
        (output, calls), (_, others) = self.run(maps), self.run(2 * maps.flip(-1))
        for one, other in reversed(list(zip(calls, others, strict=True))):
            linear = one.name in ("linear", "matmul", "__matmul__") and isinstance(one.args[1], nn.Parameter)
            if linear and _differ(one.args[0], other.args[0]):
                return one.args[0]
        return output

    def factor(self) -> float | None:
        """Return what the heads are multiplied by behind norm or difference; None if it cannot be told."""
        if (norm := self.norm()) is None:
            return None
        if norm:
            heads, count = self.heads(_LARGE * self.maps), len(self.positive)
            if heads.shape[-1] % count:
                return None
            flat = heads.reshape(-1, count, heads.shape[-1] // count)
            for weight in (torch.ones(1), *self.module.parameters()):
                if weight.numel() in (1, flat.shape[-1], heads.shape[-1]) and weight.ndim < 2:
                    rows = flat.flatten(1) / weight.detach().to(flat).repeat(
                        flat[0].numel() // weight.numel()
                    )
                    sizes = rows.view(flat.shape).square().mean(-1).sqrt()
                    if sizes.isfinite().all() and sizes.std() < _SAME * sizes.mean():
                        return float(sizes.mean())
            return None
        alone, tokens = torch.zeros_like(self.maps), self.maps.shape[-1]
        alone[:, self.positive[0]] = self.maps[:, self.positive[0]]
        square = 0.0
        for one in self.run(alone)[1]:
            two = one.tensors
            if one.name in ("matmul", "__matmul__", "bmm") and two[0].shape[-2:] == (tokens, tokens):
                square += float(one.output.square().sum())
        return float(self.heads(alone).norm()) / square**0.5 if square else None

    def multiplied_before(self, value: float) -> bool:
        """Return whether the difference, or heads made of it, are multiplied by a number."""
        runs = [self.calls]
        for numbers in (self.positive, self.negative):
            maps = self.maps.clone()
            maps[:, numbers] = self.maps[:, numbers].flip(-1)
            runs.append(self.run(maps)[1])
        return any(
            one.number is not None
            and abs(one.number - value) < 1e-5
            and all(_differ(one.output, other.output) for other in others)
            for one, *others in zip(*runs, strict=True)
        )

    def behind(self, variant: str, norm: bool | None, factor: float | None) -> Iterator[Finding]:
        """Yield what is right and off behind the difference: the norm, and the factor 1 − λ_init."""
        initial = self.lambda_init
        plain, right = factor is not None and abs(factor - 1) < _SAME, 1 - (initial or 0.0)
        rescaled = variant in ("V1", "grouped")
        if norm is None:
            yield Finding("norm", "unknown", "whether a norm follows the heads cannot be told")
        elif norm and variant in ("V2", "gated"):
            yield Finding("norm", "off", f"it removes the size of the difference; {variant} has none")
        elif norm and rescaled and plain and initial and self.multiplied_before(right):
            text = (
                f"it removes the factor 1 − λ_init = {right:.4g}, which comes before it; multiply behind it"
            )
            yield Finding("norm", "off", text)
            return
        else:
            yield Finding("norm", "right", "a norm follows the heads" if norm else "none")
        if factor is None:
            if rescaled:
                yield Finding(
                    "factor", "unknown", "whether heads are multiplied by 1 − λ_init cannot be told"
                )
        elif not rescaled:
            if not plain and not norm:
                text = f"heads are multiplied, on average by {factor:.4g}, such as by a gate"
                yield Finding("factor", "unknown", text)
        elif plain and not norm:
            yield Finding("factor", "right", "none and no norm, as in the papers' formula")
        elif plain and initial != 0:
            value = "" if initial is None else f" = {right:.4g}"
            yield Finding("factor", "off", f"1 − λ_init{value} is missing behind the norm")
        elif initial is None:
            yield Finding("factor", "unknown", f"{factor:.4g}; λ_init is not known")
        elif abs(factor - right) < _SAME:
            yield Finding("factor", "right", f"1 − λ_init = {right:.4g}")
        elif norm:
            yield Finding("factor", "off", f"{factor:.4g}; expected 1 − λ_init = {right:.4g}")
        else:
            yield Finding("factor", "unknown", f"on average {factor:.4g}, such as by a gate")


def _shown(name: str) -> str:
    return name.removeprefix("inner.")


def _differ(one: Any, two: Any) -> bool:
    tensors = isinstance(one, Tensor) and isinstance(two, Tensor) and one.shape == two.shape
    return tensors and bool((one - two).abs().max() > 1e-9 * one.abs().max())
