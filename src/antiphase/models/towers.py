"""What every transformer tower is told: its sizes and what attends in it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat
from pydantic_core import PydanticCustomError
from torch import nn

from antiphase.arguments import Fields
from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.lambdas import constant, depth_scheduled
from antiphase.attention.normed import NormedAttention
from antiphase.errors import UserError
from antiphase.models.transformer import AttentionFactory
from antiphase.registry import ATTENTION, LAMBDAS, VITS, find

ScheduleName = Literal["constant", "depth"]
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]


def _registered(table: Mapping[str, Any]) -> AfterValidator:
    """Return the validator of a name in a registry's table."""

    def check(name: str) -> str:
        if name not in table:
            raise PydanticCustomError("registered", f"expected one of {', '.join(table)}")  # type: ignore[arg-type]
        return name

    return AfterValidator(check)


class TowerConfig(Fields):
    """Sizes and attention of a tower.

    ``num_heads`` counts the heads of the standard twin; a differential tower has half as many differential
    heads. ``attention`` and ``parameterisation`` are names in :mod:`antiphase.registry`. The fields from
    ``lambda_init`` to ``rescale`` are for differential attention; ``normed`` attention has its factor 1 − λ_init.
    """

    attention: Annotated[str, _registered(ATTENTION)]
    dim: Size
    depth: Annotated[int, Field(ge=1, le=10_000)]
    num_heads: Size
    mlp_ratio: PositiveFloat = 4.0
    lambda_init: float = 0.8
    lambda_schedule: ScheduleName = "constant"
    parameterisation: Annotated[str, _registered(LAMBDAS)] = "vector"
    head_norm: bool = True
    rescale: bool = True
    norm_eps: PositiveFloat


@dataclass(frozen=True)
class AttentionSpec:
    """A kind of attention, as registered in :data:`antiphase.registry.ATTENTION`.

    Attributes:
        label: what reports call a vision transformer with it, such as ``"DiffViT"``.
        differential: whether it subtracts a second map weighted by λ.
        make: returns the attention module of a tower's layer, counted from 0. Modules may draw their own initial
            weights, see :func:`antiphase.models.initial.draw_own`.
    """

    label: str
    differential: bool
    make: Callable[[TowerConfig, int], nn.Module]

    @property
    def family(self) -> Literal["softmax", "differential"]:
        """What rows say in their column ``attention``."""
        return "differential" if self.differential else "softmax"


def _softmax(config: TowerConfig, layer: int) -> nn.Module:
    return SoftmaxAttention(config.dim, config.num_heads)


def _differential(config: TowerConfig, layer: int) -> nn.Module:
    return DifferentialAttention(
        config.dim,
        config.num_heads,
        lambda_init=initial_lambda(config, layer),
        parameterisation=config.parameterisation,
        head_norm=config.head_norm,
        rescale=config.rescale,
    )


def _normed(config: TowerConfig, layer: int) -> nn.Module:
    return NormedAttention(config.dim, config.num_heads, scale=1.0 - initial_lambda(config, layer))


SOFTMAX = AttentionSpec("ViT", differential=False, make=_softmax)
DIFFERENTIAL = AttentionSpec("DiffViT", differential=True, make=_differential)
NORMED = AttentionSpec("ViT with norm and factor", differential=False, make=_normed)


def initial_lambda(config: TowerConfig, layer: int) -> float:
    """Return λ_init of a layer, counted from 0."""
    schedule = depth_scheduled if config.lambda_schedule == "depth" else constant(config.lambda_init)
    return schedule(layer)


def check_memory(config: TowerConfig, vectors: int) -> None:
    """Refuse a tower whose weights are larger than this machine's memory, before any is allocated.

    Args:
        config: the tower's.
        vectors: how many vectors of the tokens' width it has outside its blocks.

    Raises:
        UserError: naming its sizes.
    """
    needed = 4 * config.dim * (config.depth * config.dim * (4 + 2 * config.mlp_ratio) + vectors) / 2**30
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if needed > memory:
        sizes = ", ".join(f"{name} {value}" for name, value in config if type(value) is int)
        raise UserError(
            f"{sizes}: the weights need {needed:,.0f} GiB and this machine has {memory:,.0f} GiB of memory; choose "
            "smaller sizes"
        )


def attention_slot(config: TowerConfig) -> AttentionFactory:
    """Return the factory of a tower's attention modules, by the index of the layer."""
    spec = attention_spec(config.attention)
    return lambda layer: spec.make(config, layer)


def attention_spec(name: str) -> AttentionSpec:
    """Return the registered kind of attention of a name, such as ``"differential"``."""
    return find(ATTENTION, name, "attention")


def attention_of(model: str) -> str:
    """Return the name of the attention that a model such as ``"diffvit"`` has.

    Raises:
        UserError: for a model that is not registered.
    """
    if model not in VITS:
        raise UserError(f"model {model!r}: expected {' or '.join(VITS)}")
    return VITS[model]
