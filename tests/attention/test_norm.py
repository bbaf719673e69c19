"""The RMSNorm behind each head: torch's own, in values and in every derivative."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.backends import compiled
from antiphase.attention.backends.compiled import rms_norm
from tests import needs

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")


@pytest.fixture(params=["kernels", "plain"], autouse=True)
def form(request, monkeypatch):
    """Make every test one of the kernels, where there are some, and one of the operations that stand in for them."""
    if request.param == "plain":
        monkeypatch.setattr(compiled, "kernels", lambda: None)


def _draw(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("least", [None, 0.0, 1e-310, 1e-30])  # weights that the output cannot be divided by
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients_are_torchs(dtype, least):
    x, weight = _draw(2, 5, 3, 7, dtype=dtype).requires_grad_(), _draw(7, dtype=dtype)
    if least is not None:
        weight[2] = least
    weight.requires_grad_()
    outs = [rms_norm(x, weight, 1e-5), F.rms_norm(x, (7,), weight, 1e-5)]
    grads = [torch.autograd.grad(out.cos().sum(), (x, weight)) for out in outs]
    tolerance = 1e-13 if dtype == torch.float64 else 1e-5
    assert_close(*outs, rtol=0, atol=tolerance)
    for gradient, expected in zip(*grads, strict=True):
        assert_close(gradient, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("least", [None, 0.0])
def test_derivatives_by_finite_differences(least):
    weight = _draw(5)
    if least is not None:
        weight[1] = least
    args = (_draw(2, 3, 5).requires_grad_(), weight.requires_grad_())
    assert gradcheck(lambda *a: rms_norm(*a, 0.1), args, check_forward_ad=True)
    assert gradgradcheck(lambda *a: rms_norm(*a, 0.1), args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 4), (3, 5), (2, 700, 16), (300, 2, 33), (5, 130)])
@pytest.mark.parametrize("least", [None, 0.0])
def test_rows_of_any_number_and_width_are_those_of_float64(shape, dtype, least):
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=draw).to(dtype) for size in (shape, shape[-1:]))
    weight = weight.sign() * weight.abs().clamp(min=0.1)
    if least is not None:
        weight[0] = least
    upstream = torch.randn(shape, generator=draw).to(dtype)
    actual, exact = [], []
    for into, wide in ((actual, dtype), (exact, torch.float64)):
        args = [tensor.to(wide).requires_grad_() for tensor in (x.mT.contiguous().mT, weight)]
        out = rms_norm(*args, 1e-5)
        into += [out, *torch.autograd.grad(out, args, upstream.to(wide))]
    tolerance = {torch.float32: 3e-6, torch.bfloat16: 0.03}[dtype]
    for one, other in zip(actual, exact, strict=True):
        assert one.dtype == dtype
        assert_close(one.double(), other, rtol=0, atol=tolerance * max(1.0, float(other.detach().abs().max())))


def test_the_weights_gradient_does_not_depend_on_the_number_of_threads(form):
    x, weight = _draw(1500, 20, dtype=torch.float32), _draw(20, dtype=torch.float32).requires_grad_()
    before, gradients = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            gradients.append(torch.autograd.grad(rms_norm(x, weight, 1e-5).cos().sum(), weight)[0])
    finally:
        torch.set_num_threads(before)
    assert_close(gradients[1], gradients[0], rtol=0, atol=1e-4 if compiled.kernels() is None else 0)
    assert_close(gradients[2], gradients[0], rtol=0, atol=1e-4 if compiled.kernels() is None else 0)


def test_a_backward_pass_under_autocast_stays_in_float32():
    x, weight = (_draw(4, 5, dtype=torch.float32).requires_grad_(), _draw(5, dtype=torch.float32).requires_grad_())
    expected = torch.autograd.grad(F.rms_norm(x, (5,), weight, 1e-5).cos().sum(), (x, weight))
    with torch.autocast("cpu", torch.bfloat16):
        gradients = torch.autograd.grad(rms_norm(x, weight, 1e-5).cos().sum(), (x, weight))
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other, rtol=0, atol=1e-5)


def test_a_weight_of_another_width_is_torchs_error():
    with pytest.raises(RuntimeError, match="normalized_shape"):
        rms_norm(torch.ones(3, 8), torch.ones(4), 1e-5)


def test_a_zero_row_stays_finite():
    x = torch.zeros(1, 7, requires_grad=True)
    (grad,) = torch.autograd.grad(rms_norm(x, torch.ones(7), 1e-5).sum(), x)
    assert grad.isfinite().all()


@needs.native_kernels
@pytest.mark.parametrize("form", ["kernels"], indirect=True)  # torch's norm keeps two tensors
def test_a_layer_keeps_no_more_for_its_gradient_than_torchs_attention(form):
    def kept(layer):
        storages = {}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(_draw(4, 80, 64, dtype=torch.float32).requires_grad_())
        return sum(storage.nbytes() for storage in storages.values())

    assert kept(DifferentialAttention(64, 4)) <= kept(SoftmaxAttention(64, 4, backend="sdpa"))
