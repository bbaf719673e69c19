"""Reduced precision: autocast and modules cast to half; pytest turns every warning into an error."""

import copy

import pytest
import torch

from antiphase.attention import DifferentialAttention, SoftmaxAttention, differential_attention

HALVES = [torch.bfloat16, torch.float16]
# a few roundings, each of half a unit in the last place (2⁻⁸ and 2⁻¹¹), relative to the largest output
TOLERANCE = {torch.bfloat16: 8 * 2.0**-8, torch.float16: 8 * 2.0**-11}
VARIANTS = {
    "vector": (DifferentialAttention, {}),
    "scalar": (DifferentialAttention, {"parameterisation": "scalar"}),
    "fixed": (DifferentialAttention, {"parameterisation": "fixed"}),
    "bare": (DifferentialAttention, {"head_norm": False, "rescale": False}),
    "standard": (SoftmaxAttention, {}),
}


@pytest.fixture(params=["auto", "eager", "sdpa"])
def backend(request):
    return request.param


def _relative_error(out, exact):
    return float((out.detach().double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_autocast_stays_near_float32_and_reaches_every_parameter(tokens, redraw, backend, variant, masked, half):
    make, options = VARIANTS[variant]
    module = redraw(make(20, 4, backend=backend, **options))
    x = tokens(3, 7, 20, dtype=torch.float32)
    mask = torch.ones(7, 7, dtype=torch.bool).tril() if masked else None
    exact = module(x, mask).detach().double()
    with torch.autocast("cpu", half):
        out = module(x, mask)
        maps = module.maps(x, mask)
    assert out.dtype == half
    assert _relative_error(out, exact) < TOLERANCE[half]
    assert _relative_error(maps.combined, module.maps(x, mask).combined.detach().double()) < TOLERANCE[half]
    out.float().square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_module_cast_to_half_precision_computes_in_it(tokens, redraw, backend, variant, half):
    make, options = VARIANTS[variant]
    module = redraw(make(20, 4, backend=backend, **options))
    x = tokens(3, 7, 20, dtype=torch.float32)
    out = copy.deepcopy(module).to(half)(x.to(half))
    assert out.dtype == half
    assert _relative_error(out, module(x).detach().double()) < 2 * TOLERANCE[half]


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("lam", [0.8, torch.tensor(0.8), torch.tensor([0.2, 0.8, 1.3])], ids=str)
@pytest.mark.parametrize("mask", [None, torch.ones(5, 7, dtype=torch.bool).tril(), torch.zeros(5, 7)])
def test_backends_give_the_same_dtype_under_autocast(inputs, lam, mask, half):
    args = inputs(dtype=torch.float32)
    exact = differential_attention(*args, lam, mask=mask, backend="eager").double()
    with torch.autocast("cpu", half):
        outs = [differential_attention(*args, lam, mask=mask, backend=name) for name in ("eager", "sdpa")]
    for out in outs:
        assert out.dtype == half
        assert _relative_error(out, exact) < 2 * TOLERANCE[half]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
def test_output_has_the_dtype_of_the_values(inputs, backend, dtype):
    for lam in (0.8, torch.tensor(0.8), torch.tensor([0.2, 0.8, 1.3])):
        assert differential_attention(*inputs(dtype=dtype), lam, backend=backend).dtype == dtype
