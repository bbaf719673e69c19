"""The projector's start at the words of captions, against numpy's least squares."""

import numpy as np
import pytest
import torch

from antiphase.errors import UserError
from antiphase.vlm.model import Projector


def test_the_start_is_a_least_squares_fit_to_the_words_of_the_captions():
    torch.manual_seed(0)
    projector = Projector("linear", width=3, count=16, language_width=5, merge=2).double()
    tokens = 3 * torch.randn(20, 16, 3, dtype=torch.float64) + 5
    words = torch.randn(20, 5, dtype=torch.float64) + 1
    projector.start_at_words([(tokens[:7], words[:7]), (tokens[7:], words[7:])], norm=3.2)

    grid = tokens.numpy().reshape(20, 2, 2, 2, 2, 3)  # rows and columns of squares, and within them
    merged = grid.transpose(0, 1, 3, 2, 4, 5).reshape(80, 12)
    x = merged - merged.mean(0)
    y = np.repeat(words.numpy() - words.numpy().mean(0), 4, axis=0)
    penalty = np.sqrt(1e-3 * np.square(x).sum() / 12) * np.eye(12)
    fit = np.linalg.lstsq(np.vstack([x, penalty]), np.vstack([y, np.zeros((12, 5))]), rcond=None)[0]
    moved = x @ fit
    expected = words.numpy().mean(0) + moved * (3.2 / np.sqrt(np.square(moved).sum(1).mean()))
    np.testing.assert_allclose(projector(tokens).detach().numpy().reshape(80, 5), expected, rtol=1e-9)
    assert all(parameter.requires_grad for parameter in projector.parameters())
    assert [name for name, _ in projector.named_parameters()] == ["layers.0.weight", "layers.0.bias"]


def test_before_that_nothing_is_subtracted():
    projector = Projector("linear", width=3, count=4, language_width=5)
    tokens = torch.randn(2, 4, 3)
    assert torch.equal(projector(tokens), projector.layers(tokens))


def test_only_a_linear_projector_can_be_fitted():
    with pytest.raises(UserError, match="projector mlp2x: expected a linear one"):
        Projector("mlp2x", width=3, count=4, language_width=5).start_at_words([], 1.0)


@pytest.mark.parametrize("images", [1, 3])
def test_captions_that_are_all_alike_cannot_be_fitted(images):
    projector = Projector("linear", width=3, count=4, language_width=5)
    before = projector.layers[0].weight.clone()
    words = torch.ones(images, 5) + 1e-7 * torch.arange(images)[:, None]  # the same in another order, rounded
    with pytest.raises(UserError, match="projector-start captions: all captions have the same words"):
        projector.start_at_words([(torch.randn(images, 4, 3), words)], 1.0)
    assert torch.equal(projector.layers[0].weight, before)
