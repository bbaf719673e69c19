"""Variants of standard and differential attention, as people write them by hand."""

import torch
import torch.nn.functional as F
from timm.layers import Attention
from torch import nn

from tests.sensitivity.own_attention import DIM, merge
from tests.sensitivity.own_attention import heads as by_head

HEADS, WIDTH = 3, 4


def maps_of(q, k):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


class Projected(nn.Module):
    """Queries, keys and values of some heads each, and an output projection."""

    def __init__(self, queries=2 * HEADS, keys=None, values=HEADS, out=HEADS, width=WIDTH):
        super().__init__()
        self.counts = queries, keys or queries, values
        self.wq, self.wk, self.wv = (nn.Linear(DIM, count * width) for count in self.counts)
        self.wo, self.lam = nn.Linear(out * width, DIM), nn.Parameter(torch.full((HEADS,), 0.5))

    def parts(self, x):
        return [by_head(f(x), n) for f, n in zip((self.wq, self.wk, self.wv), self.counts, strict=True)]

    def pairs(self, x):
        q, k, v = self.parts(x)
        maps = maps_of(q, k)
        return maps[:, ::2], maps[:, 1::2], v


class Grouped(Projected):
    """Grouped differential attention: ``ratio`` minuends share a subtrahend and its values."""

    def __init__(self, ratio, groups=2, fused=False):
        super().__init__(groups * (ratio + 1), values=groups, out=groups * ratio)
        self.ratio, self.groups, self.fused = ratio, groups, fused
        self.lam = nn.Parameter(torch.full((groups, 1, 1, 1), 0.5))

    def forward(self, x):
        q, k, v = self.parts(x)
        if self.fused:
            o = F.scaled_dot_product_attention(q, k, v.repeat_interleave(self.ratio + 1, 1))
            o = o.unflatten(1, (self.groups, -1))
            return self.wo(merge((o[:, :, :-1] - self.lam * o[:, :, -1:]).flatten(1, 2)))
        maps = maps_of(q, k).unflatten(1, (self.groups, -1))
        return self.wo(merge(((maps[:, :, :-1] - self.lam * maps[:, :, -1:]) @ v[:, :, None]).flatten(1, 2)))


class GatedGroups(Grouped):
    """Motif-3's: groups, λ = σ(x·W) of each signal head, and an output gate."""

    def __init__(self, ratio=3, groups=2):
        super().__init__(ratio, groups)
        self.to_lam = nn.Linear(DIM, groups * ratio, bias=False)
        self.gate = nn.Linear(DIM, groups * ratio * WIDTH, bias=False)

    def forward(self, x):
        q, k, v = self.parts(x)
        maps = maps_of(q, k).unflatten(1, (self.groups, -1))
        lam = self.to_lam(x).sigmoid().mT.unflatten(1, (self.groups, -1))[..., None]
        heads = (maps[:, :, :-1] - lam * maps[:, :, -1:]) @ v[:, :, None]
        return self.wo(merge(heads.flatten(1, 2)) * self.gate(x).sigmoid())


