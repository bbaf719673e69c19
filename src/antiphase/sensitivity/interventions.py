"""Interventions on a trained model's differential attention: another λ, another A2, no gradient through a map."""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.attention import AttentionMaps, DifferentialAttention, softmax_maps
from antiphase.attention.lambdas import Stream, lambda_at
from antiphase.errors import UserError

Branch = Literal["positive", "negative"]
BRANCHES: tuple[Branch, ...] = ("positive", "negative")


class ScaledLambda(nn.Module):
    """λ times a factor.

    Args:
        lam: a λ module.
        factor: any number; with 1.0 every logit keeps its last bit.
    """

    reads_tokens = True  # hands the tokens to a λ that reads them

    def __init__(self, lam: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner = lam
        self.factor = factor

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"factor={self.factor!r}"

    def draw_parameters(self, stream: Stream) -> None:
        """Refuse: the λ inside is trained."""
        raise UserError("a scaled λ belongs to a trained model: expected no new initial weights")

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "..."]:
        """Return factor · λ."""
        return self.factor * lambda_at(self.inner, x)


class ReplacedMap(nn.Module):
    """Differential attention with a given A2: (A1 − λ·A2)·V, then the layer's own norm, factor and projection.

    Args:
        attention: the layer.
        negative: A2, the same for every image: ``(heads, queries, keys)``.
    """

    negative: Tensor

    def __init__(
        self, attention: DifferentialAttention, negative: Float[Tensor, "heads queries keys"]
    ) -> None:
        super().__init__()
        self.attention = attention
        self.register_buffer("negative", negative)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        maps, values = _taken_apart(self.attention, x, mask)
        negative = self.negative.to(maps.positive.dtype).expand_as(maps.positive)
        return _attended(self.attention, maps._replace(negative=negative), values)


class StoppedGradient(nn.Module):
    """Differential attention that passes no gradient through some of its maps.

    Where no gradient is asked for, it is the layer itself, so that verdicts are the untouched model's.

    Args:
        attention: the layer.
        branches: maps that count as constants in the backward pass.
    """

    def __init__(self, attention: DifferentialAttention, branches: Sequence[Branch]) -> None:
        super().__init__()
        self.attention = attention
        self.branches = tuple(branches)

    def extra_repr(self) -> str:
        """Say what the weights do not: part of a model's fingerprint."""
        return f"branches={self.branches!r}"

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.attention(x, mask)
        maps, values = _taken_apart(self.attention, x, mask)
        stopped = {branch: getattr(maps, branch).detach() for branch in self.branches}
        return _attended(self.attention, maps._replace(**stopped), values)


def scale_lambda(model: nn.Module, factor: float) -> None:
    """Multiply λ of every differential layer by a factor, in place.

    Raises:
        UserError: The model has no differential attention of this package, or the factor is not finite.
    """
    if not torch.tensor(factor).isfinite():
        raise UserError(f"factor {factor} of λ: expected a finite number")
    for attention in _layers(model).values():
        attention.lam = ScaledLambda(attention.lam, factor)


def replace_negative(model: nn.Module, maps: Iterable[Float[Tensor, "heads queries keys"]]) -> None:
    """Replace A2 of every differential layer by a constant map, in place.

    Args:
        model: with differential attention of this package.
        maps: one for each layer, first layer first.

    Raises:
        UserError: The model has no differential attention of this package.
    """
    for (place, attention), negative in zip(_layers(model).items(), maps, strict=True):
        model.set_submodule(place, ReplacedMap(attention, negative))


def stop_gradient(model: nn.Module, branches: Sequence[Branch]) -> None:
    """Let no gradient through A1 (``"positive"``) or A2 (``"negative"``) of any differential layer, in place.

    Raises:
        UserError: The model has no differential attention of this package, or a branch is unknown.
    """
    if not branches or not set(branches) <= set(BRANCHES):
        raise UserError(f"branches {tuple(branches)}: expected positive, negative or both")
    for place, attention in _layers(model).items():
        model.set_submodule(place, StoppedGradient(attention, branches))


def mean_negatives(
    model: nn.Module, batches: Iterable[Float[Tensor, "batch channels height width"]]
) -> list[Float[Tensor, "heads queries keys"]]:
    """Return A2 of every differential layer, averaged over images.

    Raises:
        UserError: The model has no differential attention of this package, or there are no images.
    """
    layers = _layers(model).values()
    sums: dict[nn.Module, Tensor] = {}

    def add(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(module, DifferentialAttention)
        negative = module.maps(given[0]).negative
        assert negative is not None
        sums[module] = sums.get(module, 0) + negative.double().sum(0)

    hooks = [attention.register_forward_pre_hook(add) for attention in layers]
    count = 0
    try:
        with torch.no_grad():
            for images in batches:
                model(images.clone())
                count += len(images)
    finally:
        for hook in hooks:
            hook.remove()
    if not count:
        raise UserError("no images to average A2 over: expected at least one")
    return [(sums[attention] / count).float() for attention in layers]


def uniform_like(
    maps: Iterable[Float[Tensor, "heads queries keys"]],
) -> list[Float[Tensor, "heads queries keys"]]:
    """Return maps of the same shapes in which every query attends to every key alike."""
    return [torch.full_like(one, 1.0 / one.shape[-1]) for one in maps]


def differential_layers(model: nn.Module) -> dict[str, DifferentialAttention]:
    """Return the layers that can be intervened on, by their place: those not replaced or stopped already."""
    named = list(model.named_modules())
    taken = tuple(f"{name}." for name, each in named if isinstance(each, ReplacedMap | StoppedGradient))
    return {
        name: each
        for name, each in named
        if isinstance(each, DifferentialAttention) and not name.startswith(taken)
    }


def _layers(model: nn.Module) -> dict[str, DifferentialAttention]:
    if not (found := differential_layers(model)):
        raise UserError(
            f"{type(model).__name__}: expected a model with differential attention of this package, "
            "not intervened on yet"
        )
    return found


def _taken_apart(
    attention: DifferentialAttention, x: Tensor, mask: Tensor | None
) -> tuple[AttentionMaps, Tensor]:
    """Return both maps with λ, and the values."""
    (q1, q2), (k1, k2), values = attention.parts(attention.qkv(x))
    lam = lambda_at(attention.lam, x)
    return AttentionMaps(softmax_maps(q1, k1, mask), softmax_maps(q2, k2, mask), lam), values


def _attended(attention: DifferentialAttention, maps: AttentionMaps, values: Tensor) -> Tensor:
    return attention.finish(maps.combined.to(values.dtype) @ values)
