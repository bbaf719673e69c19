"""The transformers' block, with attention as a slot, and what a tower is told: its sizes and what attends in it."""

import os
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard

import torch
from jaxtyping import Float, Int64
from pydantic import AfterValidator, Field, PositiveFloat, model_validator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import checkpoint

from antiphase.arguments import Fields
from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.modes import is_outputs_only
from antiphase.attention.modules import NormedAttention, Tokens
from antiphase.errors import UserError
from antiphase.registry import ATTENTION, LAMBDAS, SCHEDULES, VARIANTS, VITS, find

AttentionFactory = Callable[[int], nn.Module]  # from the index of a layer
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]


class QuickGELU(nn.Module):
    """Compute x·σ(1.702·x), the activation of CLIP's text tower."""

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return x * (1.702 * x).sigmoid()


ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "quick_gelu": QuickGELU}
Activation = Literal["gelu", "quick_gelu"]


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
    """Pre-norm residual block: x + attention(norm1(x)), then x + mlp(norm2(x))."""

    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float, activation: nn.Module, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), activation)

    def forward(self, x: Tokens, mask: Tensor | None = None) -> Tokens:
        # pass the mask only if there is one, so that any one-argument module can be used as attention
        x = x + (self.attn(self.norm1(x)) if mask is None else self.attn(self.norm1(x), mask))
        return x + self.mlp(self.norm2(x))

    def first_token(self, x: Tokens) -> Float[Tensor, "batch 1 dim"]:
        normed = self.norm1(x)
        # only our own attention modules take `queries`
        ours = _as_written(self.attn, SoftmaxAttention, DifferentialAttention)
        ours = ours and _as_written(self.attn.proj, nn.Linear)
        x = x[:, :1] + (self.attn(normed, queries=1) if ours else self.attn(normed)[:, :1])
        return x + self.mlp(self.norm2(x))


def run_blocks(
    blocks: Iterable[Callable[..., Tokens]], x: Tokens, mask: Tensor | None = None, *, checkpointing: bool = False
) -> Tokens:
    """Return the tokens after all blocks; ``checkpointing`` keeps each block's input alone for the backward pass."""
    # blocks draw no random numbers, so no generator state is preserved
    again: Any = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for block in blocks:
        inputs = (x,) if mask is None else (x, mask)
        x = again(block, *inputs) if checkpointing else block(*inputs)
    return x


def first_token(blocks: Iterable[nn.Module], x: Tokens, *, checkpointing: bool = False) -> Float[Tensor, "batch dim"]:
    """Return the first token after all blocks; within ``outputs_only`` the last block computes that token alone."""
    *others, last = blocks
    end = last.first_token if is_outputs_only() and _can_be_cut(last) else last
    return run_blocks([*others, end], x, checkpointing=checkpointing)[:, 0]


def _can_be_cut(block: nn.Module) -> TypeGuard[Block]:
    """Return whether ``first_token`` is valid: an unmodified Block, token-wise but for its attention, without hooks."""
    return (
        _as_written(block, Block)
        and all(_as_written(part, *_BY_TOKEN) for part in (block.norm2, *block.mlp.modules()))  # pyright: ignore
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


def _registered(table: Mapping[str, Any]) -> AfterValidator:
    def check(name: str) -> str:
        if name in table:
            return name
        raise PydanticCustomError("registered", f"expected one of {', '.join(table)}")  # type: ignore[arg-type]

    return AfterValidator(check)


ScheduleName = Annotated[str, _registered(SCHEDULES)]
PRESETS_OF: Any = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))


class TowerConfig(Fields):
    """Sizes and attention of a tower; a variant's description has the settings that are not given.

    ``num_heads`` counts the heads of the standard twin. The fields from ``lambda_init`` to ``output_gate`` are those of
    :class:`~antiphase.attention.DifferentialAttention`; ``normed`` attention has its factor 1 − λ_init.
    """

    attention: Annotated[str, _registered(ChainMap(ATTENTION, VARIANTS))]
    dim: Size
    depth: Annotated[int, Field(ge=1, le=10_000)]
    num_heads: Size
    mlp_ratio: PositiveFloat = 4.0
    lambda_init: float = 0.8
    lambda_schedule: ScheduleName = "constant"
    parameterisation: Annotated[str, _registered(LAMBDAS)] = "vector"
    head_norm: bool = True
    rescale: bool = True
    bias: bool = True
    lambda_max: float | None = None
    temperature: PositiveFloat = 1.0
    ratio: Size | None = None
    kv_heads: Size | None = None
    output_gate: bool = False
    norm_eps: PositiveFloat

    @model_validator(mode="before")
    @classmethod
    def _settings_of_the_variant(cls, data: Any) -> Any:
        name = data.get("attention") if isinstance(data, Mapping) else None
        return find(VARIANTS, name, "variant").defaults | dict(data) if name in VARIANTS else data

    @model_validator(mode="after")
    def _check_lambda(self) -> Self:
        if self.attention in ("softmax", "normed"):
            for name in ("ratio", "kv_heads", "output_gate", "lambda_max", "temperature"):
                if (value := getattr(self, name)) != type(self).model_fields[name].default:
                    raise UserError(f"{name} {value}: {self.attention} attention has none; leave it out")
            if not self.bias:
                raise UserError(f"bias False: {self.attention} attention has biases; leave it out")
        given = self.lambda_init != 0.8 or self.lambda_schedule != "constant"
        if self.parameterisation == "gate" and given and not self.rescale:
            fix = "expected none, as λ = σ(x·W) has no λ_init; leave it out or take another parameterisation"
            raise UserError(f"lambda_init {self.lambda_init:g}, schedule {self.lambda_schedule}: {fix}")
        return self


