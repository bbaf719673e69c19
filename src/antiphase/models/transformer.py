"""The pre-norm residual block of image and text towers, with an exchangeable attention module."""

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
