"""Differential attention in plain Python numbers, one query and one key at a time: the slow, obvious twin.

Attention itself uses no torch arithmetic: tensors are only read into nested lists and made from them.
"""

import math

import torch
from torch import Tensor


def attention_row(query: list[float], keys: list[list[float]], bias: list[float]) -> list[float]:
    """The weights of one query: softmax over keys of query·key/√width + bias, zeros if none is allowed."""
    scores = [
        sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) + extra
        for key, extra in zip(keys, bias, strict=True)
    ]
    if all(score == -math.inf for score in scores):
        return [0.0] * len(keys)
    exponentials = [math.exp(score - max(scores)) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def differential_attention(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """(A1 − λ·A2)·V for tensors (batch, heads, tokens, width) and an additive or boolean mask."""
    batch, heads, queries, _ = q1.shape
    keys, value_width = v.shape[2:]
    bias = _additive(mask).expand(batch, heads, queries, keys).tolist()
    lambdas = torch.as_tensor(lam, dtype=torch.float64).expand(heads).tolist()
    q1, k1, q2, k2, v = (tensor.tolist() for tensor in (q1, k1, q2, k2, v))  # pyright: ignore[reportAssignmentType]
    out = torch.zeros(batch, heads, queries, value_width, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                positive = attention_row(q1[b][h][i], k1[b][h], bias[b][h][i])
                negative = attention_row(q2[b][h][i], k2[b][h], bias[b][h][i])
                for e in range(value_width):
                    out[b, h, i, e] = sum((positive[j] - lambdas[h] * negative[j]) * v[b][h][j][e] for j in range(keys))
    return out


def differential_layer(
    x: Tensor,
    weights: dict[str, Tensor],
    lam: float | Tensor,
    *,
    num_heads: int,
    scale: float,
    mask: Tensor | None = None,
) -> Tensor:
    """The whole layer by the released code's layout, head by head: ``num_heads`` is the standard twin's.

    Rows of the q and k projections belong to heads of width d in the order A1 of head 0, A2 of head 0,
    A1 of head 1, …; rows of the v projection to heads of width 2d. A weight ``norm.weight`` means that
    each head's output passes an RMSNorm with ε = 1e-5.
    """
    dim = x.shape[-1]
    width = dim // num_heads
    rows = {name: range(start * dim, (start + 1) * dim) for start, name in enumerate("qkv")}
    columns = []
    for head in range(num_heads // 2):
        one, two = ([(2 * head + branch) * width + d for d in range(width)] for branch in (0, 1))
        parts = [
            _project(x, weights, [rows[name][d] for d in slots])
            for name, slots in (("q", one), ("k", one), ("q", two), ("k", two), ("v", one + two))
        ]
        head_lam = lam if isinstance(lam, float) or lam.ndim == 0 else lam[head]
        tokens = differential_attention(*(part[:, None] for part in parts), head_lam, mask)[:, 0]
        if "norm.weight" in weights:
            tokens = tokens / (tokens.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights["norm.weight"]
        columns.append(tokens * scale)
    return torch.cat(columns, -1) @ weights["proj.weight"].T + weights["proj.bias"]


def _project(x: Tensor, weights: dict[str, Tensor], rows: list[int]) -> Tensor:
    return x @ weights["qkv.weight"][rows].T + weights["qkv.bias"][rows]


def _additive(mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.zeros(1, dtype=torch.float64)
    if mask.dtype != torch.bool:
        return mask.double()
    return torch.where(mask, 0.0, -math.inf).double()
