"""The three parameterisations of λ, and its schedules."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from antiphase.attention import (
    DifferentialAttention,
    FixedLambda,
    ScalarLambda,
    VectorLambda,
    constant,
    depth_scheduled,
)
from antiphase.attention.lambdas import LambdaSizes
from antiphase.registry import LAMBDAS, find

VECTORS = {"q1": [1.0, 2.0], "k1": [0.5, -0.1], "q2": [0.0, 1.0], "k2": [7.0, -0.2]}


@pytest.fixture
def vectors():
    lam = VectorLambda(2, 0.8).double()
    with torch.no_grad():
        for name, values in VECTORS.items():
            getattr(lam, name).copy_(torch.tensor(values))
    return lam


def test_vector_lambda_by_hand(vectors):
    # exp(0.5 − 0.2) − exp(−0.2) + 0.8
    assert vectors().item() == pytest.approx(math.exp(0.3) - math.exp(-0.2) + 0.8)
    assert vectors().shape == ()


def test_vector_lambda_has_its_closed_gradients(vectors):
    vectors().backward()
    assert_close(vectors.q1.grad, math.exp(0.3) * vectors.k1.detach())
    assert_close(vectors.k1.grad, math.exp(0.3) * vectors.q1.detach())
    assert_close(vectors.q2.grad, -math.exp(-0.2) * vectors.k2.detach())
    assert_close(vectors.k2.grad, -math.exp(-0.2) * vectors.q2.detach())


def test_vectors_have_the_width_asked_for():
    assert {name: tuple(p.shape) for name, p in VectorLambda(7, 0.8).named_parameters()} == dict.fromkeys(
        ("q1", "k1", "q2", "k2"), (7,)
    )


def test_scalar_lambda_starts_at_its_initial_value_and_is_one_a_head():
    lam = ScalarLambda(3, 0.8).double()
    assert_close(lam(), torch.full((3,), 0.8).double())
    with torch.no_grad():
        lam.a[1], lam.b[2] = 0.5, 0.25
    assert_close(lam(), torch.tensor([0.8, math.exp(0.5) - 0.2, 1.8 - math.exp(0.25)]).double())
    lam()[1].backward()
    assert_close(lam.a.grad, torch.tensor([0.0, math.exp(0.5), 0.0]).double())


def test_fixed_lambda_learns_nothing_and_keeps_no_state():
    lam = FixedLambda(0.3)
    assert lam().item() == pytest.approx(0.3)
    assert not list(lam.parameters())
    assert not lam.state_dict()
    assert lam.to(torch.bfloat16)().dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("kind", "shape"), [("vector", ()), ("scalar", (3,)), ("fixed", ())], ids=["vector", "scalar", "fixed"]
)
def test_registered_lambda_has_the_shape_of_its_kind(kind, shape):
    assert find(LAMBDAS, kind, "λ")(LambdaSizes(30, 5, 3), 0.8)().shape == shape


def test_an_unknown_parameterisation_is_named():
    with pytest.raises(ValueError, match=f"of λ 'matrix': expected one of {', '.join(LAMBDAS)}"):
        DifferentialAttention(30, 6, parameterisation="matrix")


@given(st.floats(0, 1), st.integers(0, 100))
def test_constant_schedule_ignores_the_layer(lambda_init, layer):
    assert constant(lambda_init)(layer) == lambda_init


def test_the_default_is_the_papers():
    assert constant()(3) == 0.8


def test_depth_schedule_rises_from_one_fifth_towards_four_fifths():
    values = [depth_scheduled(layer) for layer in range(40)]
    assert values[0] == pytest.approx(0.2)
    assert values == sorted(values)
    assert values[-1] == pytest.approx(0.8, abs=1e-5)
    # Differential Transformer counts layers from 1: λ_init(l) = 0.8 − 0.6·exp(−0.3·(l − 1))
    assert values == pytest.approx([0.8 - 0.6 * math.exp(-0.3 * (number - 1)) for number in range(1, 41)])
