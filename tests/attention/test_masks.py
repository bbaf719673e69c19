"""Masks: causal, padding, boolean and additive, and queries that may attend to nothing."""

import math

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention, differential_attention, softmax_maps
from tests.attention.compiled_cases import standard_attention
from tests.reference import attention as reference

QUERIES, KEYS = 5, 7


@pytest.fixture(params=["eager", "sdpa"])
def backend(request):
    return request.param


def _random_mask(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def _as_additive(mask):
    return torch.where(mask, 0.0, -math.inf).double()


SHAPES = [
    (KEYS,),
    (1, KEYS),
    (QUERIES, KEYS),
    (2, 1, 1, KEYS),
    (2, 1, QUERIES, KEYS),
    (3, QUERIES, KEYS),
    (2, 3, QUERIES, KEYS),
    (QUERIES, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_broadcastable_mask_equals_the_slow_twin(inputs, backend, shape):
    args, mask = inputs(), _random_mask(*shape)
    expected = reference.differential_attention(*args, 0.8, mask)
    for form in (mask, _as_additive(mask)):
        out = differential_attention(*args, 0.8, mask=form, backend=backend)
        assert_close(out, expected, rtol=0, atol=1e-12)


def test_an_additive_mask_shifts_the_scores(inputs, backend):
    args = inputs()
    bias = torch.randn(3, QUERIES, KEYS, generator=torch.Generator().manual_seed(2)).double()
    out = differential_attention(*args, 0.8, mask=bias, backend=backend)
    assert_close(out, reference.differential_attention(*args, 0.8, bias), rtol=0, atol=1e-12)


def test_boolean_and_additive_masks_have_the_same_gradients(inputs, backend):
    args = [tensor.requires_grad_() for tensor in inputs()]
    mask = _random_mask(2, 1, QUERIES, KEYS)
    grads = [
        torch.autograd.grad(differential_attention(*args, 0.8, mask=m, backend=backend).square().sum(), args)
        for m in (mask, _as_additive(mask))
    ]
    for boolean, additive in zip(*grads, strict=True):
        assert_close(boolean, additive, rtol=0, atol=1e-14)


def test_padding_equals_the_shorter_sequence(inputs, backend):
    q1, k1, q2, k2, v = inputs()
    mask = torch.tensor([[True] * 4 + [False] * 3, [True] * 6 + [False]])[:, None, None]
    out = differential_attention(q1, k1, q2, k2, v, 0.8, mask=mask, backend=backend)
    for sample, length in enumerate((4, 6)):
        short = [t[sample : sample + 1, :, :length] for t in (k1, k2, v)]
        ours = [t[sample : sample + 1] for t in (q1, q2)]
        alone = differential_attention(ours[0], short[0], ours[1], short[1], short[2], 0.8, backend=backend)
        assert_close(out[sample : sample + 1], alone, rtol=0, atol=1e-13)


def test_a_causal_query_does_not_see_what_follows(inputs, backend):
    args, changed = inputs(queries=KEYS), list(inputs(queries=KEYS))
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    for place in (1, 3, 4):  # the last three keys and values become others
        changed[place] = torch.cat([changed[place][:, :, :4], changed[place][:, :, 4:] + 1.7], 2)
    before = differential_attention(*args, 0.8, mask=causal, backend=backend)
    after = differential_attention(*changed, 0.8, mask=causal, backend=backend)
    assert_close(after[:, :, :4], before[:, :, :4], rtol=0, atol=1e-14)
    assert (after[:, :, 4:] - before[:, :, 4:]).abs().amax(-1).min() > 1e-3
    assert_close(before[:, :, 0], 0.2 * args[4][:, :, 0], rtol=0, atol=1e-14)  # it sees itself alone


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("mechanism", ["differential", "standard"])
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_zero_gradients(inputs, backend, mechanism, additive):
    q1, k1, q2, k2, v = (tensor.requires_grad_() for tensor in inputs())
    mask = torch.ones(2, 1, QUERIES, KEYS, dtype=torch.bool)
    mask[1] = False  # a sample of padding alone
    mask[0, :, 3] = False  # one query of the other
    mask = _as_additive(mask) if additive else mask
    if mechanism == "standard":
        used, out = (q1, k1, v), standard_attention(q1, k1, v, mask=mask, backend=backend)
    else:
        used = (q1, k1, q2, k2, v)
        out = differential_attention(*used, 0.8, mask=mask, backend=backend)
    assert (out[1] == 0).all()
    assert (out[0, :, 3] == 0).all()
    assert (out[0, :, [0, 1, 2, 4]] != 0).all()
    for grad in torch.autograd.grad(out.square().sum() + out.sum(), used):
        assert grad.isfinite().all()
        assert (grad[1] == 0).all()
        assert (grad[0] != 0).any()
    q_grad = torch.autograd.grad(standard_attention(q1, k1, v, mask=mask, backend=backend).sum(), q1)[0]
    assert (q_grad[0, :, 3] == 0).all()


def test_a_forbidden_query_of_the_maps_is_a_row_of_zeros(inputs):
    q, k, *_ = inputs()
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[3] = False
    rows = softmax_maps(q, k, mask).sum(-1)
    assert (rows[..., 3] == 0).all()
    assert_close(rows[..., [0, 1, 2, 4]], torch.ones(2, 3, 4).double())


def test_a_finite_lowest_number_that_overflows_in_half_precision_forbids(inputs, backend):
    mask = torch.zeros(QUERIES, KEYS)
    mask[1] = torch.finfo(torch.float32).min  # −∞ once it is float16
    out = differential_attention(*inputs(dtype=torch.float16), 0.8, mask=mask, backend=backend)
    assert out.isfinite().all()
    assert (out[:, :, 1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_a_mask_of_integers_is_refused_as_it_would_be_added(inputs, backend, dtype):
    with pytest.raises(ValueError, match=r"mask of torch\.\w+: expected boolean"):
        differential_attention(*inputs(), 0.8, mask=torch.ones(QUERIES, KEYS, dtype=dtype), backend=backend)


@pytest.mark.parametrize("make", [SoftmaxAttention, DifferentialAttention])
def test_modules_apply_the_mask_in_forward_and_in_maps(tokens, redraw, backend, make):
    module = redraw(make(20, 4, backend=backend).double())
    x = tokens(2, 7, 20)
    padding = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])[:, None, None]
    changed = x.clone()
    changed[0, 5:] += 1.0
    visible = module(x, padding)[0, :5]
    assert_close(module(changed, padding)[0, :5], visible, rtol=0, atol=1e-13)
    assert_close(visible, module(x[:1, :5])[0], rtol=0, atol=1e-13)
    maps = module.maps(x, padding)
    for weights in (maps.positive, maps.positive if maps.negative is None else maps.negative):
        assert (weights[0, ..., 5:] == 0).all()
        assert (weights[0, ..., :5] > 0).all()