class V2(Projected):
    """Diff Transformer V2: λ = σ(x·W) of each token and head; pairs of query heads share keys and values."""

    def __init__(self, how="maps", keys=HEADS):
        super().__init__(2 * HEADS, keys, keys)
        self.how, self.to_lam = how, nn.Linear(DIM, HEADS)

    def forward(self, x):
        q, k, v = self.parts(x)
        lam = self.to_lam(x).sigmoid().mT[..., None]
        if self.how == "fused":
            o = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return self.wo(merge(o[:, ::2] - lam * o[:, 1::2]))
        k, v = (part.repeat_interleave(2 * HEADS // part.shape[1], 1) for part in (k, v))
        maps = maps_of(q, k)
        if self.how == "sum":  # no subtraction is written down
            o = maps @ v
            return self.wo(merge(o[:, ::2] + -lam * o[:, 1::2]))
        return self.wo(merge((maps[:, ::2] - lam * maps[:, 1::2]) @ v[:, ::2]))


class Gated(Projected):
    """Both maps have a gate of each token and head: g·A1 − (1 − g)·A2."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, HEADS)

    def forward(self, x):
        one, two, v = self.pairs(x)
        gate = self.gate(x).sigmoid().mT[..., None]
        return self.wo(merge((gate * one - (1 - gate) * two) @ v))


class GatedByChannel(Projected):
    """A1·V − g ⊙ (A2·V) with a gate of each channel, or a number of each."""

    def __init__(self, how="difference"):
        super().__init__()
        self.how, self.gate = how, nn.Linear(DIM, HEADS * WIDTH)

    def forward(self, x):
        one, two, v = self.pairs(x)
        one, two, gate = merge(one @ v), merge(two @ v), self.gate(x).sigmoid()
        match self.how:
            case "sum":
                return self.wo(one + -gate * two)
            case "alpha":
                return self.wo(torch.add(one, gate * two, alpha=-1))
            case "of no token":
                return self.wo(torch.lerp(one, -two, self.gate.bias.sigmoid().expand_as(one)))
        return self.wo(one - gate * two)


class OutputGated(Projected):
    """The differential heads are multiplied by a gate."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, HEADS * WIDTH)

    def forward(self, x):
        one, two, v = self.pairs(x)
        return self.wo(merge((one - self.lam[:, None, None] * two) @ v) * self.gate(x).sigmoid())


class Dint(Projected):
    """DINT: A1 − λ·A2 + λ·(mean of A1 over the queries)."""

    def forward(self, x):
        one, two, v = self.pairs(x)
        lam = self.lam[:, None, None]
        return self.wo(merge((one - lam * two + lam * one.mean(-2, keepdim=True)) @ v))


class V1(Projected):
    """Differential attention with one λ for each head, and several ways to write the difference."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("second", torch.tensor(0.5))

    def forward(self, x):
        one, two, v = self.pairs(x)
        lam = self.lam[:, None, None]
        match self.how:
            case "":
                one = one - lam * two
            case "in place":
                one = one.clone()
                one -= lam * two
            case "einsum":
                weights = torch.stack([torch.ones_like(self.lam), -self.lam])
                one = torch.einsum("sh,sbhij->bhij", weights, torch.stack([one, two]))
            case "addcmul":
                one = torch.addcmul(one, lam.expand_as(two), two, value=-1)
            case "four products":
                a, b = v.chunk(2, -1)
                o = torch.cat([one @ a, one @ b], -1) - lam * torch.cat([two @ a, two @ b], -1)
                return self.wo(merge(o))
            case "four fused calls":
                q, k, _ = self.parts(x)
                o = [
                    [F.scaled_dot_product_attention(q[:, start::2], k[:, start::2], half) for half in v.chunk(2, -1)]
                    for start in (0, 1)
                ]
                first, second = (torch.cat(halves, -1) for halves in o)
                return self.wo(merge(first - lam * second))
            case "λ below zero":
                one = one - -lam * two
            case "maps computed twice":
                again = self.pairs(x)
                return self.wo(merge(one @ v - lam * (again[1] @ v)))
        return self.wo(merge(one @ v))


class SubtractsModules(nn.Module):
    """One attention module's output minus λ times that of another; a norm of its own for each."""

    def __init__(self, make, written="difference"):
        super().__init__()
        self.written = written
        self.one, self.two, self.lam = make(), make(), nn.Parameter(torch.tensor(0.5))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.outputs = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, x):
        one, two = (
            part(*[norm(x)] * (3 if isinstance(part, nn.MultiheadAttention) else 1))
            for part, norm in zip((self.one, self.two), self.norms, strict=True)
        )
        if isinstance(one, tuple):
            one, two = one[0], two[0]
        if self.written == "sum of channels":  # weights below zero, far apart
            return x + one + two * -torch.arange(DIM).to(x).sub(4).exp()
        if self.written == "projections":
            return self.outputs[0](one) - self.outputs[1](two)
        return x + one + -self.lam * two if self.written == "sum" else one - self.lam * two


class OverriddenTimm(Attention):
    """timm's class, and another forward: A1 − λ·A2."""

    def __init__(self):
        super().__init__(DIM, 2)

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = (by_head(part, 2) for part in self.qkv(x).chunk(3, -1))
        maps = maps_of(q, k)
        return self.proj(merge((maps[:, :1] - 0.5 * maps[:, 1:]) @ v))


class Standard(Projected):
    """Standard attention, plain or with something that is no second map."""

    def __init__(self, how="", queries=HEADS, keys=HEADS):
        super().__init__(queries, keys, keys, queries)
        self.how, self.tokens = how, nn.Linear(DIM, 7)
        self.gate, self.experts = nn.Linear(DIM, queries * WIDTH), nn.Linear(DIM, 2)
        self.mix = nn.Parameter(torch.zeros(queries))

    def forward(self, x):
        q, k, v = self.parts(x)
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        if self.how == "fused":
            return self.wo(merge(F.scaled_dot_product_attention(q, k, v)))
        if self.how == "fused, by name":
            return self.wo(merge(F.scaled_dot_product_attention(query=q, key=k, value=v)))
        o = maps_of(q, k) @ v
        match self.how:
            case "two softmaxes":
                o = torch.cat([maps_of(q[:, :1], k[:, :1]) @ v[:, :1], maps_of(q[:, 1:], k[:, 1:]) @ v[:, 1:]], 1)
            case "gated":
                return self.wo(merge(o) * self.gate(x).sigmoid())
            case "a softmax over experts":
                weights = self.experts(x).softmax(-1)
                return self.wo(merge(o)) * weights[..., :1] + x * weights[..., 1:]
            case "a softmax as wide as there are tokens":
                return self.wo(merge(o)) * self.tokens(x).softmax(-1)[..., :1]
            case "softmax weights of the heads":
                o = o * self.mix.softmax(0)[:, None, None]
            case "a norm by hand":
                o = o - o.mean(-1, keepdim=True)
            case "residual minus":
                return x - self.wo(merge(o))
        return self.wo(merge(o))


class TalkingHeads(Projected):
    """The maps are mixed over the heads, with weights of both signs."""

    def __init__(self):
        super().__init__(HEADS)
        self.mix = nn.Linear(HEADS, HEADS)

    def forward(self, x):
        q, k, v = self.parts(x)
        return self.wo(merge(self.mix(maps_of(q, k).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v))


class Sigmoid(Projected):
    """σ(q·k) in place of the softmax."""

    def __init__(self):
        super().__init__(HEADS)

    def forward(self, x):
        q, k, v = self.parts(x)
        return self.wo(merge((q @ k.mT).sigmoid() @ v))


class LinearAttention(Projected):
    """softmax(q)·(softmax(kᵀ)·v): a softmax over the channels and one over the tokens."""

    def __init__(self):
        super().__init__(HEADS)

    def forward(self, x):
        q, k, v = self.parts(x)
        return self.wo(merge(q.softmax(-1) @ (k.softmax(-2).mT @ v)))