@dataclass(frozen=True)
class AttentionSpec:
    """A kind of attention, as registered in :data:`antiphase.registry.ATTENTION`."""

    label: str  # what reports call a vision transformer with it, such as "DiffViT"
    differential: bool  # whether it subtracts a second map weighted by λ
    make: Callable[[TowerConfig, int], nn.Module]  # from a tower and the index of a layer; see vit.draw_own

    @property
    def family(self) -> Literal["softmax", "differential"]:
        """What rows say in their column ``attention``."""
        return "differential" if self.differential else "softmax"


def _lambda_init(config: TowerConfig, layer: int) -> float:
    return find(SCHEDULES, config.lambda_schedule, "schedule of λ_init")(config.lambda_init)(layer)


def _differential(config: TowerConfig, layer: int, variant: str = "v1") -> nn.Module:
    names = "dim num_heads parameterisation head_norm rescale bias lambda_max temperature ratio kv_heads output_gate"
    options = {name: getattr(config, name) for name in names.split()}
    return DifferentialAttention(variant=variant, lambda_init=_lambda_init(config, layer), **options)


SOFTMAX = AttentionSpec("ViT", False, lambda config, layer: SoftmaxAttention(config.dim, config.num_heads))
DIFFERENTIAL = AttentionSpec("DiffViT", True, _differential)
NORMED = AttentionSpec(
    "ViT with norm and factor",
    False,
    lambda config, layer: NormedAttention(config.dim, config.num_heads, scale=1.0 - _lambda_init(config, layer)),
)


def attention_spec(name: str) -> AttentionSpec:
    """Return the registered kind of attention of a name, such as ``"differential"``, or of a variant, ``"v2"``."""
    if name in VARIANTS and name not in ATTENTION:
        return AttentionSpec(find(VARIANTS, name, "variant").label, True, partial(_differential, variant=name))
    return find(ATTENTION, name, "attention")


def attention_named(attention: str, variant: str | None) -> str:
    """Return the kind of attention of a differential model's ``variant``; ``"v1"`` is ``"differential"``."""
    if variant is None:
        return attention
    find(VARIANTS, variant, "variant")
    if attention != "differential":
        raise UserError(f"variant {variant!r}: expected none, as {attention} attention subtracts no map")
    return attention if variant == "v1" else variant


def attention_slot(config: TowerConfig) -> AttentionFactory:
    """Return the factory of a tower's attention modules."""
    spec = attention_spec(config.attention)

    def make(layer: int) -> nn.Module:
        module = spec.make(config, layer)
        vars(module)["attention_family"] = spec.family  # for attention_kind
        return module

    return make


def attention_of(model: str) -> str:
    """Return the name of the attention that a registered model such as ``"diffvit"`` has."""
    if model not in VITS:
        raise UserError(f"model {model!r}: expected {' or '.join(VITS)}")
    return VITS[model]


def check_memory(config: TowerConfig, vectors: int) -> None:
    """Refuse a tower larger than this machine's memory; ``vectors`` of the tokens' width lie outside its blocks."""
    needed = 4 * config.dim * (config.depth * config.dim * (4 + 2 * config.mlp_ratio) + vectors) / 2**30
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if needed > memory:
        sizes = ", ".join(f"{name} {value}" for name, value in config if type(value) is int)
        has = f"{needed:,.0f} GiB and this machine has {memory:,.0f} GiB of memory"
        raise UserError(f"{sizes}: the weights need {has}; choose smaller sizes")


class TextConfig(TowerConfig):
    """Architecture of a text tower."""

    vocab_size: Size = 49_408  # of OpenAI's byte-pair encoding; the last entry is end-of-text
    context_length: Size = 77
    norm_eps: PositiveFloat = 1e-5
    activation: Activation = "quick_gelu"


class TextTransformer(nn.Module):
    """Encode texts' token ids as the normalised output at the end-of-text token (CLIP, Section 2.4)."""

    def __init__(self, attention: AttentionFactory, config: TextConfig) -> None:
        super().__init__()
        dim, eps = config.dim, config.norm_eps
        self.context_length = config.context_length
        self.checkpointing = False  # recompute each block in the backward pass: slower, less memory
        self.token_embed = nn.Embedding(config.vocab_size, dim)
        self.pos_embed = nn.Parameter(torch.zeros(config.context_length, dim))
        self.blocks = nn.ModuleList(
            Block(dim, attention(layer), config.mlp_ratio, ACTIVATIONS[config.activation](), eps)
            for layer in range(config.depth)
        )
        self.norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        if (length := tokens.shape[1]) > self.context_length:
            raise ValueError(f"{length} tokens: expected at most {self.context_length}, the context length")
        x = self.token_embed(tokens) + self.pos_embed[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        x = run_blocks(self.blocks, x, mask, checkpointing=self.checkpointing)
        return self.norm(x[torch.arange(len(x), device=x.device), tokens.argmax(1)])
