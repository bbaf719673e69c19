"""The compiled backward pass: eager's gradients in float64, whatever is asked, and each head by itself."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention, differential_attention
from antiphase.attention.backends import compiled
from antiphase.attention.backends.choice import attend
from antiphase.attention.backends.native import kernels
from tests import needs
from tests.attention.compiled_cases import (
    DTYPES,
    LAYOUTS,
    MASKS,
    mask_of,
    parts_seen,
    skip_unless_taken,
    standard_attention,
)

pytestmark = needs.native_kernels


def _gradients(args, lam, mask, upstream, backend):
    """Return the gradients of q1, k1, q2, k2, v and, where it is a tensor, λ; of standard attention without λ."""
    args = [x.detach().requires_grad_() for x in args]
    if lam is None:
        out = standard_attention(*args, mask=mask, backend=backend)
    else:
        out = differential_attention(*args, lam, mask=mask, backend=backend)
    inputs = [*args, lam] if isinstance(lam, torch.Tensor) else args
    return torch.autograd.grad(out, inputs, upstream)


def _assert_exact(args, lam, mask, upstream):
    dtype = args[0].dtype
    gradients = _gradients(args, lam, mask, upstream, "native")
    wide = [x.double() for x in args]
    exact = _gradients(wide, lam, mask, upstream.double(), "eager")
    size = max(1.0, *(float(gradient.abs().max()) for gradient in exact))
    for one, other in zip(gradients, exact, strict=True):
        assert one.dtype == (dtype if other.ndim == 4 else torch.float32)
        assert one.isfinite().all()
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.01}[dtype] * size
        assert_close(one.double(), other.double(), rtol=0, atol=tolerance)


@given(
    st.sampled_from([1, 2, 15, 16, 17, 33, 50, 130, 257]),
    st.sampled_from([1, 2, 7, 16, 31, 33, 64, 77, 257, 2100]),
    st.sampled_from([2, 6, 16, 34, 64]),
    st.sampled_from([1, 2, 16, 34, 65, 128]),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(["number", "one", "each head", "standard"]),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
)
def test_gradients_are_eagers(queries, keys, width, value_width, mask, lam, dtype, seed):
    # a skip would end float32's cases too
    assume(dtype == torch.float32 or (value_width % 2 == 0 and kernels().multiplies_bf16()))
    draw = torch.Generator().manual_seed(seed)
    sizes = [(queries, width), (keys, width), (queries, width), (keys, width), (keys, value_width)]
    args = [torch.randn(2, 3, *size, generator=draw).to(dtype) for size in sizes]
    upstream = torch.randn(2, 3, queries, value_width, generator=draw).to(dtype)
    mask = mask_of(mask, draw, queries, keys, dtype)
    if lam == "standard":
        return _assert_exact([args[0], args[1], args[4]], None, mask, upstream)
    weight = {"number": 0.8, "one": torch.tensor(0.7), "each head": torch.tensor([0.2, 0.8, 1.3])}[lam]
    if isinstance(weight, torch.Tensor):
        weight.requires_grad_()
    _assert_exact(args, weight, mask, upstream)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seen", LAYOUTS)
def test_parts_and_what_arrives_may_lie_anywhere(dtype, seen):
    skip_unless_taken(dtype)
    part = parts_seen(seen, dtype)
    args = [part(2, 3, 37, 6) for _ in range(4)] + [part(2, 3, 37, 10)]
    _assert_exact(args, torch.tensor(0.8, requires_grad=True), None, part(2, 3, 37, 10))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["one projection", "transposed"])
def test_gradients_go_to_their_places_in_what_is_viewed(dtype, form):
    skip_unless_taken(dtype)
    draw = torch.Generator().manual_seed(0)
    source = torch.randn(2, 37, 3 * 2 * 2 * 6, generator=draw).to(dtype)
    if form == "transposed":
        source = source.mT.contiguous().mT
    layer, gradients = DifferentialAttention(24, 4), {}
    for backend in ("native", "eager"):
        x = (source if backend == "native" else source.double()).detach().requires_grad_()
        out = attend(layer.parts, 0.8, None, backend, x)
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        (gradients[backend],) = torch.autograd.grad(out, x, upstream.to(out.dtype))
    size = float(gradients["eager"].abs().max())
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.01}[dtype] * size
    assert_close(gradients["native"].double(), gradients["eager"], rtol=0, atol=tolerance)


def test_parts_that_overlap_are_refused():
    """One key for all heads: its gradient has no place for each head's."""
    x, y = torch.randn(2, 3, 5, 12, requires_grad=True), torch.randn(2, 1, 70, 16, requires_grad=True)

    def view(x, y):
        keys = y[..., :6].expand(2, 3, 70, 6)
        return (x[..., :6], x[..., 6:]), (keys, keys), y[..., 6:].expand(2, 3, 70, 10)

    out = attend(view, 0.8, None, "native", x, y)
    with pytest.raises(RuntimeError, match="single memory location"):
        out.sum().backward()


