"""Attention written by hand in many layouts. Each module notes in ``truth`` what its maps and λ are."""

import math

import torch
import torch.nn.functional as F
from torch import nn

DIM, HEADS, WIDTH = 12, 2, 3
LAM = 0.6


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def normalised(scores):
    """Return softmax(scores) without calling it, so that it is not observed."""
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


class Own(nn.Module):
    """Set ``truth`` to (A1, A2, λ)."""

    truth = None


class FusedHalves(Own):
    """One projection of queries, keys and values; the first half of the maps is A1."""

    def __init__(self, causal=False):
        super().__init__()
        self.qkv, self.proj, self.causal = nn.Linear(DIM, 5 * DIM), nn.Linear(2 * DIM, DIM), causal

    def forward(self, x):
        q, k, v = self.qkv(x).split([2 * DIM, 2 * DIM, DIM], -1)
        scores = heads(q, 2 * HEADS) @ heads(k, 2 * HEADS).transpose(-2, -1) / math.sqrt(2 * WIDTH)
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -math.inf)
        maps = torch.softmax(scores, dim=-1)
        one, two = maps[:, :HEADS], maps[:, HEADS:]
        self.truth = one, two, LAM
        out = (one - LAM * two) @ heads(v, HEADS)
        return self.proj(torch.cat([merge(out), x], -1))


class Interleaved(Own):
    """Maps 0, 2, … are A1; a norm over each head and the factor 1 − λ_init, as in the paper."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(DIM // HEADS)

    def forward(self, x):
        q, k = (heads(w(x), 2 * HEADS) for w in (self.wq, self.wk))
        maps = F.softmax(q @ k.mT * WIDTH**-0.5, -1)
        one, two = maps[:, 0::2], maps[:, 1::2]
        self.truth = one, two, LAM
        return self.wo(merge(self.norm((one - LAM * two) @ heads(self.wv(x), HEADS)) * (1 - LAM)))


class Separate(Own):
    """A projection for each of the two queries and keys; λ = exp(a·b) − exp(c·d) + 0.8 learned."""

    def __init__(self):
        super().__init__()
        self.q1, self.k1, self.q2, self.k2, self.v = (nn.Linear(DIM, DIM) for _ in range(5))
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.zeros(4)) for _ in range(4))
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        lam = (self.a @ self.b).exp() - (self.c @ self.d).exp() + 1.2
        one, two = (
            (heads(q(x), HEADS) @ heads(k(x), HEADS).transpose(2, 3)).softmax(dim=-1)
            for q, k in ((self.q1, self.k1), (self.q2, self.k2))
        )
        self.truth = one, two, lam.detach()
        return self.out(merge(torch.sub(one, two, alpha=float(lam)) @ heads(self.v(x), HEADS)))


class Einsum(Own):
    """Einstein sums, heads in the third axis, λ of each head, maps in one tensor with an axis of two."""

    def __init__(self):
        super().__init__()
        self.qk = nn.Parameter(torch.zeros(2, 2, HEADS, DIM, WIDTH))
        self.v = nn.Parameter(torch.zeros(HEADS, DIM, 2 * WIDTH))
        self.o = nn.Parameter(torch.zeros(HEADS, 2 * WIDTH, DIM))
        self.register_buffer("lam", torch.tensor([0.3, 0.9]))

    def forward(self, x):
        q, k = torch.einsum("bnd,tshdw->tbsnhw", x, self.qk)
        maps = torch.einsum("bsihw,bsjhw->bshij", q, k).softmax(4)
        self.truth = maps[:, 0], maps[:, 1], self.lam
        both = maps[:, 0] - self.lam[:, None, None] * maps[:, 1]
        return torch.einsum("bhij,bjd,hde,hef->bif", both, x, self.v, self.o)


class Fused(Own):
    """Two fused kernels; the outputs are subtracted, not the maps."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm = nn.GroupNorm(HEADS, HEADS)

    def forward(self, x):
        (q1, q2), (k1, k2, v) = ([heads(part, HEADS) for part in w(x).split(DIM, -1)] for w in (self.q, self.kv))
        one, two = (F.scaled_dot_product_attention(q, k, v) for q, k in ((q1, k1), (q2, k2)))
        self.truth = (*(normalised(q @ k.mT * q.shape[-1] ** -0.5) for q, k in ((q1, k1), (q2, k2))), LAM)
        return self.o(merge(one - LAM * two))


