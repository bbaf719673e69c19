"""Derivatives: first and second order, reverse and forward, and the same ones on every backend."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention, differential_attention
from tests.attention.compiled_cases import standard_attention

# torch warns of its own torch.jit.script when forward mode is first used
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")

MASKS = {"no mask": None, "mask": torch.tensor([[True, False, True], [True, True, False], [False, False, False]])}


@pytest.fixture(params=MASKS.values(), ids=MASKS.keys())
def mask(request):
    return request.param


def _small(inputs):
    args = inputs(batch=1, heads=2, queries=3, keys=3, width=2, value_width=5)
    return [tensor.requires_grad_() for tensor in args]


def _lambda(shape):
    return torch.full(shape, 0.7, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_eager_has_first_derivatives_in_both_modes(inputs, mask, shape):
    def attend(*args):
        return differential_attention(*args, mask=mask, backend="eager")

    assert gradcheck(attend, (*_small(inputs), _lambda(shape)), check_forward_ad=True)


def test_eager_has_second_derivatives(inputs, mask):
    def attend(*args):
        return differential_attention(*args, mask=mask, backend="eager")

    args = (*_small(inputs), _lambda((2,)))
    assert gradgradcheck(attend, args, fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_backends_agree_in_values_and_gradients(inputs, shape, masked):
    args = [*(tensor.requires_grad_() for tensor in inputs()), _lambda(shape)]
    stream = torch.Generator().manual_seed(3)
    mask = torch.rand(2, 1, 5, 7, generator=stream) < 0.6 if masked else None
    weights = torch.randn(2, 3, 5, 13, generator=stream).double()
    outs = [differential_attention(*args, mask=mask, backend=name) for name in ("eager", "sdpa")]
    grads = [torch.autograd.grad((out * weights).sum(), args) for out in outs]
    for out, grad in zip(outs[1:], grads[1:], strict=True):
        assert_close(out, outs[0], rtol=0, atol=1e-13)
        for eager, fused in zip(grads[0], grad, strict=True):
            assert eager.abs().max() > 1e-3
            assert_close(eager, fused, rtol=0, atol=1e-12)


def test_standard_backends_agree_in_values_and_gradients(inputs):
    q, k, _, _, v = (tensor.requires_grad_() for tensor in inputs())
    outs = [standard_attention(q, k, v, backend=name) for name in ("eager", "sdpa")]
    grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs]
    for out, grad in zip(outs[1:], grads[1:], strict=True):
        assert_close(out, outs[0], rtol=0, atol=1e-13)
        for eager, fused in zip(grads[0], grad, strict=True):
            assert_close(eager, fused, rtol=0, atol=1e-12)


@pytest.mark.parametrize("head_norm", [False, True])
@pytest.mark.parametrize("parameterisation", ["vector", "scalar", "fixed"])
def test_module_backends_agree_in_every_parameter(tokens, redraw, parameterisation, head_norm):
    modules = [
        redraw(
            DifferentialAttention(
                20, 4, parameterisation=parameterisation, head_norm=head_norm, backend=backend
            ).double()
        )
        for backend in ("eager", "sdpa")
    ]
    x = tokens(3, 7, 20).requires_grad_()
    grads = [torch.autograd.grad(m(x).square().sum(), (x, *m.parameters())) for m in modules]
    for eager, *others in zip(*grads, strict=True):
        assert (eager != 0).any()
        for other in others:
            assert_close(eager, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "module",
    [
        DifferentialAttention(12, 4, backend="eager"),
        DifferentialAttention(12, 4, backend="eager", parameterisation="scalar", head_norm=False),
        SoftmaxAttention(12, 4, backend="eager"),
    ],
    ids=["vector", "scalar", "standard"],
)
def test_forward_mode_is_the_adjoint_of_reverse_mode(tokens, redraw, module):
    module = redraw(module.double())
    x, direction = tokens(2, 5, 12), tokens(2, 5, 12, seed=1)
    out, pushed = torch.func.jvp(module, (x,), (direction,))  # pyright: ignore[reportAssignmentType]
    _, pull = torch.func.vjp(module, x)  # pyright: ignore[reportAssignmentType]
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    assert_close((weights * pushed).sum(), (pull(weights)[0] * direction).sum())
    step = 1e-6
    difference = (module(x + step * direction) - module(x - step * direction)) / (2 * step)
    assert_close(pushed, difference, rtol=0, atol=1e-8)


@pytest.mark.parametrize("backend", ["eager"])
@pytest.mark.parametrize("head_norm", [False, True])
def test_modules_have_second_derivatives(tokens, redraw, head_norm, backend):
    module = redraw(DifferentialAttention(8, 2, backend=backend, head_norm=head_norm).double())
    assert gradgradcheck(module, (tokens(1, 3, 8).requires_grad_(),), fast_mode=True)


def test_maps_are_differentiable_in_the_tokens(tokens, redraw):
    module = redraw(DifferentialAttention(8, 2).double())

    def combined(x):
        return module.maps(x).combined

    assert gradcheck(combined, (tokens(1, 3, 8).requires_grad_(),))
