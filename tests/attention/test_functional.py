"""The laws of differential attention as a function, on every backend."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from antiphase.attention import combine, differential_attention, softmax_maps
from antiphase.attention.backends.choice import BACKENDS
from tests.attention.compiled_cases import standard_attention
from tests.reference import attention as reference

LAMBDAS = {
    "number": 0.8,
    "scalar": torch.tensor(0.8, dtype=torch.float64),
    "per head": torch.tensor([0.2, 0.8, 1.3], dtype=torch.float64),
}


@pytest.fixture(params=["eager", "sdpa"])
def backend(request):
    return request.param


@pytest.fixture(params=LAMBDAS.values(), ids=LAMBDAS.keys())
def lam(request):
    return request.param


def test_maps_of_a_tiny_example_by_hand():
    q, k = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, math.e]], dtype=torch.float64) / (1.0 + math.e)
    assert_close(softmax_maps(q, k), expected)


def test_output_of_a_tiny_example_by_hand(backend):
    # one query of width 4 (so scores are halved), two keys; A1 = [1, e]/(1+e), A2 = [½, ½], v = [0, 1]
    q1, k1 = torch.ones(1, 1, 1, 4).double(), torch.tensor([[0.0] * 4, [0.5] * 4]).double()[None, None]
    q2, k2 = torch.zeros(1, 1, 1, 4).double(), k1
    v = torch.tensor([[0.0], [1.0]]).double()[None, None]
    out = differential_attention(q1, k1, q2, k2, v, 0.8, backend=backend)
    assert out.item() == pytest.approx(math.e / (1 + math.e) - 0.8 * 0.5, abs=1e-14)


@given(
    st.tuples(*[st.sampled_from([1, 2, 3, 5, 7])] * 6),
    st.integers(0, 2**31),
    st.booleans(),
    st.sampled_from(["eager", "sdpa"]),
    st.floats(-2.0, 2.0),
)
def test_values_equal_the_slow_twin(shape, seed, per_head, backend, lam):
    *args, weights = _with_lambda(shape, seed, lam, per_head)
    out = differential_attention(*args, weights, backend=backend)
    assert_close(out, reference.differential_attention(*args, weights), rtol=0, atol=1e-12)


def _with_lambda(shape, seed, lam, per_head):
    stream = torch.Generator().manual_seed(seed)
    batch, heads, queries, keys, width, value_width = shape
    sizes = [(queries, width), (keys, width), (queries, width), (keys, width), (keys, value_width)]
    tensors = [torch.randn(batch, heads, *size, generator=stream, dtype=torch.float64) for size in sizes]
    return *tensors, lam * torch.rand(heads, generator=stream, dtype=torch.float64) if per_head else lam


@pytest.mark.parametrize("lam", [0.0, torch.tensor(0.0).double(), torch.zeros(3).double()])
def test_lambda_zero_is_standard_attention(inputs, backend, lam):
    q1, k1, q2, k2, v = inputs()
    out = differential_attention(q1, k1, q2, k2, v, lam, backend=backend)
    assert_close(out, F.scaled_dot_product_attention(q1, k1, v), rtol=0, atol=1e-14)
    assert_close(out, standard_attention(q1, k1, v, backend=backend), rtol=0, atol=1e-14)


def test_rows_of_the_combined_map_sum_to_one_minus_lambda(inputs, lam):
    q1, k1, q2, k2, _ = inputs()
    rows = combine(softmax_maps(q1, k1), softmax_maps(q2, k2), lam).sum(-1)
    expected = 1.0 - torch.as_tensor(lam, dtype=torch.float64).expand(3)[None, :, None].expand_as(rows)
    assert_close(rows, expected, rtol=0, atol=1e-14)


def test_equal_values_come_out_times_one_minus_lambda(inputs, backend, lam):
    *queries_and_keys, v = inputs()
    v = v[:, :, :1].expand_as(v)
    out = differential_attention(*queries_and_keys, v, lam, backend=backend)
    factor = 1.0 - torch.as_tensor(lam, dtype=torch.float64).expand(3)[:, None, None]
    assert_close(out, factor * v[:, :, :5], rtol=0, atol=1e-14)


def test_equal_branches_cancel_at_lambda_one(inputs, backend):
    q1, k1, _, _, v = inputs()
    out = differential_attention(q1, k1, q1, k1, v, 1.0, backend=backend)
    assert_close(out, torch.zeros_like(out), rtol=0, atol=1e-15)


def test_output_is_linear_in_lambda(inputs, backend):
    args = inputs()
    outs = {lam: differential_attention(*args, lam, backend=backend) for lam in (0.0, 0.5, 1.0)}
    assert_close(outs[0.5], (outs[0.0] + outs[1.0]) / 2, rtol=0, atol=1e-14)


def test_a_permutation_of_queries_permutes_and_one_of_keys_does_nothing(inputs, backend, lam):
    q1, k1, q2, k2, v = inputs()
    rows, columns = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([5, 2, 6, 0, 3, 1, 4])
    out = differential_attention(q1, k1, q2, k2, v, lam, backend=backend)
    permuted = differential_attention(
        q1[:, :, rows], k1[:, :, columns], q2[:, :, rows], k2[:, :, columns], v[:, :, columns], lam, backend=backend
    )
    assert_close(permuted, out[:, :, rows], rtol=0, atol=1e-13)


def test_a_permutation_of_the_batch_permutes_and_samples_do_not_see_each_other(inputs, backend, lam):
    args = inputs(batch=5)
    order = torch.tensor([4, 2, 0, 3, 1])
    out = differential_attention(*args, lam, backend=backend)
    permuted = differential_attention(*(tensor[order] for tensor in args), lam, backend=backend)
    alone = differential_attention(*(tensor[2:3] for tensor in args), lam, backend=backend)
    assert_close(permuted, out[order], rtol=0, atol=1e-13)
    assert_close(alone, out[2:3], rtol=0, atol=1e-13)


def test_a_shift_of_all_keys_does_nothing(inputs, backend):
    q1, k1, q2, k2, v = inputs()
    out = differential_attention(q1, k1, q2, k2, v, 0.8, backend=backend)
    shifted = differential_attention(q1, k1 + 3.0, q2, k2 - 5.0, v, 0.8, backend=backend)
    assert_close(shifted, out, rtol=0, atol=1e-13)


def test_each_head_uses_its_own_lambda(inputs, backend):
    args, lam = inputs(), torch.tensor([0.2, 0.8, 1.3]).double()
    out = differential_attention(*args, lam, backend=backend)
    for head in range(3):
        one = differential_attention(*(t[:, head : head + 1] for t in args), float(lam[head]), backend=backend)
        assert_close(out[:, head : head + 1], one, rtol=0, atol=1e-13)


def test_huge_scores_stay_finite(inputs, backend):
    q1, k1, q2, k2, v = inputs(dtype=torch.float32)
    out = differential_attention(1e4 * q1, 1e4 * k1, 1e4 * q2, 1e4 * k2, v, 0.8, backend=backend)
    assert out.isfinite().all()


def test_every_backend_that_takes_float64_gives_the_same(inputs):
    args = inputs()
    outs = [differential_attention(*args, 0.8, backend=name) for name in ("auto", *BACKENDS) if name != "native"]
    for out in outs[1:]:
        assert_close(out, outs[0], rtol=0, atol=1e-14)


def test_an_unknown_backend_is_named(inputs):
    q1, k1, q2, k2, v = inputs()
    message = "backend 'flash': expected .*auto.*eager.*native.*sdpa"
    with pytest.raises(ValueError, match=message):
        differential_attention(q1, k1, q2, k2, v, 0.8, backend="flash")
    with pytest.raises(ValueError, match=message):
        standard_attention(q1, k1, v, backend="flash")


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 1), (1, 3), (3, 1, 1), (2, 3, 7), (1, 3, 5)])
def test_a_lambda_of_another_shape_is_refused(inputs, backend, shape):
    with pytest.raises(ValueError, match=r"expected \(\), one for each of 3 heads, or \(2, 3, 5\): one for each query"):
        differential_attention(*inputs(), torch.ones(shape).double(), backend=backend)


@pytest.mark.parametrize("name", ["auto", "eager", "native", "sdpa"])
def test_each_query_may_have_a_lambda_of_its_own(inputs, name):
    q1, k1, q2, k2, v = (x.requires_grad_() for x in inputs(keys=97))
    lam = torch.rand(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = differential_attention(q1, k1, q2, k2, v, lam, backend=name)
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        one, two = (x[b : b + 1, h : h + 1, i : i + 1] for x in (q1, q2))
        keys = (x[b : b + 1, h : h + 1] for x in (k1, k2, v))
        a, c, values = keys
        alone = reference.differential_attention(one, a, two, c, values, lam[b, h, i].item())
        assert_close(out[b, h, i], alone[0, 0, 0], rtol=0, atol=1e-12)
    (to_lam,) = torch.autograd.grad(out.sum(), lam)
    assert_close(to_lam, -(softmax_maps(q2, k2) @ v).sum(-1), rtol=0, atol=1e-12)