class Rotary(Own):
    """Rotary positions from the caller, norms of queries and keys, fewer heads of keys and values."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(DIM, 16, bias=False), nn.Linear(DIM, 8, bias=False)
        self.v_proj, self.o_proj = nn.Linear(DIM, 6, bias=False), nn.Linear(12, DIM, bias=False)
        self.q_norm, self.k_norm = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, hidden_states, positions):
        q, k = (self.q_norm(heads(self.q_proj(hidden_states), 4)), self.k_norm(heads(self.k_proj(hidden_states), 2)))
        q, k = (
            torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * positions).flatten(-2) for t in (q, k)
        )
        maps = (q @ k.repeat_interleave(2, 1).mT / 2).softmax(-1)
        one, two = maps.unflatten(1, (2, 2)).unbind(2)
        self.truth = one, two, LAM
        return self.o_proj(merge((one - LAM * two) @ heads(self.v_proj(hidden_states), 1)))


class SumOfWeights(Own):
    """A1 + (−λ)·A2: an addition; ``nn.Softmax``; batch and heads in one axis; a tuple is returned."""

    def __init__(self):
        super().__init__()
        self.qkv, self.soft, self.lam = (nn.Linear(DIM, 5 * DIM), nn.Softmax(dim=2), nn.Parameter(torch.tensor(LAM)))

    def forward(self, x):
        q1, q2, k1, k2, v = (heads(part, HEADS).flatten(0, 1) for part in self.qkv(x).chunk(5, -1))
        one, two = (self.soft(torch.bmm(q, k.transpose(1, 2))) for q, k in ((q1, k1), (q2, k2)))
        self.truth = (one.view(-1, HEADS, *one.shape[1:]), two.view(-1, HEADS, *two.shape[1:]), self.lam.detach())
        return merge(torch.bmm(one + -self.lam * two, v).view(len(x), HEADS, -1, DIM // HEADS)), one


class Looped(Own):
    """A loop over the heads, each with matrices and a λ of its own."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(DIM, 5 * WIDTH) for _ in range(HEADS))
        self.lams, self.mix = nn.Parameter(torch.zeros(HEADS)), nn.Linear(HEADS * WIDTH, DIM)

    def forward(self, x):
        lams, out, seen = self.lams.sigmoid() + 0.1, [], []
        for part, lam in zip(self.parts, lams, strict=True):
            q1, k1, q2, k2, v = part(x).chunk(5, -1)
            one, two = (torch.softmax(q @ k.mT, -1) for q, k in ((q1, k1), (q2, k2)))
            seen.append((one, two))
            out.append(one @ v - (lam * two) @ v)
        one, two = (torch.stack(maps, 1) for maps in zip(*seen, strict=True))
        self.truth = one, two, lams.detach()
        return self.mix(torch.cat(out, -1))


class WholeBlock(Own):
    """Attention written into a block, with norms, the residual path and an MLP."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 5 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 20), nn.GELU(), nn.Linear(20, DIM))

    def forward(self, x):
        q1, k1, q2, k2, v = (heads(part, HEADS) for part in self.qkv(self.norm(x)).chunk(5, -1))
        one, two = ((q @ k.mT * 0.4).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        self.truth = one, two, LAM
        x = x + self.o(merge((one - LAM * two) @ v))
        return x + self.mlp(self.norm2(x))


class Rectified(Own):
    """The difference is cut at zero and normalised again; one head."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(DIM, 8), nn.Linear(DIM, 8), nn.Linear(DIM, DIM)

    def forward(self, x):
        one, two = ((q @ k.mT).softmax(-1) for q, k in zip(self.q(x).chunk(2, -1), self.k(x).chunk(2, -1), strict=True))
        self.truth = one[:, None], two[:, None], LAM
        both = (one - LAM * two).relu()
        return both / (both.sum(-1, keepdim=True) + 0.1) @ self.v(x)


class BranchesFirst(Own):
    """Both maps in one tensor, (2, batch, heads, queries, keys), or with the samples of A2 behind those of A1."""

    def __init__(self, one_axis):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.one_axis = one_axis

    def forward(self, x):
        q, k = (torch.stack([heads(part, HEADS) for part in w(x).chunk(2, -1)]) for w in (self.q, self.k))
        if self.one_axis:
            q, k = q.flatten(0, 1), k.flatten(0, 1)
        one, two = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).view(2, len(x), HEADS, *2 * x.shape[1:2]).unbind()
        self.truth = one, two, LAM
        return merge((one - LAM * two) @ heads(self.v(x), HEADS))


class HeadsFirst(Own):
    """Heads before the batch, in axes of their own or in one, as in the Set Transformer; without A2 if standard."""

    def __init__(self, one_axis, standard=False):
        super().__init__()
        self.count = 1 if standard else 2
        self.q, self.k, self.v = (nn.Linear(DIM, count * DIM) for count in (self.count, self.count, 1))
        self.one_axis = one_axis

    def forward(self, x):
        def first(part):
            parts = part.chunk(HEADS, -1)
            return torch.cat(parts) if self.one_axis else torch.stack(parts)

        pairs = zip(self.q(x).chunk(self.count, -1), self.k(x).chunk(self.count, -1), strict=True)
        one, *rest = ((first(q) @ first(k).mT / 2).softmax(-1) for q, k in pairs)
        seen = [maps.view(HEADS, len(x), *one.shape[-2:]).transpose(0, 1) for maps in (one, *rest)]
        self.truth = (*seen, LAM) if rest else (*seen, None, None)
        both = one - LAM * rest[0] if rest else one
        return torch.cat((both @ first(self.v(x))).view(HEADS, *x.shape[:2], -1).unbind(), -1)


class TokensFirst(FusedHalves):
    """Tokens before the batch, as in OpenAI's CLIP."""

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Standard(Own):
    """Standard attention, a fused kernel, with a mask for padding."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = (heads(part, HEADS) for part in self.qkv(x).chunk(3, -1))
        mask = torch.ones(1, x.shape[1], dtype=torch.bool)
        mask[:, 1] = False
        self.truth = normalised((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -math.inf)), None, None
        return self.o(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


class OfQuery(nn.Module):
    """λ of each query, with the names of the skeleton."""

    def __init__(self):
        super().__init__()
        self.q1, self.k1, self.q2, self.k2, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(6))
        self.num_heads = HEADS

    def lam(self, x):
        return x.mean(-1).sigmoid()[:, None].expand(-1, HEADS, -1)

    def forward(self, x):
        q1, k1, q2, k2, v = (heads(w(x), HEADS) for w in (self.q1, self.k1, self.q2, self.k2, self.v))
        one, two = ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        return self.out(merge((one - self.lam(x)[..., None] * two) @ v))
