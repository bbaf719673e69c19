"""Variants of differential attention from their equations, head by head, with every map formed: slow and obvious.

Each takes tokens (batch, tokens, dim), named matrices as ``nn.Linear`` stores them, and numbers of heads.
"""

import torch
from torch import Tensor


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def head(x: Tensor, matrix: Tensor, number: int, width: int, bias: Tensor | None = None) -> Tensor:
    """Return one head's rows of a projection."""
    rows = slice(number * width, (number + 1) * width)
    return x @ matrix[rows].T + (0 if bias is None else bias[rows])


def attention(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


def v2(x: Tensor, w: dict[str, Tensor], h: int, h_kv: int, mask: Tensor | None = None) -> Tensor:
    """microsoft/unilm, multihead_flashdiffv2.py: y_i = o[2i] − σ(x·W_λ)_i·o[2i + 1]; 2h/h_kv queries share keys."""
    width = x.shape[-1] // h
    outs = []
    for query in range(2 * h):
        shared = query // (2 * h // h_kv)
        q, k, v = (head(x, w["q"], query, width), head(x, w["k"], shared, width), head(x, w["v"], shared, width))
        outs.append(attention(q, k, mask) @ v)
    lam = torch.sigmoid(x @ w["lam"].T)
    heads = [outs[2 * i] - lam[..., i, None] * outs[2 * i + 1] for i in range(h)]
    return torch.cat(heads, -1) @ w["o"].T


def grouped(
    x: Tensor,
    w: dict[str, Tensor],
    h: int,
    ratio: int,
    h_kv: int,
    lam: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Grouped differential attention: head s subtracts λ times map s // ratio of h / ratio; λ is (), or (…, h).

    Rows of q: h heads of A1, then those of A2; of k: h_kv heads of A1, then those of A2. ``norm`` in the matrices:
    V1's norm and factor; ``gate``: an output gate.
    """
    width = x.shape[-1] // h
    outs = []
    for s in range(h):
        noise, key = s // ratio, s // (h // h_kv)
        one = attention(head(x, w["q"], s, width, w.get("q_bias")), head(x, w["k"], key, width, w.get("k_bias")), mask)
        two = attention(
            head(x, w["q"], h + noise, width, w.get("q_bias")),
            head(x, w["k"], h_kv + noise, width, w.get("k_bias")),
            mask,
        )
        weight = lam if lam.ndim == 0 else lam[..., s, None]
        out = (one - weight * two) @ head(x, w["v"], key, width, w.get("v_bias"))
        outs.append(scale * rms(out, w["norm"]) if "norm" in w else out)
    merged = torch.cat(outs, -1)
    if "gate" in w:
        merged = merged * torch.sigmoid(x @ w["gate"].T)
    return merged @ w["o"].T + w.get("o_bias", 0)


def dint(x: Tensor, w: dict[str, Tensor], h: int, lam: Tensor, mask: Tensor | None = None) -> Tensor:
    """arXiv 2501.17486: A1 − λ·A2 + λ·(mean of A1 over the queries), with V1's pairs and norm.

    With a causal mask the mean is over the queries up to each.
    """
    width = x.shape[-1] // h
    outs = []
    for i in range(h // 2):
        one, two = (
            attention(
                head(x, w["q"], 2 * i + branch, width, w["q_bias"]),
                head(x, w["k"], 2 * i + branch, width, w["k_bias"]),
                mask,
            )
            for branch in (0, 1)
        )
        if mask is None:
            mean = one.mean(1, keepdim=True).expand_as(one)
        else:
            mean = torch.stack([one[:, : row + 1].mean(1) for row in range(one.shape[1])], 1)
        combined = one - lam * two + lam * mean
        torch.testing.assert_close(combined.sum(-1), torch.ones_like(combined[..., 0]))
        outs.append(rms(combined @ head(x, w["v"], i, 2 * width, w["v_bias"]), w["norm"]))
    return torch.cat(outs, -1) @ w["o"].T + w["o_bias"]
