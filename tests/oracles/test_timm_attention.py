"""DifferentialAttention against timm's DiffAttention: values and gradients under mapped weights.

timm counts differential heads, this package the standard twin's: timm's number is half of ours. timm
computes λ in float32 whatever the module's dtype, so float64 agrees to 1e-7 and not further.
"""

import math

import pytest
import torch
from timm.layers.diff_attention import DiffAttention
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, depth_scheduled

SHAPES = [(24, 4, 7, 2), (60, 6, 13, 3), (22, 2, 5, 1), (30, 10, 17, 2)]  # dim, our heads, tokens, batch
BOTH_WAYS = pytest.mark.parametrize("fused", [False, True], ids=["eager", "sdpa"])


def _pair(dim, num_heads, *, fused, dtype=torch.float64, lambda_init=0.8, dual=False, seed=0):
    """Return (ours, timm's) with equal weights, none of them trivial."""
    peer = DiffAttention(dim, num_heads=num_heads // 2, qkv_bias=True, dual_lambda=dual)
    peer.lambda_init = lambda_init
    peer.fused_attn = fused
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, 0.3, generator=stream)
    ours = DifferentialAttention(
        dim,
        num_heads,
        lambda_init=lambda_init,
        parameterisation="scalar" if dual else "vector",
        backend="sdpa" if fused else "eager",
    )
    ours.load_state_dict({_our_name(name): _widen(name, p, num_heads) for name, p in peer.named_parameters()})
    return ours.to(dtype), peer.to(dtype)


def _our_name(name):
    return name.replace("lambda_", "lam.").replace("sub_norm", "norm")


def _widen(name, parameter, num_heads):
    """timm's dual λ is one for the layer, ours one for each head: all heads get the layer's."""
    return parameter.detach().expand(num_heads // 2) if parameter.ndim == 0 else parameter.detach()


def _draw(*shape, dtype, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("dual", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_equal_timms(shape, dual, dtype, fused):
    dim, heads, tokens, batch = shape
    ours, peer = _pair(dim, heads, fused=fused, dtype=dtype, dual=dual)
    x = _draw(batch, tokens, dim, dtype=dtype).requires_grad_()
    out, expected = ours(x), peer(x)
    assert out.dtype == expected.dtype == dtype
    assert_close(out, expected, rtol=0, atol=1e-6)

    weights = _draw(*out.shape, dtype=dtype, seed=2)
    names = [name for name, _ in peer.named_parameters()]
    own_parameters = dict(ours.named_parameters())
    own_grads = torch.autograd.grad((out * weights).sum(), [x, *(own_parameters[_our_name(n)] for n in names)])
    peer_grads = torch.autograd.grad((expected * weights).sum(), [x, *peer.parameters()])
    for name, grad, peer_grad in zip(["x", *names], own_grads, peer_grads, strict=True):
        grad = grad.sum() if peer_grad.ndim == 0 else grad  # the layer's one λ feels all heads
        assert peer_grad.abs().max() > 1e-3, name
        scale = max(1.0, float(peer_grad.abs().max()))  # 1e-6 of the largest entry: float32 sums over tokens
        assert_close(grad, peer_grad, rtol=0, atol=(1e-6 if dtype == torch.float64 else 4e-6) * scale, msg=name)


@BOTH_WAYS
@pytest.mark.parametrize("lambda_init", [0.0, 0.2, 1.0])
def test_lambda_init_enters_as_in_timm(lambda_init, fused):
    ours, peer = _pair(24, 4, fused=fused, lambda_init=lambda_init)
    x = _draw(2, 7, 24, dtype=torch.float64)
    assert_close(ours.lam(), peer._compute_lambda().double(), rtol=0, atol=1e-6)
    assert_close(ours(x), peer(x), rtol=0, atol=1e-6)


def test_depth_schedule_equals_timms():
    for layer in range(24):
        assert depth_scheduled(layer) == DiffAttention(8, num_heads=1, depth=layer).lambda_init


@BOTH_WAYS
def test_masks_equal_timms(fused):
    ours, peer = _pair(30, 6, fused=fused)
    x = _draw(2, 11, 30, dtype=torch.float64)
    causal = torch.ones(11, 11, dtype=torch.bool).tril()
    padding = (torch.arange(11) < torch.tensor([[4], [9]]))[:, None, None]
    assert_close(ours(x, causal), peer(x, is_causal=True), rtol=0, atol=1e-6)
    # timm's plain path adds the mask to 2·heads maps at once, so it must not have a head axis of its own
    for mask in (causal, padding, torch.where(padding, 0.0, -math.inf).double()):
        assert_close(ours(x, mask), peer(x, attn_mask=mask), rtol=0, atol=1e-6)


def test_the_head_count_trap():
    """timm with *our* number builds heads of half the width: another function, or weights that do not fit."""
    ours, peer = _pair(24, 4, fused=False)
    assert (ours.num_diff_heads, ours.width) == (peer.num_heads, peer.head_dim) == (2, 6)
    trapped = DiffAttention(24, num_heads=4, qkv_bias=True)
    assert (trapped.num_heads, trapped.head_dim) == (4, 3)
    with pytest.raises(RuntimeError, match="size mismatch for lambda_q1"):
        trapped.load_state_dict(peer.state_dict())

    ours, peer = _pair(24, 4, fused=False, dual=True)
    trapped = DiffAttention(24, num_heads=4, qkv_bias=True, dual_lambda=True).double()
    trapped.load_state_dict({n: w for n, w in peer.state_dict().items() if n != "sub_norm.weight"}, strict=False)
    x = _draw(2, 7, 24, dtype=torch.float64)
    assert (ours(x) - trapped(x)).abs().max() > 0.1
