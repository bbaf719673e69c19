"""The choice of a backend: calls that cannot be, and what the plain form is left with."""

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention, differential_attention
from antiphase.attention.backends.choice import attend


def _values_and_gradients(tensors, lam, mask, backend):
    out = differential_attention(*tensors, lam, mask=mask, backend=backend)
    inputs = [*tensors, lam] if isinstance(lam, torch.Tensor) else tensors
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    return out, torch.autograd.grad(out, inputs, upstream)


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa"])
@pytest.mark.parametrize("shape", [(0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0)])
def test_nothing_attends_and_nothing_is_attended_to(backend, shape):
    batch, heads, queries, keys = shape
    q, k, v = (
        torch.ones(batch, heads, queries, 4),
        torch.ones(batch, heads, keys, 4),
        torch.ones(batch, heads, keys, 8),
    )
    lam = 0.5 if heads == 0 else torch.full((heads,), 0.5)
    out = differential_attention(q, k, q, k, v, lam, backend=backend)
    assert_close(out, torch.zeros(batch, heads, queries, 8))


def test_heads_that_are_broadcast_are_left_to_the_plain_form():
    draw = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 3, 4), (2, 2, 5, 4), (1, 1, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6)]
    args = [torch.randn(shape, generator=draw).double().requires_grad_() for shape in shapes]
    (out, gradients), (expected, others) = (
        _values_and_gradients(args, 0.8, None, backend) for backend in ("auto", "eager")
    )
    assert out.shape == (2, 2, 3, 6)
    assert_close(out, expected)
    assert_close(gradients, others)


def test_one_branch_does_not_look_at_lambda():
    q, k, v = (torch.ones(1, 2, 3, 4, requires_grad=True) for _ in range(3))
    lam = torch.tensor(0.5, requires_grad=True)
    for backend in ("eager", "sdpa"):
        out = attend(lambda q, k, v: ((q,), (k,), v), lam, None, backend, q, k, v)
        assert torch.autograd.grad(out.sum(), [q, lam], allow_unused=True)[1] is None


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa"])
@pytest.mark.parametrize("wrong", ["q2", "k1", "k2", "v"])
def test_numbers_of_tokens_that_differ_are_named(backend, wrong):
    parts = {name: torch.ones(1, 1, 3 if name[0] == "q" else 5, 2) for name in ("q1", "k1", "q2", "k2", "v")}
    parts[wrong] = torch.ones(1, 1, 1, 2)
    with pytest.raises(ValueError, match=r"of shape .*: expected (queries|keys) \d, as in"):
        differential_attention(**parts, lam=0.5, backend=backend)


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa"])
@pytest.mark.parametrize("wrong", ["q1", "q2", "k1", "k2"])
def test_widths_that_differ_are_named(backend, wrong):
    """A width of 1 could be broadcast in silence."""
    parts = {name: torch.ones(1, 1, 3, 4) for name in ("q1", "k1", "q2", "k2", "v")}
    parts[wrong] = torch.ones(1, 1, 3, 1)
    with pytest.raises(ValueError, match=r"of shape .*: expected width \d, as in"):
        differential_attention(**parts, lam=0.5, backend=backend)


@pytest.mark.parametrize("together", ["queries", "keys"])
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_branches_may_lie_in_one_tensor_or_in_several(inputs, together, backend):
    q1, k1, q2, k2, v = (tensor.requires_grad_() for tensor in inputs())

    def view(*parts):
        return (parts[0], parts[1:3], parts[3]) if together == "queries" else (parts[:2], parts[2], parts[3])

    one = torch.stack((q1, q2) if together == "queries" else (k1, k2))
    parts = (one, k1, k2, v) if together == "queries" else (q1, q2, one, v)
    actual = attend(view, 0.5, None, backend, *parts)
    expected = differential_attention(q1, k1, q2, k2, v, 0.5, backend="eager")
    assert_close(actual, expected, rtol=0, atol=1e-13)
    grads = [torch.autograd.grad(out.cos().sum(), (q1, k1, q2, k2, v)) for out in (actual, expected)]
    for one, other in zip(*grads, strict=True):
        assert_close(one, other, rtol=0, atol=1e-12)


def test_a_mask_with_a_gradient_gets_it(tokens):
    bias = torch.zeros(65, 65, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(DifferentialAttention(8, 4).double()(tokens(1, 65, 8), bias).sum(), bias)
    assert grad.abs().max() > 0


@pytest.mark.parametrize("make", [DifferentialAttention, SoftmaxAttention])
def test_other_devices_are_left_to_torch(make):
    module = make(8, 4).to("meta")
    x = torch.empty(2, 97, 8, device="meta", requires_grad=True)
    (grad,) = torch.autograd.grad(module(x).sum(), x)
    assert grad.shape == x.shape
