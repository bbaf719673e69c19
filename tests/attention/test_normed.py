"""Standard attention with differential attention's norm and factor, against loops over heads."""

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention import SoftmaxAttention
from antiphase.attention.modules import NormedAttention

DIM, HEADS, TOKENS, SCALE = 15, 3, 7, 0.3


def _slow(module, x):
    """Return the layer's output, one head and one query at a time."""
    width = DIM // HEADS
    q, k, v = module.qkv(x).chunk(3, -1)
    out = torch.zeros_like(x)
    for head in range(HEADS):
        channels = slice(head * width, (head + 1) * width)
        for sample in range(len(x)):
            for query in range(TOKENS):
                scores = k[sample, :, channels] @ q[sample, query, channels] / width**0.5
                row = scores.softmax(-1) @ v[sample, :, channels]
                root = (row.square().mean() + 1e-5).sqrt()
                out[sample, query, channels] = SCALE * module.norm.weight * row / root
    return module.proj(out)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_forward_and_gradient_equal_the_slow_twin(tokens, redraw, backend):
    module = redraw(NormedAttention(DIM, HEADS, scale=SCALE, backend=backend).double())
    x = tokens(2, TOKENS, DIM).requires_grad_()
    out, expected = module(x), _slow(module, x)
    assert_close(out, expected, rtol=0, atol=1e-12)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=x.dtype).view_as(expected)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (out, expected)]
    assert_close(*gradients, rtol=0, atol=1e-11)


def test_the_maps_are_standard_attentions_and_rebuild_the_output(tokens, redraw):
    module = redraw(NormedAttention(DIM, HEADS, scale=SCALE).double())
    twin = SoftmaxAttention(DIM, HEADS).double()
    twin.load_state_dict({name: w for name, w in module.state_dict().items() if "norm" not in name})
    x = tokens(2, TOKENS, DIM)
    maps, values = module.maps(x), module.parts(module.qkv(x))[2]
    assert maps.negative is None
    assert_close(maps.positive, twin.maps(x).positive)
    assert_close(module.finish(maps.combined @ values), module(x), rtol=0, atol=1e-12)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="dim 15 cannot be divided among 4 heads"):
        NormedAttention(15, 4)
