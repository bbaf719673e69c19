"""Weights of a differential attention layer in other projects' layouts, to and from ours.

A layout is data: the names of the parameters, and which head of theirs each head of ours is. A parameter of ours is
theirs at some rows; if several heads of ours are one of theirs, writing checks that they are equal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphase.arguments import validated
from antiphase.attention.modules import DifferentialAttention
from antiphase.errors import UserError

State = dict[str, Tensor]
Heads = tuple[
    Sequence[int], Sequence[int], Sequence[int]
]  # of theirs, for each of ours: queries, keys, values

_VECTORS = {f"lam.{name}": f"lambda_{name}" for name in ("q1", "k1", "q2", "k2")}


@dataclass(frozen=True)
class WeightLayout:
    """How a project stores the weights of a layer."""

    source: str
    names: Mapping[str, str]  # ours: theirs
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")  # or one, of all three
    constant: tuple[str, ...] = ()  # parameters of ours that it does not have, which are 1
    # from numbers of their query and key heads; None: as ours
    heads: Callable[[int, int], Heads] | None = None


def _halves(queries: int, keys: int) -> Heads:
    """Branches are the halves of the heads, and both halves of a value are heads."""
    half, group = queries // 2, queries // keys
    pairs = [head + branch * half for head in range(half) for branch in (0, 1)]
    values = [head // group + part * keys // 2 for head in range(half) for part in (0, 1)]
    return pairs, [head // group for head in pairs], values


LAYOUTS = {
    "microsoft-v2": WeightLayout(
        "microsoft/unilm, Diff-Transformer-V2/multihead_flashdiffv2.py",
        {"proj": "o_proj", "lam.gate.weight": "lambda_proj.weight"},
    ),
    "microsoft": WeightLayout(
        "microsoft/unilm, Diff-Transformer/multihead_diffattn.py",
        {"proj": "out_proj", "norm.weight": "subln.weight", **_VECTORS},
    ),
    "diffllama": WeightLayout(
        "transformers, DiffLlamaAttention",
        {"proj": "o_proj", **_VECTORS},
        constant=("norm.weight",),
        heads=_halves,
    ),
    "timm": WeightLayout(
        "timm, DiffAttention",
        {
            "proj": "proj",
            "norm.weight": "sub_norm.weight",
            "lam.a": "lambda_a",
            "lam.b": "lambda_b",
            **_VECTORS,
        },
        projections=("qkv",),
    ),
}


def _layout(name: str) -> WeightLayout:
    if name not in LAYOUTS:
        raise UserError(f"layout {name!r}: expected one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def _renamed(layout: WeightLayout, name: str) -> str:
    """Return their name of a parameter of ours that is no projection to queries, keys and values."""
    module, _, kind = name.rpartition(".")
    return layout.names.get(name) or f"{layout.names.get(module, module)}.{kind}"


def _rows(layout: WeightLayout, module: DifferentialAttention, kv_heads: int) -> list[Tensor]:
    """Return which row of their projections each row of ours is."""
    width, sizes = module.layout.width, module.layout.rows
    if layout.heads is None:
        return [torch.arange(size) for size in sizes]
    heads = layout.heads(sizes[0] // width, kv_heads)
    return [(torch.tensor(list(one))[:, None] * width + torch.arange(width)).flatten() for one in heads]


@validated
def from_layout(state: Mapping[str, Tensor], layout: str, module: DifferentialAttention) -> State:
    """Return a layer's weights, stored as a project does, as a state dict of ``module``, which says what they are for.

    ``layout`` is ``"microsoft-v2"``, ``"microsoft"`` (V1), ``"diffllama"`` or ``"timm"``. Keys and values that
    DiffLlama's heads share are repeated. A UserError names a parameter that is missing or does not fit.
    """
    form, ours = _layout(layout), module.state_dict()
    left, mine = dict(state), State()

    def taken(name: str) -> Tensor:
        if name not in left:
            raise UserError(
                f"layout {layout}: parameter {name!r} is missing; expected those of {form.source}"
            )
        return left.pop(name)

    for name, own in ours.items():
        if name in form.constant:
            mine[name] = torch.ones_like(own)
        elif not name.startswith("qkv."):
            stored = taken(_renamed(form, name))
            mine[name] = stored.expand_as(own).clone() if stored.ndim == 0 else stored
        else:
            parts = [taken(f"{projection}.{name[4:]}") for projection in form.projections]
            if len(parts) == 3:
                rows = _rows(form, module, len(parts[1]) // module.layout.width)
                if any(int(one.max()) >= len(part) for one, part in zip(rows, parts, strict=True)):
                    shapes = ", ".join(str(tuple(part.shape)) for part in parts)
                    raise UserError(
                        f"layout {layout}: projections of {shapes}: expected heads of this {module.variant}"
                    )
                parts = [part[one] for one, part in zip(rows, parts, strict=True)]
            mine[name] = torch.cat(parts)
        if mine[name].shape != own.shape:
            shapes = f"{tuple(mine[name].shape)}, expected {tuple(own.shape)}"
            raise UserError(f"layout {layout}: {name} has shape {shapes}")
    if left:
        raise UserError(
            f"layout {layout}: {', '.join(left)}: not in this {module.variant}; expected {form.source}"
        )
    return mine


@validated
def to_layout(module: DifferentialAttention, layout: str, *, kv_heads: int | None = None) -> State:
    """Return a layer's weights as a project stores them; the inverse of :func:`from_layout`.

    ``kv_heads``: DiffLlama's heads of keys; by default as many as of queries. A UserError refuses weights that the
    layout cannot hold.
    """
    form, theirs = _layout(layout), State()
    sizes = module.layout.rows
    keys = sizes[0] // module.layout.width if kv_heads is None else kv_heads
    for name, own in module.state_dict().items():
        if name in form.constant:
            if not bool((own == 1).all()):
                raise UserError(f"layout {layout}: {name} is not 1, and {form.source} has no such weight")
        elif not name.startswith("qkv."):
            single = layout == "timm" and name in ("lam.a", "lam.b")
            theirs[_renamed(form, name)] = own[0].clone() if single else own.clone()
        elif len(form.projections) == 1:
            theirs[name] = own.clone()
        else:
            rows = _rows(form, module, keys)
            for projection, part, of in zip(form.projections, own.split(sizes), rows, strict=True):
                held = part.new_zeros(int(of.max()) + 1, *part.shape[1:])
                held[of] = part
                theirs[f"{projection}.{name[4:]}"] = held
    again = from_layout(theirs, layout, module)
    for name, own in module.state_dict().items():
        if not torch.equal(again[name], own):
            raise UserError(f"layout {layout}: {name}: heads that share weights there differ here")
    return theirs
