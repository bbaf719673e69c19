"""The RMSNorm behind each head: torch's own, in values and in every derivative."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.norm import rms_norm

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")


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
    for ours, theirs in zip(*grads, strict=True):
        assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("least", [None, 0.0])
def test_derivatives_by_finite_differences(least):
    weight = _draw(5)
    if least is not None:
        weight[1] = least
    args = (_draw(2, 3, 5).requires_grad_(), weight.requires_grad_())
    assert gradcheck(lambda *a: rms_norm(*a, 0.1), args, check_forward_ad=True)
    assert gradgradcheck(lambda *a: rms_norm(*a, 0.1), args)


def test_a_backward_pass_under_autocast_stays_in_float32():
    x, weight = (
        _draw(4, 5, dtype=torch.float32).requires_grad_(),
        _draw(5, dtype=torch.float32).requires_grad_(),
    )
    expected = torch.autograd.grad(F.rms_norm(x, (5,), weight, 1e-5).cos().sum(), (x, weight))
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(rms_norm(x, weight, 1e-5).cos().sum(), (x, weight))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, rtol=0, atol=1e-5)


def test_a_zero_row_stays_finite():
    x = torch.zeros(1, 7, requires_grad=True)
    (grad,) = torch.autograd.grad(rms_norm(x, torch.ones(7), 1e-5).sum(), x)
    assert grad.isfinite().all()


def test_a_layer_keeps_no_more_for_its_gradient_than_its_twin():
    def kept(layer):
        storages = {}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(_draw(4, 80, 64, dtype=torch.float32).requires_grad_())
        return sum(storage.nbytes() for storage in storages.values())

    assert kept(DifferentialAttention(64, 4)) <= kept(SoftmaxAttention(64, 4))
