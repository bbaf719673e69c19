"""Normalisation inside the model."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.models.preprocessing import Normalize, Normalized


def test_each_channel_is_shifted_and_scaled_by_its_own_numbers():
    images = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    out = Normalize(mean, std)(images)
    for channel in range(3):
        assert_close(out[:, channel], (images[:, channel] - mean[channel]) / std[channel])


def test_it_keeps_no_state_and_follows_the_modules_dtype():
    normalize = Normalize((0.1,), (0.5,))
    assert not normalize.state_dict()
    assert normalize.double()(torch.rand(1, 1, 2, 2).double()).dtype == torch.float64


def test_a_foreign_model_sees_normalised_images_and_gradients_are_in_pixels():
    foreign = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    model = Normalized(foreign, Normalize([0.5], [0.25]))
    images = torch.full((1, 1, 2, 2), 0.75, requires_grad=True)
    logits = model(images)
    assert_close(logits, foreign(torch.ones(1, 1, 2, 2)))
    logits[0, 1].backward()
    assert_close(images.grad.flatten(), foreign[1].weight[1].detach() / 0.25)


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5, 0.5)), ((0.5,), (0.0,)), ((0.5,), (-0.1,))])
def test_numbers_that_make_no_normalisation_are_refused(mean, std):
    with pytest.raises(ValueError, match="expected one of each per channel, std above 0"):
        Normalize(mean, std)
