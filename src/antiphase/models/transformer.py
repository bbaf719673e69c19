"""The pre-norm residual block that image and text towers are made of; what attends is a slot."""

from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import checkpoint

from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.modes import is_outputs_only

AttentionFactory = Callable[[int], nn.Module]


class QuickGELU(nn.Module):
    """x·σ(1.702 x), the activation of CLIP's text tower."""

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the activations."""
        return x * (1.702 * x).sigmoid()


class Mlp(nn.Module):
    """Linear, activation, linear; timm's parameter names."""

    def __init__(self, dim: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = activation
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the transformed tokens."""
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm1(x)), then x + mlp(norm2(x)).

    Args:
        dim: width of the tokens.
        attention: maps (tokens, mask) to tokens.
        mlp_ratio: hidden width of the MLP over ``dim``.
        activation: of the MLP.
        eps: of the layer norms.
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
        # a mask is only passed where there is one, so that any module of one argument fits the slot
        x = x + (self.attn(self.norm1(x)) if mask is None else self.attn(self.norm1(x), mask))
        return x + self.mlp(self.norm2(x))

    def first_token(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch 1 dim"]:
        """Return the first token after the block, computing no other that it does not depend on."""
        normed = self.norm1(x)
        # of another module in the slot it is not known whether it computes fewer tokens
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
        blocks: the blocks.
        x: tokens.
        mask: as in ``differential_attention``.
        checkpointing: keep only what enters each block and compute the rest again in the backward pass.
    """
    for block in blocks:
        given = (x,) if mask is None else (x, mask)
        # nothing in a block is random: there is no generator state to keep
        x = (
            checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False)
            if checkpointing
            else block(*given)
        )
    return x


def first_token(
    blocks: Iterable[nn.Module], x: Float[Tensor, "batch tokens dim"], *, checkpointing: bool = False
) -> Float[Tensor, "batch dim"]:
    """Return the first token after all blocks, within ``outputs_only`` by a cut last block; arguments as above."""
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
    """Return whether a block is what this file says, by token but for the attention, and nobody watches it."""
    return (
        isinstance(block, Block)
        and _as_written(block, Block)
        and all(_as_written(part, *_BY_TOKEN) for part in (block.norm2, *block.mlp.modules()))
        and not any(getattr(module_hooks, f"_global{name}") for name in _HOOKS)
        and not any(getattr(part, name) for part in block.modules() for name in _HOOKS)
    )


def _as_written(module: object, *types: type[nn.Module]) -> bool:
    """Return whether a module is of one of these types itself, and computes what that did at first."""
    kind: Any = type(module)
    return kind in types and kind.forward is _WRITTEN[kind] and "forward" not in vars(module)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BY_TOKEN: tuple[type[nn.Module], ...] = (nn.LayerNorm, nn.Linear, nn.GELU, QuickGELU, Mlp)
_WRITTEN = {kind: kind.forward for kind in (*_BY_TOKEN, Block, SoftmaxAttention, DifferentialAttention)}
