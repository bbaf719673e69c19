"""The pre-norm residual block of image and text towers, with an exchangeable attention module."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeGuard

from jaxtyping import Float
from pydantic import AfterValidator, Field, PositiveFloat
from pydantic_core import PydanticCustomError
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import checkpoint

from antiphase.arguments import Fields
from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.lambdas import constant, depth_scheduled
from antiphase.attention.modes import is_outputs_only
from antiphase.attention.modules import NormedAttention
from antiphase.errors import UserError
from antiphase.registry import ATTENTION, LAMBDAS, VITS, find

AttentionFactory = Callable[[int], nn.Module]


class QuickGELU(nn.Module):
    """Compute x·σ(1.702·x), the activation of CLIP's text tower."""

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return x * (1.702 * x).sigmoid()


class Mlp(nn.Module):
    """Apply linear, activation, linear; with timm's parameter names."""

    def __init__(self, dim: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = activation
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm1(x)), then x + mlp(norm2(x)).

    Args:
        dim: token width.
        attention: maps (tokens, mask) to tokens.
        mlp_ratio: hidden width of the MLP divided by ``dim``.
        activation: activation of the MLP.
        eps: ε of the layer norms.
    """

    def __init__(
        self, dim: int, attention: nn.Module, mlp_ratio: float, activation: nn.Module, eps: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), activation)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens after the block; ``mask`` as in ``differential_attention``."""
        # pass the mask only if there is one, so that any one-argument module can be used as attention
        x = x + (self.attn(self.norm1(x)) if mask is None else self.attn(self.norm1(x), mask))
        return x + self.mlp(self.norm2(x))

    def first_token(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch 1 dim"]:
        """Return the first token after the block, without computing the others' outputs."""
        normed = self.norm1(x)
        # only our own attention modules take `queries`
        known = _as_written(self.attn, SoftmaxAttention, DifferentialAttention)
        known = known and _as_written(self.attn.proj, nn.Linear)
        x = x[:, :1] + (self.attn(normed, queries=1) if known else self.attn(normed)[:, :1])
        return x + self.mlp(self.norm2(x))


def run_blocks(
    blocks: Iterable[nn.Module],
    x: Float[Tensor, "batch tokens dim"],
    mask: Tensor | None = None,
    *,
    checkpointing: bool = False,
) -> Float[Tensor, "batch tokens dim"]:
    """Return the tokens after all blocks.

    Args:
        blocks: blocks, applied in order.
        x: tokens.
        mask: as in ``differential_attention``.
        checkpointing: store only the input of each block and recompute the rest in the backward pass.
    """
    for block in blocks:
        given = (x,) if mask is None else (x, mask)
        # blocks draw no random numbers, so no generator state is preserved
        x = (
            checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False)
            if checkpointing
            else block(*given)
        )
    return x


def first_token(
    blocks: Iterable[nn.Module], x: Float[Tensor, "batch tokens dim"], *, checkpointing: bool = False
) -> Float[Tensor, "batch dim"]:
    """Return the first token after all blocks; within ``outputs_only`` the last block computes that token alone.

    Args:
        blocks: blocks, applied in order.
        x: tokens.
        checkpointing: as in :func:`run_blocks`.
    """
    blocks = list(blocks)
    if not (is_outputs_only() and blocks and _can_be_cut(last := blocks[-1])):
        return run_blocks(blocks, x, checkpointing=checkpointing)[:, 0]
    x = run_blocks(blocks[:-1], x, checkpointing=checkpointing)
    if checkpointing:
        x = checkpoint(last.first_token, x, use_reentrant=False, preserve_rng_state=False)
    else:
        x = last.first_token(x)
    return x[:, 0]


def _can_be_cut(block: nn.Module) -> TypeGuard[Block]:
    """Return whether ``first_token`` is valid: an unmodified Block, token-wise but for its attention, without hooks."""
    return (
        isinstance(block, Block)
        and _as_written(block, Block)
        and all(_as_written(part, *_BY_TOKEN) for part in (block.norm2, *block.mlp.modules()))
        and not any(getattr(module_hooks, f"_global{name}") for name in _HOOKS)
        and not any(getattr(part, name) for part in block.modules() for name in _HOOKS)
    )


def _as_written(module: object, *types: type[nn.Module]) -> bool:
    """Return whether a module is exactly of one of these types, with an unpatched ``forward``."""
    kind: Any = type(module)
    return kind in types and kind.forward is _WRITTEN[kind] and "forward" not in vars(module)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BY_TOKEN: tuple[type[nn.Module], ...] = (nn.LayerNorm, nn.Linear, nn.GELU, QuickGELU, Mlp)
_WRITTEN = {kind: kind.forward for kind in (*_BY_TOKEN, Block, SoftmaxAttention, DifferentialAttention)}


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
            weights, see :func:`antiphase.models.vit.draw_own`.
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
