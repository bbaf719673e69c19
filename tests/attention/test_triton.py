"""The Triton kernel against the eager path: on a GPU where there is one, else in Triton's interpreter."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from antiphase.attention import differential_attention
from antiphase.attention.triton_attention import triton_differential_attention

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from antiphase.attention import triton_kernels  # noqa: E402

# Triton 3.9 says once that a default of its compiler will change
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILE = (16, 16)  # small, so that small tensors have several blocks
NAMES = ("q1", "k1", "q2", "k2", "v", "lam")


@pytest.fixture(autouse=True, scope="module")
def _interpreter():
    """Interpret the kernels where there is no GPU, whoever imported Triton first.

    Triton reads TRITON_INTERPRET when a function is decorated, and other tests import it without.
    """
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            from triton.runtime.interpreter import InterpretedFunction

            patch.setenv("TRITON_INTERPRET", "1")
            for module in (tl, triton_kernels):
                for name, value in list(vars(module).items()):
                    if isinstance(value, triton.runtime.JITFunction):
                        patch.setattr(module, name, InterpretedFunction(value.fn))
        yield


def _stream(seed):
    return torch.Generator().manual_seed(seed)


def _random_mask(*shape, seed=1):
    return torch.rand(shape, generator=_stream(seed)) < 0.6


def _additive(mask):
    bias = torch.randn(mask.shape, generator=_stream(2))
    return torch.where(mask, bias, -math.inf)


MASKS = {
    "none": lambda b, h, q, k: None,
    "keys": lambda b, h, q, k: _random_mask(k),
    "queries": lambda b, h, q, k: _random_mask(q, 1),
    "padding": lambda b, h, q, k: (torch.arange(k) < torch.tensor([[k - 4], [3]][:b]))[:, None, None],
    "causal": lambda b, h, q, k: torch.ones(q, k, dtype=torch.bool).tril(),
    "heads": lambda b, h, q, k: _random_mask(h, q, k),
    "full": lambda b, h, q, k: _random_mask(b, h, q, k),
    "additive": lambda b, h, q, k: _additive(_random_mask(b, 1, q, k)),
    "transposed": lambda b, h, q, k: _additive(_random_mask(h, k, q)).mT,
    "dead rows": lambda b, h, q, k: _random_mask(b, 1, q, k) & (torch.arange(q)[:, None] % 3 > 0),
    "additive dead rows": lambda b, h, q, k: _additive(torch.arange(q)[:, None] % 3 > 0),
    "all dead": lambda b, h, q, k: torch.tensor(False),
}
LAMBDAS = {
    "number": lambda heads: 0.8,
    "one": lambda heads: torch.tensor(0.8),
    "each head": lambda heads: torch.linspace(0.2, 0.9, heads),
    "float64": lambda heads: torch.linspace(0.9, 0.2, heads, dtype=torch.float64),
}


def _leaf(tensor, dtype):
    return tensor.detach().to(DEVICE, dtype).requires_grad_()


def _outcomes(args, lam, mask, *, dtype=torch.float32, tile=None):
    """Return (output and gradients by name) of the kernel, and of eager in float64 from the same numbers."""
    mask = mask if mask is None else mask.to(DEVICE)
    found = []
    fused = [_leaf(x, dtype) for x in args]
    ours = lam.to(DEVICE).requires_grad_() if isinstance(lam, Tensor) else lam
    exact = [_leaf(x, torch.float64) for x in fused]
    theirs = _leaf(ours, torch.float64) if isinstance(lam, Tensor) else lam
    weights = torch.randn(*args[0].shape[:3], args[4].shape[3], generator=_stream(3), dtype=torch.float64).to(
        DEVICE, dtype
    )
    for inputs, weight in (([*fused, ours], weights), ([*exact, theirs], weights.double())):
        if weight.dtype == torch.float64:
            out = differential_attention(*inputs, mask=mask, backend="eager")
        else:
            out = triton_differential_attention(*inputs, mask, _tile=tile)
            assert out.dtype == dtype
        wanted = [x for x in inputs if isinstance(x, Tensor)]
        grads = torch.autograd.grad((out * weight).sum(), wanted)
        assert all(g.dtype == x.dtype and g.shape == x.shape for g, x in zip(grads, wanted, strict=True))
        found.append({"out": out.detach(), **dict(zip(NAMES, grads, strict=False))})
    return found


def _assert_equal(args, lam, mask=None, **options):
    fused, exact = _outcomes(args, lam, mask, **options)
    for name, expected in exact.items():
        atol = 1e-5 if name == "out" else 1e-4
        assert_close(fused[name].double(), expected, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    return fused


@settings(max_examples=8, derandomize=True)
@given(data=st.data())
def test_any_shape_equals_eager_in_values_and_gradients(data):
    def size(*primes):
        return data.draw(st.sampled_from(primes))

    batch, heads = size(1, 2), size(1, 3)
    queries, keys, width, value_width = size(1, 7, 29), size(1, 5, 31, 37), size(1, 11, 19), size(2, 13, 23)
    shapes = [(queries, width), (keys, width)] * 2 + [(keys, value_width)]
    args = [torch.randn(batch, heads, *shape, generator=_stream(i)) for i, shape in enumerate(shapes)]
    mask = data.draw(st.sampled_from(sorted(MASKS)))
    lam = data.draw(st.sampled_from(sorted(LAMBDAS)))
    _assert_equal(args, LAMBDAS[lam](heads), MASKS[mask](batch, heads, queries, keys), tile=TILE)


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_equals_eager_in_values_and_gradients(inputs, mask):
    args = inputs(batch=2, heads=2, queries=17, keys=19, width=3, value_width=5)
    _assert_equal(args, torch.tensor([0.3, 0.9]), MASKS[mask](2, 2, 17, 19), tile=TILE)


@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("tile", [None, TILE], ids=["whole", "blocks"])
def test_every_form_of_lambda_equals_eager(inputs, lam, tile):
    args = inputs(batch=2, heads=3, queries=3, keys=19, width=3, value_width=5)
    _assert_equal(args, LAMBDAS[lam](3), tile=tile)


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("keys", [13, 67], ids="keys={}".format)
def test_values_twice_as_wide_equal_eager(inputs, width, keys):
    args = inputs(batch=1, heads=1, queries=11, keys=keys, width=width, value_width=2 * width)
    _assert_equal(args, torch.tensor(0.8), MASKS["full"](1, 1, 11, keys))


@pytest.mark.parametrize("tile", [(16, 32), (32, 16)], ids=str)
def test_many_blocks_equal_eager(inputs, tile):
    args = inputs(batch=1, heads=1, queries=53, keys=61, width=7, value_width=17)
    _assert_equal(args, torch.tensor([0.8]), tile=tile)


def test_views_of_a_packed_projection_equal_eager():
    batch, tokens, heads, width = 2, 5, 3, 4
    packed = torch.randn(batch, tokens, heads, 6, width, generator=_stream(0)).to(DEVICE)

    def cut(of):  # each head's columns: q1, q2, k1, k2, and values twice as wide
        q1, q2, k1, k2 = (of[..., i, :].transpose(1, 2) for i in range(4))
        return q1, k1, q2, k2, of[..., 4:, :].flatten(3).transpose(1, 2)

    grads, outs = [], []
    for call, dtype in (
        (triton_differential_attention, torch.float32),
        (differential_attention, torch.float64),
    ):
        leaf = _leaf(packed, dtype)
        views = cut(leaf)
        assert not views[0].is_contiguous()
        outs.append(call(*views, 0.8))
        grads.append(torch.autograd.grad(outs[-1].square().sum(), leaf)[0])
    assert_close(outs[0].double(), outs[1], rtol=0, atol=1e-5)
    assert_close(grads[0].double(), grads[1], rtol=0, atol=1e-4)


def test_tensors_laid_out_the_other_way_equal_eager(inputs):
    q1, *rest = (x.float().mT.contiguous().mT.to(DEVICE) for x in inputs())  # neighbours along the tokens
    found = []
    for call in (triton_differential_attention, differential_attention):
        leaf = q1.clone().requires_grad_()
        out = call(leaf, *rest, 0.8)
        found.append((out, torch.autograd.grad(out.sum(), leaf)[0]))  # a gradient with strides of 0
    for fused, eager in zip(*found, strict=True):
        assert_close(fused, eager, rtol=0, atol=1e-5)


def test_scores_of_ten_thousand_stay_finite(inputs):
    args = inputs(batch=1, heads=1, keys=19, seed=4)
    large = [100 * x for x in args[:4]] + [args[4]]
    scores = (large[0] @ large[1].mT / math.sqrt(11)).abs()
    assert scores.max() > 2e4
    fused = _assert_equal(large, torch.tensor(0.8), MASKS["causal"](1, 1, 5, 19), tile=TILE)
    assert all(value.isfinite().all() for value in fused.values())


@pytest.mark.parametrize("tile", [None, TILE], ids=["whole", "blocks"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_a_few_roundings_away(inputs, dtype, tile):
    args = inputs(batch=1, heads=2, queries=19, keys=23)
    mask = MASKS["additive"](1, 2, 19, 23).to(dtype)
    fused, exact = _outcomes(args, torch.tensor([0.3, 0.9]), mask, dtype=dtype, tile=tile)
    for name, expected in exact.items():
        rounding = torch.finfo(dtype).eps * expected.abs().max().item()
        assert_close(
            fused[name].double(), expected, rtol=0, atol=2 * rounding, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_dead_query_gets_zeros_and_gives_none(inputs):
    args = inputs(queries=17, keys=19)
    fused = _assert_equal(args, torch.tensor(0.8), MASKS["dead rows"](2, 3, 17, 19), tile=TILE)
    for name in ("out", "q1", "q2"):
        assert (fused[name][:, :, ::3] == 0).all()
        assert (fused[name][:, :, 1::3] != 0).all()


def test_what_is_minus_infinity_in_float16_closes_the_row(inputs):
    args = [x.half().to(DEVICE) for x in inputs()]
    mask = torch.zeros(5, 7, device=DEVICE)
    mask[2] = -1e38
    mask[3, :6] = -1e38
    out = triton_differential_attention(*args, 0.5, mask)
    assert (out[:, :, 2] == 0).all()
    assert_close(out[:, :, 3], 0.5 * args[4][:, :, 6], rtol=0, atol=1e-3)


def test_the_lowest_number_is_not_minus_infinity(inputs):
    mask = torch.zeros(5, 7)
    mask[2] = torch.finfo(torch.float32).min
    mask[3, :6] = torch.finfo(torch.float32).min
    fused = _assert_equal(inputs(), 0.5, mask)
    assert_close(fused["out"][:, :, 2].cpu().double(), 0.5 * inputs()[4].mean(2), rtol=0, atol=1e-5)


def test_nothing_is_kept_but_inputs_and_four_numbers_a_query(inputs):
    args = [_leaf(x, torch.float32) for x in inputs(queries=37, keys=41, width=2, value_width=3)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        triton_differential_attention(*args, 0.8)
    memory = {x.data_ptr(): x.numel() for x in kept} | {x.data_ptr(): 0 for x in args}
    assert sum(memory.values()) == 4 * (2 * 3 * 37)


@pytest.mark.parametrize("name", NAMES)
def test_one_gradient_alone_is_the_same(inputs, name):
    place = NAMES.index(name)
    args = [x.float().to(DEVICE) for x in inputs()] + [torch.tensor(0.8, device=DEVICE)]
    args[place].requires_grad_()
    found = [
        torch.autograd.grad(call(*args).square().sum(), args[place])[0]
        for call in (triton_differential_attention, differential_attention)
    ]
    assert found[1].abs().max() > 1e-2
    assert_close(found[0], found[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("mask", ["none", "dead rows", "additive"])
def test_second_derivatives_are_those_of_eager(inputs, mask):
    drawn = inputs(batch=1, heads=2, queries=3, keys=5, width=2, value_width=3)
    mask = MASKS[mask](1, 2, 3, 5)
    mask = mask if mask is None else mask.to(DEVICE)
    found = []
    for call in (triton_differential_attention, differential_attention):
        args = [_leaf(x, torch.float32) for x in drawn] + [_leaf(torch.tensor([0.3, 0.9]), torch.float32)]
        grads = torch.autograd.grad(call(*args, mask=mask).pow(3).sum(), args, create_graph=True)
        found.append((grads, torch.autograd.grad(sum(g.square().sum() for g in grads), args)))
    for order in (0, 1):
        for fused, eager in zip(found[0][order], found[1][order], strict=True):
            assert eager.abs().max() > 1e-3
            assert_close(fused, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("create_graph", [False, True])
def test_inputs_that_come_from_each_other_are_counted_once(create_graph):
    drawn = torch.randn(1, 2, 5, 3, generator=_stream(0))
    found = []
    for call in (triton_differential_attention, differential_attention):
        x = _leaf(drawn, torch.float32)
        out = call(x, x, x.sin(), x.sin().exp(), x, x.mean())
        found.append(torch.autograd.grad(out.square().sum(), x, create_graph=create_graph)[0])
    assert_close(found[0], found[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"queries": 0}, {"keys": 0}], ids=str)
def test_nothing_to_attend_to_is_no_error(inputs, sizes):
    args = inputs(**sizes)
    fused, exact = _outcomes(args, torch.tensor(0.8), None)
    for name, expected in exact.items():
        assert_close(fused[name].double(), expected, rtol=0, atol=0)


def _changed(place, change):
    def call(args):
        args[place] = change(args[place])
        return args

    return call


ERRORS = {
    "float64": (range(5), lambda x: x.double(), "of one dtype, .* not float64, .*'eager' takes"),
    "mixed": ([1], lambda x: x.half(), "of one dtype, .* not float32, float16, float32"),
    "batch": ([2], lambda x: x[:1], r"\(1, 3, 5, 11\).*expected \(batch, heads, tokens, width\)"),
    "keys": ([4], lambda x: x[:, :, :6], r"\(2, 3, 6, 13\).*a value for each key"),
    "three": (range(5), lambda x: x[0], r"shapes \(3, 5, 11\).*expected \(batch, heads"),
    "wide": (range(4), lambda x: x.repeat(1, 1, 1, 12), "width 132 .* 1 to 128 and 1 to 256.*'eager'"),
    "wide values": ([4], lambda x: x.repeat(1, 1, 1, 20), "values of width 260"),
    "no width": ([4], lambda x: x[..., :0], "values of width 0"),
    "lambda": ([5], lambda x: torch.ones(2, device=DEVICE), r"lam of shape \(2,\).*one for each of 3 heads"),
    "integer lambda": ([5], lambda x: torch.ones((), dtype=torch.int64, device=DEVICE), "lam .*int64"),
    "integer mask": ([6], lambda x: torch.ones(5, 7, dtype=torch.int64, device=DEVICE), "mask of torch.int64"),
    "mask shape": ([6], lambda x: torch.ones(7, 5, device=DEVICE) > 0, r"\(7, 5\).*\(2, 3, 5, 7\)"),
    "mask gradient": ([6], lambda x: torch.ones(5, 7, device=DEVICE).requires_grad_(), "mask no gradient"),
    "devices": ([6], lambda x: torch.empty(5, 7, dtype=torch.bool, device="meta"), "lie on several devices"),
}  # fmt: skip


@pytest.mark.parametrize(("places", "change", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_what_the_kernel_does_not_take_is_a_clear_error(inputs, places, change, message):
    args = [*(x.float().to(DEVICE) for x in inputs()), 0.8, None]
    for place in places:
        args[place] = change(args[place])
    with pytest.raises(ValueError, match=message):
        triton_differential_attention(*args)


def test_a_cpu_without_the_interpreter_is_a_clear_error(inputs, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton_kernels, "forward_kernel", triton.jit(triton_kernels.forward_kernel.fn))
    with pytest.raises(
        ValueError, match="are on cpu: take backend 'eager', or start Python with TRITON_INTER"
    ):
        triton_differential_attention(*(x.float() for x in inputs()), 0.8)


def test_no_triton_is_a_clear_error(inputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "antiphase.attention.triton_kernels", None)
    with pytest.raises(ImportError, match="backend 'triton' needs Triton"):
        triton_differential_attention(*(x.float().to(DEVICE) for x in inputs()), 0.8)
