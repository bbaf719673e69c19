"""The compiled forward pass: eager's values in float64, whatever is asked, and each query by itself."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention, differential_attention
from antiphase.attention.backends import compiled
from antiphase.attention.backends.native import kernels
from tests import needs
from tests.attention.compiled_cases import (
    DTYPES,
    LAYOUTS,
    MASKS,
    assert_near,
    mask_of,
    parts_seen,
    skip_unless_taken,
    standard_attention,
)

pytestmark = needs.native_kernels


@given(
    st.sampled_from([1, 2, 15, 16, 17, 50, 130]),
    st.sampled_from([1, 2, 7, 16, 31, 33, 64, 77, 257, 2100]),
    st.sampled_from([2, 6, 16, 34, 64]),
    st.sampled_from([1, 3, 16, 34, 65, 128]),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(["number", "one", "each head"]),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
)
def test_values_are_eagers(queries, keys, width, value_width, mask, lam, dtype, seed):
    assume(dtype == torch.float32 or kernels().multiplies_bf16())  # a skip would end float32's cases too
    draw = torch.Generator().manual_seed(seed)
    sizes = [(queries, width), (keys, width), (queries, width), (keys, width), (keys, value_width)]
    args = [torch.randn(2, 3, *size, generator=draw).to(dtype) for size in sizes]
    mask = mask_of(mask, draw, queries, keys, dtype)
    weight = {"number": 0.8, "one": torch.tensor(0.7), "each head": torch.tensor([0.2, 0.8, 1.3])}[lam]
    exact = differential_attention(*(x.double() for x in args), weight, mask=mask, backend="eager")
    assert_near(differential_attention(*args, weight, mask=mask, backend="native"), exact, dtype)
    q, k, _, _, v = args
    exact = standard_attention(*(x.double() for x in (q, k, v)), mask=mask, backend="eager")
    assert_near(standard_attention(q, k, v, mask=mask, backend="native"), exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odd_widths_of_queries_are_taken_in_float32_only(inputs, dtype):
    args = inputs(width=11, dtype=dtype)
    if dtype == torch.float32:
        exact = differential_attention(*(x.double() for x in args), 0.8, backend="eager")
        return assert_near(differential_attention(*args, 0.8, backend="native"), exact, dtype)
    with pytest.raises(ValueError, match=r"backend 'native' for torch.bfloat16, 11 wide: expected .*even width"):
        differential_attention(*args, 0.8, backend="native")
    assert differential_attention(*args, 0.8).dtype == dtype


def test_other_numbers_are_refused(inputs):
    mixed = list(inputs(width=6, dtype=torch.float32))
    mixed[4] = mixed[4].bfloat16()
    with pytest.raises(ValueError, match=r"for torch.bfloat16 and torch.float32, 6 wide: expected float32"):
        differential_attention(*mixed, 0.8, backend="native")
    assert differential_attention(*(x.requires_grad_() for x in mixed), 0.8).isfinite().all()
    with pytest.raises(ValueError, match=r"backend 'native' for torch.float64, 11 wide: expected float32"):
        differential_attention(*inputs(), 0.8, backend="native")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seen", LAYOUTS)
def test_parts_may_lie_anywhere(dtype, seen):
    skip_unless_taken(dtype)
    part = parts_seen(seen, dtype)
    args = [part(2, 3, 37, 6) for _ in range(4)] + [part(2, 3, 37, 10)]
    exact = differential_attention(*(x.double() for x in args), 0.8, backend="eager")
    assert_near(differential_attention(*args, 0.8, backend="native"), exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sample_gets_the_same_in_any_batch_and_with_any_number_of_threads(inputs, dtype):
    skip_unless_taken(dtype)
    args = inputs(batch=7, heads=3, queries=300, keys=70, width=16, value_width=32, dtype=dtype)
    lam = torch.tensor([0.2, 0.8, 1.3])
    whole = differential_attention(*args, lam, backend="native")
    for samples in (slice(2, 3), slice(3, 7)):
        part = differential_attention(*(x[samples] for x in args), lam, backend="native")
        assert torch.equal(part, whole[samples])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(differential_attention(*args, lam, backend="native"), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", range(5))
def test_what_is_not_finite_is_seen_where_eager_sees_it(inputs, dtype, value, part):
    skip_unless_taken(dtype)
    args = [x.abs() + 0.1 for x in inputs(keys=37, queries=5, width=6, dtype=dtype)]
    args[part][1, 2, 3, 4] = value
    exact = differential_attention(*args, 0.8, backend="eager")
    out = differential_attention(*args, 0.8, backend="native")
    assert torch.equal(out.isfinite(), exact.isfinite())
    nothing = value == -math.inf and part in (1, 3)  # a key whose score is −∞ is not attended to
    assert out.isfinite().all() == nothing


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_query_that_may_attend_to_nothing_gets_zeros_even_where_it_is_not_a_number(inputs, dtype):
    skip_unless_taken(dtype)
    args = inputs(queries=5, keys=7, width=6, dtype=dtype)
    args[0][:, :, 2] = math.nan
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    out = differential_attention(*args, 0.8, mask=mask, backend="native")
    assert (out[:, :, 2] == 0).all()
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e3, 1e5, 1e12])
def test_large_scores_neither_overflow_nor_vanish(inputs, dtype, size):
    skip_unless_taken(dtype)
    args = [size * x for x in inputs(keys=37, width=6, dtype=dtype)[:4]] + [inputs(keys=37, dtype=dtype)[4]]
    exact = differential_attention(*(x.double() for x in args), 0.8, backend="eager")
    assert_near(differential_attention(*args, 0.8, backend="native"), exact, dtype)


def test_a_single_row_may_have_any_step(inputs):
    q1, k1, q2, k2, v = inputs(queries=1, keys=1, width=6, dtype=torch.float32)
    exact = differential_attention(q1, k1, q2, k2, v, 0.8, backend="eager")
    for step in (0, 1, 7):
        rows = [x.as_strided(x.shape, (*x.stride()[:2], step, 1)) for x in (q1, k1, q2, k2, v)]
        assert_close(differential_attention(*rows, 0.8, backend="native"), exact, rtol=0, atol=1e-6)


def test_a_mask_gets_no_gradient_and_no_warning(inputs):
    mask = torch.zeros(5, 7, requires_grad=True)
    out = differential_attention(*inputs(dtype=torch.float32), 0.8, mask=mask, backend="native")
    assert not out.requires_grad


def test_many_keys_do_not_lose_digits():
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, size, 16, generator=draw) for size in (8, 50_000))
    v = torch.rand(1, 1, 50_000, 8, generator=draw)
    exact = standard_attention(*(x.double() for x in (q, k, v)), backend="eager")
    assert_close(standard_attention(q, k, v, backend="native").double(), exact, rtol=0, atol=1e-6)


def test_a_mask_of_one_column_is_not_written_out_for_every_head(inputs, monkeypatch):
    masks = []
    monkeypatch.setattr(compiled, "kernels", lambda: SimpleNamespace(attention=lambda *a: masks.append(a[4])))
    q, k, _, _, v = inputs(dtype=torch.float32)
    parts, mask = ((q,), (k,), v), torch.randn(5, 1)
    compiled.compiled_attention(parts, torch.tensor(0.5), mask)
    assert torch.equal(masks[0], mask.expand(2, 3, 5, 7))
    assert masks[0].untyped_storage().nbytes() == 5 * 7 * 4


@given(
    st.sampled_from([1, 17, 130]),
    st.sampled_from([2, 6, 16, 34]),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(["vector", "scalar", "fixed"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
)
def test_a_layer_without_a_gradient_is_the_layer_with_one(
    tokens_each, width, mask, kind, head_norm, rescale, dtype, seed
):
    assume(dtype == torch.float32 or kernels().multiplies_bf16())
    draw = torch.Generator().manual_seed(seed)
    options = {"parameterisation": kind, "head_norm": head_norm, "rescale": rescale}
    layer = DifferentialAttention(6 * width, 6, backend="native", **options)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw).div_(parameter.shape[-1] ** 0.5)
    layer.to(dtype)
    x = torch.randn(2, tokens_each, 6 * width, generator=draw).to(dtype)
    mask = MASKS[mask](draw, tokens_each, tokens_each)
    with torch.no_grad():
        fused = layer(x, mask)
    assert torch.equal(layer(x, mask), fused)
    if dtype == torch.float32:  # in bf16 λ may round to 1, which the norm then magnifies
        layer.double().backend = "eager"
        mask = mask.double() if mask is not None and mask.is_floating_point() else mask
        assert_near(fused, layer(x.double(), mask).detach(), dtype)


def test_only_the_norms_weight_may_be_trained(tokens, redraw):
    x, gradients = tokens(3, 70, 24, dtype=torch.float32), {}
    for backend in ("native", "eager"):
        layer = redraw(DifferentialAttention(24, 4, backend=backend)).requires_grad_(False)
        layer.norm.weight.requires_grad_()
        (gradients[backend],) = torch.autograd.grad(layer(x).cos().sum(), layer.norm.weight)
    assert_close(gradients["native"], gradients["eager"], rtol=1e-4, atol=1e-4)


def test_autocast_leaves_the_norm_in_float32(tokens, redraw):
    skip_unless_taken(torch.bfloat16)
    layer, x = redraw(DifferentialAttention(24, 4, backend="native")), tokens(3, 70, 24, dtype=torch.float32)
    seen = []
    layer.proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            layer(x)
        layer(x)
    assert [rows.dtype for rows in seen] == [torch.float32] * 2
    assert torch.equal(*seen)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
def test_forward_mode_is_not_lost_without_a_word(tokens):
    layer, x = DifferentialAttention(24, 4, backend="native"), tokens(3, 70, 24, dtype=torch.float32)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"setup_context|forward"):
        torch.func.jvp(layer, (x,), (torch.ones_like(x),))


def test_auto_takes_it_where_it_can(tokens, monkeypatch):
    seen, real = [], compiled.compiled_attention
    monkeypatch.setattr(compiled, "compiled_attention", lambda *a: (seen.append(a[0][2].dtype), real(*a))[1])
    few, many = tokens(2, 3, 8, dtype=torch.float32), tokens(2, 65, 8, dtype=torch.float32)
    layer = DifferentialAttention(8, 4)
    layer.double()(many.double())
    assert not seen
    layer.float()(many)
    with torch.no_grad():
        layer(few)
    assert seen == [torch.float32] * 2
    if kernels().multiplies_bf16():
        with torch.autocast("cpu", torch.bfloat16):
            layer(many)
        SoftmaxAttention(8, 4).bfloat16()(many.bfloat16())
        assert seen[2:] == [torch.bfloat16] * 2
    seen.clear()
    SoftmaxAttention(8, 4)(few)  # torch's own is as quick
    assert not seen
    SoftmaxAttention(8, 4)(many)
    assert seen == [torch.float32]
    monkeypatch.setattr(compiled, "kernels", lambda: None)
    for module in (layer, SoftmaxAttention(8, 4)):
        module(many)
    assert seen == [torch.float32]


def test_where_onednn_may_not_multiply_bf16_other_operations_do():
    code = (
        "import torch; from antiphase.attention import SoftmaxAttention\n"
        "from antiphase.attention.backends.native import kernels\n"
        "layer, x = SoftmaxAttention(8, 4), torch.ones(2, 65, 8)\n"
        "near = torch.allclose(layer.bfloat16()(x.bfloat16()).float(), layer.float()(x), atol=0.02)\n"
        "print(kernels().multiplies_bf16(), near)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert process.stdout.split() == ["False", "True"]
