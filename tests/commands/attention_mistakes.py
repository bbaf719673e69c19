"""Differential attention written by hand, right and with one mistake each; ``antiphase check`` builds them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DIM, HEADS = 24, 2


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


class V1(nn.Module):
    """Differential Transformer as Microsoft writes it; ``mistake`` names what is wrong."""

    def __init__(self, depth=0, mistake=""):
        super().__init__()
        self.mistake, self.width = mistake, DIM // HEADS // 2
        shift = 1 if mistake == "counted from 1" else 0
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * (depth + shift))
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        for name in ("q1", "k1", "q2", "k2"):
            vector = torch.zeros if mistake == "λ of zeros" else torch.randn
            value = 0.1 * vector(self.width)
            if mistake == "λ is a buffer":
                self.register_buffer(name, value)
            elif mistake == "λ in a list":
                self.__dict__[name] = value
            else:
                setattr(self, name, nn.Parameter(value, requires_grad=mistake != "λ frozen"))
        self.norm = nn.RMSNorm(2 * self.width, eps=1e-5)

    def forward(self, x):
        q, k, v = heads(self.q(x), 2 * HEADS), heads(self.k(x), 2 * HEADS), heads(self.v(x), HEADS)
        width = {"scale of the whole width": DIM, "scale of both branches": 2 * self.width, "no scale": 1}
        q = q * width.get(self.mistake, self.width) ** -0.5
        if self.mistake == "scale is 1/d":
            q = q * self.width**-0.5
        maps = (q @ k.mT).softmax(-1).unflatten(1, (HEADS, 2))
        lam = (self.q1 * self.k1).sum().exp() - (self.q2 * self.k2).sum().exp() + self.lambda_init
        lam = lam.detach() if self.mistake == "λ detached" else lam
        out = (maps[:, :, 0] - lam * maps[:, :, 1]) @ v
        if self.mistake == "factor before the norm":
            return self.o(merge(self.norm(out * (1 - self.lambda_init))))
        out = self.norm(out)
        if self.mistake == "factor is λ_init":
            return self.o(merge(out * self.lambda_init))
        return self.o(merge(out if self.mistake == "no factor" else out * (1 - self.lambda_init)))


class V2(nn.Module):
    """Diff Transformer V2, in the forms in which people write it."""

    def __init__(self, mistake="", fused=False, kv_heads=HEADS):
        super().__init__()
        self.mistake, self.fused, self.kv_heads, width = mistake, fused, kv_heads, DIM // HEADS
        self.q, self.lam = nn.Linear(DIM, 2 * DIM, bias=False), nn.Linear(DIM, HEADS, bias=False)
        self.k, self.v = (nn.Linear(DIM, kv_heads * width, bias=False) for _ in range(2))
        self.o, self.norm = nn.Linear(DIM, DIM, bias=False), nn.RMSNorm(width)

    def forward(self, x):
        q, k, v = heads(self.q(x), 2 * HEADS), heads(self.k(x), self.kv_heads), heads(self.v(x), self.kv_heads)
        if self.fused:
            scale = 1 / DIM**0.5 if self.mistake == "scale" else None
            out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=scale)
        else:
            k, v = (part.repeat_interleave(2 * HEADS // self.kv_heads, 1) for part in (k, v))
            out = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        lam = torch.sigmoid(self.lam(x)).mT[..., None]
        if self.mistake == "λ detached":
            lam = lam.detach()
        one, two = out.chunk(2, 1) if self.mistake == "halves" else (out[:, 0::2], out[:, 1::2])
        out = one - lam * two
        return self.o(merge(self.norm(out) if self.mistake == "norm" else out))


class Softmax(nn.Module):
    """Standard attention."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = (heads(part, HEADS) for part in self.qkv(x).chunk(3, -1))
        return self.o(merge(F.scaled_dot_product_attention(q, k, v)))
