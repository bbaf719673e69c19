"""Variants of differential attention, each described as data; one module computes them all.

A variant says how the maps are laid out, where λ comes from, what is combined and what follows. docs/variants.md has
the equations and who uses what. Adding one is a :class:`Variant` and a line in :data:`antiphase.registry.VARIANTS`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from antiphase.errors import UserError

MOST_SIGNAL_HEADS = 4  # of a noise head, if the ratio is not given: Motif-2's 32 to 8


@dataclass(frozen=True)
class Variant:
    """A variant of differential attention over a twin's h heads of width d."""

    label: str  # what reports call a vision transformer with it
    # "halved": h/2 heads, pairs of the twin's, whose values are 2d wide and whose two maps have their own keys;
    # "shared": h heads, whose two maps read the same keys; "grouped": h heads, of which ``ratio`` share one A2
    heads: Literal["halved", "shared", "grouped"]
    parameterisation: str  # of λ, a name in registry.LAMBDAS
    # A1 − λ·A2; A1 − λ·A2 + λ·(mean of A1 over queries)
    combined: Literal["difference", "integral"] = "difference"
    head_norm: bool = True  # whether an RMSNorm follows each head
    rescale: bool = True  # whether a factor 1 − λ_init follows it
    bias: bool = True  # whether the projections have biases

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("parameterisation", "head_norm", "rescale", "bias")}


V1 = Variant("DiffViT", "halved", "vector")
V2 = Variant("DiffViT V2", "shared", "gate", head_norm=False, rescale=False, bias=False)
GROUPED = Variant("grouped DiffViT", "grouped", "vector")
GATED = Variant("gated DiffViT", "grouped", "gate", head_norm=False, rescale=False, bias=False)
DINT = Variant("DINT ViT", "halved", "vector", "integral", rescale=False)  # its rows sum to 1 already


@dataclass(frozen=True)
class Layout:
    """Numbers and widths of a layer's heads; the projection's rows are queries, then keys, then values."""

    signal: int  # maps A1, and heads of the output
    noise: int  # maps A2; 0 for standard attention
    keys: int  # heads of values, and of the keys that A1 reads
    width: int  # of queries and keys
    values: int  # width of a head's values
    paired: bool = False  # whether map 2i is A1 of head i and map 2i + 1 its A2; else all of A1 come first
    shared: bool = False  # whether A2 reads the keys of A1

    @property
    def rows(self) -> tuple[int, int, int]:
        keys = self.keys + (0 if self.shared else self.noise)
        return (self.signal + self.noise) * self.width, keys * self.width, self.keys * self.values


def layout_of(variant: Variant, dim: int, num_heads: int, ratio: int | None, kv_heads: int | None) -> Layout:
    """Return the layout of a layer whose standard twin has ``num_heads`` heads; refuse what does not fit."""
    halved, grouped = variant.heads == "halved", variant.heads == "grouped"
    if halved and (num_heads < 2 or num_heads % 2):
        reason = "which is even (two of its heads make one differential head)"
        raise UserError(f"num_heads {num_heads}: expected the standard twin's head count, {reason}")
    if num_heads < 1 or dim % num_heads:
        raise UserError(f"dim {dim} cannot be divided among {num_heads} heads")
    if ratio is not None and not grouped:
        raise UserError(f"ratio {ratio}: a {variant.label} has one A2 for each A1; leave it out")
    if kv_heads is not None and halved:
        raise UserError(f"kv_heads {kv_heads}: each map of a {variant.label} has keys of its own; leave it out")
    width = dim // num_heads
    if halved:
        return Layout(num_heads // 2, num_heads // 2, num_heads // 2, width, 2 * width, paired=True)
    divisors = [number for number in range(1, num_heads + 1) if num_heads % number == 0]
    ratio = max(one for one in divisors if one <= MOST_SIGNAL_HEADS) if ratio is None else ratio
    keys = num_heads if kv_heads is None else kv_heads
    for name, value in (("ratio", ratio), ("kv_heads", keys)):
        if value not in divisors:
            among = f"a divisor of num_heads {num_heads}: {', '.join(map(str, divisors))}"
            raise UserError(f"{name} {value}: expected {among}")
    noise = num_heads // ratio if grouped else num_heads
    if max(keys, noise) % min(keys, noise):
        raise UserError(f"kv_heads {keys}: expected a multiple or a divisor of {noise}, the maps A2")
    return Layout(num_heads, noise, keys, width, width, paired=not grouped, shared=not grouped)
