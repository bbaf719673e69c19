"""Modules with softmax maps that are no attention, or not of a kind that can be told for sure."""

import torch
from torch import nn

from tests.sensitivity.own_attention import DIM, HEADS, LAM, FusedHalves, WholeBlock, heads, merge


class Gate(nn.Module):
    """A softmax gate on the channels of each token, as wide as there are tokens."""

    def __init__(self, tokens):
        super().__init__()
        self.gate, self.value, self.back = (nn.Linear(DIM, tokens), nn.Linear(DIM, tokens), nn.Linear(tokens, DIM))

    def forward(self, x):
        return self.back(self.gate(x).softmax(-1) * self.value(x))


class Sigmoid(nn.Module):
    """Attention whose weights are sigmoids of the scores."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).sigmoid() @ v


class ByKeyword(nn.Module):
    """Attention whose tokens come under a name that tells nothing."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, *, tokens):
        q, k, v = self.qkv(tokens).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


class Covariance(nn.Module):
    """Products of pairs of channels."""

    def forward(self, x):
        return x + (x @ (x.mT @ x)) / 100


class Sum(FusedHalves):
    """A1 + λ·A2."""

    def forward(self, x):
        q, k, v = self.qkv(x).split([2 * DIM, 2 * DIM, DIM], -1)
        maps = (heads(q, 2 * HEADS) @ heads(k, 2 * HEADS).mT).softmax(-1)
        out = (maps[:, :HEADS] + LAM * maps[:, HEADS:]) @ heads(v, HEADS)
        return self.proj(torch.cat([merge(out), x], -1))


class LambdaOfQuery(WholeBlock):
    """λ is computed from each query."""

    def forward(self, x):
        q1, k1, q2, k2, v = (heads(part, HEADS) for part in self.qkv(x).chunk(5, -1))
        one, two = ((q @ k.mT).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        return self.o(merge((one - x.mean(-1).sigmoid()[:, None, :, None] * two) @ v))


class LambdaOfSample(WholeBlock):
    """λ is computed from all tokens of a sample."""

    def forward(self, x):
        q1, k1, q2, k2, v = (heads(part, HEADS) for part in self.qkv(x).chunk(5, -1))
        one, two = ((q @ k.mT).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        return self.o(merge((one - x.mean((1, 2)).sigmoid()[:, None, None, None] * two) @ v))


class Synthesizer(nn.Module):
    """Scores from the query alone, without keys."""

    def __init__(self, tokens):
        super().__init__()
        self.scores, self.value = nn.Linear(DIM, tokens), nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.scores(x).softmax(-1) @ self.value(x)


class KeysOnly(nn.Module):
    """The same weights for every query."""

    def __init__(self):
        super().__init__()
        self.score, self.value = nn.Linear(DIM, 1), nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.score(x).mT.expand(-1, x.shape[1], -1).softmax(-1) @ self.value(x)


class OfChannels(nn.Module):
    """Cross-covariance attention: maps of pairs of channels, as many as there are tokens."""

    def __init__(self, tokens):
        super().__init__()
        self.qkv, self.back = nn.Linear(DIM, 3 * tokens), nn.Linear(tokens, DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.back(((q.mT @ k).softmax(-1) @ v.mT).mT)


class TwoInOne(nn.Module):
    """Two layers of attention in one module: the second map depends on all tokens."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 3 * DIM)

    def forward(self, x):
        for layer in (self.one, self.two):
            q, k, v = layer(x).chunk(3, -1)
            x = x + (q @ k.mT).softmax(-1) @ v
        return x


class Wrong(FusedHalves):
    """A difference with a map that is rounded, so that its slope is not that of what it shows."""

    def forward(self, x):
        q, k, v = self.qkv(x).split([2 * DIM, 2 * DIM, DIM], -1)
        maps = (heads(q, 2 * HEADS) @ heads(k, 2 * HEADS).mT).softmax(-1)
        one, two = maps[:, :HEADS], maps[:, HEADS:]
        return self.proj(torch.cat([merge((one - LAM * two.square()) @ heads(v, HEADS)), x], -1))
