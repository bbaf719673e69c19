"""Weights of a differential attention layer in other projects' layouts, to and from ours.

A layout is data: the names of the parameters, and which head of theirs each head of ours is. A parameter of ours is
theirs at some rows; if several heads of ours are one of theirs, writing checks that they are equal.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from antiphase.arguments import validated
from antiphase.attention.modules import DifferentialAttention
from antiphase.errors import UserError

State = dict[str, Tensor]
Heads = tuple[Sequence[int], Sequence[int], Sequence[int]]  # queries, keys, values: theirs for each of ours


@dataclass(frozen=True)
class WeightLayout:
    """How a project stores the weights of a layer."""

    source: str
    names: Mapping[str, str]  # ours: theirs
    projections: Sequence[str] = ("q_proj", "k_proj", "v_proj")  # or one, of all three
    constant: Sequence[str] = ()  # parameters of ours that it does not have, which are 1
    numbers: Sequence[str] = ()  # of theirs that are one for all heads
    halves: bool = False  # whether their branches are halves of the heads, which share keys and values; else as ours


def _halves(queries: int, keys: int) -> Heads:
    half, group = queries // 2, queries // keys
    pairs = [head + branch * half for head in range(half) for branch in (0, 1)]
    values = [head // group + part * keys // 2 for head in range(half) for part in (0, 1)]
    return pairs, [head // group for head in pairs], values


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LAYOUTS = {name: WeightLayout(**fields) for name, fields in _TABLES.items()}
Place = tuple[str, slice, str, Tensor | None]


def _places(layout: str, module: DifferentialAttention, kv_heads: int) -> Iterator[Place]:
    if layout not in LAYOUTS:
        raise UserError(f"layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    form, width, sizes = LAYOUTS[layout], module.layout.width, module.layout.rows
    queries = sizes[0] // width
    if form.halves and module.variant != "v1":
        raise UserError(f"layout {layout}: holds no {module.variant}; expected a layer of variant v1")
    if form.halves and (kv_heads < 1 or queries % kv_heads):
        raise UserError(f"layout {layout}: {kv_heads} heads of keys: expected a divisor of {queries}, those of queries")
    heads = _halves(queries, kv_heads) if form.halves else None
    for name in (name for name in module.state_dict() if name not in form.constant):
        prefix, _, kind = name.rpartition(".")
        if prefix != "qkv" or len(form.projections) == 1:
            yield name, slice(None), form.names.get(name) or f"{form.names.get(prefix, prefix)}.{kind}", None
            continue
        for index, (projection, size) in enumerate(zip(form.projections, sizes, strict=True)):
            rows = torch.arange(size)
            if heads is not None:
                rows = (torch.tensor(heads[index])[:, None] * width + torch.arange(width)).flatten()
            yield name, slice(sum(sizes[:index]), sum(sizes[: index + 1])), f"{projection}.{kind}", rows


@validated
def from_layout(state: Mapping[str, Tensor], layout: str, module: DifferentialAttention) -> State:
    """Return a layer's weights, stored as a project does, as a state dict of ``module``, which says what they are for.

    ``layout`` is ``"microsoft-v2"``, ``"microsoft"`` (V1), ``"diffllama"`` or ``"timm"``. Keys and values that
    DiffLlama's heads share are repeated. A UserError names a parameter that is missing or does not fit.
    """
    weights = {name: torch.ones_like(one) for name, one in module.state_dict().items()}
    keys = len(state.get("k_proj.weight", range(module.layout.rows[0]))) // module.layout.width
    left = dict(state)
    for name, span, other, rows in _places(layout, module, keys):
        stored, place = left.pop(other, None), weights[name][span]
        if stored is None:
            source = LAYOUTS[layout].source
            raise UserError(f"layout {layout}: parameter {other!r} is missing; expected those of {source}")
        fits = stored.ndim == 0 or stored.shape == place.shape
        if rows is not None:
            fits = stored.shape[1:] == place.shape[1:] and len(stored) == int(rows.max()) + 1
        if not fits:
            shape = tuple(stored.shape)
            raise UserError(f"layout {layout}: {other} of shape {shape} does not fit this {module.variant}")
        weights[name][span] = stored if rows is None else stored[rows]
    if left:
        raise UserError(f"layout {layout}: {', '.join(left)}: not in this {module.variant}")
    return weights


@validated
def to_layout(module: DifferentialAttention, layout: str, *, kv_heads: int | None = None) -> State:
    """Return a layer's weights as a project stores them; the inverse of :func:`from_layout`.

    ``kv_heads``: DiffLlama's heads of keys; by default as many as of queries. Weights that do not fit are refused.
    """
    if module.temperature != 1.0 or module.lambda_max is not None:
        has = f"temperature {module.temperature:g}, lambda_max {module.lambda_max}"
        raise UserError(f"layout {layout}: cannot hold {has}; expected temperature 1 and no lambda_max")
    state, stored = module.state_dict(), State()
    keys = module.layout.rows[0] // module.layout.width if kv_heads is None else kv_heads
    for name, span, other, rows in _places(layout, module, keys):
        part = state[name][span]
        if rows is not None:
            stored[other] = part.new_zeros(int(rows.max()) + 1, *part.shape[1:])
            stored[other][rows] = part
        else:
            stored[other] = part[0] if other in LAYOUTS[layout].numbers else part.clone()
    again = from_layout(stored, layout, module)
    if wrong := [name for name in state if not torch.equal(again[name], state[name])]:
        raise UserError(f"layout {layout}: cannot hold {', '.join(wrong)}, of which it shares some")
    return stored