def test_many_keys_lose_no_more_digits_than_in_eager():
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, size, 16, generator=draw) for size in (8, 50_000))
    v, upstream = torch.rand(1, 1, 50_000, 8, generator=draw), torch.randn(1, 1, 8, 8, generator=draw)
    exact = _gradients([x.double() for x in (q, k, v)], None, None, upstream.double(), "eager")
    native, eager = (_gradients((q, k, v), None, None, upstream, backend) for backend in ("native", "eager"))
    for one, other, true in zip(native, eager, exact, strict=True):
        assert (one.double() - true).abs().max() <= 2 * (other.double() - true).abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_head_gets_the_same_in_any_batch_and_with_any_number_of_threads(inputs, dtype):
    skip_unless_taken(dtype)
    args = inputs(batch=7, heads=3, queries=300, keys=70, width=16, value_width=32, dtype=dtype)
    upstream = torch.randn(7, 3, 300, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = _gradients(args, 0.8, None, upstream, "native")
    for samples in (slice(2, 3), slice(3, 7)):
        part = _gradients([x[samples] for x in args], 0.8, None, upstream[samples], "native")
        assert all(torch.equal(one, other[samples]) for one, other in zip(part, whole, strict=True))
    before = torch.get_num_threads()
    lam = torch.tensor(0.8, requires_grad=True)
    whole = _gradients(args, lam, None, upstream, "native")
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            gradients = _gradients(args, lam, None, upstream, "native")
            assert all(torch.equal(one, other) for one, other in zip(gradients, whole, strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [5, 40])
@pytest.mark.parametrize("part", range(6))
def test_what_is_not_a_number_stays_in_its_head(inputs, dtype, queries, part):
    skip_unless_taken(dtype)
    args = list(inputs(queries=queries, keys=37, width=6, value_width=14, dtype=dtype))
    args.append(torch.randn(2, 3, queries, 14, generator=torch.Generator().manual_seed(1)).to(dtype))
    clean = _gradients(args[:5], 0.8, None, args[5], "native")
    args[part][0, 1, 3, 4] = math.nan
    gradients = _gradients(args[:5], 0.8, None, args[5], "native")
    hit = torch.zeros(2, 3, dtype=torch.bool)
    hit[0, 1] = True
    assert any(gradient[0, 1].isnan().any() for gradient in gradients)
    for one, other in zip(gradients, clean, strict=True):
        assert torch.equal(one[~hit], other[~hit])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_query_that_may_attend_to_nothing_gets_no_gradient_even_where_it_is_not_a_number(inputs, dtype):
    skip_unless_taken(dtype)
    args = inputs(queries=5, keys=7, width=6, value_width=14, dtype=dtype)
    upstream = torch.randn(2, 3, 5, 14, generator=torch.Generator().manual_seed(1)).to(dtype)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    clean = _gradients(args, 0.8, mask, upstream, "native")
    assert (clean[0][:, :, 2] == 0).all()
    args[0][:, :, 2] = math.nan
    to_q1, _, to_q2, _, to_v = _gradients(args, 0.8, mask, upstream, "native")
    assert torch.equal(to_q1, clean[0])
    assert torch.equal(to_q2, clean[2])
    assert torch.equal(to_v, clean[4])


@pytest.mark.parametrize("make", [DifferentialAttention, SoftmaxAttention])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_behind_it_are_eagers(tokens, redraw, make, masked):
    x = tokens(3, 70, 24, dtype=torch.float32).requires_grad_()
    mask = torch.rand(3, 1, 70, 70, generator=torch.Generator().manual_seed(1)) < 0.6 if masked else None
    gradients = {}
    for backend in ("native", "eager"):
        module = redraw(make(24, 4, backend=backend))
        if backend == "eager":
            module, x = module.double(), x.detach().double().requires_grad_()
        gradients[backend] = torch.autograd.grad(module(x, mask).cos().sum(), (x, *module.parameters()))
    for one, other in zip(gradients["native"], gradients["eager"], strict=True):
        assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_lambda_that_is_not_trained_gets_none(tokens):
    layer = DifferentialAttention(24, 4, backend="native")
    layer.lam.requires_grad_(False)
    x = tokens(3, 70, 24, dtype=torch.float32).requires_grad_()
    layer(x).sum().backward()
    assert all(parameter.grad is None for parameter in layer.lam.parameters())
    assert x.grad is not None


def test_second_derivatives_are_eagers(tokens, redraw):
    x = tokens(2, 70, 24, dtype=torch.float32)
    layer, gradients = redraw(DifferentialAttention(24, 4)), {}
    upstream = torch.randn(2, 70, 24, generator=torch.Generator().manual_seed(1))
    for backend, dtype in (("native", torch.float32), ("eager", torch.float64)):
        layer.to(dtype).backend = backend
        leaf = x.to(dtype).requires_grad_()
        (grad,) = torch.autograd.grad(layer(leaf), leaf, upstream.to(dtype), create_graph=True)
        weights = [weight for name, weight in layer.named_parameters() if name != "proj.bias"]  # no gradient has it
        gradients[backend] = torch.autograd.grad(grad.square().sum(), (leaf, *weights))
    for one, other in zip(gradients["native"], gradients["eager"], strict=True):
        assert_close(one.double(), other.double(), rtol=0, atol=1e-4 * max(1.0, float(other.abs().max())))


def test_a_batch_of_gradients_is_eagers(inputs):
    upstream = torch.randn(4, 2, 3, 5, 13, generator=torch.Generator().manual_seed(1))
    gradients = {}
    for backend, dtype in (("native", torch.float32), ("eager", torch.float64)):
        args = [x.requires_grad_() for x in inputs(dtype=dtype)]
        out = differential_attention(*args, 0.8, backend=backend)
        gradients[backend] = torch.autograd.grad(out, args, upstream.to(dtype), is_grads_batched=True)
    for one, other in zip(gradients["native"], gradients["eager"], strict=True):
        assert_close(one.double(), other, rtol=0, atol=1e-5)


def test_values_of_odd_width_in_bfloat16_have_their_gradients_from_plain_operations(inputs, monkeypatch):
    skip_unless_taken(torch.bfloat16)
    seen = []
    real = compiled.plain_gradients
    monkeypatch.setattr(compiled, "plain_gradients", lambda *a: (seen.append(1), real(*a))[1])
    for value_width in (13, 14):
        args = inputs(width=6, value_width=value_width, dtype=torch.bfloat16)
        _assert_exact(args, 0.8, None, torch.ones(2, 3, 5, value_width, dtype=torch.bfloat16))
    assert seen == [1]
