"""Maps in plain operations."""

import math

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention import combine, softmax_maps

MASKS = {
    "none": None,
    "causal": torch.ones(5, 7, dtype=torch.bool).tril(),
    "nothing": torch.zeros(5, 7, dtype=torch.bool),
    "padding": torch.tensor([True] * 4 + [False] * 3).expand(2, 1, 1, 7),
    "additive": torch.linspace(-3, 3, 35, dtype=torch.float64).view(5, 7),
    "wider than the scores": torch.linspace(-3, 3, 70, dtype=torch.float64).view(2, 1, 1, 5, 7),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_with_and_without_derivatives(inputs, mask):
    q, k, *_ = inputs()
    kept = mask.clone() if mask is not None else None
    without = softmax_maps(q, k, mask)
    assert_close(without, softmax_maps(q.requires_grad_(), k, mask).detach(), rtol=0, atol=1e-15)
    if mask is not None:
        assert torch.equal(mask, kept)


def test_combining_by_hand():
    positive, negative = torch.tensor([[[0.75, 0.25]]] * 2), torch.tensor([[[0.5, 0.5]]] * 2)
    assert combine(positive, negative, 0.5).tolist() == [[[0.5, 0.0]]] * 2
    assert combine(positive, negative, torch.tensor(0.5)).tolist() == [[[0.5, 0.0]]] * 2
    maps = combine(positive, negative, torch.tensor([0.0, 1.0]))
    assert maps.tolist() == [[[0.75, 0.25]], [[0.25, -0.25]]]


def test_a_mask_with_a_gradient_gets_it_from_scores_without_one():
    bias = torch.tensor([0.0, math.log(3)], dtype=torch.float64, requires_grad=True)
    q, k = torch.zeros(1, 1).double(), torch.zeros(2, 1).double()
    (grad,) = torch.autograd.grad(softmax_maps(q, k, bias)[0, 1], bias)
    assert_close(grad, torch.tensor([-3 / 16, 3 / 16], dtype=torch.float64))
