"""Attention in pieces: the same as in one, however it is cut, with every derivative that it promises."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention, differential_attention
from antiphase.attention.backends import chunked
from antiphase.attention.backends.choice import attend
from tests.attention.compiled_cases import standard_attention

# torch warns of its own torch.jit.script when forward mode is first used
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")

# bytes of a piece: one query at a time, some queries of one head, some heads, some samples, everything
PIECES = [1, 300, 2_000, 9_000, 1 << 22]
MASKS = {
    "none": lambda draw, q, k: None,
    "boolean": lambda draw, q, k: torch.rand(q, k, generator=draw) < 0.6,
    "causal": lambda draw, q, k: torch.ones(q, k, dtype=torch.bool).tril(),
    "padding": lambda draw, q, k: torch.rand(1, 1, k, generator=draw) < 0.5,
    "additive": lambda draw, q, k: torch.randn(q, k, generator=draw),
    "nothing": lambda draw, q, k: torch.zeros(q, k, dtype=torch.bool),
}


def _of(piece):
    return dict.fromkeys((2, 4, 8), piece)


def _draw(shape, seed, dtype, lam):
    draw = torch.Generator().manual_seed(seed)
    batch, heads, queries, keys, width, value_width = shape
    sizes = [(queries, width), (keys, width), (queries, width), (keys, width), (keys, value_width)]
    tensors = [torch.randn(batch, heads, *size, generator=draw).to(dtype).requires_grad_() for size in sizes]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if lam == "one":
        weight = torch.tensor(0.7, dtype=wide, requires_grad=True)
    else:
        weight = torch.rand(heads, generator=draw, dtype=wide).requires_grad_() if lam == "each head" else 0.7
    return draw, tensors, weight


def _values_and_gradients(tensors, lam, mask, backend):
    out = differential_attention(*tensors, lam, mask=mask, backend=backend)
    wanted = [*tensors, lam] if isinstance(lam, torch.Tensor) else tensors
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    return out, torch.autograd.grad(out, wanted, upstream)


@given(
    st.tuples(*[st.sampled_from([1, 2, 3, 5, 7, 11])] * 6),
    st.integers(0, 2**31),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from(["number", "one", "each head"]),
    st.sampled_from(PIECES),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_values_and_gradients_are_eagers(shape, seed, mask, lam, piece, dtype):
    draw, tensors, weight = _draw(shape, seed, dtype, lam)
    mask = MASKS[mask](draw, shape[2], shape[3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "_CACHE", _of(piece))
        out, grads = _values_and_gradients(tensors, weight, mask, "chunked")
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact, exact_grads = _values_and_gradients(wide, weight, mask, "eager")
    assert out.dtype == dtype
    values, gradients = {
        torch.float64: (1e-13, 1e-12),
        torch.float32: (1e-5, 1e-4),
        torch.bfloat16: (0.05, 0.05),
    }[dtype]
    exact = exact.detach()
    assert_close(out.detach().double(), exact, rtol=0, atol=values * max(1.0, float(exact.abs().max())))
    for grad, expected in zip(grads, exact_grads, strict=True):
        assert grad.isfinite().all()
        size = max(1.0, *(float(each.abs().max()) for each in exact_grads))
        assert_close(grad.double(), expected.double(), rtol=0, atol=gradients * size)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("masked", [False, True])
def test_first_and_second_derivatives_by_finite_differences(inputs, monkeypatch, piece, masked):
    monkeypatch.setattr(chunked, "_CACHE", _of(piece))
    mask = torch.tensor([[True, False, True], [True, True, False], [False, False, False]]) if masked else None
    args = [x.requires_grad_() for x in inputs(1, 2, queries=3, keys=3, width=2, value_width=5)]
    lam = torch.tensor([0.7, 0.3], dtype=torch.float64, requires_grad=True)

    def attend(*args):
        return differential_attention(*args, mask=mask, backend="chunked")

    assert gradcheck(attend, (*args, lam))
    assert gradgradcheck(attend, (*args, lam), fast_mode=True)


@pytest.mark.parametrize("piece", PIECES)
def test_standard_attention_is_cut_by_the_same_code(inputs, monkeypatch, piece):
    monkeypatch.setattr(chunked, "_CACHE", _of(piece))
    q, k, _, _, v = (tensor.requires_grad_() for tensor in inputs())
    found, expected = (standard_attention(q, k, v, backend=name) for name in ("chunked", "eager"))
    assert_close(found, expected, rtol=0, atol=1e-14)
    for one, other in zip(
        *(torch.autograd.grad(out.cos().sum(), (q, k, v)) for out in (found, expected)), strict=True
    ):
        assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: DifferentialAttention(24, 6),
        lambda: DifferentialAttention(24, 6, parameterisation="scalar"),
        lambda: SoftmaxAttention(24, 6),
    ],
    ids=["one λ", "each head's λ", "standard"],
)
def test_parts_of_one_projection_are_cut_like_tensors_of_their_own(monkeypatch, piece, masked, make):
    monkeypatch.setattr(chunked, "_CACHE", _of(piece))
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(7, 7, 24, generator=draw, dtype=torch.float64).requires_grad_()
    mask = torch.rand(7, 1, 7, 7, generator=draw) < 0.6 if masked else None
    module = make().double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=draw)  # λ of each head another
    upstream = torch.randn(x.shape, generator=draw, dtype=torch.float64)
    found = {}
    for backend in ("chunked", "eager"):
        module.backend = backend
        out = module(x, mask)
        found[backend] = (out, *torch.autograd.grad(out, [x, *module.parameters()], upstream))
    for one, other in zip(found["chunked"], found["eager"], strict=True):
        assert_close(one, other, rtol=0, atol=1e-13)


def test_the_memory_of_a_call_is_given_back_at_once():
    """What refers in a circle waits for the garbage collector, while every call takes memory anew."""
    q, k, v = torch.ones(2, 3, 2, 5, 4), torch.ones(3, 2, 5, 4), torch.ones(3, 2, 5, 8)
    layer = chunked._Layer((q, (k, k), v), torch.tensor(0.5), None, backward=True)
    memories = [weakref.ref(memory) for _, _, within in layer.pieces() for _, memory in within]
    gc.disable()
    try:
        del layer
        assert all(memory() is None for memory in memories)
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", ["auto", "chunked", "eager", "sdpa"])
@pytest.mark.parametrize("shape", [(0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0)])
def test_nothing_attends_and_nothing_is_attended_to(backend, shape):
    batch, heads, queries, keys = shape
    q, k, v = (
        torch.ones(batch, heads, queries, 4),
        torch.ones(batch, heads, keys, 4),
        torch.ones(batch, heads, keys, 8),
    )
    lam = 0.5 if heads == 0 else torch.full((heads,), 0.5)
    found = differential_attention(q, k, q, k, v, lam, backend=backend)
    assert_close(found, torch.zeros(batch, heads, queries, 8))


def test_heads_that_are_broadcast_are_left_to_the_plain_form():
    draw = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 3, 4), (2, 2, 5, 4), (1, 1, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6)]
    args = [torch.randn(shape, generator=draw).double().requires_grad_() for shape in shapes]
    (found, gradients), (expected, others) = (
        _values_and_gradients(args, 0.8, None, backend) for backend in ("chunked", "eager")
    )
    assert found.shape == (2, 2, 3, 6)
    assert_close(found, expected)
    assert_close(gradients, others)


def test_one_branch_does_not_look_at_lambda():
    q, k, v = (torch.ones(1, 2, 3, 4, requires_grad=True) for _ in range(3))
    lam = torch.tensor(0.5, requires_grad=True)
    for backend in ("chunked", "eager", "sdpa"):
        out = attend(lambda q, k, v: ((q,), (k,), v), lam, None, backend, q, k, v)
        assert torch.autograd.grad(out.sum(), [q, lam], allow_unused=True)[1] is None


@pytest.mark.parametrize("backend", ["auto", "chunked", "eager", "sdpa"])
@pytest.mark.parametrize("wrong", ["q2", "k1", "k2", "v"])
def test_numbers_of_tokens_that_differ_are_named(backend, wrong):
    parts = {name: torch.ones(1, 1, 3 if name[0] == "q" else 5, 2) for name in ("q1", "k1", "q2", "k2", "v")}
    parts[wrong] = torch.ones(1, 1, 1, 2)
    with pytest.raises(ValueError, match=r"queries, keys and values of .* tokens: expected one number"):
        differential_attention(**parts, lam=0.5, backend=backend)


@pytest.mark.parametrize("backend", ["auto", "chunked", "eager", "sdpa"])
@pytest.mark.parametrize("wrong", ["q1", "q2", "k1", "k2"])
def test_widths_that_differ_are_named(backend, wrong):
    """A width of 1 could be broadcast in silence."""
    parts = {name: torch.ones(1, 1, 3, 4) for name in ("q1", "k1", "q2", "k2", "v")}
    parts[wrong] = torch.ones(1, 1, 3, 1)
    with pytest.raises(ValueError, match=r"queries and keys .*1.* wide: expected one width for all"):
        differential_attention(**parts, lam=0.5, backend=backend)


@pytest.mark.parametrize("together", ["queries", "keys"])
@pytest.mark.parametrize("backend", ["chunked", "eager"])
def test_branches_may_lie_in_one_tensor_or_in_several(inputs, together, backend):
    q1, k1, q2, k2, v = (tensor.requires_grad_() for tensor in inputs())

    def view(*parts):
        return (parts[0], parts[1:3], parts[3]) if together == "queries" else (parts[:2], parts[2], parts[3])

    one = torch.stack((q1, q2) if together == "queries" else (k1, k2))
    parts = (one, k1, k2, v) if together == "queries" else (q1, q2, one, v)
    found = attend(view, 0.5, None, backend, *parts)
    expected = differential_attention(q1, k1, q2, k2, v, 0.5, backend="eager")
    assert_close(found, expected, rtol=0, atol=1e-13)
    grads = [torch.autograd.grad(out.cos().sum(), (q1, k1, q2, k2, v)) for out in (found, expected)]
    for one, other in zip(*grads, strict=True):
        assert_close(one, other, rtol=0, atol=1e-12)


def test_a_compiler_sees_standard_attention_in_pieces_whole():
    torch.manual_seed(0)
    module, x = SoftmaxAttention(8, 4, backend="chunked"), torch.randn(2, 7, 8)
    assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), module(x))


def test_gradients_may_be_asked_for_in_a_batch(inputs):
    args = [tensor.requires_grad_() for tensor in inputs()]
    upstream = torch.randn(4, 2, 3, 5, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batched = [
        torch.autograd.grad(
            differential_attention(*args, 0.8, backend=name), args, upstream, is_grads_batched=True
        )
        for name in ("chunked", "eager")
    ]
    for one, other in zip(*batched, strict=True):
        assert one.shape[0] == 4
        assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [DifferentialAttention, SoftmaxAttention])
def test_nothing_as_large_as_a_map_is_kept_for_the_backward_pass(tokens, make):
    module, x = make(8, 4, backend="chunked").float(), tokens(2, 97, 8, dtype=torch.float32).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.untyped_storage().nbytes()), lambda t: t
    ):
        module(x)
    assert max(kept) == 2 * 97 * 24 * 4  # the projection to queries, keys and values; a map has 97² numbers


def test_auto_takes_pieces_unless_something_else_is_asked_for(tokens, monkeypatch):
    seen = []
    plain, real = DifferentialAttention(8, 4).double(), chunked.chunked_attention
    monkeypatch.setattr(chunked, "chunked_attention", lambda *a: (seen.append(1), real(*a))[1])

    def used(call):
        seen.clear()
        call()
        return bool(seen)

    many, few = tokens(2, 65, 8), tokens(2, 64, 8)
    assert used(lambda: plain(many))
    assert not used(lambda: plain(few))  # its maps are small enough to keep
    with torch.no_grad():
        assert used(lambda: plain(few))
        assert not used(lambda: torch.func.jvp(plain, (many,), (many,)))
        assert not used(lambda: torch.vmap(plain)(many[None]))
        with torch.autograd.forward_ad.dual_level():
            assert not used(lambda: plain(torch.autograd.forward_ad.make_dual(many, many)))
    bias = torch.zeros(65, 65, dtype=torch.float64, requires_grad=True)
    assert not used(lambda: plain(many, bias))  # a mask with a gradient
    compiled = torch.compile(plain, backend="eager")
    assert not used(lambda: compiled(many))


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
