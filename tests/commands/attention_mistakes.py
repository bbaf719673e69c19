"""Differential attention written by hand, right and with one mistake each."""

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

    def forward(self, x, mask=None):
        q, k, v = heads(self.q(x), 2 * HEADS), heads(self.k(x), 2 * HEADS), heads(self.v(x), HEADS)
        width = {"scale of the whole width": DIM, "scale of both branches": 2 * self.width, "no scale": 1}
        q = q * width.get(self.mistake, self.width) ** -0.5
        if self.mistake == "scale is 1/d":
            q = q * self.width**-0.5
        maps = (q @ k.mT).softmax(-1).unflatten(1, (HEADS, 2))
        lam = (self.q1 * self.k1).sum().exp() - (self.q2 * self.k2).sum().exp() + self.lambda_init
        lam = lam - self.lambda_init if self.mistake == "λ_init forgotten" else lam
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

    def forward(self, x, mask=None):
        q, k, v = (heads(self.q(x), 2 * HEADS), heads(self.k(x), self.kv_heads), heads(self.v(x), self.kv_heads))
        if self.fused:
            scale = 1 / DIM**0.5 if self.mistake == "scale" else None
            out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=scale)
        else:
            q = q * q.shape[-1] ** 0.5 / DIM**0.5 if self.mistake == "scale" else q
            k, v = (part.repeat_interleave(2 * HEADS // self.kv_heads, 1) for part in (k, v))
            out = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        lam = torch.sigmoid(self.lam(x)).mT[..., None]
        if self.mistake == "λ detached":
            lam = lam.detach()
        one, two = out.chunk(2, 1) if self.mistake == "halves" else (out[:, 0::2], out[:, 1::2])
        out = one - lam * two
        return self.o(merge(self.norm(out) if self.mistake == "norm" else out))


class WithoutNorm(nn.Module):
    """A1 − λ·A2 with one λ for each head, as the papers' formula has it: no norm and no factor."""

    def __init__(self):
        super().__init__()
        self.qk, self.v, self.o = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.lam = nn.Parameter(torch.full((HEADS, 1, 1), 0.5))

    def scaled(self, q):
        return q / math.sqrt(q.shape[-1])

    def forward(self, x, mask=None):
        q, k = (heads(part, 2 * HEADS) for part in self.qk(x).chunk(2, -1))
        maps = (self.scaled(q) @ k.mT).softmax(-1)
        return self.o(merge((maps[:, :HEADS] - self.lam * maps[:, HEADS:]) @ heads(self.v(x), HEADS)))


class Einsum(WithoutNorm):
    """The same by Einstein sums."""

    def forward(self, x, mask=None):
        q, k = (part.unflatten(-1, (2 * HEADS, -1)) for part in self.qk(x).chunk(2, -1))
        maps = torch.einsum("bihd,bjhd->bhij", self.scaled(q), k).softmax(-1)
        maps = maps[:, :HEADS] - self.lam * maps[:, HEADS:]
        return self.o(torch.einsum("bhij,bjhd->bihd", maps, self.v(x).unflatten(-1, (HEADS, -1))).flatten(2))


class Grouped(nn.Module):
    """Grouped differential attention: signal maps share a noise map; V1's λ and norm."""

    def __init__(self, ratio, groups=2, lambda_init=0.3):
        super().__init__()
        self.ratio, self.groups, self.lambda_init, width = ratio, groups, lambda_init, 4
        self.q, self.k = (nn.Linear(DIM, groups * (ratio + 1) * width) for _ in range(2))
        self.v, self.o = nn.Linear(DIM, groups * width), nn.Linear(groups * ratio * width, DIM)
        self.a, self.b = (nn.Parameter(torch.zeros(groups, 1, 1, 1)) for _ in range(2))
        self.norm = nn.RMSNorm(width)

    def forward(self, x, mask=None):
        count = self.groups * (self.ratio + 1)
        q, k, v = heads(self.q(x), count), heads(self.k(x), count), heads(self.v(x), self.groups)
        maps = (q @ k.mT / 2).softmax(-1).unflatten(1, (self.groups, -1))
        lam = self.a.exp() - self.b.exp() + self.lambda_init
        out = ((maps[:, :, :-1] - lam * maps[:, :, -1:]) @ v[:, :, None]).flatten(1, 2)
        return self.o(merge(self.norm(out) * (1 - self.lambda_init)))


class Softmax(nn.Module):
    """Standard attention."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, mask=None):
        q, k, v = (heads(part, HEADS) for part in self.qkv(x).chunk(3, -1))
        return self.o(merge(F.scaled_dot_product_attention(q, k, v)))
